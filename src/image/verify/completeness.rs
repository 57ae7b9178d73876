//! Whether the files of the folder are those that were dumped: size and privacy of all, contents of the small
//! ones, contents of all on request.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use criu_images::{Contents, ImageDir};
use nix::libc::{O_NOFOLLOW, O_NONBLOCK};

use super::finding::{Class, Finding};
use crate::image::digest::Digest;
use crate::image::folder::is_private;
use crate::image::machine::Machine;
use crate::image::manifest::{ImageFile, Manifest};

const REMEDY: &str = "copy the image again from its source, or make a new checkpoint";

/// Larger files are not kept.
const KEPT: u64 = 1024 * 1024;

/// Looks at the files of the folder; what was read of small ones, and found to be what was dumped, is kept.
pub(super) fn check(folder: &Path, manifest: &Manifest, full: bool, kept: &mut Contents) -> Vec<Finding> {
    let mut check = |file| check_file(folder, file, full || !file.bulk, kept);
    let mut findings: Vec<_> = manifest.files.iter().filter_map(&mut check).collect();
    // What has the hashes of the dump was decoded and checked then.
    if full && findings.is_empty() {
        findings.extend(check_contents(folder));
    }
    findings
}

/// An image that was not put on disk is what it was for as long as its host runs: after a crash of that, files have their
/// sizes and may have lost their contents.
pub(super) fn check_durability(manifest: &Manifest, here: &Machine) -> Option<Finding> {
    let lost = !manifest.durable && manifest.machine.boot_id != here.boot_id;
    lost.then(|| {
        let what =
            "image was not put on disk before its host was started anew, or is a copy of one that was not";
        Finding::new(Class::Damaged, what.into(), REMEDY.into())
    })
}

/// Lets criu-images look at everything that CRIU would read.
fn check_contents(folder: &Path) -> Vec<Finding> {
    match ImageDir::open(folder) {
        Ok(dir) => criu_images::verify(&dir)
            .findings
            .iter()
            .map(|found| Finding::new(Class::Damaged, found.to_string(), found.remedy().to_owned()))
            .collect(),
        Err(error) => vec![Finding::new(Class::Damaged, error.to_string(), error.hint().to_owned())],
    }
}

fn check_file(folder: &Path, file: &ImageFile, contents: bool, kept: &mut Contents) -> Option<Finding> {
    let damaged = |what: String| Some(Finding::new(Class::Damaged, what, REMEDY.into()));
    let name = &file.name;
    // A manifest that was edited together with its checksum must not lead out of the folder.
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return damaged(format!("manifest names a file that no image has: {name:?}"));
    }
    let path = folder.join(name);
    let open = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(&path);
    let (handle, meta) = match open.and_then(|handle| handle.metadata().map(|meta| (handle, meta))) {
        Ok(both) => both,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return damaged(format!("{name} is missing"));
        }
        Err(error) => return damaged(format!("{name} cannot be opened: {error}")),
    };
    if !meta.is_file() {
        return damaged(format!("{name} is not a regular file"));
    }
    if meta.len() != file.size {
        return damaged(format!("{name} has {} bytes, {} expected", meta.len(), file.size));
    }
    if !is_private(&meta) {
        return Some(Finding::new(
            Class::Damaged,
            format!(
                "{name} can be changed by others (owner {}, mode {:04o})",
                meta.uid(),
                meta.mode() & 0o7777
            ),
            format!("if you trust it: chown \"$(id -u)\" '{0}' && chmod go-w '{0}'", path.display()),
        ));
    }
    if !contents {
        return None;
    }
    match digest(handle, file, kept) {
        Ok(digest) if digest == file.blake3 => None,
        Ok(_) => damaged(format!("{name} has other contents than when it was dumped")),
        Err(error) => damaged(format!("{name} cannot be read: {error}")),
    }
}

