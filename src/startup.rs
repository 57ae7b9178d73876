//! The start-up rules: what a process must do first thing in `main` so that a plain `criu restore -D DIR` will
//! bring it back.
//!
//! It must not know what the server does; it acts before any of it exists.

use std::io;
use std::os::fd::RawFd;

use nix::unistd::Pid;
use rustix::fs::{FileType, OFlags};

use crate::checkpoint::inherited;
use crate::engine::helper;
use crate::supervise;
use crate::sys::descriptors;

/// Applies every start-up rule: see [`Init`] for each, and for how to leave one out.
///
/// Call it first thing in `main`, before threads, files or a runtime:
///
/// ```no_run
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     defrost::init()?;
///     // the server
///     Ok(())
/// }
/// ```
///
/// # Errors
/// See [`InitError`]. Nothing that the server needs has been changed then.
pub fn init() -> Result<(), InitError> {
    Init::new().run()
}

/// The start-up rules, each of which can be left out.
///
/// Beside them, and always, this program becomes able to be its own *helper*: when a checkpoint starts it for
/// that, `run` does that work and never returns.
#[derive(Debug, Clone)]
pub struct Init {
    own_session: bool,
    close_inherited: bool,
    append_logs: bool,
}

impl Default for Init {
    fn default() -> Self {
        Self::new()
    }
}

impl Init {
    /// All rules.
    #[must_use]
    pub fn new() -> Self {
        Self { own_session: true, close_inherited: true, append_logs: true }
    }

    /// Leaves the session alone. Otherwise the process gets one of its own, without a terminal, which CRIU asks
    /// of the root of a dump.
    ///
    /// A process group's leader cannot change its session, so it forks: the server runs in the child, and the
    /// parent stays as its supervisor, forwards signals and exits with its status. The same is done where there
    /// is a terminal, so that Ctrl-C still arrives, and as process 1 of a container or a child of it, so that the
    /// container outlives a checkpoint until the image is complete and whoever asked for it knows. `getppid`, `$!`
    /// and the like then name the supervisor.
    #[must_use]
    pub fn keep_session(mut self) -> Self {
        self.own_session = false;
        self
    }

    /// Leaves inherited descriptors open. Otherwise those from 3 upwards are closed, except the ones that
    /// `LISTEN_FDS` of sd_listen_fds(3) announces.
    #[must_use]
    pub fn keep_inherited(mut self) -> Self {
        self.close_inherited = false;
        self
    }

    /// Leaves standard output and error as they are. Otherwise, where one is a regular file, it is made
    /// append-only: only such a file may have grown at restore.
    #[must_use]
    pub fn keep_logs(mut self) -> Self {
        self.append_logs = false;
        self
    }

    /// Applies the rules.
    ///
    /// # Errors
    /// See [`InitError`].
    pub fn run(self) -> Result<(), InitError> {
        helper::work::take_part();
        helper::start::own_executable_can_help();
        let announced = announced_sockets();
        if self.own_session {
            own_session(announced).map_err(InitError::Session)?;
        }
        if self.close_inherited {
            let spared = announced.map(|count| 3..=2 + count);
            descriptors::close_inherited(spared).map_err(InitError::Descriptors)?;
        }
        inherited::remember(open_descriptors().map_err(InitError::Descriptors)?);
        if self.append_logs {
            for number in [1, 2] {
                append_only(number).map_err(InitError::Logs)?;
            }
        }
        Ok(())
    }
}

/// A start-up rule that could not be applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// No session of its own.
    #[error("the process got no session of its own: {0}")]
    Session(#[source] io::Error),
    /// Inherited descriptors are still open.
    #[error("inherited descriptors could not be closed: {0}")]
    Descriptors(#[source] io::Error),
    /// Standard output or error is not append-only.
    #[error("standard output or error could not be opened append-only: {0}")]
    Logs(#[source] io::Error),
}

impl InitError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Session(_) => "call defrost::init first thing in main, before any thread is started",
            Self::Descriptors(_) => "needs close_range(2), Linux 5.9, and /proc",
            Self::Logs(_) => "give the server the right to write its log, or leave the rule out by keep_logs",
        }
    }
}

