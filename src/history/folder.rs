//! The folder of a history: which files it has, and who may write to it.
//!
//! | name | what |
//! |---|---|
//! | `N.checkpoint` | the index of checkpoint N: it is complete as soon as this is there |
//! | `P.pack`, `P.digests` | pages, and their hashes |
//! | `history.lock` | held by the run that the history belongs to |
//! | `history.writing` | held while something is stored or pruned |
//! | `events`, `events.1` | what happened to the server that it is of, as `defrost events` reads it |
//! | `.incoming` | the image that is being taken |
//! | `.checkout-N` | checkpoint N as a plain image |
//!
//! It must not know what the files hold.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use nix::sys::signal::kill;
use nix::unistd::{Pid, geteuid};
use tempfile::NamedTempFile;

use super::error::{HistoryError, failed};
use super::index::{INDEX, Index};
use crate::image::record::{self, BODY_LIMIT, HEADER_LEN};

const LOCK_NAME: &str = "history.lock";
const WRITING_NAME: &str = "history.writing";
const EVENTS: &str = "events";
const INDEX_END: &str = ".checkpoint";
const PACK_END: &str = ".pack";
const DIGESTS_END: &str = ".digests";
/// What a file that has no name yet begins with.
const TEMPORARY: &str = ".writing-";
/// What the folders of checkouts begin with.
const CHECKOUT: &str = ".checkout-";
/// The numbers of checkpoints and packs. There is always one more; no history comes near.
const NUMBERS: Range<u64> = 1..u64::MAX / 2;
/// How long another process may take to store or prune.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// A folder of checkpoints, numbered from 1 on.
#[derive(Clone, Debug)]
pub struct History {
    dir: PathBuf,
}

/// The right to be the run that adds to a history. It ends with this value, and with the last process that has it.
#[derive(Debug)]
#[must_use]
pub struct Claim {
    lock: Flock<File>,
}

impl Claim {
    /// For a process that stores for this run. While it has this open, and nobody drops the claim itself, no other run
    /// begins: what it has begun to store belongs to this one, even if that has been killed.
    ///
    /// # Errors
    /// The kernel's own: there are too many descriptors.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.lock.as_fd().try_clone_to_owned()
    }
}

/// The right to change files of a history.
#[derive(Debug)]
pub(super) struct Writing {
    _lock: Flock<File>,
}

