//! A pages file put together from others.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::memory::{Origin, Piece};
use super::{FlattenError, failed};

/// The new file, and those that its contents come from.
#[derive(Debug)]
pub(super) struct Pages {
    path: PathBuf,
    file: File,
    own: (PathBuf, File),
    mapped: BTreeMap<u32, (PathBuf, File)>,
}

impl Pages {
    /// An empty file of this path. Pieces come from the old pages file, and from these others.
    pub(super) fn create(
        path: &Path,
        own: &Path,
        mapped: &BTreeMap<u32, PathBuf>,
    ) -> Result<Self, FlattenError> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|source| failed("create", path, source))?;
        let mut sources = BTreeMap::new();
        for (id, path) in mapped {
            sources.insert(*id, open(path)?);
        }
        Ok(Self { path: path.to_owned(), file, own: open(own)?, mapped: sources })
    }

    /// Appends the contents of a piece. Linux copies them inside the kernel, or shares them where the file system
    /// can: [`io::copy`] uses copy_file_range(2) between files.
    pub(super) fn append(&mut self, piece: &Piece) -> Result<(), FlattenError> {
        let source = match piece.origin {
            Origin::Own => Some(&self.own),
            Origin::Mapped(id) => self.mapped.get(&id),
        };
        let unknown = || failed("find pages of", &self.path, io::ErrorKind::NotFound.into());
        let (from, mut source) = source.map(|(path, file)| (path, file)).ok_or_else(unknown)?;
        source.seek(SeekFrom::Start(piece.offset)).map_err(|error| failed("read", from, error))?;
        let copied = io::copy(&mut source.take(piece.len()), &mut self.file)
            .map_err(|error| failed("copy pages of", from, error))?;
        if copied != piece.len() {
            return Err(failed("read", from, io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(())
    }
}

fn open(path: &Path) -> Result<(PathBuf, File), FlattenError> {
    File::open(path).map(|file| (path.to_owned(), file)).map_err(|source| failed("open", path, source))
}
