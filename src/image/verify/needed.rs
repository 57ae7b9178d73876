//! Whether the files outside the image are still those of the dump: program, libraries, data, open files.
//!
//! Compares what CRIU compares (type and permissions, size, build-id), so that its refusal is foreseen, and the
//! contents on request, which it does not look at. A file with the inode and times of the dump is not read.

use std::fs::{self, File, Metadata};
use std::io;

use super::finding::{Class, Finding};
use crate::image::digest::Digest;
use crate::image::elf::build_id;
use crate::image::manifest::{Need, NeededFile, Stamp};

const REMEDY: &str = "put the file of the dump back, or make a new checkpoint";

pub(super) fn check<'a>(needed: impl IntoIterator<Item = &'a NeededFile>, full: bool) -> Vec<Finding> {
    needed.into_iter().filter_map(|file| check_file(file, full)).collect()
}

fn check_file(file: &NeededFile, full: bool) -> Option<Finding> {
    let subject = format!("{} {}", subject(file.need), file.path);
    let misfit =
        |what: String| Some(Finding::new(Class::DoesNotFit, format!("{subject} {what}"), REMEDY.into()));
    let meta = match fs::metadata(&file.path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return misfit("is gone".into()),
        Err(error) => return misfit(format!("cannot be looked at: {error}")),
    };
    let differences = differences(file, &meta, full);
    if differences.is_empty() { None } else { misfit(differences.join(", ")) }
}

fn subject(need: Need) -> &'static str {
    match need {
        Need::Program => "program",
        Need::Mapped => "mapped file",
        Need::Open => "open file",
        Need::Folder => "folder",
    }
}

/// All that is not as it was, in words that follow the file's name.
fn differences(file: &NeededFile, meta: &Metadata, full: bool) -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    let mut found = Vec::new();
    if let Some(size) = file.size.filter(|size| *size != meta.len()) {
        found.push(format!("has {} bytes, {size} expected", meta.len()));
    }
    if file.mode != meta.mode() {
        found.push(format!("has mode {:07o}, {:07o} expected", meta.mode(), file.mode));
    }
    if !meta.is_file() || (!full && file.stamp == Stamp::of(meta)) {
        return found;
    }
    if let Some(expected) = &file.build_id {
        match File::open(&file.path).map(|open| build_id(&open)) {
            Ok(Some(id)) if id == *expected => {}
            Ok(Some(id)) => found.push(format!("has build-id {id}, {expected} expected")),
            Ok(None) => found.push(format!("has no build-id, {expected} expected")),
            Err(error) => found.push(format!("cannot be read: {error}")),
        }
    }
    // A difference that is known already needs no gigabyte read to confirm it.
    if full && found.is_empty() {
        found.extend(file.blake3.and_then(|expected| contents(file, expected)));
    }
    found
}

fn contents(file: &NeededFile, expected: Digest) -> Option<String> {
    match File::open(&file.path).and_then(Digest::of_file) {
        Ok((digest, _)) if digest == expected => None,
        Ok(_) => Some("has other contents than at the dump".into()),
        Err(error) => Some(format!("cannot be read: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::Path;

    use super::*;

    /// A file, and what a dump would have recorded of it.
    fn needed(path: &Path, contents: &[u8]) -> NeededFile {
        fs::write(path, contents).unwrap();
        let meta = fs::metadata(path).unwrap();
        NeededFile {
            path: path.to_str().unwrap().into(),
            need: Need::Mapped,
            size: Some(meta.len()),
            mode: meta.mode(),
            stamp: Stamp::of(&meta),
            build_id: build_id(&File::open(path).unwrap()),
            blake3: Some(Digest::of(contents)),
        }
    }

    fn only(findings: Vec<Finding>) -> String {
        let [finding] = <[Finding; 1]>::try_from(findings).unwrap();
        assert_eq!(finding.class, Class::DoesNotFit);
        finding.what
    }

    #[test]
    fn unchanged_and_merely_copied_files_are_fine() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("lib.so");
        let file = needed(&path, b"library");
        assert_eq!(check(std::slice::from_ref(&file), true), []);
        fs::copy(&path, root.path().join("copy")).unwrap();
        fs::rename(root.path().join("copy"), &path).unwrap();
        assert_ne!(Stamp::of(&fs::metadata(&path).unwrap()), file.stamp);
        assert_eq!(check(std::slice::from_ref(&file), false), []);
        assert_eq!(check(&[file], true), []);
    }

    #[test]
    fn a_replaced_file_is_named_with_both_sizes_and_modes() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("cache");
        let file = needed(&path, b"cache of names");
        fs::write(&path, b"other").unwrap();
        let what = only(check(std::slice::from_ref(&file), false));
        assert_eq!(what, format!("mapped file {} has 5 bytes, 14 expected", path.display()));
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let what = only(check(std::slice::from_ref(&file), false));
        assert!(what.ends_with("has 5 bytes, 14 expected, has mode 0100600, 0100644 expected"), "{what}");
        fs::remove_file(&path).unwrap();
        assert!(only(check(&[file], false)).ends_with("cache is gone"));
    }

    #[test]
    fn another_program_of_the_same_size_is_told_by_its_build_id() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("server");
        let program = fs::read(std::env::current_exe().unwrap()).unwrap();
        let mut file = needed(&path, &program);
        let Some(id) = file.build_id.replace("00ff".into()) else { return };
        file.need = Need::Program;
        file.stamp = Stamp::default();
        let what = only(check(&[file], false));
        assert!(
            what.starts_with("program ") && what.ends_with(&format!("has build-id {id}, 00ff expected")),
            "{what}"
        );
    }

    #[test]
    fn a_flipped_byte_is_found_on_request() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("data");
        let file = needed(&path, b"data");
        fs::write(&path, b"date").unwrap();
        assert_eq!(check(std::slice::from_ref(&file), false), []);
        assert!(only(check(&[file], true)).ends_with("has other contents than at the dump"));
    }

    #[test]
    fn a_log_may_grow_and_a_folder_has_no_size() {
        let root = tempfile::tempdir().unwrap();
        let log = NeededFile {
            need: Need::Open,
            size: None,
            blake3: None,
            ..needed(&root.path().join("log"), b"")
        };
        fs::write(&log.path, b"more").unwrap();
        let folder = NeededFile {
            path: root.path().to_str().unwrap().into(),
            need: Need::Folder,
            mode: fs::metadata(root.path()).unwrap().mode(),
            ..log.clone()
        };
        assert_eq!(check(&[log, folder], true), []);
    }

    #[test]
    fn all_mismatches_come_at_once() {
        let root = tempfile::tempdir().unwrap();
        let files = ["a", "b", "c"].map(|name| needed(&root.path().join(name), b"x"));
        for file in &files {
            fs::write(&file.path, b"xyz").unwrap();
        }
        assert_eq!(check(&files, false).len(), 3);
    }
}
