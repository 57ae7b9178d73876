//! A file of events that a recorder's events are appended to: what writers of every kind share.
//!
//! One `write(2)` with `O_APPEND` for all that has come, under a shared lock, so that many may write. The path is
//! compared with the open file before each write: when it was moved away, removed or replaced, as log rotation does,
//! what follows goes to a new file at the path. It must not log anything: the log may be among what is recorded.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::event::{Draft, Event};
use super::recorder::Recorder;
use super::stored::{Item, RECORD_LIMIT, Reader, stored};
use crate::image::record::RecordError;

/// How many events are written at once.
const AT_ONCE: usize = 256;
/// The mode of a new file: for the owner alone.
const MODE: u32 = 0o600;
/// After a path could not be followed, it is tried again so much later.
const PAUSE: Duration = Duration::from_secs(1);

/// Why events cannot be written to a file. Nothing has been changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventFileError {
    /// It cannot be opened.
    #[error("{}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It holds something else, or events in the format of another defrost.
    #[error("{} cannot take further events: {cause}", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// How it begins.
        cause: RecordError,
    },
}

impl EventFileError {
    /// What to do about it, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Other { .. } => Some("give a new file, or move this one away"),
            Self::Open { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => Some("create its folder"),
                io::ErrorKind::PermissionDenied => Some("give a file that the server's user may write to"),
                _ => Some("give the path of a regular file"),
            },
        }
    }

    pub(super) fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Other { .. } => io::ErrorKind::InvalidData,
            Self::Open { source, .. } => source.kind(),
        }
    }
}

/// The end of a file of events, and what of a recorder is written already.
#[derive(Debug)]
pub(super) struct Appender {
    path: PathBuf,
    file: Option<File>,
    /// The mode of a file that takes the place of this one.
    mode: u32,
    /// A longer file gives way to a new one, in bytes.
    longest: u64,
    /// The event that is to be written next.
    next: u64,
    /// Events that were lost, which the file has yet to be told of.
    lost: u64,
    /// When the path led elsewhere and could not be followed.
    strayed: Option<Instant>,
}

impl Appender {
    /// Of a file that is opened at the first write; the path is absolute.
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, file: None, mode: MODE, longest: u64::MAX, next: 0, lost: 0, strayed: None }
    }

    /// The same, but a file that is this long becomes [`older`], in the place of the one before, and a new one begins.
    pub(super) fn at_most(self, longest: u64) -> Self {
        Self { longest, ..self }
    }

    /// Opens the file now, and creates it if it is missing; its folder must be there.
    pub(super) fn open(&mut self) -> Result<(), EventFileError> {
        let file = prepared(&self.path, self.mode)?;
        self.take_up(file);
        Ok(())
    }

    fn take_up(&mut self, file: File) {
        if let Ok(meta) = file.metadata() {
            self.mode = meta.mode() & 0o777;
        }
        self.file = Some(file);
    }

    /// The event that is to be written next.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// The open file, which is closed here; none if it is not open.
    pub(super) fn take(&mut self) -> Option<File> {
        self.file.take()
    }

    /// The open file, again.
    pub(super) fn put_back(&mut self, file: Option<File>) {
        self.file = file;
    }

    /// Writes all that the recorder has more than the file. After a failure nothing of the rest is written, and the
    /// next call goes on with it.
    pub(super) fn write(&mut self, recorder: &Recorder) -> Result<(), EventFileError> {
        loop {
            let batch = recorder.read(self.next, AT_ONCE);
            self.next = batch.next - batch.events.len() as u64;
            self.lost += batch.missed;
            recorder.count_unwritten(batch.missed);
            let Some(first) = batch.events.first() else { return Ok(()) };
            let lost = (self.lost > 0).then(|| lost_event(first, self.lost));
            let mut bytes = Vec::new();
            for event in lost.iter().chain(batch.events.iter().map(AsRef::as_ref)) {
                match stored(event) {
                    Ok(record) => bytes.extend_from_slice(&record),
                    // Beyond all limits: there is no such event.
                    Err(_) => recorder.count_unwritten(1),
                }
            }
            self.follow();
            if self.file.is_none() {
                self.open()?;
            }
            let Some(file) = &self.file else { return Ok(()) };
            append(file, &bytes)
                .map_err(|source| EventFileError::Open { path: self.path.clone(), source })?;
            (self.next, self.lost) = (batch.next, 0);
        }
    }

    /// Goes on in a new file at the path, when that leads elsewhere by now. One that cannot be opened, or holds
    /// something else, is no reason to lose what can still be written to the old file.
    fn follow(&mut self) {
        let Some(file) = &self.file else { return };
        if self.strayed.is_some_and(|since| since.elapsed() < PAUSE) {
            return;
        }
        self.strayed = None;
        if leads_to(&self.path, file) && !self.gives_way(file) {
            return;
        }
        let mode = file.metadata().map_or(self.mode, |meta| meta.mode() & 0o777);
        match prepared(&self.path, mode) {
            Ok(file) => self.take_up(file),
            Err(_) => self.strayed = Some(Instant::now()),
        }
    }

    /// Whether the file was too long and has another name now. When it cannot be renamed it grows on.
    fn gives_way(&self, file: &File) -> bool {
        if file.metadata().is_ok_and(|meta| meta.len() < self.longest) {
            return false;
        }
        // Of several writers one renames it; the others find it renamed at their next write.
        if flock(file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return false;
        }
        let renamed = leads_to(&self.path, file) && fs::rename(&self.path, older(&self.path)).is_ok();
        let _ = flock(file, FlockOperation::Unlock);
        renamed
    }
}

