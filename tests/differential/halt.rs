//! Processes that are restored and halted before their first instruction.
//!
//! CRIU offers that as `--leave-stopped`. The instant engine's process is traced from its start: each of its threads
//! is held where it returns from rt_sigreturn(2), the last system call of a restore, which is also where CRIU holds
//! its own. Then it is stopped by a signal, and left to itself. Nothing of it has run, so nothing has changed.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::play::VARIABLE;
use crate::support::host::Done;
use crate::support::process::{Running, state};
use crate::support::{Host, PATIENCE, until, within};

/// What is said when the number of a thread is taken: by a program elsewhere on this host, or still by the thread
/// that was dumped. The kernel frees it when the thread next runs after its process was reaped (release_task in
/// kernel/exit.c), which can take a while with SCHED_IDLE.
const TAKEN: [&str; 3] = ["File exists", "Unable to create a thread: -17", " held by "];

/// A process in which nothing has happened since the dump. It ends when it is dropped.
#[derive(Debug)]
pub struct Halted {
    pub pid: i32,
}

impl Halted {
    /// Restores by CRIU.
    #[track_caller]
    pub fn by_criu(host: &Host, image: &Path, pid: i32) -> Self {
        let mut command = Command::new(&host.criu);
        command.args(["restore", "--restore-detached", "--leave-stopped", "-v4", "-o", "restore.log"]);
        command.arg("-D").arg(image).arg("-W").arg(host.folder());
        let halted = Self { pid };
        let mut command = host.at_home(command);
        let mut done = Done::of(&mut command);
        let taken = || TAKEN.iter().any(|error| errors(&host.path("restore.log")).contains(error));
        within(PATIENCE, || {
            let again = done.status != 0 && taken();
            if again {
                // CRIU leaves what it had made so far to us.
                halted.is_gone();
                done = Done::of(&mut command);
            }
            !again
        });
        assert_eq!(done.status, 0, "{}", errors(&host.path("restore.log")));
        halted.settle();
        halted
    }

    /// Restores by the instant engine; or what that says against it.
    #[track_caller]
    pub fn by_instant(host: &Host, image: &Path, pid: i32, memory: &str) -> Result<Self, String> {
        let mut done = Err(TAKEN[0].to_owned());
        within(PATIENCE, || {
            done = Self::traced(host, image, pid, memory);
            !done.as_ref().is_err_and(|said| TAKEN.iter().any(|error| said.contains(error)))
        });
        done
    }

    #[track_caller]
    fn traced(host: &Host, image: &Path, pid: i32, memory: &str) -> Result<Self, String> {
        let restore = host.defrost([
            "restore".as_ref(),
            image.as_os_str(),
            "--engine".as_ref(),
            "instant".as_ref(),
            "--memory".as_ref(),
            memory.as_ref(),
            "--detach".as_ref(),
        ]);
        // It waits for its tracer. Its own limit of descriptors is low, as it is under most shells.
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "ulimit -Sn 256; kill -STOP $$; exec \"$@\"", "sh"]).arg(restore.get_program());
        command.args(restore.get_args());
        let mut command = host.at_home(command);
        command.stdout(Stdio::null()).stderr(fs::File::create(host.path("restore.err")).unwrap());
        let starter = Running::start(&mut command);
        until("the start of a traced restore", || state(starter.pid()) == Some('T'));
        let halted = Self { pid };
        let refusal = || fs::read_to_string(host.path("restore.err")).unwrap();
        if !(Tracing { starter: starter.pid(), pid, held: HashSet::new() }).run() {
            // There is no such process.
            std::mem::forget(halted);
            return Err(refusal());
        }
        halted.settle();
        Ok(halted)
    }

    /// Reaps it if it has ended; whether it is gone. Its number may be another program's by then.
    fn is_gone(&self) -> bool {
        let _ = waitpid(Pid::from_raw(self.pid), Some(WaitPidFlag::WNOHANG));
        let environment = fs::read(format!("/proc/{}/environ", self.pid)).unwrap_or_default();
        !environment.windows(VARIABLE.len()).any(|window| window == VARIABLE.as_bytes())
            && state(self.pid) != Some('Z')
    }

    /// Waits until all threads have stopped, and all memory is there: while pages are filled in from outside, mappings
    /// have a mark (`um` in /proc/PID/smaps).
    #[track_caller]
    fn settle(&self) {
        until("the halt of the restored process", || {
            tids(self.pid).iter().all(|tid| state_of_thread(self.pid, *tid) == Some('T'))
        });
        until("all memory of the restored process", || {
            let maps = fs::read_to_string(format!("/proc/{}/smaps", self.pid)).unwrap();
            !maps.lines().any(|line| line.starts_with("VmFlags:") && line.contains(" um"))
        });
    }

    /// Dumps it once more, and leaves it halted.
    #[track_caller]
    pub fn dump(&self, host: &Host, into: &Path) {
        fs::create_dir(into).unwrap();
        let mut command = Command::new(&host.criu);
        command.args(["dump", "--leave-stopped", "-v4", "-o", "dump.log", "-t", &self.pid.to_string(), "-D"]);
        let done = Done::of(host.at_home(command).arg(into));
        assert_eq!(done.status, 0, "{}", errors(&into.join("dump.log")));
    }

    /// Lets it go on to its end.
    #[track_caller]
    pub fn go_on(self) {
        kill(Pid::from_raw(self.pid), Signal::SIGCONT).unwrap();
        let mut last = None;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            match waitpid(Pid::from_raw(self.pid), Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(_, status)) => return assert_eq!(status, 0, "the subject's status"),
                Ok(WaitStatus::Signaled(_, signal, _)) => panic!("the subject was ended by {signal}"),
                Ok(WaitStatus::StillAlive) => {}
                other => last = Some(other),
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("the subject did not end within {PATIENCE:?}: {last:?}");
    }
}