impl History {
    /// Opens the history in this folder.
    ///
    /// # Errors
    /// [`HistoryError::Missing`], [`HistoryError::NotHistory`], [`HistoryError::NotPrivate`] and `Io`.
    pub fn open(dir: &Path) -> Result<Self, HistoryError> {
        let full = std::path::absolute(dir).map_err(failed("open", dir))?;
        let meta = match fs::metadata(&full) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(HistoryError::Missing { dir: dir.into() });
            }
            other => other.map_err(failed("open", dir))?,
        };
        if meta.is_dir() {
            let history = Self { dir: full };
            // Nothing is missed later by who may list it now.
            fs::read_dir(&history.dir).map_err(failed("list", dir))?;
            // A copy may have been made of what is stored only.
            if history.dir.join(LOCK_NAME).exists() || !history.numbers().is_empty() {
                private(&history.dir, &meta)?;
                return Ok(history);
            }
        }
        Err(HistoryError::NotHistory { dir: dir.into() })
    }

    /// Opens the history in this folder, or begins one there, readable by the owner only. The folder may be there
    /// if it is empty.
    ///
    /// # Errors
    /// As [`History::open`], and [`HistoryError::LineBreak`].
    pub fn create(dir: &Path) -> Result<Self, HistoryError> {
        let full = std::path::absolute(dir).map_err(failed("open", dir))?;
        if full.as_os_str().as_encoded_bytes().contains(&b'\n') {
            return Err(HistoryError::LineBreak { dir: dir.into() });
        }
        match Self::open(dir) {
            Err(HistoryError::Missing { .. }) => {
                match DirBuilder::new().mode(0o700).create(dir) {
                    // Somebody else has just begun it.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => {}
                    other => other.map_err(failed("create", dir))?,
                }
            }
            Err(HistoryError::NotHistory { .. }) if is_empty(dir) => {}
            other => return other,
        }
        private(dir, &fs::metadata(dir).map_err(failed("open", dir))?)?;
        open_lock(&dir.join(LOCK_NAME))?;
        Self::open(dir)
    }

    /// Its folder, as an absolute path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Where it is recorded what happened to the server: crashes, restores, checkpoints. It may be missing.
    #[must_use]
    pub fn events_path(&self) -> PathBuf {
        self.dir.join(EVENTS)
    }

    /// Makes this process the one that the history belongs to. What a run that was killed has begun to store is waited
    /// for, up to a minute.
    ///
    /// # Errors
    /// [`HistoryError::InUse`], and `Io`.
    pub fn claim(&self) -> Result<Claim, HistoryError> {
        let path = self.dir.join(LOCK_NAME);
        let file = open_lock(&path)?;
        let mut known = String::new();
        let _ = (&file).take(32).read_to_string(&mut known);
        let owner = known.trim().parse::<i32>().ok().map(Pid::from_raw);
        let has_ended = owner.is_some_and(|pid| kill(pid, None) == Err(Errno::ESRCH));
        if has_ended {
            tracing::debug!("waiting for what process {known} has left behind");
        }
        let lock = self.locked(file, if has_ended { PATIENCE } else { Duration::ZERO }, || match owner {
            Some(pid) if has_ended => format!("what process {pid}, which has ended, has left behind"),
            Some(pid) => format!("process {pid}"),
            None => "another run".to_owned(),
        })?;
        // For the message above; a full disk is no reason not to go on.
        let text = std::process::id().to_string();
        let _ = lock.set_len(0).and_then(|()| FileExt::write_all_at(&*lock, text.as_bytes(), 0));
        Ok(Claim { lock })
    }

    /// Waits until nobody else changes files here, then sweeps what killed writers have left.
    pub(super) fn write(&self) -> Result<Writing, HistoryError> {
        let file = open_lock(&self.dir.join(WRITING_NAME))?;
        let lock = self.locked(file, PATIENCE, || "somebody who stores or prunes".to_owned())?;
        self.sweep();
        Ok(Writing { _lock: lock })
    }

    fn locked(
        &self,
        mut file: File,
        patience: Duration,
        by: impl FnOnce() -> String,
    ) -> Result<Flock<File>, HistoryError> {
        let deadline = Instant::now() + patience;
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(lock),
                Err(_) if Instant::now() >= deadline => {
                    return Err(HistoryError::InUse { dir: self.dir.clone(), by: by() });
                }
                Err((back, _)) => file = back,
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn sweep(&self) {
        for name in self.names() {
            if name.starts_with(TEMPORARY) {
                let _ = fs::remove_file(self.dir.join(name));
            }
        }
    }

    /// The numbers of the checkpoints, ascending; whether each is whole is another question.
    #[must_use]
    pub fn numbers(&self) -> Vec<u64> {
        self.numbered(|name| name.strip_suffix(INDEX_END))
    }

    /// The numbers of the packs, of which a part is there, ascending.
    pub(super) fn packs(&self) -> Vec<u64> {
        self.numbered(|name| name.strip_suffix(PACK_END).or_else(|| name.strip_suffix(DIGESTS_END)))
    }

    /// The numbers of the checkpoints that lie there as plain images, ascending.
    pub(super) fn checkouts(&self) -> Vec<u64> {
        self.numbered(|name| name.strip_prefix(CHECKOUT))
    }

    fn numbered(&self, part: impl Fn(&str) -> Option<&str>) -> Vec<u64> {
        let mut numbers: Vec<u64> = self
            .names()
            .iter()
            .filter_map(|name| part(name)?.parse().ok())
            .filter(|number| NUMBERS.contains(number))
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten();
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
    }

    /// The index of a checkpoint.
    ///
    /// # Errors
    /// [`HistoryError::Unknown`], and [`HistoryError::Damaged`].
    pub fn index(&self, number: u64) -> Result<Index, HistoryError> {
        let path = self.index_path(number);
        let damaged = |loss| HistoryError::Damaged { dir: self.dir.clone(), number, losses: vec![loss] };
        let bytes = match read_private(&path) {
            Err(HistoryError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Err(self.unknown(number));
            }
            other => other?,
        };
        let name = index_name(number);
        let index: Index =
            record::decode(INDEX, &bytes).map_err(|error| damaged(format!("{name}: {error}")))?;
        if index.number == number {
            return Ok(index);
        }
        Err(damaged(format!("{name} is of checkpoint {}", index.number)))
    }

    /// Has an index on disk, in one step.
    pub(super) fn write_index(&self, index: &Index) -> Result<u64, HistoryError> {
        let bytes = record::encode(INDEX, index)?;
        let path = self.index_path(index.number);
        let mut file = temporary(&self.dir)?;
        file.write_all(&bytes).and_then(|()| file.as_file().sync_all()).map_err(failed("write", &path))?;
        // The packs must have their names by then.
        self.sync()?;
        file.persist(&path).map_err(|error| failed("create", &path)(error.error))?;
        self.sync()?;
        Ok(bytes.len() as u64)
    }

    pub(super) fn sync(&self) -> Result<(), HistoryError> {
        File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(failed("write", &self.dir))
    }

    pub(super) fn index_path(&self, number: u64) -> PathBuf {
        self.dir.join(index_name(number))
    }

    /// Where a checkpoint lies as a plain image, if it does.
    #[must_use]
    pub fn checkout_path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{CHECKOUT}{number}"))
    }

    /// Where the image of the next checkpoint is made.
    #[must_use]
    pub fn incoming(&self) -> PathBuf {
        self.dir.join(".incoming")
    }

    /// CRIU's log of the last time that it could not be made.
    pub(super) fn failed_log(&self) -> PathBuf {
        self.dir.join(".incoming.dump-failed.log")
    }

    /// Whether somebody has begun to write that image.
    pub(super) fn has_begun_incoming(&self) -> bool {
        self.names().iter().any(|name| name.starts_with("..incoming.partial-"))
    }

    pub(super) fn unknown(&self, which: impl ToString) -> HistoryError {
        let have = match self.numbers()[..] {
            [] => "no checkpoint yet".to_owned(),
            [only] => format!("only checkpoint {only}"),
            [first, .., last] => format!("{} checkpoints, {first} to {last}", self.numbers().len()),
        };
        HistoryError::Unknown { dir: self.dir.clone(), which: which.to_string(), have }
    }
}

