//! Events written to a file as they are recorded, through checkpoints and restores.
//!
//! The file is appended to, one `write(2)` for all that has come within some milliseconds, so that clones may share
//! it. It is closed for a dump, and what is recorded meanwhile follows. It must not log anything: the log may be
//! among what is recorded.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tokio::task::AbortHandle;

use super::event::{Draft, Event};
use super::recorder::Recorder;
use super::stored::{Item, RECORD_LIMIT, Reader, stored};
use crate::context::{Context, Registration};
use crate::image::record::RecordError;
use crate::resource::{Blocking, BlockingResource, Cycle, HookError, Keep, locked};
use crate::wake::Wake;

/// The name that the file is registered under.
const NAME: &str = "events";

/// How long events are collected before they are written: so much of them is lost if the process is killed.
const COLLECTED: Duration = Duration::from_millis(20);

/// The pause after a failed write; meanwhile the ring keeps what it can.
const PAUSE: Duration = Duration::from_secs(1);

/// How many events are written at once.
const AT_ONCE: usize = 256;

/// A file that gets every event of a recorder, registered with a [`Context`] until this is dropped.
///
/// A full disk, a folder that is gone or a file that cannot be reopened never stops a server or a restore: it is
/// tried again about once a second, and events that leave the ring meanwhile are counted as
/// [unwritten](super::Counts::unwritten). The file then says so in an event `events.lost` with a `count`.
#[must_use = "nothing is written once it is dropped"]
pub struct EventFile {
    writer: Arc<Writer>,
    task: AbortHandle,
    _registration: Registration,
}

struct Writer {
    path: PathBuf,
    recorder: Recorder,
    state: Mutex<State>,
}

struct State {
    /// A cycle runs: the file must stay closed.
    quiesced: bool,
    file: Option<File>,
    /// The open file as a cycle keeps it: it may lie where this process could not open it again.
    away: Option<Keep>,
    /// The event that is to be written next.
    next: u64,
    /// Events that were lost, which the file has yet to be told of.
    lost: u64,
    /// Why the last write did not work.
    trouble: Option<io::ErrorKind>,
}

impl EventFile {
    /// Opens the file, and creates it, for the owner alone, if it is missing; its folder must be there. What is left
    /// of a record at its end, by a process that was killed in the middle of writing it, is cut off. Begins with what
    /// the recorder has kept.
    ///
    /// # Errors
    /// [`EventFileError`]. Nothing is registered then.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time.
    pub fn open(
        context: &Context,
        recorder: &Recorder,
        path: impl AsRef<Path>,
    ) -> Result<Self, EventFileError> {
        let path = path.as_ref();
        let failed = |source| EventFileError::Open { path: path.to_owned(), source };
        let absolute = std::path::absolute(path).map_err(failed)?;
        let file = open(&absolute).map_err(failed)?;
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
        let state = State { quiesced: false, file: Some(file), away: None, next: 0, lost: 0, trouble: None };
        let writer =
            Arc::new(Writer { path: absolute, recorder: recorder.clone(), state: Mutex::new(state) });
        let registration = context.register(NAME, Arc::new(Blocking::new(Arc::clone(&writer))));
        let task = tokio::spawn(write_on(Arc::clone(&writer))).abort_handle();
        Ok(Self { writer, task, _registration: registration })
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.writer.path
    }

    /// Writes what has been recorded, now.
    pub fn flush(&self) {
        locked(&self.writer.state).write(&self.writer);
    }
}

impl Drop for EventFile {
    fn drop(&mut self) {
        self.task.abort();
        self.flush();
    }
}

impl fmt::Debug for EventFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EventFile").field(&self.writer.path).finish()
    }
}

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
}

async fn write_on(writer: Arc<Writer>) {
    loop {
        let next = locked(&writer.state).next;
        writer.recorder.reached(next).await;
        tokio::time::sleep(COLLECTED).await;
        let stuck = {
            let mut state = locked(&writer.state);
            state.write(&writer);
            state.quiesced || state.trouble.is_some()
        };
        if stuck {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// O_RDWR|O_APPEND|O_CREAT|O_CLOEXEC|O_NONBLOCK; the last so that a FIFO does not block, before it is refused.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600).custom_flags(libc::O_NONBLOCK).open(path)
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

impl State {
    /// Writes what there is. A failure is remembered, and tried again at the next call.
    fn write(&mut self, writer: &Writer) {
        if self.quiesced {
            return;
        }
        self.trouble = self.try_to_write(writer).err().map(|error| error.kind());
    }

    fn try_to_write(&mut self, writer: &Writer) -> io::Result<()> {
        loop {
            let batch = writer.recorder.read(self.next, AT_ONCE);
            self.next = batch.next - batch.events.len() as u64;
            self.lost += batch.missed;
            writer.recorder.count_unwritten(batch.missed);
            let Some(first) = batch.events.first() else { return Ok(()) };
            let lost = (self.lost > 0).then(|| lost_event(first, self.lost));
            let mut bytes = Vec::new();
            for event in lost.iter().chain(batch.events.iter().map(AsRef::as_ref)) {
                match stored(event) {
                    Ok(record) => bytes.extend_from_slice(&record),
                    // Beyond all limits: there is no such event.
                    Err(_) => writer.recorder.count_unwritten(1),
                }
            }
            if self.file.is_none() {
                let file = open(&writer.path)?;
                // Another one may be writing just now; then that one's records are whole.
                let _ = cut_torn_tail(&file);
                self.file = Some(file);
            }
            let Some(file) = &self.file else { return Ok(()) };
            append(file, &bytes)?;
            (self.next, self.lost) = (batch.next, 0);
        }
    }
}

/// Says in the file that something is missing there, as of the process and time of the event that is next.
fn lost_event(next: &Event, count: u64) -> Event {
    let Draft { name, label, fields } =
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

impl BlockingResource for Writer {
    fn before_checkpoint(&self, cycle: &Cycle) -> Result<(), HookError> {
        let mut state = locked(&self.state);
        state.write(self);
        state.quiesced = true;
        if let Some(file) = state.file.take() {
            state.away = Some(cycle.keep(OwnedFd::from(file)));
        }
        Ok(())
    }

    fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        let mut state = locked(&self.state);
        state.quiesced = false;
        let kept = state.away.take().and_then(Keep::take);
        if wake.restored().is_none() {
            state.file = kept.map(File::from);
        }
        state.write(self);
        Ok(())
    }

    fn after_restore_at_once(&self, wake: &Wake) -> Option<Result<(), HookError>> {
        Some(self.after_restore(wake))
    }

    fn describe(&self) -> String {
        let state = locked(&self.state);
        match state.trouble {
            Some(kind) => format!("events to {}, which cannot be written: {kind}", self.path.display()),
            None => format!("events to {}", self.path.display()),
        }
    }
}
