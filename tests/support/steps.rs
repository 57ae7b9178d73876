//! A command followed with all its children, from system call to system call, so that it can be disturbed at the
//! same points whatever else the host does.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};

use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::leftovers::Leftovers;
use super::{Host, PATIENCE};

/// The number of rt_sigreturn(2) on x86-64.
pub const SIGRETURN: u64 = 15;

/// A process that stands before or after a system call.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    /// Its pid, or the tid of one of its threads.
    pub pid: i32,
    /// The number of the call.
    pub call: u64,
}

/// What is done at a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// On to the next one.
    Step,
    /// This process is killed, and all others run on.
    Kill(i32),
    /// This one stays where it is, and all others run on.
    Hold,
}

/// How all the processes of a command have ended.
pub struct Ended {
    /// The command's own pid.
    pub pid: i32,
    /// By pid.
    pub all: BTreeMap<i32, WaitStatus>,
    /// Whether the end had to be forced: something had been hanging.
    pub late: bool,
}

impl Ended {
    /// The exit status of the command, or 128 and the signal that has ended it.
    pub fn status(&self) -> i32 {
        match self.all.get(&self.pid) {
            Some(WaitStatus::Exited(_, status)) => *status,
            Some(WaitStatus::Signaled(_, signal, _)) => 128 + *signal as i32,
            other => panic!("the command ended with {other:?}"),
        }
    }
}

/// Runs a command of this host until nothing of it is left, which includes what falls to this process because its
/// parent has ended. `at` is asked at each stop, until it answers by anything but [`Next::Step`].
///
/// This process must have no other children.
pub fn follow(host: &Host, command: &Command, mut at: impl FnMut(Stop) -> Next) -> Ended {
    nix::sys::prctl::set_child_subreaper(true).unwrap();
    let first = start(command);
    let folder = host.folder().to_owned();
    let (done, waiting) = channel::<()>();
    let watch = std::thread::spawn(move || {
        let late = waiting.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout);
        if late {
            drop(Leftovers::of(&folder));
        }
        late
    });
    let mut all = BTreeMap::new();
    let mut free = false;
    while let Ok(status) = waitpid(None, Some(WaitPidFlag::__WALL)) {
        // A process that was killed meanwhile cannot be told anything, and its end is heard of next.
        let _ = match status {
            WaitStatus::PtraceSyscall(pid) if !free => {
                let call = ptrace::getregs(pid).map_or(u64::MAX, |registers| registers.orig_rax);
                match at(Stop { pid: pid.as_raw(), call }) {
                    Next::Step => ptrace::syscall(pid, None),
                    Next::Hold => {
                        free = true;
                        Ok(())
                    }
                    Next::Kill(victim) => {
                        free = true;
                        let _ = kill(Pid::from_raw(victim), Signal::SIGKILL);
                        ptrace::cont(pid, None)
                    }
                }
            }
            WaitStatus::PtraceSyscall(pid) | WaitStatus::PtraceEvent(pid, ..) => go_on(pid, None, free),
            WaitStatus::Stopped(pid, signal) => go_on(pid, Some(signal), free),
            WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..) => {
                all.insert(pid.as_raw(), status);
                Ok(())
            }
            _ => Ok(()),
        };
    }
    drop(done);
    Ended { pid: first, all, late: watch.join().unwrap() }
}

fn go_on(pid: Pid, signal: Option<Signal>, free: bool) -> nix::Result<()> {
    if free { ptrace::cont(pid, signal) } else { ptrace::syscall(pid, signal) }
}

/// Starts the command by a shell, which waits until it is followed.
#[expect(clippy::zombie_processes, reason = "it is reaped with all the others")]
fn start(command: &Command) -> i32 {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "read go && exec \"$@\" </dev/null", "sh"]).arg(command.get_program());
    shell.args(command.get_args()).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    shell.current_dir(command.get_current_dir().unwrap());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let mut child = shell.spawn().unwrap();
    let pid = Pid::from_raw(child.id().cast_signed());
    let all = Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEEXEC;
    ptrace::seize(pid, all).unwrap();
    ptrace::interrupt(pid).unwrap();
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    pid.as_raw()
}