fn index_name(number: u64) -> String {
    format!("{number:08}{INDEX_END}")
}

pub(super) fn pack_name(pack: u64) -> String {
    format!("{pack:08}{PACK_END}")
}

pub(super) fn digests_name(pack: u64) -> String {
    format!("{pack:08}{DIGESTS_END}")
}

/// A file that gets its name when it is complete; readable by the owner only.
pub(super) fn temporary(dir: &Path) -> Result<NamedTempFile, HistoryError> {
    tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(dir).map_err(failed("create a file in", dir))
}

/// The contents of a file that holds a record, and that nobody else may write to.
pub(super) fn read_private(path: &Path) -> Result<Vec<u8>, HistoryError> {
    // O_NONBLOCK: a FIFO of that name must not hold us.
    let file = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path);
    let file = file.map_err(failed("open", path))?;
    private(path, &file.metadata().map_err(failed("read", path))?)?;
    let mut bytes = Vec::new();
    // A longer one is refused by its decoder.
    let limit = (HEADER_LEN + BODY_LIMIT) as u64 + 1;
    file.take(limit).read_to_end(&mut bytes).map_err(failed("read", path))?;
    Ok(bytes)
}

fn private(path: &Path, meta: &fs::Metadata) -> Result<(), HistoryError> {
    const GROUP_AND_OTHERS_WRITE: u32 = 0o022;
    let (owner, mode) = (meta.uid(), meta.mode() & 0o7777);
    if (owner == 0 || owner == geteuid().as_raw()) && mode & GROUP_AND_OTHERS_WRITE == 0 {
        return Ok(());
    }
    Err(HistoryError::NotPrivate { path: path.into(), owner, mode })
}

fn open_lock(path: &Path) -> Result<File, HistoryError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(O_NOFOLLOW);
    options.open(path).map_err(failed("open", path))
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none())
}