impl Drop for Halted {
    fn drop(&mut self) {
        // A half-made one has no environment yet, and is ended by what restores it.
        within(PATIENCE, || {
            let gone = self.is_gone();
            if !gone {
                let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
            }
            gone
        });
    }
}

/// `defrost restore` under ptrace(2), with all that it starts.
struct Tracing {
    starter: i32,
    /// The process to be halted.
    pid: i32,
    /// Its threads that have arrived.
    held: HashSet<i32>,
}

impl Tracing {
    /// Whether the process has come to be, halted. Nothing is traced any more.
    #[track_caller]
    fn run(mut self) -> bool {
        let starter = Pid::from_raw(self.starter);
        let options = Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEEXEC
            | Options::PTRACE_O_EXITKILL;
        ptrace::seize(starter, options).unwrap();
        kill(starter, Signal::SIGCONT).unwrap();
        let deadline = Instant::now() + PATIENCE;
        let mut ended = false;
        // Both: what restores has to end, so that the process is nobody's child but ours.
        while !(ended && (self.is_complete() || state(self.pid).is_none())) {
            assert!(Instant::now() < deadline, "a traced restore is not done within {PATIENCE:?}");
            match waitpid(None, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL)) {
                Ok(WaitStatus::StillAlive) => std::thread::sleep(Duration::from_micros(100)),
                Ok(status) => {
                    let gone = matches!(status, WaitStatus::Exited(..) | WaitStatus::Signaled(..));
                    ended |= gone && status.pid() == Some(starter);
                    self.step(status);
                }
                Err(error) => panic!("waitpid: {error}"),
            }
        }
        if !self.is_complete() {
            return false;
        }
        // It waits for each of them on its way out, before it is back in its program.
        kill(Pid::from_raw(self.pid), Signal::SIGSTOP).unwrap();
        for tid in &self.held {
            ptrace::detach(Pid::from_raw(*tid), None).unwrap();
        }
        true
    }

    fn is_complete(&self) -> bool {
        !self.held.is_empty() && tids(self.pid).iter().all(|tid| self.held.contains(tid))
    }

    /// Lets one thread go on to its next system call, unless it has arrived. What else is started is left alone.
    fn step(&mut self, status: WaitStatus) {
        let Some(tid) = status.pid() else { return };
        let begins = matches!(status, WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_STOP));
        if begins && tid.as_raw() != self.starter && !self.has(tid) {
            let _ = ptrace::detach(tid, None);
            return;
        }
        let signal = match status {
            WaitStatus::PtraceSyscall(_) if self.has_returned(tid) => {
                self.held.insert(tid.as_raw());
                return;
            }
            WaitStatus::PtraceSyscall(_) | WaitStatus::PtraceEvent(..) => None,
            WaitStatus::Stopped(_, signal) => Some(signal),
            _ => return,
        };
        // A thread may have been killed meanwhile.
        let _ = if self.has(tid) { ptrace::syscall(tid, signal) } else { ptrace::cont(tid, signal) };
    }

    /// Whether a thread is one of the process to be halted.
    fn has(&self, tid: Pid) -> bool {
        Path::new(&format!("/proc/{}/task/{tid}", self.pid)).exists()
    }

    /// Whether a thread has just come back from rt_sigreturn(2), after which no system call is on record.
    fn has_returned(&self, tid: Pid) -> bool {
        self.has(tid) && ptrace::getregs(tid).is_ok_and(|registers| registers.orig_rax == u64::MAX)
    }
}

/// The threads of a process.
fn tids(pid: i32) -> Vec<i32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

fn state_of_thread(pid: i32, tid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// The lines of a log of CRIU's that say why.
fn errors(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("Error")).collect();
    format!("{}: {}", log.display(), lines.join("\n"))
}
