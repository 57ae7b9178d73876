//! Which processes a restore has made, so that a failed one leaves none behind. Knows no request and no option.
//!
//! CRIU kills what it made when it fails itself. When it hangs and is killed, its tasks go on: those below it are given to
//! init, and the root, made with `rst_sibling`, is a child of *this* process. Comparing the children before and after
//! would also find those that another thread started meanwhile. So a process counts if
//! - it descends from the worker, or
//! - it is a child of this process with the pid that the image gives to its root, and that pid was free before, or
//! - it still has the worker's environment, which carries a mark, or
//! - it descends from one of these.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use prost::Message;

use crate::child::{Guarded, end, reap};
use crate::error::Error;

/// The variable in the worker's environment that carries the mark.
pub(crate) const MARK: &str = "CRIU_DRIVER_MARK";

/// The longest first record of `pstree.img` that is read, in bytes. It has about five for each thread.
const RECORD_LIMIT: u64 = 1 << 20;

/// How often the processes are looked through for more. A task that is half made may still fork once.
const ROUNDS: usize = 5;

/// What must be known before a restore to find its processes afterwards.
#[derive(Debug)]
pub(crate) struct Lineage {
    root: Option<i32>,
    mark: String,
}

/// `pstree_entry`, as far as it matters here.
#[derive(Clone, PartialEq, Message)]
struct Root {
    #[prost(uint32, required, tag = "1")]
    pid: u32,
}

impl Lineage {
    /// Before the restore of these images.
    pub(crate) fn before(images: &Path) -> Lineage {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let free = |pid: &i32| !Path::new("/proc").join(pid.to_string()).exists();
        Lineage {
            root: root_of(&images.join("pstree.img")).filter(free),
            mark: format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// The value of [`MARK`] for the worker.
    pub(crate) fn mark(&self) -> &str {
        &self.mark
    }

    /// Kills the worker and all that it has made, and reaps what is a child of this process. Returns the failure, with
    /// those that could not be killed.
    pub(crate) fn clean_up(&self, mut worker: Guarded, failure: Error) -> Error {
        // Stopped, it makes no more, and keeps its children until they have been seen.
        worker.stop();
        let mut made = self.made(worker.pid().as_raw());
        signal(&made);
        worker.kill();
        for _ in 0..ROUNDS {
            // Waits for each, and reaps the root.
            made.retain(|pid| !end(Pid::from_raw(*pid)));
            if !made.is_empty() {
                return Error::LeftAlive { failure: Box::new(failure), alive: made };
            }
            made = self.made(worker.pid().as_raw());
            if made.is_empty() {
                break;
            }
        }
        // One that CRIU killed itself, and that ended before it was seen.
        if let Some(root) = self.root {
            reap(Pid::from_raw(root));
        }
        failure
    }

    /// All that counts and has not ended.
    fn made(&self, worker: i32) -> Vec<i32> {
        let own = std::process::id().cast_signed();
        let table = processes();
        let mut made: Vec<i32> = Vec::new();
        let is_made = |pid: i32, process: &Process| {
            process.parent == worker
                || (process.parent == own && Some(pid) == self.root)
                || self.is_marked(pid)
        };
        for (&pid, process) in &table {
            if pid != worker && is_made(pid, process) {
                made.push(pid);
            }
        }
        let mut next = 0;
        while let Some(&parent) = made.get(next) {
            let children = table.iter().filter(|(_, process)| process.parent == parent).map(|(pid, _)| *pid);
            let fresh: Vec<i32> = children.filter(|pid| !made.contains(pid)).collect();
            made.extend(fresh);
            next += 1;
        }
        made.retain(|pid| table.get(pid).is_some_and(|process| !process.ended));
        made
    }

    fn is_marked(&self, pid: i32) -> bool {
        let wanted = format!("{MARK}={}", self.mark);
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|entry| entry == wanted.as_bytes())
    }
}

/// A line of the process table.
struct Process {
    parent: i32,
    ended: bool,
}

fn signal(pids: &[i32]) {
    for pid in pids {
        // Fails only for one that is gone.
        let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
    }
}

fn processes() -> BTreeMap<i32, Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some((pid, parse_stat(&stat)?))
    })
    .collect()
}

