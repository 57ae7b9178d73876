//! One process at a time makes room for a socket in a folder: between seeing a left-over and listening in its place,
//! another one could do the same, and one of the two would listen where nobody finds it.
//!
//! It must not know what is bound there.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};

/// How long to wait for the others. Each needs far less than a millisecond.
const PATIENCE: Duration = Duration::from_millis(100);

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(2);

/// The turn of this process, until it is dropped. It is a courtesy between servers that know of it, by flock(2) on
/// the folder: where it cannot be had, things go on without it.
#[derive(Debug)]
pub(super) struct Turn {
    /// The folder, locked. The lock goes with it.
    _folder: Option<File>,
}

impl Turn {
    /// Waits for the turn in the folder of this path, which blocks the thread for at most a tenth of a second.
    pub(super) fn at(path: &Path) -> Self {
        Self { _folder: path.parent().and_then(lock) }
    }
}

fn lock(folder: &Path) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty()).ok()?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(folder.into()),
            // Whoever holds it longer than that does something else with it.
            Err(_) if Instant::now() >= deadline => return None,
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_turn_is_one_at_a_time_and_never_waited_for_long() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let taken = |turn: &Turn| turn._folder.is_some();
        let first = Turn::at(&path);
        assert!(taken(&first));
        assert!(!taken(&Turn::at(&path)));
        drop(first);
        assert!(taken(&Turn::at(&path)));
        assert!(!taken(&Turn::at(&path.join("missing/s"))));
    }
}
