//! Why a history could not be read or written.

use std::fmt;
use std::io;
use std::path::PathBuf;

use nix::errno::Errno;
use thiserror::Error;

use crate::image::record::RecordError;
use crate::image::{FlattenError, FolderError, ImageError, Users};

/// Why an operation on a history failed. Every checkpoint that was complete before still is, and no server is
/// concerned.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// There is nothing of that name.
    #[error("{} does not exist", dir.display())]
    Missing {
        /// As given.
        dir: PathBuf,
    },
    /// It holds something else.
    #[error("{} is no history of checkpoints", dir.display())]
    NotHistory {
        /// As given.
        dir: PathBuf,
    },
    /// Others may write to it. An image is executable code.
    #[error("{} can be changed by others (owner {owner}, mode {mode:04o})", path.display())]
    NotPrivate {
        /// The folder, or a file in it.
        path: PathBuf,
        /// Its owner's uid.
        owner: u32,
        /// Its permissions.
        mode: u32,
    },
    /// No server can be asked to write there: a request is one line.
    #[error("{} has a line break in its path", dir.display())]
    LineBreak {
        /// As given.
        dir: PathBuf,
    },
    /// Another process writes to it.
    #[error("{} is in use by {by}; nothing was changed", dir.display())]
    InUse {
        /// The history.
        dir: PathBuf,
        /// Who has it, as far as that is known.
        by: String,
    },
    /// There is no such checkpoint.
    #[error("{}@{which} is not there: the history has {have}", dir.display())]
    Unknown {
        /// The history.
        dir: PathBuf,
        /// What was asked for.
        which: String,
        /// What there is, in words.
        have: String,
    },
    /// What follows the `@` is no number.
    #[error(
        "{text}: what follows the @ is the number of a checkpoint, or -1 for the last, -2 for the one before"
    )]
    Unparsable {
        /// As given.
        text: String,
    },
    /// A checkpoint cannot be had any more.
    #[error("checkpoint {number} of {} is damaged: {}", dir.display(), losses.join("; "))]
    Damaged {
        /// The history.
        dir: PathBuf,
        /// Which one.
        number: u64,
        /// All that is wrong, as far as was looked.
        losses: Vec<String>,
    },
    /// Something needs the image that would be replaced.
    #[error("{} cannot be replaced: it is needed by {users}", target.display())]
    Needed {
        /// The image.
        target: PathBuf,
        /// Who needs it.
        users: Users,
    },
    /// A file has grown, shrunk or gone since its image was completed.
    #[error("{} is not as its image's manifest says; nothing was stored", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The image that is to be stored cannot be opened.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The image that is to be stored depends on others, and could not be made whole.
    #[error(transparent)]
    Flatten(#[from] FlattenError),
    /// The folder of an image could not be written.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A record cannot be stored.
    #[error("a record cannot be written: {0}")]
    Record(#[from] RecordError),
    /// A system call failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was to be done.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Its answer.
        source: io::Error,
    },
}

impl HistoryError {
    /// What the user can do about it, if that is not plain.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Missing { .. } | Self::NotHistory { .. } => {
                "name the folder that `defrost run --history` was given".into()
            }
            Self::NotPrivate { path, .. } => {
                let path = path.display();
                format!("if you trust it: chown -R \"$(id -u)\" '{path}' && chmod -R go-w '{path}'")
            }
            Self::InUse { .. } => {
                "give each run a history of its own, or wait until the other has ended".into()
            }
            Self::Unknown { dir, .. } => format!("see what there is: defrost history '{}'", dir.display()),
            Self::Unparsable { .. } => "name it as DIR@3 or DIR@-1".into(),
            Self::Damaged { dir, .. } => {
                format!("see which ones are whole: defrost history '{}' --check", dir.display())
            }
            Self::Needed { .. } | Self::LineBreak { .. } => "name another folder".into(),
            Self::Changed { .. } => "make a new checkpoint".into(),
            Self::Image(error) => return error.hint(),
            Self::Flatten(error) => return error.hint(),
            Self::Folder(error) => return error.hint(),
            Self::Record(error) => error.hint().into(),
            Self::Io { source, path, .. } if is_full(source) => {
                format!("free some space on the file system of '{}'", path.display())
            }
            Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                "do it as the owner of the history; who may read it can write a checkpoint elsewhere: \
                 defrost history checkout DIR@N OUT"
                    .into()
            }
            Self::Io { source, .. } if source.raw_os_error() == Some(Errno::EMFILE as i32) => {
                "raise the limit on open files: ulimit -n".into()
            }
            Self::Io { .. } => return None,
        })
    }

    /// Whether what is stored is the reason, rather than this host or the request.
    #[must_use]
    pub fn is_of_the_image(&self) -> bool {
        match self {
            Self::Damaged { .. }
            | Self::Unknown { .. }
            | Self::Missing { .. }
            | Self::NotHistory { .. }
            | Self::NotPrivate { .. }
            | Self::Changed { .. }
            | Self::Image(_) => true,
            Self::Flatten(error) => error.is_of_the_image(),
            _ => false,
        }
    }
}

/// Why something that is stored was not read.
#[derive(Debug)]
pub(super) enum Trouble {
    /// It is damaged or missing: all that is wrong.
    Loss(Vec<String>),
    /// Anything else: nothing is known of what is stored.
    Of(HistoryError),
}

impl Trouble {
    pub(super) fn loss(text: String) -> Self {
        Self::Loss(vec![text])
    }

    /// A file could not be read. That it is somebody else's, or that too many are open, is no loss.
    pub(super) fn reading(error: HistoryError) -> Self {
        match &error {
            HistoryError::Io { source, .. } if is_of_the_host(source) => Self::Of(error),
            _ => Self::loss(error.to_string()),
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loss(losses) => f.write_str(&losses.join("; ")),
            Self::Of(error) => error.fmt(f),
        }
    }
}

fn is_of_the_host(error: &io::Error) -> bool {
    let known = error.raw_os_error().map(Errno::from_raw);
    matches!(known, Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::EACCES | Errno::EPERM))
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A closure that makes an [`HistoryError::Io`] of what the kernel said.
pub(super) fn failed<'a>(
    action: &'static str,
    path: &'a std::path::Path,
) -> impl FnOnce(io::Error) -> HistoryError + 'a {
    move |source| HistoryError::Io { action, path: path.to_owned(), source }
}
