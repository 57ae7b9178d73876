//! A log that is closed for the dump, and loses nothing meanwhile.
//!
//! CRIU refuses a file that has vanished and, unless it is open append-only, one that has grown since. A log does
//! both, so it is reopened by its path instead. It must not log anything itself: it may be the one that is
//! logged to.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::context::{Context, Registration};
use crate::resource::{Blocking, BlockingResource, Cycle, HookError, Keep, locked};
use crate::wake::Wake;

/// How much is kept of what is written while the file is closed, in bytes.
pub const GAP_BUFFER: usize = 1 << 20;

/// How often the path is compared with the open file.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// An append-only log file, registered with a [`Context`] until the last clone is dropped.
///
/// Each write is one `write(2)` with `O_APPEND`; nothing is buffered in the process. When the path is renamed,
/// removed or replaced, as log rotation does, the log moves on to a new file at the path within about a second.
///
/// While a cycle runs the file is closed, and up to [`GAP_BUFFER`] bytes of writes are kept in memory. They are
/// written when the process goes on, and also in a restored process: without the original nobody else would.
#[derive(Clone)]
pub struct LogFile {
    log: Arc<Log>,
    _registration: Arc<Registration>,
}

struct Log {
    path: PathBuf,
    state: Mutex<State>,
}

struct State {
    /// A cycle runs: the file must stay closed.
    quiesced: bool,
    file: Option<File>,
    /// The open file as a cycle keeps it: it may lie where this process could not open it again.
    away: Option<Keep>,
    gap: Gap,
    looked: Instant,
    /// Why the path could not be opened again, when the log had to stay with the old file.
    trouble: Option<io::ErrorKind>,
}

#[derive(Default)]
struct Gap {
    kept: Vec<u8>,
    lost_writes: u64,
    lost_bytes: u64,
}

impl LogFile {
    /// Opens the log for appending, and creates it if it is missing, but not its folder. A relative path is
    /// taken from the current folder now, and stays what it is.
    ///
    /// # Errors
    /// Those of `open(2)`. Nothing is registered then.
    pub fn open(context: &Context, name: impl Into<Arc<str>>, path: impl AsRef<Path>) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let state = State {
            quiesced: false,
            file: Some(open(&path)?),
            away: None,
            gap: Gap::default(),
            looked: Instant::now(),
            trouble: None,
        };
        let log = Arc::new(Log { path, state: Mutex::new(state) });
        let registration = context.register(name, Arc::new(Blocking::new(Arc::clone(&log))));
        Ok(Self { log, _registration: Arc::new(registration) })
    }

    /// A closure that gives out handles, such as the `with_writer` of tracing-subscriber's formatters takes.
    pub fn make_writer(&self) -> impl Fn() -> Self + Clone + Send + Sync + 'static + use<> {
        let log = self.clone();
        move || log.clone()
    }

    /// Where the log is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.log.path
    }
}

impl fmt::Debug for LogFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogFile").field(&self.log.path).finish()
    }
}

impl Write for LogFile {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        (&*self).write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Write for &LogFile {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.log.write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// O_WRONLY|O_APPEND|O_CREAT|O_CLOEXEC.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

impl Log {
    fn write(&self, data: &[u8]) -> io::Result<usize> {
        let mut state = locked(&self.state);
        if !state.quiesced && state.looked.elapsed() >= LOOK_EVERY {
            state.look(&self.path);
        }
        match &mut state.file {
            Some(file) => file.write(data),
            None => {
                state.gap.keep(data);
                Ok(data.len())
            }
        }
    }

    fn reopen_error(&self, source: io::Error) -> LogFileError {
        LogFileError { path: self.path.clone(), source }
    }
}

impl State {
    /// Follows the path, when it leads elsewhere by now. A path that cannot be opened is no reason to lose what
    /// can still be written to the old file.
    fn look(&mut self, path: &Path) {
        self.looked = Instant::now();
        if self.file.as_ref().is_some_and(|file| leads_to(path, file)) {
            self.trouble = None;
            return;
        }
        self.trouble = self.reopen(path).err().map(|error| error.kind());
    }

    fn reopen(&mut self, path: &Path) -> io::Result<()> {
        let file = open(path)?;
        self.take_up(file)
    }

    fn take_up(&mut self, mut file: File) -> io::Result<()> {
        let written = self.gap.write_to(&mut file);
        self.file = Some(file);
        written
    }
}

fn leads_to(path: &Path, file: &File) -> bool {
    match (fs::metadata(path), file.metadata()) {
        (Ok(path), Ok(file)) => (path.dev(), path.ino()) == (file.dev(), file.ino()),
        _ => false,
    }
}

impl Gap {
    /// A write is kept whole or not at all.
    fn keep(&mut self, data: &[u8]) {
        if self.kept.len() + data.len() <= GAP_BUFFER {
            self.kept.extend_from_slice(data);
        } else {
            self.lost_writes += 1;
            self.lost_bytes += data.len() as u64;
        }
    }

    fn write_to(&mut self, file: &mut File) -> io::Result<()> {
        let mut gap = std::mem::take(self);
        if gap.lost_writes > 0 {
            let said = format!(
                "defrost: {} writes of {} bytes in all came while this log was closed and did not fit in memory\n",
                gap.lost_writes, gap.lost_bytes
            );
            gap.kept.extend_from_slice(said.as_bytes());
        }
        file.write_all(&gap.kept)
    }
}

/// A log that could not be reopened. What is written to it is kept in memory, within bounds, and it is tried
/// again about once a second.
#[derive(Debug, thiserror::Error)]
#[error("log {} cannot be reopened: {source}", path.display())]
pub struct LogFileError {
    path: PathBuf,
    source: io::Error,
}

impl LogFileError {
    /// The log's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What to do about it, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self.source.kind() {
            io::ErrorKind::NotFound => Some("create the log's folder, with access for the server's user"),
            io::ErrorKind::PermissionDenied => Some("give the server's user write access to the log"),
            _ => None,
        }
    }
}

