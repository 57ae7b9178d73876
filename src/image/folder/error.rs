//! Why an image folder could not be begun, completed or thrown away.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::target::NAME_LIMIT;
use crate::image::record::RecordError;

/// Why a folder operation failed. What lay at the target before still lies there, whichever it is.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FolderError {
    /// The target path ends in no name, such as `/` or `a/..`.
    #[error("{} names no folder", target.display())]
    NoName {
        /// As given.
        target: PathBuf,
    },
    /// The name leaves no room for the partial folder beside it.
    #[error("name of the image folder has {len} bytes, more than the limit of {NAME_LIMIT}")]
    LongName {
        /// Its length in bytes.
        len: usize,
    },
    /// The folder that shall hold the image is not there.
    #[error("{} does not exist", parent.display())]
    ParentMissing {
        /// That folder.
        parent: PathBuf,
    },
    /// What shall hold the image is no folder.
    #[error("{} is not a folder", parent.display())]
    ParentNotFolder {
        /// That file.
        parent: PathBuf,
    },
    /// Everybody may replace what lies in the folder that shall hold the image.
    #[error("{} can be written by everybody and has no sticky bit (mode {mode:04o})", parent.display())]
    ParentOpen {
        /// That folder.
        parent: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The target is a symbolic link that leads to no folder.
    #[error("{} is a symbolic link that leads nowhere", target.display())]
    Dangling {
        /// The link.
        target: PathBuf,
        /// What following it gave.
        source: io::Error,
    },
    /// The target is a file.
    #[error("{} exists and is not a folder", target.display())]
    NotFolder {
        /// The target.
        target: PathBuf,
    },
    /// The target is a folder that holds something else than an image.
    #[error("{} is not empty and holds no image", target.display())]
    Foreign {
        /// The target.
        target: PathBuf,
    },
    /// There is nothing at the target, or an empty folder.
    #[error("{} holds no image", target.display())]
    NoImage {
        /// The target.
        target: PathBuf,
    },
    /// The target is a folder of somebody else.
    #[error("{} belongs to user {owner}", target.display())]
    NotOurs {
        /// The target.
        target: PathBuf,
        /// Its owner's uid.
        owner: u32,
    },
    /// The target is the root of a mounted file system, which no rename can replace.
    #[error("{} is a mount point and cannot be replaced by an image", target.display())]
    MountPoint {
        /// The target.
        target: PathBuf,
    },
    /// The folder handed over is no partial folder of this target.
    #[error("{} is not a partial folder of {}", partial.display(), target.display())]
    NotPartial {
        /// The folder handed over.
        partial: PathBuf,
        /// The target.
        target: PathBuf,
    },
    /// Another process holds the partial folder.
    #[error("{} is in use by another process", partial.display())]
    InUse {
        /// The partial folder.
        partial: PathBuf,
    },
    /// The manifest cannot be stored.
    #[error("manifest cannot be written: {0}")]
    Manifest(#[from] RecordError),
    /// The file system cannot swap the new folder with the old image in one step.
    #[error("{} cannot be swapped with the new image: {source}", target.display())]
    Exchange {
        /// The target.
        target: PathBuf,
        /// The answer to renameat2(2).
        source: io::Error,
    },
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

impl FolderError {
    /// What the user can do about it, if that is not plain.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoName { .. } => "name a folder that may be created, such as ./img".into(),
            Self::LongName { .. } => "choose a shorter name".into(),
            Self::ParentMissing { parent } => format!("create it first: mkdir -p '{}'", parent.display()),
            Self::ParentNotFolder { .. } => "name a target inside a folder".into(),
            Self::ParentOpen { parent, .. } => {
                format!(
                    "take the permission away (chmod o-w '{}'), or choose another folder",
                    parent.display()
                )
            }
            Self::Dangling { .. } => "create the folder it should lead to, or remove the link".into(),
            Self::NotFolder { .. } => "move the file away, or choose another name".into(),
            Self::Foreign { target } => format!(
                "name a folder inside it, such as '{}', or one that does not exist",
                target.join("img").display()
            ),
            Self::NotOurs { .. } => "choose another name, or run as its owner".into(),
            Self::MountPoint { target } => {
                format!("name a folder inside it, such as '{}'", target.join("img").display())
            }
            Self::Exchange { target, .. } => {
                format!(
                    "move the old image away (mv '{0}' '{0}.old'), or choose another name",
                    target.display()
                )
            }
            Self::Io { source, path, .. } => return io_hint(source, path),
            Self::Manifest(error) => error.hint().into(),
            Self::NoImage { .. } | Self::NotPartial { .. } | Self::InUse { .. } => return None,
        })
    }
}

fn io_hint(source: &io::Error, path: &std::path::Path) -> Option<String> {
    use io::ErrorKind as Kind;
    match source.kind() {
        Kind::StorageFull | Kind::QuotaExceeded => Some(format!(
            "free some space on the file system of '{}', or choose another folder",
            path.display()
        )),
        Kind::PermissionDenied => Some("choose a folder that the server may write to".into()),
        Kind::ReadOnlyFilesystem => {
            Some("choose a folder on a file system that is not mounted read-only".into())
        }
        _ => None,
    }
}
