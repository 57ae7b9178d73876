//! Whether the earlier images that this one depends on are where they were, and are what they were.
//!
//! A pages file of theirs was written once and never again, so one that has kept its time of change has kept its
//! contents; one with another time is read, at any size, because restored memory comes from it. The ancestors of an
//! ancestor do not matter: the file that is mapped has plain pages.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};

use super::finding::{Class, Finding};
use crate::image::digest::Digest;
use crate::image::folder::is_private;
use crate::image::manifest::{Ancestor, AncestorFile, Stamp};
use crate::image::open::{Image, ImageError};

/// The most images that one may depend on. Each is a generation of which some memory was never changed since; CRIU
/// opens the files of all.
const ANCESTORS: usize = 256;

const REMEDY: &str = "put that image back as it was, or restore another one; `defrost image flatten` makes an \
                      image independent while all that it depends on is there";

/// All that is wrong with them. `depth` is that of the image itself: those that it depends on have less, so that no
/// image depends on itself, however many lie between.
pub(in crate::image) fn check(ancestors: &[Ancestor], depth: u32, full: bool) -> Vec<Finding> {
    if ancestors.len() > ANCESTORS {
        return vec![Finding::new(
            Class::DoesNotFit,
            format!("image depends on {} others, more than the limit of {ANCESTORS}", ancestors.len()),
            "make an earlier image whole by `defrost image flatten`, and go on from that".into(),
        )];
    }
    ancestors.iter().flat_map(|ancestor| check_one(ancestor, depth, full)).collect()
}

fn check_one(ancestor: &Ancestor, depth: u32, full: bool) -> Vec<Finding> {
    let folder = ancestor.image.as_path();
    let found = |what: String| {
        let what = format!("image depends on {}, {what}", folder.display());
        Finding::new(Class::DoesNotFit, what, REMEDY.into())
    };
    let image = match Image::open(folder) {
        Ok(image) => image,
        Err(ImageError::Missing { .. }) => return vec![found("which is gone".into())],
        Err(ImageError::Incomplete { .. } | ImageError::NotFolder { .. }) => {
            return vec![found("which is no image any more".into())];
        }
        Err(error) => return vec![found(format!("which cannot be opened: {error}"))],
    };
    if image.manifest().id != ancestor.id {
        return vec![found("where another image lies now".into())];
    }
    if image.manifest().depth >= depth {
        return vec![found("which depends on this one, or on as many others".into())];
    }
    ancestor.files.iter().filter_map(|file| difference(folder, file, full)).map(found).collect()
}

/// What is not as it was, in words that follow the folder's name.
fn difference(folder: &Path, file: &AncestorFile, full: bool) -> Option<String> {
    let name = &file.name;
    // A manifest that was edited together with its checksum must not lead out of the folder.
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return Some(format!("of a file that no image has: {name:?}"));
    }
    let path = folder.join(name);
    let open = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(&path);
    let (handle, meta) = match open.and_then(|handle| handle.metadata().map(|meta| (handle, meta))) {
        Ok(both) => both,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Some(format!("whose {name} is gone"));
        }
        Err(error) => return Some(format!("whose {name} cannot be opened: {error}")),
    };
    let shape = shape(file, &meta);
    // A difference that is known already needs no gigabyte read to confirm it.
    if shape.is_some() || (!full && is_unwritten(file, &meta)) {
        return shape;
    }
    contents(file, handle)
}

fn shape(file: &AncestorFile, meta: &Metadata) -> Option<String> {
    let name = &file.name;
    if !meta.is_file() {
        return Some(format!("whose {name} is not a regular file"));
    }
    if meta.len() != file.size {
        return Some(format!("whose {name} has {} bytes, {} expected", meta.len(), file.size));
    }
    if !is_private(meta) {
        let (owner, mode) = (meta.uid(), meta.mode() & 0o7777);
        return Some(format!("whose {name} can be changed by others (owner {owner}, mode {mode:04o})"));
    }
    (meta.mode() != file.mode)
        .then(|| format!("whose {name} has mode {:07o}, {:07o} expected", meta.mode(), file.mode))
}

/// Whether the file has the contents of the dump, as far as its time of change tells: a copy that keeps it is as
/// good as the original.
fn is_unwritten(file: &AncestorFile, meta: &Metadata) -> bool {
    Stamp::of(meta).modified_unix_ns == file.stamp.modified_unix_ns
}

