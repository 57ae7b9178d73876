//! Standard input, output and error that do not tie a dump to the terminal or the pipes of its origin.
//!
//! A dump of a process on a terminal or a socket fails, and one on a pipe is restored to a pipe that nobody holds:
//! the first line printed ends the process. It must not know what is printed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::stat::{SFlag, fstat, major, minor};
use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout};

use crate::context::{Context, Registration};
use crate::resource::{Blocking, BlockingResource, Cycle, HookError, Keep, locked};
use crate::wake::Wake;

mod files;
#[cfg(test)]
mod tests;

use files::Files;

/// Where descriptors of a closed or replaced stream lead.
const NULL: &str = "/dev/null";

/// Keeps descriptors 0 to 2 fit for a dump while it is registered.
///
/// Before the dump each is replaced, unless it already is `/dev/null` or an append-only file at its path: standard
/// input by `/dev/null`, the others by `/dev/null` or a log. A process that goes on gets its own back. A restored
/// one stays with the replacement, for whoever restored it is at another terminal. What is printed in between goes
/// to the replacement; what `print!` has buffered by then goes out first. For the moment of the dump itself files are
/// out of the way too, and a restored process opens them again by their paths: they may have grown, been rotated or
/// been removed since.
///
/// Register it before everything that prints, so that it is the last to be replaced and the first to come back.
#[derive(Debug)]
#[must_use = "it is unregistered when it is dropped"]
pub struct Stdio {
    _registration: Registration,
}

impl Stdio {
    /// Registers the three streams under the name `stdio`. With a `log`, output and error are appended to it from
    /// the dump on; it is created if it is missing, but not its folder. Streams that are closed are opened on
    /// `/dev/null` right now, so that no other file gets their numbers.
    ///
    /// # Errors
    /// A closed stream that cannot be opened on `/dev/null`. Nothing is registered then.
    pub fn register(context: &Context, log: Option<&Path>) -> io::Result<Self> {
        let log = log.map(std::path::absolute).transpose()?;
        for stream in Stream::ALL {
            stream.open_if_closed()?;
        }
        let streams = Streams { log, replaced: Mutex::default(), files: Arc::default() };
        let registration = context.register("stdio", Arc::new(Blocking::new(Arc::new(streams))));
        Ok(Self { _registration: registration })
    }
}

/// Why standard streams could not be replaced or given back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StdioError {
    /// The replacement could not be opened. Every stream is still what it was.
    #[error("{} cannot be opened in place of the standard streams: {source}", path.display())]
    Open {
        /// The log, or `/dev/null`.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A stream could not be examined, duplicated or replaced. Those before it come back with the wake.
    #[error("standard {stream}: {source}")]
    Stream {
        /// `input`, `output` or `error`.
        stream: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A file could not be opened again in a restored process; the stream leads to `/dev/null`.
    #[error("standard {stream} was {}, which cannot be opened again: {source}", path.display())]
    Reopen {
        /// `output` or `error`.
        stream: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The process that held a stream during the dump died; the stream stays with its replacement.
    #[error("standard {stream} was lost: the process that held it during the dump died")]
    Lost {
        /// `input`, `output` or `error`.
        stream: &'static str,
    },
}

impl StdioError {
    /// What to do about it, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Open { .. } | Self::Reopen { .. } => {
                Some("create the folder of the log, with access for the server's user")
            }
            Self::Lost { .. } => Some("restart the server to have its output back, or read it from the log"),
            Self::Stream { .. } => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stream {
    Input,
    Output,
    Error,
}

impl Stream {
    const ALL: [Self; 3] = [Self::Input, Self::Output, Self::Error];

    fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Output => "output",
            Self::Error => "error",
        }
    }

    /// Descriptor 0, 1 or 2, whatever it is, or is not, open on.
    fn number(self) -> BorrowedFd<'static> {
        static STREAMS: std::sync::LazyLock<(io::Stdin, io::Stdout, io::Stderr)> =
            std::sync::LazyLock::new(|| (io::stdin(), io::stdout(), io::stderr()));
        match self {
            Self::Input => STREAMS.0.as_fd(),
            Self::Output => STREAMS.1.as_fd(),
            Self::Error => STREAMS.2.as_fd(),
        }
    }

    fn failed(self, source: impl Into<io::Error>) -> StdioError {
        StdioError::Stream { stream: self.name(), source: source.into() }
    }

    fn put(self, descriptor: impl AsFd) -> nix::Result<()> {
        match self {
            Self::Input => dup2_stdin(descriptor),
            Self::Output => dup2_stdout(descriptor),
            Self::Error => dup2_stderr(descriptor),
        }
    }

    fn open_null(self) -> io::Result<File> {
        File::options().read(self == Self::Input).write(self != Self::Input).open(NULL)
    }

    /// Has `/dev/null` opened by this process. One that was inherited may be of a mount that this process does
    /// not see: it has a mount namespace of its own, and its parent has another. CRIU looks for it in vain.
    fn renew_null(self) -> io::Result<()> {
        Ok(self.put(self.open_null()?)?)
    }

    fn open_if_closed(self) -> io::Result<()> {
        if fcntl(self.number(), FcntlArg::F_GETFD) != Err(Errno::EBADF) {
            return Ok(());
        }
        let null = self.open_null()?;
        if null.as_raw_fd() == self.number().as_raw_fd() {
            // It got the lowest free number, which is the one. It stays open, over an exec too.
            fcntl(&null, FcntlArg::F_SETFD(FdFlag::empty()))?;
            let _ = null.into_raw_fd();
            return Ok(());
        }
        Ok(self.put(&null)?)
    }

    fn footing(self) -> nix::Result<Footing> {
        let found = fstat(self.number())?;
        match SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT {
            // null(4): character device 1, 3.
            SFlag::S_IFCHR if (major(found.st_rdev), minor(found.st_rdev)) == (1, 3) => Ok(Footing::Null),
            SFlag::S_IFREG => {
                let flags = OFlag::from_bits_truncate(fcntl(self.number(), FcntlArg::F_GETFL)?);
                // The only kind of open file that may have changed when it is opened again.
                let append_only =
                    flags & (OFlag::O_ACCMODE | OFlag::O_APPEND) == OFlag::O_WRONLY | OFlag::O_APPEND;
                let path = fs::read_link(format!("/proc/self/fd/{}", self.number().as_raw_fd()));
                let same = |path: &PathBuf| {
                    fs::metadata(path).is_ok_and(|at| (at.dev(), at.ino()) == (found.st_dev, found.st_ino))
                };
                Ok(path.ok().filter(|path| append_only && same(path)).map_or(Footing::Other, Footing::File))
            }
            _ => Ok(Footing::Other),
        }
    }
}

