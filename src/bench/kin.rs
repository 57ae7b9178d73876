//! The processes that a start has brought up: all that descend from this one, and were not there before.
//!
//! This process is the subreaper of what it starts, so a server that was restored and left to itself is its child. It
//! must not know what they are for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// How often the end of processes is looked for.
const LOOK: Duration = Duration::from_millis(1);
/// How long the first process of a pid namespace is spared for the others in it.
const LAST: Duration = Duration::from_secs(2);

/// Has what is started be left to this process when its own parent ends.
///
/// # Errors
/// The kernel's own.
pub fn adopt_orphans() -> std::io::Result<()> {
    nix::sys::prctl::set_child_subreaper(true).map_err(Into::into)
}

/// All that descend from this process: pid, and whether it lives or waits to be reaped.
#[must_use]
pub fn descendants() -> BTreeMap<i32, bool> {
    let mut of: BTreeMap<i32, Vec<(i32, bool)>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Some((state, parent)) = state_and_parent(pid) else { continue };
        of.entry(parent).or_default().push((pid, !matches!(state, 'Z' | 'X')));
    }
    let mut found = BTreeMap::new();
    let mut parents = vec![std::process::id().cast_signed()];
    while let Some(parent) = parents.pop() {
        for (pid, lives) in of.remove(&parent).unwrap_or_default() {
            found.insert(pid, lives);
            parents.push(pid);
        }
    }
    found
}

/// The state letter and the parent, by proc_pid_stat(5).
fn state_and_parent(pid: i32) -> Option<(char, i32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Whether there is a process of that number, be it a zombie.
#[must_use]
pub fn exists(pid: i32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

/// The time that a process has run, where the kernel tells.
#[must_use]
pub fn worked(pid: i32) -> Duration {
    let stat = procfs::process::Process::new(pid).and_then(|process| process.stat());
    let ticks = stat.map_or(0, |stat| stat.utime + stat.stime);
    Duration::from_secs_f64(ticks as f64 / procfs::ticks_per_second() as f64)
}

/// Whether it is the first process of a pid namespace below this one.
fn is_init(pid: i32) -> bool {
    let status = procfs::process::Process::new(pid).and_then(|process| process.status());
    let pids = status.ok().and_then(|status| status.nspid).unwrap_or_default();
    pids.len() > 1 && pids.last() == Some(&1)
}

/// Kills all that descend from this process but `spared`, and `more`, and waits until none of them is there.
///
/// The first process of a pid namespace is killed when the others in it have ended, so that its account has what they
/// used of the processors, and then this process's. When it is killed earlier, the kernel lets the others be reaped
/// by nobody (`zap_pid_ns_processes`), and their time is in no account.
///
/// # Errors
/// The pids of those that are still there at the end of the time.
pub fn end_all(spared: &BTreeSet<i32>, more: &[i32], limit: Duration) -> Result<(), Vec<i32>> {
    let began = Instant::now();
    loop {
        let mut left: Vec<(i32, bool)> =
            descendants().into_iter().filter(|(pid, _)| !spared.contains(pid)).collect();
        left.extend(more.iter().filter(|pid| exists(**pid)).map(|pid| (*pid, true)));
        if left.is_empty() {
            return Ok(());
        }
        let living = left.iter().filter(|(_, lives)| *lives).map(|(pid, _)| *pid);
        let (last, mut now): (Vec<i32>, Vec<i32>) = living.partition(|pid| is_init(*pid));
        if now.is_empty() || began.elapsed() > LAST {
            now.extend(last);
        }
        for pid in now {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        for (pid, _) in &left {
            // Fails for those that are somebody else's children, who reaps them.
            let _ = waitpid(Pid::from_raw(*pid), Some(WaitPidFlag::WNOHANG));
        }
        if began.elapsed() > limit {
            return Err(left.into_iter().map(|(pid, _)| pid).collect());
        }
        std::thread::sleep(LOOK);
    }
}
