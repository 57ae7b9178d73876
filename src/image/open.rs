//! An existing image: found, trusted by its permissions, its manifest read.
//!
//! Reads the manifest and nothing else; whether the rest is there and fits is [`verify`](super::verify())'s. This
//! module must not know what the manifest says.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf, absolute};
use std::sync::{Arc, OnceLock};

use criu_images::Contents;
use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use thiserror::Error;

use super::INVENTORY_NAME;
use super::folder::is_private;
use super::manifest::{MANIFEST_NAME, Manifest};
use super::record::{BODY_LIMIT, HEADER_LEN, RecordError};

/// A complete image folder. Its files have not been looked at, unless it was verified.
#[derive(Clone, Debug)]
pub struct Image {
    path: PathBuf,
    manifest: Manifest,
    kept: Kept,
}

/// Contents of files of the folder, if it was verified.
#[derive(Clone, Default)]
struct Kept(OnceLock<Arc<Contents>>);

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.get().into_iter().flat_map(|contents| contents.keys())).finish()
    }
}

/// Why a folder is no image to restore. Nothing was started or changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ImageError {
    /// There is nothing of that name.
    #[error("{} does not exist", path.display())]
    Missing {
        /// As given.
        path: PathBuf,
    },
    /// It is a file.
    #[error("{} is not a folder", path.display())]
    NotFolder {
        /// As given.
        path: PathBuf,
    },
    /// Somebody else owns it or may write to it. An image is executable code.
    #[error("{} can be changed by others (owner {owner}, mode {mode:04o})", path.display())]
    NotPrivate {
        /// The folder or the file in it.
        path: PathBuf,
        /// Its owner's uid.
        owner: u32,
        /// Its permissions.
        mode: u32,
    },
    /// CRIU dumped it, but no defrost completed it.
    #[error("{} is a CRIU image without a defrost manifest", path.display())]
    ForeignImage {
        /// The folder.
        path: PathBuf,
    },
    /// There is no manifest: never completed, or something else altogether.
    #[error("{} is not a complete image: it has no {MANIFEST_NAME}", path.display())]
    Incomplete {
        /// The folder.
        path: PathBuf,
    },
    /// The manifest is damaged, or of another version.
    #[error("{}: {source}", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong with it.
        source: RecordError,
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

impl ImageError {
    /// What the user can do about it, if that is not plain.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotPrivate { path, .. } => {
                let path = path.display();
                format!("if you trust it: chown -R \"$(id -u)\" '{path}' && chmod -R go-w '{path}'")
            }
            Self::ForeignImage { path } => format!("`criu restore -D '{}'` restores it", path.display()),
            Self::Incomplete { .. } => "name the folder that a checkpoint was told to write".into(),
            Self::Manifest { source, .. } => source.hint().into(),
            Self::Missing { .. } | Self::NotFolder { .. } | Self::Io { .. } => return None,
        })
    }
}

impl Image {
    /// Opens the image in this folder; a symbolic link to it will do.
    ///
    /// # Errors
    /// See [`ImageError`].
    pub fn open(path: &Path) -> Result<Self, ImageError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => ImageError::Missing { path: path.into() },
            io::ErrorKind::NotADirectory => ImageError::NotFolder { path: path.into() },
            _ => ImageError::Io { action: "open", path: path.into(), source },
        };
        let full = absolute(path).map_err(failed)?;
        let meta = fs::metadata(&full).map_err(failed)?;
        if !meta.is_dir() {
            return Err(ImageError::NotFolder { path: path.into() });
        }
        private(&full, &meta)?;
        let bytes = read_manifest(&full)?;
        let manifest = Manifest::from_bytes(&bytes)
            .map_err(|source| ImageError::Manifest { path: full.join(MANIFEST_NAME), source })?;
        Ok(Self { path: full, manifest, kept: Kept::default() })
    }

    /// The folder, as an absolute path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What its manifest says.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The contents of small files as they were verified, by name; empty before.
    #[must_use]
    pub fn contents(&self) -> Arc<Contents> {
        self.kept.0.get().cloned().unwrap_or_default()
    }

    /// Keeps contents, unless there are some already.
    pub(super) fn keep(&self, contents: Contents) {
        let _ = self.kept.0.set(Arc::new(contents));
    }

    /// An image of this folder that has this manifest, whatever lies there: a test's view of another host.
    #[cfg(test)]
    pub(crate) fn pretend(path: &Path, manifest: Manifest) -> Self {
        Self { path: path.into(), manifest, kept: Kept::default() }
    }
}