/// What a stream stands on.
enum Footing {
    /// `/dev/null`, which is the same everywhere.
    Null,
    /// An append-only file, at this path.
    File(PathBuf),
    /// Anything else: it has to be replaced before a dump.
    Other,
}

struct Streams {
    log: Option<PathBuf>,
    replaced: Mutex<Vec<(Stream, Keep)>>,
    files: Arc<Files>,
}

impl Streams {
    fn open_replacement(&self, stream: Stream) -> Result<File, StdioError> {
        let opened = match &self.log {
            Some(log) if stream != Stream::Input => File::options().append(true).create(true).open(log),
            _ => stream.open_null(),
        };
        opened.map_err(|source| StdioError::Open {
            path: self.log.clone().filter(|_| stream != Stream::Input).unwrap_or_else(|| NULL.into()),
            source,
        })
    }

    fn replace(&self, stream: Stream, replacement: &File, cycle: &Cycle) -> Result<(), StdioError> {
        match stream.footing() {
            Ok(Footing::File(_)) => return Ok(()),
            Ok(Footing::Null) => return stream.renew_null().map_err(|error| stream.failed(error)),
            Ok(Footing::Other) => {
                let own = stream.number().try_clone_to_owned().map_err(|error| stream.failed(error))?;
                locked(&self.replaced).push((stream, cycle.keep(own)));
            }
            // Closed since it was registered: there is nothing to give back.
            Err(Errno::EBADF) => {}
            Err(errno) => return Err(stream.failed(errno)),
        }
        stream.put(replacement).map_err(|errno| stream.failed(errno))
    }
}

impl BlockingResource for Streams {
    fn before_checkpoint(&self, cycle: &Cycle) -> Result<(), HookError> {
        locked(&self.replaced).clear();
        // Nobody reads what a broken pipe was given: that is no reason against a dump.
        let _ = io::stdout().flush();
        let replacements = Stream::ALL.map(|stream| self.open_replacement(stream).map(|file| (stream, file)));
        // All are open before the first is replaced.
        let replacements = replacements.into_iter().collect::<Result<Vec<_>, _>>()?;
        for (stream, replacement) in &replacements {
            self.replace(*stream, replacement, cycle)?;
        }
        self.files.find(cycle)?;
        cycle.at_freeze(Arc::clone(&self.files) as _);
        Ok(())
    }

    /// In a restored process all has been done already, right after the dump: there is nothing to give back.
    fn after_restore_at_once(&self, wake: &Wake) -> Option<Result<(), HookError>> {
        wake.restored()?;
        locked(&self.replaced).clear();
        Some(self.files.settle().map_err(HookError::from))
    }

    fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        if let Some(outcome) = self.after_restore_at_once(wake) {
            return outcome;
        }
        let replaced = std::mem::take(&mut *locked(&self.replaced));
        let mut outcome = self.files.settle();
        for (stream, keep) in replaced {
            let given_back = match keep.take() {
                Some(own) => stream.put(own).map_err(|errno| stream.failed(errno)),
                None => Err(StdioError::Lost { stream: stream.name() }),
            };
            outcome = outcome.and(given_back);
        }
        Ok(outcome?)
    }

    fn describe(&self) -> String {
        match &self.log {
            Some(log) => format!("standard streams, output to {} from a dump on", log.display()),
            None => "standard streams".to_owned(),
        }
    }
}
