//! The runner's side: subjects that are started, checkpointed and restored, and never outlive their test.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use defrost::control::{Answer, Client, ClientError};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use super::diary::Diary;
use super::role::{DIARY, Facts, SOCKET, VARIABLE};
use crate::support::client::answers_within;
use crate::support::host::Done;
use crate::support::process::{Running, children, state};
use crate::support::{Host, PATIENCE, until, within};

/// How often a plain restore is tried on a host where others take numbers of the image's.
const ATTEMPTS: usize = 20;
/// How soon a server must serve again after a checkpoint that failed.
pub const SOON: Duration = Duration::from_secs(1);

/// A test's host, and the end of everything that the test has started.
pub struct Stage {
    pub host: Host,
    pub diary: Diary,
}

impl Stage {
    /// `None` where the host cannot run such tests.
    pub fn for_test(name: &str) -> Option<Self> {
        let host = Host::for_test(name)?;
        let diary = Diary(host.path(DIARY));
        Some(Self { host, diary })
    }

    /// The command that starts a subject, whose options are `NAME=VALUE`.
    pub fn command(&self, program: &str, options: &[&str]) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        self.prepare(command.args(options), program);
        command
    }

    /// The same under `defrost run`.
    pub fn supervised_command(&self, program: &str, options: &[&str]) -> Command {
        let own = std::env::current_exe().unwrap();
        let mut command = self.host.defrost(["run", "--"]);
        self.prepare(command.arg(own).args(options), program);
        command
    }

    fn prepare(&self, command: &mut Command, program: &str) {
        command
            .env(VARIABLE, program)
            .env("XDG_RUNTIME_DIR", self.host.folder())
            .env("DEFROST_CRIU", &self.host.criu);
        command.current_dir(self.host.folder());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    }

    /// Starts a subject and waits until it serves.
    #[track_caller]
    pub fn start(&self, program: &str, options: &[&str]) -> Actor {
        self.started(&mut self.command(program, options))
    }

    /// As [`Stage::start`], for a command made here.
    #[track_caller]
    pub fn started(&self, command: &mut Command) -> Actor {
        let before = self.diary.texts("started").len();
        let process = Running::start(command);
        let pid = self.diary.read("started", before + 1).parse().unwrap();
        let port = self.diary.read("listening", before + 1).parse().unwrap();
        Actor { process, pid, port, socket: self.host.path(SOCKET) }
    }

    /// Restores by plain `criu restore`, and waits until the `number`th wake of the diary.
    ///
    /// Again, if a number of the image's is somebody else's for a moment, as happens on a busy host.
    #[track_caller]
    pub fn revive(&self, image: &Image, number: usize) -> (Revived, Facts) {
        for _ in 0..ATTEMPTS {
            let mut criu = self.host.plain_restore(&image.path);
            until("a restore, or its failure", || {
                self.diary.texts("restored").len() >= number || criu.has_ended().is_some()
            });
            if self.diary.texts("restored").len() >= number {
                let revived = Revived { pid: image.pid, restorer: criu };
                return (revived, self.facts(number));
            }
            let said = self.host.said_by_criu();
            assert!(said.contains("File exists"), "the restore failed: {said}");
        }
        panic!("numbers of the image were taken {ATTEMPTS} times");
    }

    /// Restores by `defrost restore` in the foreground, and waits until the `number`th wake of the diary.
    #[track_caller]
    pub fn restore(&self, image: &Image, more: &[&str], number: usize) -> (Revived, Facts) {
        let restorer = Running::start(self.restoring(image, more).stdout(Stdio::null()));
        let revived = Revived { pid: image.pid, restorer };
        (revived, self.facts(number))
    }

    /// `defrost restore` to its end, in which the subject must be gone.
    #[track_caller]
    pub fn restore_fails(&self, image: &Image, more: &[&str]) -> String {
        let text = Done::of(&mut self.restoring(image, more)).failed(1);
        assert_eq!(state(image.pid), None, "the restored process must be gone: {text}");
        text
    }

    pub fn restoring(&self, image: &Image, more: &[&str]) -> Command {
        self.host.defrost(["restore", image.path.to_str().unwrap()].iter().chain(more))
    }

    /// Checkpoints a restored process, which ends it.
    #[track_caller]
    pub fn again(&self, mut revived: Revived, port: u16, image: &str) -> Image {
        let line = format!("checkpoint {image}");
        let answer =
            request(&self.host.path(SOCKET), &line).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert!(answer.ok, "{answer:?}");
        assert_eq!(revived.restorer.ended().code(), Some(0), "ended by intent");
        gone(revived.pid);
        Image { path: self.host.path(image), pid: revived.pid, port }
    }

    /// What the `number`th restored process wrote.
    #[track_caller]
    pub fn facts(&self, number: usize) -> Facts {
        serde_json::from_str(&self.diary.read("restored", number)).unwrap()
    }

    /// What lies in the folder under names of unfinished checkpoints.
    pub fn partials(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.host.folder()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        names.filter(|name| name.contains("partial")).collect()
    }
}