fn read_manifest(folder: &Path) -> Result<Vec<u8>, ImageError> {
    let path = folder.join(MANIFEST_NAME);
    let failed = |source| ImageError::Io { action: "read", path: path.clone(), source };
    // O_NONBLOCK: a FIFO of that name must not hold us.
    let file = match OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let path = folder.to_owned();
            return Err(match fs::symlink_metadata(folder.join(INVENTORY_NAME)) {
                Ok(_) => ImageError::ForeignImage { path },
                Err(_) => ImageError::Incomplete { path },
            });
        }
        Err(source) => return Err(failed(source)),
    };
    let meta = file.metadata().map_err(failed)?;
    private(&path, &meta)?;
    read_up_to(file, meta.len(), (HEADER_LEN + BODY_LIMIT) as u64).map_err(failed)
}

/// The file's contents; a longer one gives one byte more than the limit, which no decoder takes.
fn read_up_to(file: File, size: u64, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(usize::try_from(size.min(limit) + 1).unwrap_or(0));
    file.take(limit + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn private(path: &Path, meta: &fs::Metadata) -> Result<(), ImageError> {
    if is_private(meta) {
        return Ok(());
    }
    Err(ImageError::NotPrivate { path: path.into(), owner: meta.uid(), mode: meta.mode() & 0o7777 })
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::image::manifest::tests::manifest;

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(MANIFEST_NAME), manifest().to_bytes().unwrap()).unwrap();
        folder
    }

    #[test]
    fn an_image_opens_by_its_name_and_by_a_link() {
        let folder = folder();
        assert_eq!(*Image::open(folder.path()).unwrap().manifest(), manifest());
        let link = tempfile::tempdir().unwrap();
        symlink(folder.path(), link.path().join("latest")).unwrap();
        assert_eq!(*Image::open(&link.path().join("latest")).unwrap().manifest(), manifest());
    }

    #[test]
    fn what_is_no_image_is_told_apart() {
        let folder = folder();
        let path = folder.path();
        let error = Image::open(&path.join("missing")).unwrap_err();
        assert!(matches!(error, ImageError::Missing { .. }), "{error}");
        let error = Image::open(&path.join(MANIFEST_NAME)).unwrap_err();
        assert!(matches!(error, ImageError::NotFolder { .. }), "{error}");

        let error = Image::open(tempfile::tempdir().unwrap().path()).unwrap_err();
        assert!(error.to_string().contains("is not a complete image"), "{error}");

        let criu = tempfile::tempdir().unwrap();
        fs::write(criu.path().join(INVENTORY_NAME), "").unwrap();
        let error = Image::open(criu.path()).unwrap_err();
        assert!(matches!(error, ImageError::ForeignImage { .. }), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("criu restore -D")));

        fs::write(path.join(MANIFEST_NAME), "DEFRMANI and then nothing").unwrap();
        let error = Image::open(path).unwrap_err();
        assert!(matches!(error, ImageError::Manifest { .. }), "{error}");
    }

    #[test]
    fn what_others_can_write_is_refused() {
        let folder = folder();
        let manifest = folder.path().join(MANIFEST_NAME);
        fs::set_permissions(&manifest, Permissions::from_mode(0o620)).unwrap();
        let error = Image::open(folder.path()).unwrap_err();
        assert!(matches!(&error, ImageError::NotPrivate { mode: 0o620, .. }), "{error}");
        fs::set_permissions(&manifest, Permissions::from_mode(0o644)).unwrap();
        Image::open(folder.path()).unwrap();

        fs::set_permissions(folder.path(), Permissions::from_mode(0o1777)).unwrap();
        let error = Image::open(folder.path()).unwrap_err();
        assert!(matches!(&error, ImageError::NotPrivate { mode: 0o1777, .. }), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("chmod -R go-w")));
    }

    #[test]
    fn a_link_or_a_fifo_in_the_manifests_place_is_refused() {
        let folder = folder();
        let manifest = folder.path().join(MANIFEST_NAME);
        fs::rename(&manifest, folder.path().join("elsewhere")).unwrap();
        symlink("elsewhere", &manifest).unwrap();
        Image::open(folder.path()).unwrap_err();
        fs::remove_file(&manifest).unwrap();
        nix::unistd::mkfifo(&manifest, nix::sys::stat::Mode::S_IRUSR).unwrap();
        let error = Image::open(folder.path()).unwrap_err();
        assert!(
            matches!(error, ImageError::Manifest { source: RecordError::Short { len: 0, .. }, .. }),
            "{error}"
        );
    }
}
