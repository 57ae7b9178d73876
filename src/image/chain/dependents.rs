//! The images that depend on one.
//!
//! A dependent image is recorded in the folder of each of its ancestors before it gets its name. A record is a hint
//! where to look and no more: what counts is what lies there, so that one whose image was removed, replaced or made
//! whole means nothing. An image that was moved or copied after it was recorded is found if it lies beside its
//! ancestor.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::image::manifest::{Ancestor, ImageId, Manifest, StoredPath};
use crate::image::open::Image;
use crate::image::record::{self, HEADER_LEN, Kind};

/// Where they are recorded, in the folder of the ancestor.
pub const DEPENDENTS_NAME: &str = "defrost.dependents";

const DEPENDENTS: Kind = Kind { magic: *b"DEFRDEPS", version: 1 };

/// Most images that are recorded; beyond, those that mean nothing any more are left out, then the oldest.
const RECORDS: usize = 1024;
/// The most that is read: each record has a path, which is no longer than PATH_MAX, and an id.
const BYTES: u64 = HEADER_LEN as u64 + RECORDS as u64 * 4200;
/// Most folders beside an ancestor that are looked into.
const SIBLINGS: usize = 4096;
/// How long another process may take to record its own image.
const LOCK: Duration = Duration::from_secs(5);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// Where a dependent image was to be, and which it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    image: StoredPath,
    id: ImageId,
}

/// Records the image that is about to get this name with all of its ancestors.
///
/// # Errors
/// The first ancestor in whose folder nothing could be written, and why. The image is good all the same, and is
/// found by [`of`] while it lies beside its ancestor.
pub fn register(manifest: &Manifest, target: &Path) -> Result<(), (PathBuf, io::Error)> {
    let record = Record { image: StoredPath::new(target), id: manifest.id };
    let mut outcome = Ok(());
    for ancestor in &manifest.ancestors {
        let folder = ancestor.image.as_path();
        if let Err(error) = add(folder, &record) {
            outcome = outcome.and(Err((folder.to_owned(), error)));
        }
    }
    outcome
}

fn add(folder: &Path, record: &Record) -> io::Result<()> {
    let _lock = lock(folder)?;
    let mut records = records(folder);
    records.retain(|known| known != record);
    if records.len() >= RECORDS {
        records.retain(|known| {
            Image::open(known.image.as_path()).is_ok_and(|image| image.manifest().id == known.id)
        });
        let excess = (records.len() + 1).saturating_sub(RECORDS);
        records.drain(..excess);
    }
    records.push(record.clone());
    let bytes = record::encode(DEPENDENTS, &records).map_err(io::Error::other)?;
    // Readable by the owner only, as tempfile makes it.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(&bytes)?;
    file.as_file().sync_all()?;
    file.persist(folder.join(DEPENDENTS_NAME)).map_err(|error| error.error)?;
    File::open(folder)?.sync_all()
}

/// Two checkpoints may end at once, and neither record may be lost.
fn lock(folder: &Path) -> io::Result<Flock<File>> {
    let deadline = Instant::now() + LOCK;
    let mut file = File::open(folder)?;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((_, error)) if Instant::now() > deadline => return Err(error.into()),
            Err((returned, _)) => file = returned,
        }
        std::thread::sleep(PAUSE);
    }
}

