//! An image folder in which the input changes bytes.
//!
//! The input is a list of edits of four bytes: which file, where (two bytes), and the new value. A file number from 128
//! on cuts the file there instead.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

/// Files that are longer are left alone: edits do not reach further, and pages mean nothing to a reader.
const LONGEST: usize = 1 << 16;

/// A copy of an image, which is put right again after each input.
pub struct Edited {
    folder: TempDir,
    files: Vec<(String, Vec<u8>)>,
}

impl Edited {
    /// A copy of the image in this folder.
    pub fn copy_of(image: &Path) -> Self {
        let folder = memory_folder();
        let mut files = Vec::new();
        for entry in fs::read_dir(image).expect("an image folder") {
            let entry = entry.expect("an entry of it");
            let name = entry.file_name().into_string().expect("a plain name");
            let bytes = fs::read(entry.path()).expect("a file of it");
            fs::write(folder.path().join(&name), &bytes).expect("a copy");
            if name.ends_with(".img") && !name.starts_with("pages-") && bytes.len() <= LONGEST {
                files.push((name, bytes));
            }
        }
        files.sort();
        Self { folder, files }
    }

    #[allow(dead_code, reason = "one target has no need of it")]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Makes the edits, hands the folder over, and takes them back.
    pub fn with(&self, input: &[u8], use_it: impl FnOnce(&Path)) {
        let mut changed: Vec<Option<Vec<u8>>> = vec![None; self.files.len()];
        for edit in input.chunks_exact(4) {
            let index = usize::from(edit[0] & 0x7f) % self.files.len();
            let bytes = changed[index].get_or_insert_with(|| self.files[index].1.clone());
            let at = usize::from(u16::from_le_bytes([edit[1], edit[2]])) % bytes.len().max(1);
            if edit[0] & 0x80 != 0 {
                bytes.truncate(at);
            } else if let Some(byte) = bytes.get_mut(at) {
                *byte = edit[3];
            }
        }
        let write = |index: usize, bytes: &[u8]| {
            fs::write(self.folder.path().join(&self.files[index].0), bytes).expect("an edited file");
        };
        for (index, bytes) in changed.iter().enumerate().filter_map(|(i, b)| Some((i, b.as_ref()?))) {
            write(index, bytes);
        }
        use_it(self.folder.path());
        for index in (0..changed.len()).filter(|index| changed[*index].is_some()) {
            write(index, &self.files[index].1);
        }
    }
}

/// A folder in memory where there is one.
pub fn memory_folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder")
}
