//! The state of a process that decides whether it can be dumped at all.
//!
//! Reads `stat`, `status` and the children of each thread. It must not judge.

use std::fs;
use std::io;

use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use procfs::ProcError;
use procfs::process::Process;
use serde::Serialize;

use super::descriptors::Home;

/// A process named to people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessName {
    /// Its number, in the pid namespace of the audit's `/proc`.
    pub pid: i32,
    /// Its short name, as in `ps -o comm`; empty if it has ended meanwhile.
    pub name: String,
}

/// What the kernel says of a process as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessState {
    /// The process.
    pub process: ProcessName,
    /// It is the process that runs the audit.
    pub own: bool,
    /// The leader of its session.
    pub session: i32,
    /// It has a controlling terminal.
    pub terminal: bool,
    /// Who traces it.
    pub tracer: Option<ProcessName>,
    /// Its children that live.
    pub children: Vec<ProcessName>,
    /// Its children that have ended and were not waited for.
    pub zombies: Vec<ProcessName>,
    /// Orphans below it become its children. Known of the own process only.
    pub subreaper: Option<bool>,
    /// The number of its threads.
    pub threads: u64,
}

/// Reads the state of the process at `home`.
pub(super) fn scan(home: &Home) -> io::Result<ProcessState> {
    let process = Process::new_with_root(home.folder.clone()).map_err(to_io)?;
    let stat = process.stat().map_err(to_io)?;
    let status = process.status().map_err(to_io)?;
    let (children, zombies) = if home.own && childless() { Default::default() } else { children(&process)? };
    Ok(ProcessState {
        process: ProcessName { pid: stat.pid, name: stat.comm },
        own: home.own,
        session: stat.session,
        terminal: stat.tty_nr != 0,
        tracer: (status.tracerpid != 0).then(|| tracer(status.tracerpid)),
        children,
        zombies,
        subreaper: if home.own { nix::sys::prctl::get_child_subreaper().ok() } else { None },
        threads: status.threads,
    })
}

/// The children of all threads: those that live, and those that have ended.
fn children(process: &Process) -> io::Result<(Vec<ProcessName>, Vec<ProcessName>)> {
    let (mut living, mut ended) = (Vec::new(), Vec::new());
    // A thread or a child that ends meanwhile is left out.
    for task in process.tasks().map_err(to_io)?.flatten() {
        for pid in task.children().unwrap_or_default() {
            let pid = i32::try_from(pid).unwrap_or_default();
            match Process::new(pid).and_then(|child| child.stat()) {
                Ok(child) if child.state == 'Z' => ended.push(ProcessName { pid, name: child.comm }),
                Ok(child) => living.push(ProcessName { pid, name: child.comm }),
                Err(_) => {}
            }
        }
    }
    Ok((living, ended))
}

/// Whether the calling process is sure to have no child. One call, where the list costs some for each thread;
/// nothing is reaped by it.
fn childless() -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT | WaitPidFlag::__WALL;
    waitid(Id::All, flags) == Err(Errno::ECHILD)
}

/// The process of a tracing thread: `TracerPid` is the number of a thread.
fn tracer(thread: i32) -> ProcessName {
    let status = Process::new(thread).and_then(|process| process.status());
    ProcessName::of(status.map_or(thread, |status| status.tgid))
}

impl ProcessName {
    /// Looks the name up.
    pub(super) fn of(pid: i32) -> Self {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        Self { pid, name: name.trim_end().to_owned() }
    }
}

impl std::fmt::Display for ProcessName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = if self.name.is_empty() { "a process" } else { &self.name };
        write!(f, "{name} (pid {})", self.pid)
    }
}

fn to_io(error: ProcError) -> io::Error {
    match error {
        ProcError::NotFound(_) => io::ErrorKind::NotFound.into(),
        ProcError::PermissionDenied(_) => io::ErrorKind::PermissionDenied.into(),
        ProcError::Io(error, _) => error,
        other => io::Error::new(io::ErrorKind::InvalidData, other.to_string()),
    }
}
