//! Events written to a file as they are recorded, through checkpoints and restores.
//!
//! The file is appended to, one `write(2)` for all that has come within some milliseconds, so that clones may share
//! it. It is closed for a dump, and what is recorded meanwhile follows. It must not log anything: the log may be
//! among what is recorded.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::AbortHandle;

use super::append::{Appender, EventFileError};
use super::recorder::Recorder;
use crate::context::{Context, Registration};
use crate::resource::{Blocking, BlockingResource, Cycle, HookError, Keep, locked};
use crate::wake::Wake;

/// The name that the file is registered under.
const NAME: &str = "events";

/// How long events are collected before they are written: so much of them is lost if the process is killed.
const COLLECTED: Duration = Duration::from_millis(20);

/// The pause after a failed write; meanwhile the ring keeps what it can.
const PAUSE: Duration = Duration::from_secs(1);

/// A file that gets every event of a recorder, registered with a [`Context`] until this is dropped.
///
/// A full disk, a folder that is gone or a file that cannot be reopened never stops a server or a restore: it is
/// tried again about once a second, and events that leave the ring meanwhile are counted as
/// [unwritten](super::Counts::unwritten). The file then says so in an event `events.lost` with a `count`.
///
/// When the path is renamed, removed or replaced, as log rotation does, the next events go to a new file at the path,
/// with the mode of the old one. If that cannot be opened, or holds something else, they go on to the old one, and it is
/// tried again about once a second. No signal is needed.
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
    /// What writes.
    end: Appender,
    /// The open file as a cycle keeps it: it may lie where this process could not open it again.
    away: Option<Keep>,
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
        let absolute = std::path::absolute(path)
            .map_err(|source| EventFileError::Open { path: path.to_owned(), source })?;
        let mut end = Appender::new(absolute.clone());
        end.open()?;
        let state = State { quiesced: false, end, away: None, trouble: None };
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

async fn write_on(writer: Arc<Writer>) {
    loop {
        let next = locked(&writer.state).end.next();
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

impl State {
    /// Writes what there is. A failure is remembered, and tried again at the next call.
    fn write(&mut self, writer: &Writer) {
        if self.quiesced {
            return;
        }
        self.trouble = self.end.write(&writer.recorder).err().map(|error| error.kind());
    }
}

impl BlockingResource for Writer {
    fn before_checkpoint(&self, cycle: &Cycle) -> Result<(), HookError> {
        let mut state = locked(&self.state);
        state.write(self);
        state.quiesced = true;
        if let Some(file) = state.end.take() {
            state.away = Some(cycle.keep(OwnedFd::from(file)));
        }
        Ok(())
    }

    fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        let mut state = locked(&self.state);
        state.quiesced = false;
        let kept = state.away.take().and_then(Keep::take);
        if wake.restored().is_none() {
            state.end.put_back(kept.map(File::from));
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
