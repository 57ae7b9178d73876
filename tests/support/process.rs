//! Processes of a test: found, signalled and ended by pid.

use std::fs;
use std::process::{Child, Command, ExitStatus};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{PATIENCE, until, within};

/// A child that is killed and reaped when its test is done with it.
pub struct Running {
    child: Child,
}

impl Running {
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child }
    }

    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap();
    }

    /// Starts one under this pid, which is free or about to be: an orphan may be reaped late. Other programs start
    /// processes too, so it may take some attempts.
    #[track_caller]
    pub fn start_as(pid: i32, command: &mut Command) -> Self {
        // What the kernel gave out last: it tries the next one up first.
        let counter = "/proc/sys/kernel/ns_last_pid";
        let last = fs::read_to_string(counter).unwrap();
        let mut started = None;
        let attempt = || {
            fs::write(counter, (pid - 1).to_string()).unwrap();
            let running = Self::start(command);
            // The numbers after it may be needed too, by the threads of a server.
            fs::write(counter, &last).unwrap();
            started = Some(running).filter(|running| running.pid() == pid);
            started.is_some()
        };
        until("a process of that pid", attempt);
        started.unwrap()
    }

    /// Its status, if it has ended.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Its status, once it has ended by itself.
    #[track_caller]
    pub fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        let over = within(PATIENCE, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert!(over, "process {} did not end within {PATIENCE:?}", self.pid());
        status.unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a process lives: there, and no zombie.
pub fn lives(pid: i32) -> bool {
    state(pid).is_some_and(|state| state != 'Z')
}

/// The state letter of proc_pid_stat(5).
pub fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// The parent of a process.
pub fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// The living processes whose parent this is.
pub fn children(pid: i32) -> Vec<i32> {
    let all = fs::read_dir("/proc").unwrap();
    let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|child| parent(*child) == Some(pid) && lives(*child)).collect()
}

/// Kills a process that is no child of the test's, and waits until even its zombie is gone: it would hold the
/// pid that the next restore needs.
#[track_caller]
pub fn end(pid: i32) {
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    gone(pid);
}

/// Waits until a process is gone, and its zombie too.
#[track_caller]
pub fn gone(pid: i32) {
    until(&format!("the end of process {pid}"), || state(pid).is_none());
}
