//! Who holds a process or thread number on this host.
//!
//! Looks only. This module must not know why it is asked.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use procfs::process::{Process, Stat};
use procfs::{CurrentSI, KernelStats};

/// Longest command line that is shown, in characters.
const COMMAND_LIMIT: usize = 200;

/// The holder of a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    /// The process; another number if a thread of it was asked for.
    pub(super) pid: u32,
    /// Its command line, shortened; its short name in brackets if it has none.
    pub(super) command: String,
    /// Its program, where we may see it.
    pub(super) exe: Option<PathBuf>,
    /// Whether it is dead and only waits for its parent.
    pub(super) zombie: bool,
    /// Its parent.
    pub(super) parent: u32,
    /// When it started, by the wall clock, to the tick of 10 ms.
    pub(super) started: Option<SystemTime>,
}

/// Whether a process, a thread or a zombie has this number in our PID namespace.
pub(super) fn exists(number: u32) -> bool {
    answers(i32::try_from(number).unwrap_or(0))
}

/// Whether a process group has this number, be its leader alive or not.
pub(super) fn is_group(number: u32) -> bool {
    // kill(-1) would mean everybody.
    number > 1 && answers(i32::try_from(number).map_or(0, |number| -number))
}

/// kill(2) with signal 0 finds threads and zombies too, and EPERM proves that there is somebody.
fn answers(target: i32) -> bool {
    target != 0 && !matches!(kill(Pid::from_raw(target), None), Err(Errno::ESRCH | Errno::EINVAL))
}

/// When this process started, by the wall clock.
pub(super) fn started(pid: u32) -> Option<SystemTime> {
    start_of(&open(pid)?.stat().ok()?)
}

/// Who has this process or thread number; none if nobody has, or it ended meanwhile.
pub(super) fn holder(number: u32) -> Option<Holder> {
    // /proc answers for thread ids too, though it does not list them.
    let pid = u32::try_from(open(number)?.status().ok()?.tgid).ok()?;
    let process = open(pid)?;
    let stat = process.stat().ok()?;
    Some(Holder {
        pid,
        command: command(&process, &stat),
        exe: process.exe().ok(),
        zombie: matches!(stat.state, 'Z' | 'X'),
        parent: u32::try_from(stat.ppid).unwrap_or(0),
        started: start_of(&stat),
    })
}

/// A process of this session other than its leader; none if nobody is left in it.
pub(super) fn of_session(session: u32) -> Option<Holder> {
    let session = i32::try_from(session).ok()?;
    let members = procfs::process::all_processes().ok()?.flatten().filter_map(|process| process.stat().ok());
    let mut members = members.filter(|stat| stat.session == session && stat.pid != session);
    members.find_map(|stat| holder(u32::try_from(stat.pid).ok()?))
}

fn open(number: u32) -> Option<Process> {
    Process::new(i32::try_from(number).ok()?).ok()
}

fn command(process: &Process, stat: &Stat) -> String {
    let line = process.cmdline().unwrap_or_default().join(" ");
    if line.trim().is_empty() {
        return format!("[{}]", stat.comm);
    }
    line.chars().take(COMMAND_LIMIT).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Both the start in ticks since boot and the time of boot are shown by the clocks of our own time namespace,
/// so they fit together in a restored process too. The time of boot is read anew each time: the value that
/// procfs keeps would be restored with us.
fn start_of(stat: &Stat) -> Option<SystemTime> {
    let boot = Duration::from_secs(KernelStats::current().ok()?.btime);
    let since =
        Duration::from_millis(stat.starttime.saturating_mul(1000) / procfs::ticks_per_second().max(1));
    SystemTime::UNIX_EPOCH.checked_add(boot)?.checked_add(since)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found_by_its_pid_and_by_a_thread_id() {
        let own = holder(std::process::id()).unwrap();
        assert_eq!((own.pid, own.zombie), (std::process::id(), false));
        assert_eq!(own.exe, std::env::current_exe().ok());
        assert!(own.started.is_some_and(|at| at.elapsed().is_ok_and(|age| age < Duration::from_secs(3600))));
        let thread = nix::unistd::gettid().as_raw().unsigned_abs();
        assert!(exists(thread));
        assert_eq!(holder(thread).unwrap().pid, own.pid);
    }

    #[test]
    fn nobody_has_an_impossible_number() {
        for number in [0, u32::MAX, 0x7fff_ffff] {
            assert!(!exists(number) && !is_group(number) && holder(number).is_none(), "{number}");
        }
    }
}
