//! The place that an image shall have: which folder holds it, and what lies there now.
//!
//! Looks only, changes nothing. This module must not know how the image gets there.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf, absolute};

use nix::unistd::geteuid;

use super::FolderError;
use crate::image::INVENTORY_NAME;
use crate::image::manifest::MANIFEST_NAME;

/// Longest name of an image folder in bytes: file systems take 255 (NAME_MAX), the partial folder beside it
/// adds a prefix and a suffix to the same name.
pub(super) const NAME_LIMIT: usize = 200;

/// Where the image goes: a canonical parent and a name in it, so that neither a change of the current folder
/// nor of a link on the way moves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) parent: PathBuf,
    pub(super) name: OsString,
}

/// What lies at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occupant {
    Nothing,
    EmptyFolder,
    Image,
}

impl Target {
    /// The target of this path, and what lies there; refused unless an image can be put there.
    pub(super) fn examine(path: &Path) -> Result<(Self, Occupant), FolderError> {
        let target = Self::resolve(path)?;
        let occupant = target.occupant()?;
        Ok((target, occupant))
    }

    /// The target of this path, a symbolic link at its end followed.
    pub(super) fn resolve(path: &Path) -> Result<Self, FolderError> {
        let mut full = absolute(path).map_err(|_| FolderError::NoName { target: path.into() })?;
        if fs::symlink_metadata(&full).is_ok_and(|meta| meta.is_symlink()) {
            full = fs::canonicalize(&full)
                .map_err(|source| FolderError::Dangling { target: path.into(), source })?;
        }
        let (Some(parent), Some(name)) = (full.parent(), full.file_name()) else {
            return Err(FolderError::NoName { target: path.into() });
        };
        if name.len() > NAME_LIMIT {
            return Err(FolderError::LongName { len: name.len() });
        }
        let parent = canonical_folder(parent)?;
        Ok(Self { parent, name: name.into() })
    }

    pub(super) fn path(&self) -> PathBuf {
        self.parent.join(&self.name)
    }

    /// What lies at the target now; refused if it is anything that an image must not replace.
    pub(super) fn occupant(&self) -> Result<Occupant, FolderError> {
        let path = self.path();
        let meta = match fs::symlink_metadata(&path) {
            Ok(meta) => meta,
            Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(Occupant::Nothing),
            Err(source) => return Err(FolderError::Io { action: "look at", path, source }),
        };
        if !meta.is_dir() {
            return Err(FolderError::NotFolder { target: path });
        }
        let ours = geteuid();
        if !ours.is_root() && meta.uid() != ours.as_raw() {
            return Err(FolderError::NotOurs { target: path, owner: meta.uid() });
        }
        let parent = fs::metadata(&self.parent).map_err(|source| FolderError::Io {
            action: "look at",
            path: self.parent.clone(),
            source,
        })?;
        if parent.dev() != meta.dev() {
            return Err(FolderError::MountPoint { target: path });
        }
        contents(&path)
    }

    /// The name, wrapped: `PREFIX NAME SUFFIX`.
    pub(super) fn sibling(&self, prefix: &str, suffix: &str) -> OsString {
        let mut name = OsString::from(prefix);
        name.push(&self.name);
        name.push(suffix);
        name
    }
}

/// What is in this folder.
pub(super) fn contents(path: &Path) -> Result<Occupant, FolderError> {
    let failed = |source| FolderError::Io { action: "list", path: path.into(), source };
    let mut empty = true;
    for entry in fs::read_dir(path).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if [MANIFEST_NAME, INVENTORY_NAME].iter().any(|known| name == OsStr::new(known)) {
            return Ok(Occupant::Image);
        }
        empty = false;
    }
    if empty { Ok(Occupant::EmptyFolder) } else { Err(FolderError::Foreign { target: path.into() }) }
}

fn canonical_folder(parent: &Path) -> Result<PathBuf, FolderError> {
    const OTHERS_WRITE: u32 = 0o002;
    const STICKY: u32 = 0o1000;
    let parent = match fs::canonicalize(parent) {
        Ok(parent) => parent,
        Err(source) if source.kind() == io::ErrorKind::NotFound => {
            return Err(FolderError::ParentMissing { parent: parent.into() });
        }
        Err(source) if source.kind() == io::ErrorKind::NotADirectory => {
            return Err(FolderError::ParentNotFolder { parent: parent.into() });
        }
        Err(source) => return Err(FolderError::Io { action: "look at", path: parent.into(), source }),
    };
    let meta = fs::metadata(&parent).map_err(|source| FolderError::Io {
        action: "look at",
        path: parent.clone(),
        source,
    })?;
    if !meta.is_dir() {
        return Err(FolderError::ParentNotFolder { parent });
    }
    if meta.mode() & OTHERS_WRITE != 0 && meta.mode() & STICKY == 0 {
        return Err(FolderError::ParentOpen { parent, mode: meta.mode() & 0o7777 });
    }
    Ok(parent)
}

/// Whether this is the name of a partial folder of this target, and whose: the pid in it.
pub(super) fn partial_creator(target: &OsStr, name: &OsStr) -> Option<u32> {
    let rest = name.as_bytes().strip_prefix(b".")?.strip_prefix(target.as_bytes())?;
    let rest = std::str::from_utf8(rest.strip_prefix(b".partial-")?).ok()?;
    let (pid, random) = rest.split_once('-')?;
    let named = !random.is_empty() && random.bytes().all(|byte| byte.is_ascii_alphanumeric());
    pid.parse().ok().filter(|_| named)
}
