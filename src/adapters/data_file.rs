//! A file that is closed for the dump and reopened at its offset, if it is still the same.
//!
//! A restored process has positions, lengths and caches of the file in its memory. A file that has changed since
//! the dump would be read, or overwritten, by them. It must not know what is in the file.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};

use crate::context::{Context, Registration};
use crate::resource::{Cycle, HookError, Keep, Resource};
use crate::wake::Wake;

mod identity;

#[cfg(test)]
mod tests;

pub use identity::Change;
use identity::Identity;

/// A file for reading or writing, registered with a [`Context`] until it is dropped.
///
/// It is used through [`lock`](Self::lock). A cycle waits for the guard, closes the file, and reopens it in a
/// restored process at the same offset; a process that goes on has the very same open file back. Meanwhile
/// `lock` fails at once with [`io::ErrorKind::ResourceBusy`]: a task that waited instead could hold what another
/// resource needs in order to quiesce.
pub struct DataFile {
    data: Arc<Data>,
    _registration: Registration,
}

/// What to do in a restored process with a file that has changed since the dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnChange {
    /// The hook fails with [`DataFileError::Changed`], and the process is not ready.
    #[default]
    Fail,
    /// The file is taken as it is now. One that is missing is created if the options create files.
    Accept,
}

/// How a [`DataFile`] is opened, and reopened.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct DataFileOptions {
    read: bool,
    write: bool,
    append: bool,
    create: bool,
    truncate: bool,
    mode: Option<u32>,
    on_change: OnChange,
}

impl DataFileOptions {
    /// Nothing chosen yet: at least one of read, write and append has to be.
    pub fn new() -> Self {
        Self::default()
    }

    /// For reading.
    pub fn read(mut self, yes: bool) -> Self {
        self.read = yes;
        self
    }

    /// For writing.
    pub fn write(mut self, yes: bool) -> Self {
        self.write = yes;
        self
    }

    /// For writing at its end only.
    pub fn append(mut self, yes: bool) -> Self {
        self.append = yes;
        self
    }

    /// Creates the file if it is missing.
    pub fn create(mut self, yes: bool) -> Self {
        self.create = yes;
        self
    }

    /// Empties the file when it is first opened, and never when it is reopened.
    pub fn truncate(mut self, yes: bool) -> Self {
        self.truncate = yes;
        self
    }

    /// The permission bits of a file that is created, less the umask.
    pub fn mode(mut self, bits: u32) -> Self {
        self.mode = Some(bits);
        self
    }

    /// What to do in a restored process when the file has changed since the dump. A restore on another machine,
    /// or after the file system was mounted again, may show another device number, which is a change.
    pub fn on_change(mut self, then: OnChange) -> Self {
        self.on_change = then;
        self
    }

    fn first(&self) -> OpenOptions {
        let mut options = self.again();
        options.truncate(self.truncate).create(self.create);
        options
    }

    fn again(&self) -> OpenOptions {
        let mut options = OpenOptions::new();
        options.read(self.read).write(self.write).append(self.append);
        options.create(self.create && self.on_change == OnChange::Accept);
        if let Some(bits) = self.mode {
            options.mode(bits);
        }
        options
    }
}

struct Data {
    path: PathBuf,
    options: DataFileOptions,
    state: Mutex<State>,
}

enum State {
    Open(File),
    Closed(Closed),
}

impl State {
    fn file(&mut self) -> Option<&mut File> {
        match self {
            Self::Open(file) => Some(file),
            Self::Closed(_) => None,
        }
    }
}

/// What is known of the file while it is closed.
struct Closed {
    keep: Option<Keep>,
    offset: u64,
    identity: Identity,
    /// The cycle is over, and the file could not be reopened.
    lost: bool,
}

/// Why a data file could not be put down or taken up. It stays closed, and [`DataFile::lock`] fails, until a
/// later cycle can open it; before a dump it stays open and usable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataFileError {
    /// It is not what it was at the dump, and the owner did not choose [`OnChange::Accept`].
    #[error("data file {} has changed since the dump: {what}", path.display())]
    Changed {
        /// The path.
        path: PathBuf,
        /// In which way.
        what: Change,
    },
    /// The open file is not the one at its path, so that no restored process could open it again.
    #[error("data file {} is open but no longer at its path: {what}", path.display())]
    Detached {
        /// The path.
        path: PathBuf,
        /// What is there instead.
        what: Change,
    },
    /// The system refused.
    #[error("data file {}: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// Its answer.
        source: io::Error,
    },
}

impl DataFileError {
    /// What to do about it, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Changed { .. } => {
                Some("restore the file as it was, take a new checkpoint, or open it with OnChange::Accept")
            }
            Self::Detached { .. } => Some("drop a file that was removed or replaced before the checkpoint"),
            Self::Io { .. } => None,
        }
    }
}

