//! Which images a fresh one depends on: those whose pages files its processes have mapped privately.
//!
//! Read from CRIU's files, which are the truth; the manifests of the ancestors only say who they are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use criu_images::{FileTable, ImageDir, Process, ReadError, VmaStatus};

use super::live::is_pages_file;
use crate::image::living;
use crate::image::manifest::{Ancestor, AncestorFile, Manifest, Stamp, StoredPath};
use crate::image::open::Image;

/// What an image depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The images, sorted by path.
    pub ancestors: Vec<Ancestor>,
    /// One more than the depth of the deepest; 0 without any.
    pub depth: u32,
    /// The pages files by the paths that CRIU's file table has.
    pub paths: BTreeSet<PathBuf>,
}

/// Finds out what the image in `dir` depends on. A mapped file that only looks like a pages file, or whose image has
/// lost its manifest, is none of an ancestor: it is needed like any other file.
///
/// # Errors
/// What cannot be read of the image itself.
pub fn find(dir: &ImageDir, tree: &[Process], table: &FileTable) -> Result<Found, ReadError> {
    let mut images: BTreeMap<PathBuf, Option<(Manifest, Vec<AncestorFile>)>> = BTreeMap::new();
    let mut found = Found::default();
    for (path, mapped_bytes) in mapped_pages(dir, tree, table)? {
        let Some((folder, name)) = path.parent().zip(path.file_name().and_then(|name| name.to_str())) else {
            continue;
        };
        let open = || Image::open(folder).ok().map(|image| (image.manifest().clone(), Vec::new()));
        let Some((manifest, files)) = images.entry(folder.to_owned()).or_insert_with(open) else { continue };
        let listed = manifest.files.iter().find(|file| file.bulk && file.name == name);
        let Some((listed, meta)) = listed.zip(fs::metadata(&path).ok()) else { continue };
        files.push(AncestorFile {
            name: name.to_owned(),
            size: listed.size,
            mode: meta.mode(),
            stamp: Stamp::of(&meta),
            blake3: listed.blake3,
            mapped_bytes,
        });
        found.depth = found.depth.max(manifest.depth.saturating_add(1));
        found.paths.insert(path);
    }
    found.ancestors = images
        .into_iter()
        .filter_map(|(folder, image)| {
            let (manifest, files) = image.filter(|(_, files)| !files.is_empty())?;
            Some(Ancestor { image: StoredPath::new(folder), id: manifest.id, files })
        })
        .collect();
    Ok(found)
}

/// The files that may be pages files of other images, by path, and how much of each is mapped.
fn mapped_pages(
    dir: &ImageDir,
    tree: &[Process],
    table: &FileTable,
) -> Result<BTreeMap<PathBuf, u64>, ReadError> {
    let mut mapped: BTreeMap<PathBuf, u64> = BTreeMap::new();
    // A file that had lost its name is in the image itself.
    let unnamed: BTreeSet<u32> = dir.remaps()?.iter().map(|remap| remap.file_id).collect();
    for pid in living::pids(dir, tree)? {
        let memory = dir.mm(pid)?;
        for mapping in memory.mapped_files(table) {
            let private = mapping.vma.area().contains(VmaStatus::FILE_PRIVATE);
            if private && is_named_as_pages(mapping.path()) && !unnamed.contains(&mapping.file.id) {
                *mapped.entry(mapping.path().to_owned()).or_default() += mapping.vma.len();
            }
        }
    }
    Ok(mapped)
}

fn is_named_as_pages(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(is_pages_file)
}
