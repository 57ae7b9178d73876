//! Images that were left to the kernel to write, put on disk after all when one that needs them is to last.
//!
//! It must not know who made them, nor why they were left.

use std::io::Write;

use super::folder::{FolderError, failed, put_on_disk, sync};
use super::manifest::{MANIFEST_NAME, Manifest};
use super::open::{Image, ImageError};

/// Why an image that another one needs is not on disk. Both are as they were.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DurableError {
    /// It is not there as it should be.
    #[error(transparent)]
    Open(#[from] ImageError),
    /// It cannot be written.
    #[error(transparent)]
    Folder(#[from] FolderError),
}

/// Puts on disk all images that this one needs, unless it is not to last either.
///
/// # Errors
/// [`DurableError`], of the first that cannot be.
pub(crate) fn make_ancestors_durable(manifest: &Manifest) -> Result<(), DurableError> {
    if !manifest.durable {
        return Ok(());
    }
    for ancestor in &manifest.ancestors {
        make_durable(&Image::open(ancestor.image.as_path())?)?;
    }
    Ok(())
}

/// Puts its files on disk, then says so in its manifest.
fn make_durable(image: &Image) -> Result<(), FolderError> {
    let (folder, manifest) = (image.path(), image.manifest());
    if manifest.durable {
        return Ok(());
    }
    put_on_disk(folder)?;
    let bytes = Manifest { durable: true, ..manifest.clone() }.to_bytes()?;
    let path = folder.join(MANIFEST_NAME);
    // Readable by the owner only, as tempfile makes it.
    let mut file =
        tempfile::NamedTempFile::new_in(folder).map_err(|source| failed("write", &path, source))?;
    file.write_all(&bytes)
        .and_then(|()| file.as_file().sync_all())
        .and_then(|()| Ok(file.persist(&path)?))
        .map_err(|source| failed("write", &path, source))?;
    sync(folder)?;
    folder.parent().map_or(Ok(()), sync)
}

#[cfg(test)]
mod tests {
    use super::super::folder::Partial;
    use super::super::manifest::tests::manifest;
    use super::super::manifest::{Ancestor, ImageId, StoredPath};
    use super::super::verify::{Class, VerifyOptions, verify};
    use super::*;

    #[test]
    fn what_was_left_to_the_kernel_is_good_until_the_host_is_started_anew() {
        let scene = tempfile::tempdir().unwrap();
        let left = |boot: &str| {
            let mut manifest = manifest();
            (manifest.durable, manifest.id) = (false, ImageId::fresh().unwrap());
            (manifest.ancestors, manifest.depth, manifest.files) = (Vec::new(), 0, Vec::new());
            manifest.machine.boot_id = boot.to_owned();
            Image::open(&Partial::create(&scene.path().join("img")).unwrap().complete(&manifest).unwrap())
                .unwrap()
        };
        let lost = |image: &Image| {
            let found = verify(image, &VerifyOptions::default());
            found.iter().any(|found| found.class == Class::Damaged && found.what.contains("put on disk"))
        };
        assert!(lost(&left("another boot")));
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let earlier = left(boot.trim_end());
        assert!(!lost(&earlier));

        let mut later = manifest();
        later.ancestors = vec![Ancestor {
            image: StoredPath::new(earlier.path().as_os_str()),
            id: earlier.manifest().id,
            files: Vec::new(),
        }];
        make_ancestors_durable(&Manifest { durable: false, ..later.clone() }).unwrap();
        assert!(!Image::open(earlier.path()).unwrap().manifest().durable, "nothing needs it to last");
        make_ancestors_durable(&later).unwrap();
        let earlier = Image::open(earlier.path()).unwrap();
        assert!(earlier.manifest().durable && earlier.manifest().id == later.ancestors[0].id);
    }
}
