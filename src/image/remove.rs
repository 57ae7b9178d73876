//! Removing an image, unless somebody needs it.

use std::path::{Path, PathBuf};

use thiserror::Error;

use super::chain::Users;
use super::folder::{self, FolderError};
use super::open::{Image, ImageError};

/// Why an image was not removed. It is still there, but for what [`FolderError`] says.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RemoveError {
    /// The folder cannot be opened as an image, so nobody can say who depends on it.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// Other images or living processes need it.
    #[error("{} is needed by {users}", image.display())]
    Needed {
        /// The image.
        image: PathBuf,
        /// Who needs it.
        users: Users,
    },
    /// It could not be moved away or removed.
    #[error(transparent)]
    Folder(#[from] FolderError),
}

impl RemoveError {
    /// What the user can do about it, if that is not plain.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Image(ImageError::Missing { .. } | ImageError::NotFolder { .. }) => None,
            Self::Image(_) => Some("--force removes it all the same".to_owned()),
            Self::Needed { users, .. } => Some(format!("{}; --force removes it all the same", users.hint())),
            Self::Folder(error) => error.hint(),
        }
    }
}

/// Removes the image in this folder; a symbolic link to it stays, and leads nowhere. Returns where it lay. With
/// `force`, who needs it is not asked, and half an image will do; a folder that holds anything else is never removed.
///
/// # Errors
/// See [`RemoveError`].
pub fn remove(path: &Path, force: bool) -> Result<PathBuf, RemoveError> {
    if !force {
        let image = Image::open(path)?;
        let users = Users::of(path);
        if !users.is_empty() {
            return Err(RemoveError::Needed { image: image.path().to_owned(), users });
        }
    }
    Ok(folder::remove(path)?)
}
