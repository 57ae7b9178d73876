//! Partial folders that a killed checkpoint left behind.
//!
//! Removes only what is certainly abandoned. This module must not know what is in them.

use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;

use super::target::{Target, partial_creator};
use crate::image::process;

/// Starts of processes are known to the tick of 10 ms, wall clocks are stepped by less than this.
const CLOCK_SLACK: Duration = Duration::from_secs(2);

/// Removes the partial folders of this target that nobody works on: owned by us, their creator gone, no lock
/// on them. The process that finishes a folder holds the lock, when the creator has already been dumped. A
/// creator in another PID namespace seems gone; only in the moment before its folder is locked is that wrong.
pub(super) fn sweep(target: &Target) {
    let Ok(entries) = fs::read_dir(&target.parent) else { return };
    for entry in entries.flatten() {
        let Some(creator) = partial_creator(&target.name, &entry.file_name()) else { continue };
        let Ok(meta) = entry.metadata() else { continue };
        if !meta.is_dir() || meta.uid() != geteuid().as_raw() || creator_lives(creator, made(&meta)) {
            continue;
        }
        match remove(&entry.path()) {
            Ok(true) => tracing::info!(folder = %entry.path().display(), "removed a stale partial image"),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(folder = %entry.path().display(), %error, "stale partial image stays");
            }
        }
    }
}

fn remove(path: &Path) -> std::io::Result<bool> {
    match Flock::lock(File::open(path)?, FlockArg::LockExclusiveNonblock) {
        Ok(_lock) => fs::remove_dir_all(path).map(|()| true),
        Err(_) => Ok(false),
    }
}

/// Whether the creator of a folder made at this time is alive. A process that has its pid but is younger than
/// the folder is another one: in a container, the next server has the same pid as the one before.
pub(super) fn creator_lives(creator: u32, made: SystemTime) -> bool {
    process::exists(creator) && process::started(creator).is_none_or(|started| started <= made + CLOCK_SLACK)
}

fn made(folder: &Metadata) -> SystemTime {
    folder.created().or_else(|_| folder.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
}
