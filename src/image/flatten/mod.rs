//! A dependent image made whole: what it has in the pages files of earlier images is copied into its own.
//!
//! The new image is written beside its name and gets it when it is complete, as in a checkpoint: until then, and if
//! anything fails, the old one stays. Three of CRIU's small files are written again, all others are copied. Those
//! three are read strictly: a field that is not known here refuses the image, as it would be lost. This module must
//! not know how images are restored.

mod files;
mod memory;
mod pages;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use criu_images::{ImageDir, ReadError, WriteError};
use thiserror::Error;

use super::chain::Users;
use super::describe::{DescribeError, hash_files};
use super::folder::{FolderError, Partial};
use super::manifest::{ImageId, MANIFEST, Manifest, Phase};
use super::open::Image;
use super::verify::{Finding, check_whole};
use files::Draft;

/// Why an image was not made whole. It is as it was, and so is whatever the new one should have replaced.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FlattenError {
    /// The image, or one that it depends on, is damaged.
    #[error("{} is not whole: {}", image.display(), words(findings))]
    Damaged {
        /// The image.
        image: PathBuf,
        /// All that is wrong.
        findings: Vec<Finding>,
    },
    /// Some of its pages are in an image that CRIU's link `parent` leads to.
    #[error("{} is the difference to a parent image of CRIU's", image.display())]
    Parent {
        /// The image.
        image: PathBuf,
    },
    /// Others need the image that would be replaced.
    #[error("{} cannot be replaced: it is needed by {users}", image.display())]
    Needed {
        /// The image that would be replaced.
        image: PathBuf,
        /// Who needs it.
        users: Users,
    },
    /// One of CRIU's files cannot be read, or not without loss.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// One of CRIU's files cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The new image cannot be begun or completed.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The new image cannot be described.
    #[error(transparent)]
    Describe(#[from] DescribeError),
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

impl FlattenError {
    /// Whether it is about the image, rather than about the host or where the new one shall be.
    #[must_use]
    pub fn is_of_the_image(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::Parent { .. } | Self::Read(_))
    }

    /// What the user can do about it, if that is not plain.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Damaged { findings, .. } => findings.first().map(|finding| finding.remedy.clone()),
            Self::Parent { .. } => Some("restore it, and make a new checkpoint without one".to_owned()),
            Self::Needed { .. } => Some("write the whole image elsewhere: --to DIR".to_owned()),
            Self::Read(error) => Some(error.hint().to_owned()),
            Self::Folder(error) => error.hint(),
            Self::Describe(error) => error.hint(),
            Self::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                Some("free some space, or write the whole image elsewhere: --to DIR".to_owned())
            }
            Self::Write(_) | Self::Io { .. } => None,
        }
    }
}

fn words(findings: &[Finding]) -> String {
    findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Writes the image anew as one that depends on no other: in its own place, or as `to`. Returns where it is. An image
/// that is whole already is copied, or, in its own place, left as it is. `progress` is told how many bytes of memory
/// are written, and of how many.
///
/// # Errors
/// See [`FlattenError`].
pub fn flatten(
    image: &Image,
    to: Option<&Path>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<PathBuf, FlattenError> {
    let begun = Instant::now();
    let path = image.path();
    let findings = check_whole(image);
    if !findings.is_empty() {
        return Err(FlattenError::Damaged { image: path.to_owned(), findings });
    }
    let dir = ImageDir::open(path)?;
    if dir.parent()?.is_some() {
        return Err(FlattenError::Parent { image: path.to_owned() });
    }
    let draft = Draft::of(&dir)?;
    if draft.is_whole() && to.is_none() {
        return Ok(path.to_owned());
    }
    let target = to.unwrap_or(path);
    unneeded(target)?;
    let begun_folder = Partial::create(target)?;
    // Locked from here on: an other checkpoint of this name must not sweep it away.
    let partial = Partial::reopen(begun_folder.path(), target)?;
    let written = write(image, &draft, partial.path(), progress).and_then(|manifest| {
        let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        let phase = Phase { name: "make the image whole".to_owned(), micros };
        // Somebody may have begun to need it meanwhile.
        unneeded(target)?;
        let phases = manifest.phases.iter().cloned().chain([phase]).collect();
        // One that is asked for by name is to stay.
        let durable = manifest.durable || to.is_some();
        Ok(partial.complete(&Manifest { phases, durable, ..manifest })?)
    });
    if written.is_err() {
        // What cannot be removed now is swept by the next checkpoint of this name.
        let _ = partial.discard(None);
    }
    written
}

fn unneeded(target: &Path) -> Result<(), FlattenError> {
    let users = Users::of(target);
    if users.is_empty() {
        return Ok(());
    }
    Err(FlattenError::Needed { image: target.to_owned(), users })
}

/// Writes all files into the new folder, and checks that they make an image.
fn write(
    image: &Image,
    draft: &Draft,
    folder: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Manifest, FlattenError> {
    let old = image.manifest();
    let rewritten = draft.write(folder, progress)?;
    for file in old.files.iter().filter(|file| !rewritten.contains(&file.name)) {
        let (from, to) = (image.path().join(&file.name), folder.join(&file.name));
        fs::copy(&from, &to).map_err(|source| failed("copy", &from, source))?;
    }
    let report = criu_images::verify(&ImageDir::open(folder)?);
    if !report.is_ok() {
        let findings = report.findings.iter().map(ToString::to_string).collect();
        return Err(DescribeError::NotWhole { findings }.into());
    }
    let mut manifest = old.clone();
    // All else is as it was at the dump: when, on which host, by whom.
    manifest.format = MANIFEST.version;
    manifest.id = ImageId::fresh().map_err(|source| failed("name", folder, source))?;
    manifest.needed.retain(|file| !draft.vanishes(Path::new(&file.path)));
    (manifest.ancestors, manifest.depth) = (Vec::new(), 0);
    manifest.files = hash_files(folder)?;
    manifest.present_bytes = report.present_bytes;
    Ok(manifest)
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> FlattenError {
    FlattenError::Io { action, path: path.into(), source }
}
