//! Who holds the other end of a pipe or a Unix connection.
//!
//! Looks through the descriptors of all processes, only when a peer is not in the audited process. It must
//! not know why it is asked.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::process::ProcessName;

/// How long the search may take. A descriptor costs about 2 µs, so this is enough for 200 000 of them.
const DEADLINE: Duration = Duration::from_millis(500);

/// A process that holds the other end of something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holder {
    /// The process.
    pub(super) process: ProcessName,
    /// Its executable, where that may be read.
    pub(super) path: Option<String>,
}

/// The holders of each target, which is the text of a link in `/proc/PID/fd`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Holders {
    /// By target. One that nobody was seen to hold is absent.
    pub(super) found: BTreeMap<String, Vec<Holder>>,
    /// Every process could be looked at: what is absent is held by nobody.
    pub(super) complete: bool,
}

/// Looks for processes other than `pid` that hold one of the targets.
pub(super) fn search(pid: i32, targets: &HashSet<String>) -> Holders {
    let mut holders = Holders { found: BTreeMap::new(), complete: true };
    if targets.is_empty() {
        return holders;
    }
    let deadline = Instant::now() + DEADLINE;
    let Ok(processes) = fs::read_dir("/proc") else {
        return Holders::default();
    };
    for entry in processes.flatten() {
        let Some(other) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if Instant::now() > deadline {
            holders.complete = false;
            break;
        }
        if other != pid {
            look(other, &entry.path(), targets, &mut holders);
        }
    }
    holders
}

fn look(pid: i32, folder: &Path, targets: &HashSet<String>, holders: &mut Holders) {
    let links = match fs::read_dir(folder.join("fd")) {
        Ok(links) => links,
        Err(error) => {
            // A process that has ended holds nothing; one that may not be looked at could.
            holders.complete &= error.kind() == std::io::ErrorKind::NotFound;
            return;
        }
    };
    let mut held = HashSet::new();
    for link in links.flatten().filter_map(|link| fs::read_link(link.path()).ok()) {
        if let Some(target) = link.to_str().and_then(|text| targets.get(text)) {
            held.insert(target);
        }
    }
    if held.is_empty() {
        return;
    }
    let path = fs::read_link(folder.join("exe")).ok().map(|path| path.to_string_lossy().into_owned());
    let holder = Holder { process: ProcessName::of(pid), path };
    for target in held {
        holders.found.entry(target.clone()).or_default().push(holder.clone());
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{} (pid {}, {path})", self.process.name, self.process.pid),
            None => write!(f, "{}", self.process),
        }
    }
}