/// What is recorded in this folder. A record that cannot be read is one that says nothing.
fn records(folder: &Path) -> Vec<Record> {
    let mut bytes = Vec::new();
    let read =
        File::open(folder.join(DEPENDENTS_NAME)).and_then(|file| file.take(BYTES).read_to_end(&mut bytes));
    match read {
        Ok(_) => record::decode(DEPENDENTS, &bytes).unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

/// The images that depend on this one, sorted.
#[must_use]
pub fn of(image: &Image) -> Vec<PathBuf> {
    let Ok(own) = image.path().canonicalize() else { return Vec::new() };
    let mut places: BTreeSet<PathBuf> =
        records(&own).iter().filter_map(|known| known.image.as_path().canonicalize().ok()).collect();
    let beside = own.parent().and_then(|parent| fs::read_dir(parent).ok());
    places.extend(beside.into_iter().flatten().take(SIBLINGS).filter_map(|entry| {
        let entry = entry.ok()?;
        entry.file_type().is_ok_and(|kind| kind.is_dir()).then(|| entry.path())
    }));
    places.remove(&own);
    places.retain(|place| Image::open(place).is_ok_and(|other| depends(other.manifest(), image, &own)));
    places.into_iter().collect()
}

/// Whether an image depends on this one, which lies in the folder `own`.
fn depends(manifest: &Manifest, on: &Image, own: &Path) -> bool {
    manifest.ancestors.iter().any(|ancestor| is_meant(ancestor, on, own))
}

/// Whether an ancestor is the image in this folder, and not a copy of it: the one that lies where it is looked for,
/// or, if there is none any more, each that could be moved back there.
fn is_meant(ancestor: &Ancestor, image: &Image, own: &Path) -> bool {
    if ancestor.id != image.manifest().id {
        return false;
    }
    let looked_for = ancestor.image.as_path();
    same_folder(looked_for, own)
        || Image::open(looked_for).map_or(true, |there| there.manifest().id != ancestor.id)
}

fn same_folder(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::manifest::MANIFEST_NAME;
    use crate::image::manifest::tests::manifest;

    /// An image of that name in this folder, with these ancestors.
    fn image(root: &Path, name: &str, ancestors: &[&Image]) -> Image {
        let mut manifest = manifest();
        manifest.id = ImageId::fresh().unwrap();
        let first = manifest.ancestors.remove(0);
        manifest.ancestors = ancestors
            .iter()
            .map(|ancestor| Ancestor {
                image: StoredPath::new(ancestor.path()),
                id: ancestor.manifest().id,
                ..first.clone()
            })
            .collect();
        let path = root.join(name);
        fs::create_dir(&path).unwrap();
        register(&manifest, &path).unwrap();
        fs::write(path.join(MANIFEST_NAME), manifest.to_bytes().unwrap()).unwrap();
        Image::open(&path).unwrap()
    }

    #[test]
    fn dependents_are_found_wherever_they_are() {
        let (root, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let first = image(root.path(), "img0", &[]);
        let second = image(elsewhere.path(), "img1", &[&first]);
        let third = image(root.path(), "img2", &[&first, &second]);
        let canonical = |image: &Image| image.path().canonicalize().unwrap();
        let mut expected = vec![canonical(&second), canonical(&third)];
        expected.sort();
        assert_eq!(of(&first), expected);
        assert_eq!(of(&second), [canonical(&third)]);
        assert_eq!(of(&third), [] as [PathBuf; 0]);
    }

    #[test]
    fn a_record_whose_image_is_gone_or_another_means_nothing() {
        let (root, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let first = image(root.path(), "img0", &[]);
        let second = image(elsewhere.path(), "img1", &[&first]);
        fs::remove_dir_all(second.path()).unwrap();
        assert_eq!(of(&first), [] as [PathBuf; 0]);
        image(elsewhere.path(), "img1", &[]);
        assert_eq!(of(&first), [] as [PathBuf; 0]);
    }

    #[test]
    fn a_moved_dependent_is_found_beside_its_ancestor() {
        let root = tempfile::tempdir().unwrap();
        let first = image(root.path(), "img0", &[]);
        let second = image(root.path(), "img1", &[&first]);
        let moved = root.path().canonicalize().unwrap().join("old");
        fs::rename(second.path(), &moved).unwrap();
        assert_eq!(of(&first), [moved]);
    }

    #[test]
    fn a_copy_of_an_ancestor_is_not_needed_until_the_original_is_gone() {
        let root = tempfile::tempdir().unwrap();
        let first = image(root.path(), "img0", &[]);
        let second = image(root.path(), "img1", &[&first]);
        let copy = root.path().join("copy");
        fs::create_dir(&copy).unwrap();
        for name in [MANIFEST_NAME, DEPENDENTS_NAME] {
            fs::copy(first.path().join(name), copy.join(name)).unwrap();
        }
        let copy = Image::open(&copy).unwrap();
        assert_eq!(of(&copy), [] as [PathBuf; 0]);
        fs::rename(first.path(), root.path().join("away")).unwrap();
        assert_eq!(of(&copy), [second.path().canonicalize().unwrap()]);
    }

    #[test]
    fn damaged_records_are_begun_anew_and_their_number_is_bounded() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(DEPENDENTS_NAME);
        let stale = |number: usize| {
            let image = StoredPath::new(format!("/nowhere/{number}"));
            Record { image, id: ImageId::default() }
        };
        fs::write(&path, "no record").unwrap();
        add(root.path(), &stale(0)).unwrap();
        add(root.path(), &stale(0)).unwrap();
        assert_eq!(records(root.path()), [stale(0)]);
        let many: Vec<_> = (0..RECORDS).map(stale).collect();
        fs::write(&path, record::encode(DEPENDENTS, &many).unwrap()).unwrap();
        add(root.path(), &stale(RECORDS)).unwrap();
        assert_eq!(records(root.path()), [stale(RECORDS)]);
    }
}