/// proc_pid_stat(5): `pid (name) state ppid …`, where the name may hold anything, brackets too.
fn parse_stat(stat: &str) -> Option<Process> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let ended = matches!(fields.next()?, "Z" | "X");
    Some(Process { parent: fields.next()?.parse().ok()?, ended })
}

/// The root's pid in `pstree.img`: two magic numbers, then records of a length and a message, the root's first.
fn root_of(image: &Path) -> Option<i32> {
    let mut head = [0; 12];
    let mut file = File::open(image).ok()?;
    file.read_exact(&mut head).ok()?;
    let size = u64::from(u32::from_le_bytes(*head.last_chunk()?));
    if size > RECORD_LIMIT {
        return None;
    }
    let mut record = Vec::new();
    file.take(size).read_to_end(&mut record).ok()?;
    i32::try_from(Root::decode(&record[..]).ok()?.pid).ok().filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Operation;
    use std::process::Command;
    use std::time::{Duration, Instant};

    fn image(pid: u32) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let record = Root { pid }.encode_to_vec();
        let size = u32::try_from(record.len()).unwrap().to_le_bytes();
        fs::write(folder.path().join("pstree.img"), [&[0; 8][..], &size, &record].concat()).unwrap();
        folder
    }

    fn failure() -> Error {
        Error::Deadline { operation: Operation::Restore, limit: Duration::ZERO }
    }

    fn wait_for(path: &Path) -> Vec<i32> {
        let start = Instant::now();
        loop {
            let text = fs::read_to_string(path).unwrap_or_default();
            if text.lines().count() == 2 {
                return text.lines().map(|line| line.trim().parse().unwrap()).collect();
            }
            assert!(start.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn reads_the_root_and_takes_no_pid_that_is_in_use() {
        // Above PID_MAX_LIMIT, so never in use.
        assert_eq!(Lineage::before(image(5_000_000).path()).root, Some(5_000_000));
        assert_eq!(Lineage::before(image(std::process::id()).path()).root, None);
        assert_eq!(Lineage::before(Path::new("/nowhere")).root, None);
        let cut = image(5_000_000);
        for size in 0..12 {
            fs::write(cut.path().join("pstree.img"), vec![0xff; size]).unwrap();
            assert_eq!(Lineage::before(cut.path()).root, None);
        }
    }

    #[test]
    fn ends_the_worker_what_is_below_it_and_what_has_left_it() {
        let folder = tempfile::tempdir().unwrap();
        let pids = folder.path().join("pids");
        let lineage = Lineage::before(folder.path());
        // The subshell's child is given to init, and is found by the mark.
        let script = "sleep 61 & echo $! >> $0; (sleep 62 & echo $! >> $0); wait";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(&pids).env(MARK, lineage.mark());
        let worker = Guarded::spawn(&mut command).unwrap();
        let innocent = Guarded::spawn(Command::new("sleep").arg("63")).unwrap();
        let made = wait_for(&pids);
        let failure = lineage.clean_up(worker, failure());
        assert!(matches!(failure, Error::Deadline { .. }), "{failure}");
        let table = processes();
        assert!(made.iter().all(|pid| table.get(pid).is_none_or(|process| process.ended)));
        assert!(table.get(&innocent.pid().as_raw()).is_some_and(|process| !process.ended));
    }

    #[test]
    fn a_name_with_brackets_does_not_confuse() {
        let process = parse_stat("7 (a) b) Z) S 42 7 7").unwrap();
        assert_eq!((process.parent, process.ended), (42, false));
        assert!(parse_stat("7 (x").is_none());
    }
}
