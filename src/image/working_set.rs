//! Which pages a restored process touched first, kept beside the image so that later restores can bring them all at
//! once: `working-set.bin`.
//!
//! It is a hint and no part of the image: the manifest does not name it, and whatever is wrong with it costs time
//! only. This module must not know how pages are watched or brought.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::folder::is_private;
use super::manifest::ImageId;
use super::record::{self, BODY_LIMIT, HEADER_LEN, Kind, RecordError};

/// Its name in the image folder.
pub const WORKING_SET_NAME: &str = "working-set.bin";

const WORKING_SET: Kind = Kind { magic: *b"DEFRWSET", version: 1 };
/// Bytes of a page.
const PAGE: u64 = 4096;
/// Most runs that are kept: what comes first of more. A record of as many takes about 2 MiB.
const MOST_RUNS: usize = 256 * 1024;
/// The end of the addresses that a process can have: five levels of page tables.
const ADDRESSES: u64 = 1 << 56;

/// A run of pages that were touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TouchedRun {
    /// Address of the first.
    pub start: u64,
    /// How many, at least one.
    pub pages: u64,
    /// They were written to.
    pub written: bool,
}

impl TouchedRun {
    /// Its addresses.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.start..self.start + self.pages * PAGE
    }
}

/// The pages that a process touched, of one image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkingSet {
    image: ImageId,
    runs: Vec<TouchedRun>,
}