/// What has to be done for a session of its own.
#[derive(Debug, PartialEq, Eq)]
enum Session {
    Owned,
    Leave,
    ForkAndLeave,
}

fn plan(pid: Pid, group: Pid, session: Pid, has_terminal: bool) -> Session {
    // A pid this low is one of a container's first processes, and clashes with CRIU's own at restore.
    if pid.as_raw() < supervise::run::LOWEST_PID || has_terminal {
        Session::ForkAndLeave
    } else if session == pid {
        Session::Owned
    } else if group == pid {
        Session::ForkAndLeave
    } else {
        Session::Leave
    }
}

fn own_session(announced: Option<RawFd>) -> io::Result<()> {
    let session = nix::unistd::getsid(None)?;
    let has_terminal = procfs::process::Process::myself()
        .and_then(|process| process.stat())
        .map_err(io::Error::other)?
        .tty_nr
        != 0;
    match plan(nix::unistd::getpid(), nix::unistd::getpgrp(), session, has_terminal) {
        Session::Owned => {}
        Session::Leave => {
            nix::unistd::setsid()?;
        }
        Session::ForkAndLeave => {
            supervise::fork::into_supervised_child()?;
            nix::unistd::setsid()?;
            if announced.is_some() {
                crate::sys::process::set_variable("LISTEN_PID", &std::process::id().to_string())?;
            }
        }
    }
    Ok(())
}

/// How many sockets sd_listen_fds(3) announces to this process, from descriptor 3 on.
fn announced_sockets() -> Option<RawFd> {
    let number = |name| std::env::var(name).ok()?.parse::<i32>().ok();
    let for_us = number("LISTEN_PID")? == std::process::id().cast_signed();
    number("LISTEN_FDS").filter(|count| for_us && (1..=1024).contains(count))
}

/// The descriptors from 3 upwards, with their targets.
fn open_descriptors() -> io::Result<Vec<(RawFd, String)>> {
    let mut open = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let number = entry.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok());
        // The one that lists the folder shows up, and its target is this very folder.
        if let (Some(number @ 3..), Ok(target)) = (number, std::fs::read_link(entry.path())) {
            let target = target.to_string_lossy().into_owned();
            if !target.ends_with("/fd") || !target.starts_with("/proc/") {
                open.push((number, target));
            }
        }
    }
    Ok(open)
}

/// Makes standard descriptor `number` append-only if it is a regular file. Others may share its description, the
/// shell that redirected it above all: they append from then on too, so that nobody writes over another's lines.
fn append_only(number: RawFd) -> io::Result<()> {
    let Some(copy) = descriptors::copy_of_standard(number) else { return Ok(()) };
    let regular = FileType::from_raw_mode(rustix::fs::fstat(&copy)?.st_mode) == FileType::RegularFile;
    let flags = rustix::fs::fcntl_getfl(&copy)?;
    let access = flags & OFlags::ACCMODE;
    if !regular || access == OFlags::RDONLY {
        return Ok(());
    }
    rustix::fs::fcntl_setfl(&copy, flags | OFlags::APPEND)?;
    if access == OFlags::WRONLY {
        return Ok(());
    }
    // CRIU checks the size of a file that can also be read, so it has to be opened anew.
    let path = format!("/proc/self/fd/{number}");
    let again = rustix::fs::open(path, OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC, 0.into())?;
    descriptors::replace_standard(number, again)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_left_only_where_there_is_one_to_leave() {
        let pid = Pid::from_raw;
        let cases = [
            // (group, session, terminal), for process 1000
            ((1000, 1000, false), Session::Owned),
            ((1000, 1000, true), Session::ForkAndLeave),
            ((1000, 500, false), Session::ForkAndLeave),
            ((1000, 500, true), Session::ForkAndLeave),
            ((600, 500, false), Session::Leave),
            ((600, 500, true), Session::ForkAndLeave),
        ];
        for ((group, session, terminal), expected) in cases {
            assert_eq!(
                plan(pid(1000), pid(group), pid(session), terminal),
                expected,
                "{group} {session} {terminal}"
            );
        }
        assert_eq!(plan(pid(1), pid(1), pid(1), false), Session::ForkAndLeave);
        assert_eq!(plan(pid(7), pid(1), pid(1), false), Session::ForkAndLeave, "a child of process 1");
    }
}