fn contents(file: &AncestorFile, handle: File) -> Option<String> {
    match Digest::of_file(handle) {
        Ok((digest, _)) if digest == file.blake3 => None,
        Ok(_) => Some(format!("whose {} has other contents than at the dump", file.name)),
        Err(error) => Some(format!("whose {} cannot be read: {error}", file.name)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, SystemTime};

    use tempfile::TempDir;

    use super::*;
    use crate::image::manifest::tests::manifest;
    use crate::image::manifest::{ImageId, MANIFEST_NAME, StoredPath};

    /// An image, and what one that depends on it has recorded.
    fn scene() -> (TempDir, Ancestor) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pages-1.img");
        fs::write(&path, b"pages").unwrap();
        let mut manifest = manifest();
        manifest.depth = 0;
        fs::write(folder.path().join(MANIFEST_NAME), manifest.to_bytes().unwrap()).unwrap();
        let meta = fs::metadata(&path).unwrap();
        let file = AncestorFile {
            name: "pages-1.img".into(),
            size: 5,
            mode: meta.mode(),
            stamp: Stamp::of(&meta),
            blake3: Digest::of(b"pages"),
            mapped_bytes: 5,
        };
        let image = StoredPath::new(folder.path());
        (folder, Ancestor { image, id: manifest.id, files: vec![file] })
    }

    #[track_caller]
    fn only(ancestor: &Ancestor, full: bool) -> String {
        let findings = check(std::slice::from_ref(ancestor), 1, full);
        let [finding] = <[Finding; 1]>::try_from(findings).unwrap();
        assert!(finding.class.is_of_the_image() && finding.remedy.contains("flatten"), "{finding:?}");
        let begin = format!("image depends on {}, ", ancestor.image.as_path().display());
        finding.what.strip_prefix(&begin).unwrap().to_owned()
    }

    fn touch(path: &Path) {
        let later = SystemTime::now() + Duration::from_secs(60);
        File::options().write(true).open(path).unwrap().set_modified(later).unwrap();
    }

    #[test]
    fn an_ancestor_that_is_as_it_was_is_fine() {
        let (folder, ancestor) = scene();
        assert_eq!(check(std::slice::from_ref(&ancestor), 1, true), []);
        touch(&folder.path().join("pages-1.img"));
        assert_eq!(check(&[ancestor], 1, false), []);
    }

    #[test]
    fn what_became_of_an_ancestor_is_told() {
        let (folder, ancestor) = scene();
        let pages = folder.path().join("pages-1.img");
        fs::write(&pages, b"rages").unwrap();
        touch(&pages);
        assert_eq!(only(&ancestor, false), "whose pages-1.img has other contents than at the dump");
        File::options()
            .write(true)
            .open(&pages)
            .unwrap()
            .set_modified(
                SystemTime::UNIX_EPOCH
                    + Duration::from_nanos(ancestor.files[0].stamp.modified_unix_ns.unsigned_abs()),
            )
            .unwrap();
        assert_eq!(check(std::slice::from_ref(&ancestor), 1, false), []);
        assert_eq!(only(&ancestor, true), "whose pages-1.img has other contents than at the dump");
        fs::write(&pages, b"page").unwrap();
        assert_eq!(only(&ancestor, false), "whose pages-1.img has 4 bytes, 5 expected");
        fs::write(&pages, b"pages").unwrap();
        fs::set_permissions(&pages, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(only(&ancestor, false), "whose pages-1.img has mode 0100600, 0100644 expected");
        fs::set_permissions(&pages, Permissions::from_mode(0o666)).unwrap();
        assert!(only(&ancestor, false).starts_with("whose pages-1.img can be changed by others"));
        fs::remove_file(&pages).unwrap();
        assert_eq!(only(&ancestor, false), "whose pages-1.img is gone");
        let other = Ancestor { id: ImageId::fresh().unwrap(), ..ancestor.clone() };
        assert_eq!(only(&other, false), "where another image lies now");
        fs::remove_file(folder.path().join(MANIFEST_NAME)).unwrap();
        assert_eq!(only(&ancestor, false), "which is no image any more");
        drop(folder);
        assert_eq!(only(&ancestor, false), "which is gone");
    }

    #[test]
    fn no_image_depends_on_itself() {
        let (folder, ancestor) = scene();
        let mut own = Image::open(folder.path()).unwrap().manifest().clone();
        own.depth = 1;
        fs::write(folder.path().join(MANIFEST_NAME), own.to_bytes().unwrap()).unwrap();
        assert_eq!(only(&ancestor, false), "which depends on this one, or on as many others");
    }

    #[test]
    fn names_that_lead_elsewhere_and_endless_lists_are_refused() {
        let (_folder, mut ancestor) = scene();
        ancestor.files[0].name = "../pages-1.img".into();
        assert!(only(&ancestor, false).starts_with("of a file that no image has"));
        let many = vec![ancestor; ANCESTORS + 1];
        assert_eq!(check(&many, 1, false).len(), 1);
    }
}