/// The hash of a file that is as long as it should be. A small one whose hash is right is kept.
fn digest(mut handle: File, file: &ImageFile, kept: &mut Contents) -> io::Result<Digest> {
    let size = usize::try_from(file.size).ok().filter(|_| file.size <= KEPT);
    let Some(size) = size else { return Digest::of_file(handle).map(|(digest, _)| digest) };
    let mut bytes = vec![0; size];
    handle.read_exact(&mut bytes)?;
    let digest = Digest::of(&bytes);
    if digest == file.blake3 {
        kept.insert(file.name.clone(), bytes);
    }
    Ok(digest)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::image::manifest::tests::manifest;

    const SMALL: &[u8] = b"small file";
    const BULK: &[u8] = b"many, many pages";

    fn folder() -> (tempfile::TempDir, Manifest) {
        let folder = tempfile::tempdir().unwrap();
        let mut manifest = manifest();
        manifest.files.clear();
        for (name, bytes, bulk) in [("core-1.img", SMALL, false), ("pages-1.img", BULK, true)] {
            fs::write(folder.path().join(name), bytes).unwrap();
            let size = bytes.len() as u64;
            manifest.files.push(ImageFile { name: name.into(), size, blake3: Digest::of(bytes), bulk });
        }
        (folder, manifest)
    }

    fn look(folder: &Path, manifest: &Manifest, full: bool) -> Vec<Finding> {
        check(folder, manifest, full, &mut Contents::new())
    }

    fn told(findings: &[Finding]) -> Vec<&str> {
        assert!(findings.iter().all(|finding| finding.class == Class::Damaged), "{findings:?}");
        findings.iter().map(|finding| finding.what.as_str()).collect()
    }

    #[test]
    fn whole_files_are_fine() {
        let (folder, manifest) = folder();
        assert_eq!(look(folder.path(), &manifest, false), []);
    }

    #[test]
    fn contents_are_kept_if_they_are_those_of_the_dump() {
        let (folder, mut manifest) = folder();
        let mut kept = Contents::new();
        assert_eq!(check(folder.path(), &manifest, false, &mut kept), []);
        assert_eq!(kept, Contents::from([("core-1.img".to_owned(), SMALL.to_vec())]));
        kept.clear();
        manifest.files[0].blake3 = Digest::of(b"other");
        assert_eq!(check(folder.path(), &manifest, false, &mut kept).len(), 1);
        assert_eq!(kept, Contents::new());
    }

    #[test]
    fn truncated_pages_are_named_with_both_sizes() {
        let (folder, manifest) = folder();
        fs::write(folder.path().join("pages-1.img"), &BULK[..5]).unwrap();
        assert_eq!(told(&look(folder.path(), &manifest, false)), ["pages-1.img has 5 bytes, 16 expected"]);
    }

    #[test]
    fn a_flipped_bit_is_found_in_small_files_always_and_in_pages_on_request() {
        let (folder, manifest) = folder();
        fs::write(folder.path().join("core-1.img"), b"smell file").unwrap();
        fs::write(folder.path().join("pages-1.img"), b"many, many rages").unwrap();
        let small = "core-1.img has other contents than when it was dumped";
        let bulk = "pages-1.img has other contents than when it was dumped";
        assert_eq!(told(&look(folder.path(), &manifest, false)), [small]);
        assert_eq!(told(&look(folder.path(), &manifest, true)), [small, bulk]);
    }

    #[test]
    fn all_that_is_missing_or_odd_is_named_at_once() {
        let (folder, mut manifest) = folder();
        fs::remove_file(folder.path().join("core-1.img")).unwrap();
        fs::remove_file(folder.path().join("pages-1.img")).unwrap();
        fs::create_dir(folder.path().join("pages-1.img")).unwrap();
        manifest.files.push(ImageFile { name: "../etc".into(), ..manifest.files[0].clone() });
        assert_eq!(
            told(&look(folder.path(), &manifest, false)),
            [
                "core-1.img is missing",
                "pages-1.img is not a regular file",
                "manifest names a file that no image has: \"../etc\"",
            ]
        );
    }

    #[test]
    fn a_file_that_others_can_write_is_refused() {
        let (folder, manifest) = folder();
        fs::set_permissions(folder.path().join("pages-1.img"), Permissions::from_mode(0o666)).unwrap();
        let findings = look(folder.path(), &manifest, false);
        assert!(told(&findings)[0].starts_with("pages-1.img can be changed by others"), "{findings:?}");
        assert!(findings[0].remedy.contains("chmod go-w"), "{findings:?}");
    }

    #[test]
    fn with_full_the_image_is_decoded_too() {
        let (folder, manifest) = folder();
        assert!(
            !look(folder.path(), &manifest, true).is_empty(),
            "a folder without an inventory is no image"
        );
    }
}