impl BlockingResource for Log {
    fn before_checkpoint(&self, cycle: &Cycle) -> Result<(), HookError> {
        let mut state = locked(&self.state);
        state.quiesced = true;
        if let Some(file) = state.file.take() {
            state.away = Some(cycle.keep(OwnedFd::from(file)));
        }
        Ok(())
    }

    fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        let mut state = locked(&self.state);
        state.quiesced = false;
        // The clock may have jumped either way.
        state.looked = Instant::now();
        let kept = state.away.take().and_then(Keep::take);
        if state.file.is_some() {
            return Ok(());
        }
        let outcome = match kept {
            Some(descriptor) if wake.restored().is_none() => {
                let outcome = state.take_up(File::from(descriptor));
                state.look(&self.path);
                outcome
            }
            _ => state.reopen(&self.path),
        };
        Ok(outcome.map_err(|error| self.reopen_error(error))?)
    }

    fn describe(&self) -> String {
        let state = locked(&self.state);
        match state.trouble {
            Some(kind) => format!("log {}, which cannot be reopened: {kind}", self.path.display()),
            None => format!("log {}", self.path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapters::tests::{failure, quiesce, restored, wake};

    /// Has the next write look at the path again.
    fn let_a_second_pass(log: &LogFile) {
        let mut state = locked(&log.log.state);
        state.looked = state.looked.checked_sub(LOOK_EVERY).unwrap();
    }

    fn opened() -> (tempfile::TempDir, Context, LogFile) {
        let folder = tempfile::tempdir().unwrap();
        let context = Context::new();
        let log = LogFile::open(&context, "log", folder.path().join("server.log")).unwrap();
        (folder, context, log)
    }

    fn text(log: &LogFile) -> String {
        fs::read_to_string(log.path()).unwrap()
    }

    #[tokio::test]
    async fn what_is_written_in_the_gap_follows_after_the_wake() {
        let (_folder, context, log) = opened();
        let mut writer = log.make_writer()();
        let mut expected = String::new();
        for (round, end) in [Wake::Resumed, Wake::Aborted, restored(&[]), restored(&[])].iter().enumerate() {
            writeln!(writer, "before {round}").unwrap();
            let cycle = quiesce(&context).await;
            writeln!(writer, "meanwhile {round}").unwrap();
            assert!(!text(&log).contains(&format!("meanwhile {round}")));
            if end.restored().is_some() {
                cycle.kept().iter().for_each(|slot| drop(slot.take()));
            }
            // The log has grown since the dump.
            OpenOptions::new().append(true).open(log.path()).unwrap().write_all(b"other\n").unwrap();
            wake(&context, end).await;
            writeln!(writer, "after {round}").unwrap();
            expected += &format!("before {round}\nother\nmeanwhile {round}\nafter {round}\n");
        }
        assert_eq!(text(&log), expected);
    }

    #[tokio::test]
    async fn rotation_and_deletion_are_followed() {
        let (folder, _context, mut log) = opened();
        let old = folder.path().join("server.log.1");
        log.write_all(b"1\n").unwrap();
        fs::rename(log.path(), &old).unwrap();
        let_a_second_pass(&log);
        log.write_all(b"2\n").unwrap();
        assert_eq!((fs::read_to_string(old).unwrap().as_str(), text(&log).as_str()), ("1\n", "2\n"));
        fs::remove_file(log.path()).unwrap();
        let_a_second_pass(&log);
        log.write_all(b"3\n").unwrap();
        assert_eq!(text(&log), "3\n");
    }

    #[tokio::test]
    async fn a_missing_folder_loses_nothing_and_is_seen() {
        let (folder, context, mut log) = opened();
        let moved = folder.path().with_extension("moved");
        fs::rename(folder.path(), &moved).unwrap();
        let_a_second_pass(&log);
        log.write_all(b"1\n").unwrap();
        assert!(context.resources()[0].description.contains("cannot be reopened"));
        assert_eq!(fs::read_to_string(moved.join("server.log")).unwrap(), "1\n");

        quiesce(&context).await;
        log.write_all(b"2\n").unwrap();
        let failed = failure(&context, &restored(&[])).await;
        assert!(failed.contains(&format!("log {} cannot be reopened", log.path().display())), "{failed}");
        fs::rename(&moved, folder.path()).unwrap();
        let_a_second_pass(&log);
        log.write_all(b"3\n").unwrap();
        assert_eq!(text(&log), "1\n2\n3\n");
    }

    #[tokio::test]
    async fn what_does_not_fit_is_counted() {
        let (_folder, context, mut log) = opened();
        quiesce(&context).await;
        for _ in 0..3 {
            log.write_all(&vec![b'x'; GAP_BUFFER / 2]).unwrap();
        }
        log.write_all(b"y").unwrap();
        wake(&context, &Wake::Resumed).await;
        let text = text(&log);
        let (kept, said) = text.split_at(GAP_BUFFER);
        assert!(kept.bytes().all(|byte| byte == b'x'));
        let lost = GAP_BUFFER / 2 + 1;
        assert!(said.starts_with(&format!("defrost: 2 writes of {lost} bytes in all")), "{said}");
        assert_eq!(said.lines().count(), 1);
    }
}