/// Where a file goes that has become too long: `FILE.1`.
#[must_use]
pub fn older(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

/// The file, ready to be appended to.
fn prepared(path: &Path, mode: u32) -> Result<File, EventFileError> {
    let failed = |source| EventFileError::Open { path: path.to_owned(), source };
    let file = open(path, mode).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(failed(io::Error::other("it is no regular file")));
    }
    begins_well(&file)
        .map_err(failed)?
        .map_err(|cause| EventFileError::Other { path: path.to_owned(), cause })?;
    match cut_torn_tail(&file) {
        // Another one is writing, and cuts it off itself when it is opened.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        cut => cut.map_err(failed)?,
    }
    Ok(file)
}

/// Whether this is the file that the path names.
pub(super) fn leads_to(path: &Path, file: &File) -> bool {
    match (fs::metadata(path), file.metadata()) {
        (Ok(path), Ok(file)) => (path.dev(), path.ino()) == (file.dev(), file.ino()),
        _ => false,
    }
}

/// O_RDWR|O_APPEND|O_CREAT|O_CLOEXEC|O_NONBLOCK; the last so that a FIFO does not block, before it is refused. A new
/// file has exactly this mode.
fn open(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).mode(mode & MODE).custom_flags(libc::O_NONBLOCK);
    match options.clone().create_new(true).open(path) {
        Ok(file) => {
            // Others may read it less than they should; that is no reason not to write.
            let _ = file.set_permissions(Permissions::from_mode(mode));
            Ok(file)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => options.create(true).open(path),
        Err(error) => Err(error),
    }
}

/// Whether the file is empty, or begins with an event in this format, or with what is left of one.
fn begins_well(file: &File) -> io::Result<Result<(), RecordError>> {
    let mut reader = Reader::new(file);
    Ok(match reader.next_item()? {
        Some(Item::Event(_)) => Ok(()),
        // Damage behind a right beginning is no reason to refuse it.
        Some(Item::Loss(loss)) if loss.is_of_other_version() => Err(loss.cause),
        Some(Item::Loss(loss)) => match loss.cause {
            cause @ RecordError::Magic { .. } => Err(cause),
            _ => Ok(()),
        },
        None => match reader.torn() {
            Some(loss) if !reader.begins_like_one() => Err(loss.cause),
            _ => Ok(()),
        },
    })
}

/// Cuts off what is no whole record at the end. Others who write to the file hold a lock while they do.
fn cut_torn_tail(mut file: &File) -> io::Result<()> {
    flock(file, FlockOperation::NonBlockingLockExclusive)?;
    let cut = (|| {
        let length = file.metadata()?.len();
        let start = length.saturating_sub(2 * RECORD_LIMIT as u64);
        file.seek(SeekFrom::Start(start))?;
        let mut reader = Reader::at(file.take(length - start), start);
        while reader.next_item()?.is_some() {}
        match reader.torn() {
            Some(torn) if torn.offset > start || start == 0 => file.set_len(torn.offset),
            _ => Ok(()),
        }
    })();
    flock(file, FlockOperation::Unlock)?;
    cut
}

/// Says in the file that something is missing there, as of the process and time of the event that is next.
fn lost_event(next: &Event, count: u64) -> Event {
    let Draft { name, label, fields, at: _ } =
        Draft::new("events.lost").label("events were not written").with("count", count);
    // It stands for the last one of those.
    Event { sequence: next.sequence.saturating_sub(1), name, label, fields, ..next.clone() }
}

/// All of it in one write, or nothing of it.
fn append(mut file: &File, bytes: &[u8]) -> io::Result<()> {
    flock(file, FlockOperation::NonBlockingLockShared)?;
    let written = file.write(bytes);
    let taken_back = match written {
        Ok(count) if count < bytes.len() => Some(take_back(file, count)),
        _ => None,
    };
    flock(file, FlockOperation::Unlock)?;
    match (written, taken_back) {
        (Err(error), _) => Err(error),
        // The disk is full: the next attempt to write says so too.
        (Ok(_), Some(_)) => Err(io::ErrorKind::StorageFull.into()),
        (Ok(_), None) => Ok(()),
    }
}

/// Takes back the beginning of a write that did not fit, if nobody else has written behind it.
fn take_back(mut file: &File, count: usize) -> io::Result<()> {
    flock(file, FlockOperation::NonBlockingLockExclusive)?;
    let end = file.stream_position()?;
    if file.metadata()?.len() == end { file.set_len(end - count as u64) } else { Ok(()) }
}