/// Why there is no working set to use, though there is a file. The image is unharmed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WorkingSetError {
    /// A system call failed.
    #[error("{WORKING_SET_NAME} cannot be read: {0}")]
    Io(#[from] io::Error),
    /// Somebody else may have written it.
    #[error("{WORKING_SET_NAME} can be changed by others, or is no file")]
    NotPrivate,
    /// It is damaged, or of another version.
    #[error("{WORKING_SET_NAME}: {0}")]
    Record(#[from] RecordError),
    /// It was recorded for another image.
    #[error("{WORKING_SET_NAME} belongs to another image")]
    Foreign,
    /// Its runs are no addresses, or in no order.
    #[error("{WORKING_SET_NAME} names addresses that no process has")]
    Nonsense,
}

impl WorkingSet {
    /// Of the image with this id, and pages by address, each with whether it was written to, in any order
    /// and as often as wanted.
    #[must_use]
    pub fn of(image: ImageId, pages: impl IntoIterator<Item = (u64, bool)>) -> Self {
        let mut pages: Vec<(u64, bool)> = pages.into_iter().collect();
        // Of a page that was read and written, the latter.
        pages.sort_by_key(|(page, written)| (*page, !written));
        pages.dedup_by_key(|(page, _)| *page);
        let mut runs: Vec<TouchedRun> = Vec::new();
        for (page, written) in pages {
            match runs.last_mut() {
                Some(last) if last.written == written && last.range().end == page => last.pages += 1,
                _ => runs.push(TouchedRun { start: page, pages: 1, written }),
            }
        }
        runs.truncate(MOST_RUNS);
        Self { image, runs }
    }

    /// The runs by address, none of which overlap.
    #[must_use]
    pub fn runs(&self) -> &[TouchedRun] {
        &self.runs
    }

    /// Keeps it in this image folder, in the place of an earlier one.
    ///
    /// # Errors
    /// Those of writing. An earlier one is still there then.
    pub fn store(&self, folder: &Path) -> io::Result<()> {
        let bytes = record::encode(WORKING_SET, self).map_err(io::Error::other)?;
        let mut file = tempfile::Builder::new().prefix(".working-set-").tempfile_in(folder)?;
        file.as_file().set_permissions(Permissions::from_mode(0o600))?;
        file.write_all(&bytes)?;
        file.as_file().sync_data()?;
        file.persist(folder.join(WORKING_SET_NAME)).map_err(|error| error.error)?;
        Ok(())
    }

    /// The one that is kept in this folder for the image with this id. `None` where there is none.
    ///
    /// # Errors
    /// [`WorkingSetError`]: it is not to be used.
    pub fn load(folder: &Path, image: ImageId) -> Result<Option<Self>, WorkingSetError> {
        let options = OpenOptions::new()
            .read(true)
            .custom_flags(O_NOFOLLOW | O_NONBLOCK)
            .open(folder.join(WORKING_SET_NAME));
        let file = match options {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let meta: fs::Metadata = file.metadata()?;
        if !meta.is_file() || !is_private(&meta) {
            return Err(WorkingSetError::NotPrivate);
        }
        let set: Self = record::decode(WORKING_SET, &read(file)?)?;
        if set.image != image {
            return Err(WorkingSetError::Foreign);
        }
        if set.is_sound() { Ok(Some(set)) } else { Err(WorkingSetError::Nonsense) }
    }

    /// Whether its runs are what [`WorkingSet::of`] makes: a file can be anything.
    fn is_sound(&self) -> bool {
        let mut end = 0;
        self.runs.len() <= MOST_RUNS
            && self.runs.iter().all(|run| {
                let fits = run.start.is_multiple_of(PAGE)
                    && run.start >= end
                    && (1..=ADDRESSES / PAGE).contains(&run.pages)
                    && run.start < ADDRESSES
                    && run.range().end <= ADDRESSES;
                end = if fits { run.range().end } else { end };
                fits
            })
    }
}

fn read(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One more than a decoder takes.
    file.take((HEADER_LEN + BODY_LIMIT) as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The id of all images here.
    fn id() -> ImageId {
        ImageId::default()
    }

    fn set(pages: &[(u64, bool)]) -> WorkingSet {
        WorkingSet::of(id(), pages.iter().map(|(page, written)| (page * PAGE, *written)))
    }

    #[test]
    fn pages_become_runs_whatever_their_order() {
        let set = set(&[(7, false), (5, false), (6, false), (6, true), (7, false), (9, false)]);
        let runs: Vec<_> = set.runs().iter().map(|run| (run.start / PAGE, run.pages, run.written)).collect();
        assert_eq!(runs, [(5, 1, false), (6, 1, true), (7, 1, false), (9, 1, false)]);
    }

    #[test]
    fn what_is_stored_is_loaded_and_replaced_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(WorkingSet::load(folder.path(), id()).unwrap(), None);
        for pages in [&[(1, false), (2, false)][..], &[(3, true)]] {
            set(pages).store(folder.path()).unwrap();
            assert_eq!(WorkingSet::load(folder.path(), id()).unwrap(), Some(set(pages)));
        }
        let meta = fs::metadata(folder.path().join(WORKING_SET_NAME)).unwrap();
        assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn one_of_another_image_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        set(&[(1, false)]).store(folder.path()).unwrap();
        let error = WorkingSet::load(folder.path(), ImageId::fresh().unwrap()).unwrap_err();
        assert!(matches!(error, WorkingSetError::Foreign), "{error}");
    }

    #[test]
    fn a_damaged_one_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(WORKING_SET_NAME);
        set(&[(1, false), (9, true)]).store(folder.path()).unwrap();
        let bytes = fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            fs::write(&path, &damaged).unwrap();
            assert!(WorkingSet::load(folder.path(), id()).is_err(), "byte {at}");
            fs::write(&path, &bytes[..at]).unwrap();
            assert!(WorkingSet::load(folder.path(), id()).is_err(), "cut at {at}");
        }
        fs::write(&path, &bytes).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o622)).unwrap();
        let error = WorkingSet::load(folder.path(), id()).unwrap_err();
        assert!(matches!(error, WorkingSetError::NotPrivate), "{error}");
    }

    #[test]
    fn addresses_that_cannot_be_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let run = |start, pages| TouchedRun { start, pages, written: false };
        let lists = [
            vec![run(1, 1)],
            vec![run(PAGE, 0)],
            vec![run(PAGE, u64::MAX)],
            vec![run(0u64.wrapping_sub(PAGE), 1)],
            vec![run(PAGE, 2), run(2 * PAGE, 1)],
            vec![run(3 * PAGE, 1), run(PAGE, 1)],
        ];
        for runs in lists {
            let set = WorkingSet { image: id(), runs };
            set.store(folder.path()).unwrap();
            let error = WorkingSet::load(folder.path(), id()).unwrap_err();
            assert!(matches!(error, WorkingSetError::Nonsense), "{set:?}: {error}");
        }
    }
}
