//! Taking an image away: in one step its name is gone, and then its files.
//!
//! Under a name that the next checkpoint sweeps, so that what a killed removal leaves is no image and does not stay.

use std::fs;
use std::path::{Path, PathBuf};

use super::target::{Occupant, Target};
use super::{FolderError, failed, stale, sync, temporary};

/// Removes the image or half image in this folder, a link to it followed. Returns where it lay.
///
/// # Errors
/// See [`FolderError`]; [`FolderError::NoImage`] for a folder without one. An image that was there is there still,
/// or, if only its files could not be removed, has lost its name.
pub fn remove(image: &Path) -> Result<PathBuf, FolderError> {
    let (target, occupant) = Target::examine(image)?;
    let path = target.path();
    if occupant != Occupant::Image {
        return Err(FolderError::NoImage { target: path });
    }
    stale::sweep(&target);
    // rename(2) takes an empty folder's place.
    let away = temporary(&target)?;
    fs::rename(&path, &away).map_err(|source| failed("move away", &path, source))?;
    sync(&target.parent)?;
    fs::remove_dir_all(&away).map_err(|source| failed("remove", &away, source))?;
    Ok(path)
}