impl Drop for Stage {
    /// Ends whatever the test's processes have left behind: all of it falls to this process.
    fn drop(&mut self) {
        within(PATIENCE, || {
            for pid in children(std::process::id().cast_signed()) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            alone_within(Duration::ZERO)
        });
    }
}

/// Whether all processes that a test has started, and those that fell to this one, have ended within this time.
pub fn alone_within(limit: Duration) -> bool {
    within(limit, || {
        while waitpid(None, Some(WaitPidFlag::WNOHANG)).is_ok_and(|status| status.pid().is_some()) {}
        children(std::process::id().cast_signed()).is_empty()
    })
}

/// Waits until a process is gone, and its zombie too, which may have fallen to this process.
#[track_caller]
pub fn gone(pid: i32) {
    until(&format!("the end of process {pid}"), || {
        let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
        state(pid).is_none()
    });
}

/// A subject that runs.
pub struct Actor {
    /// What was started: the subject, or its supervisor.
    pub process: Running,
    pub pid: i32,
    pub port: u16,
    socket: PathBuf,
}

impl Actor {
    /// One request at the control socket.
    #[track_caller]
    pub fn ask(&self, line: &str) -> Answer {
        request(&self.socket, line).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// The same meanwhile. The subject may end before it answers.
    pub fn ask_aside(&self, line: String) -> JoinHandle<Result<Answer, ClientError>> {
        let socket = self.socket.clone();
        std::thread::spawn(move || request(&socket, &line))
    }

    /// Checkpoints it, which ends it, and reaps it.
    #[track_caller]
    pub fn checkpoint(mut self, stage: &Stage, image: &str) -> Image {
        let answer = self.ask(&format!("checkpoint {image}"));
        assert!(answer.ok && answer.text.contains("is complete"), "{answer:?}");
        self.process.ended();
        gone(self.pid);
        Image { path: stage.host.path(image), pid: self.pid, port: self.port }
    }

    /// Checkpoints it and lets it go on.
    #[track_caller]
    pub fn checkpoint_running(&self, stage: &Stage, image: &str) -> Image {
        let answer = self.ask(&format!("checkpoint {image} leave-running"));
        assert!(answer.ok && answer.text.contains("the server goes on"), "{answer:?}");
        self.serves_soon();
        Image { path: stage.host.path(image), pid: self.pid, port: self.port }
    }

    #[track_caller]
    pub fn serves_soon(&self) {
        assert!(answers_within(self.port, SOON), "no answer within {SOON:?}");
    }

    /// Asks it to stop, and returns how what was started here ended.
    #[track_caller]
    pub fn stop(mut self) -> ExitStatus {
        kill(Pid::from_raw(self.pid), Signal::SIGTERM).unwrap();
        let status = self.process.ended();
        gone(self.pid);
        status
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        if self.pid != self.process.pid() && ours(self.pid) {
            let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
        }
    }
}

fn request(socket: &Path, line: &str) -> Result<Answer, ClientError> {
    Client::connect(socket, PATIENCE)?.request(line.as_bytes(), PATIENCE)
}

/// Whether a process is still a subject: its pid may be another's by now.
fn ours(pid: i32) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.windows(VARIABLE.len()).any(|window| window == VARIABLE.as_bytes())
}

/// A complete image of a subject.
#[derive(Clone, Debug)]
pub struct Image {
    pub path: PathBuf,
    pub pid: i32,
    pub port: u16,
}

/// A restored subject and what restored it. Dropping it ends both, so that the pid is free again.
pub struct Revived {
    pub pid: i32,
    pub restorer: Running,
}

impl Revived {
    #[track_caller]
    pub fn end(self) {
        let pid = self.pid;
        drop(self);
        gone(pid);
    }
}

impl Drop for Revived {
    fn drop(&mut self) {
        // The restorer has to reap it, and ends by itself then.
        if ours(self.pid) {
            let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
        }
        within(PATIENCE, || self.restorer.child().try_wait().is_ok_and(|status| status.is_some()));
    }
}