impl DataFile {
    /// Opens a file. A relative path is taken from the current folder now, and stays what it is.
    ///
    /// # Errors
    /// Those of `open(2)`. Nothing is registered then.
    pub fn open(
        context: &Context,
        name: impl Into<Arc<str>>,
        path: impl AsRef<Path>,
        options: DataFileOptions,
    ) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let file = options.first().open(&path)?;
        let data = Arc::new(Data { path, options, state: Mutex::new(State::Open(file)) });
        let registration = context.register(name, Arc::clone(&data) as _);
        Ok(Self { data, _registration: registration })
    }

    /// The file, for this task alone. A cycle waits for the guard, so it must not be held for long.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`] while the file is closed for a cycle, and [`io::ErrorKind::NotFound`] if
    /// it could not be opened again after one.
    pub async fn lock(&self) -> io::Result<DataFileGuard<'_>> {
        DataFileGuard::of(self.data.state.lock().await)
    }

    /// As [`lock`](Self::lock), for code outside tokio.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    ///
    /// # Panics
    /// Within a tokio task, which must not block.
    pub fn blocking_lock(&self) -> io::Result<DataFileGuard<'_>> {
        DataFileGuard::of(self.data.state.blocking_lock())
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.data.path
    }
}

impl fmt::Debug for DataFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DataFile").field(&self.data.path).finish()
    }
}

/// The open file, until this is dropped. Its descriptor must not be duplicated: a copy would be in the dump.
#[derive(Debug)]
pub struct DataFileGuard<'a>(MappedMutexGuard<'a, File>);

impl<'a> DataFileGuard<'a> {
    fn of(state: MutexGuard<'a, State>) -> io::Result<Self> {
        MutexGuard::try_map(state, State::file).map(Self).map_err(|state| match &*state {
            State::Closed(Closed { lost: true, .. }) => {
                io::Error::new(io::ErrorKind::NotFound, "the file could not be reopened after a checkpoint")
            }
            _ => io::Error::new(io::ErrorKind::ResourceBusy, "the file is closed for a checkpoint"),
        })
    }
}

impl Deref for DataFileGuard<'_> {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Read for DataFileGuard<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self.0).read(buffer)
    }
}

impl Write for DataFileGuard<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        (&*self.0).write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for DataFileGuard<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self.0).seek(to)
    }
}

impl Data {
    fn io(&self, source: io::Error) -> DataFileError {
        DataFileError::Io { path: self.path.clone(), source }
    }

    /// What a restored process has to know in order to open the very same file.
    fn look_at(&self, file: &mut File) -> Result<(u64, Identity), DataFileError> {
        let identity = Identity::of(&file.metadata().map_err(|error| self.io(error))?);
        let what = match fs::metadata(&self.path) {
            Ok(found) if Identity::of(&found).inode == identity.inode => None,
            Ok(_) => Some(Change::Replaced),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(Change::Missing),
            Err(error) => return Err(self.io(error)),
        };
        if let Some(what) = what {
            return Err(DataFileError::Detached { path: self.path.clone(), what });
        }
        let offset = file.stream_position().map_err(|error| self.io(error))?;
        Ok((offset, identity))
    }

    fn reopen(&self, offset: u64, identity: Identity) -> Result<File, DataFileError> {
        let strict = self.options.on_change == OnChange::Fail;
        let changed = |what| DataFileError::Changed { path: self.path.clone(), what };
        let mut file = self.options.again().open(&self.path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound if strict => changed(Change::Missing),
            _ => self.io(error),
        })?;
        let now = Identity::of(&file.metadata().map_err(|error| self.io(error))?);
        match identity.change_to(now) {
            Some(what) if strict => return Err(changed(what)),
            _ => {}
        }
        file.seek(SeekFrom::Start(offset)).map_err(|error| self.io(error))?;
        Ok(file)
    }
}

#[async_trait]
impl Resource for Data {
    async fn before_checkpoint(&self, cycle: &Cycle) -> Result<(), HookError> {
        let mut state = self.state.lock().await;
        let State::Open(file) = &mut *state else { return Ok(()) };
        let (offset, identity) = self.look_at(file)?;
        // A duplicate shares offset and flags; the original is closed by the replacement.
        let keep = cycle.keep(OwnedFd::from(file.try_clone().map_err(|error| self.io(error))?));
        *state = State::Closed(Closed { keep: Some(keep), offset, identity, lost: false });
        Ok(())
    }

    async fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        let mut state = self.state.lock().await;
        let State::Closed(closed) = &mut *state else { return Ok(()) };
        let kept = closed.keep.take().and_then(Keep::take);
        let file = match kept {
            Some(descriptor) if wake.restored().is_none() => Ok(File::from(descriptor)),
            _ => self.reopen(closed.offset, closed.identity),
        };
        closed.lost = file.is_err();
        *state = State::Open(file?);
        Ok(())
    }

    fn describe(&self) -> String {
        format!("file {}", self.path.display())
    }
}
