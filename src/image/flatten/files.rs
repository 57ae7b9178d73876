//! Which of CRIU's files change when an image becomes whole, and their new contents.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use criu_images::{FileTable, ImageDir, ImageWriter, Memory, Pagemap, Vma};

use super::memory::{Piece, flatten};
use super::pages::Pages;
use super::{FlattenError, failed};
use crate::image::chain::ancestors;
use crate::image::living;

/// An image as it will be.
#[derive(Debug)]
pub(super) struct Draft {
    folder: PathBuf,
    table: FileTable,
    /// The pages files of others that vanish, by their id in the table.
    vanishing: BTreeMap<u32, PathBuf>,
    /// Those of them that nothing refers to any more: their records vanish too.
    unused: BTreeSet<u32>,
    processes: Vec<Changed>,
}

/// A process whose memory changes its form.
#[derive(Debug)]
struct Changed {
    pid: u32,
    memory: Memory,
    pages_id: u32,
    pieces: Vec<Piece>,
}

impl Draft {
    /// Reads the image and decides what changes; nothing is written. What would be written again is read strictly.
    pub(super) fn of(dir: &ImageDir) -> Result<Self, FlattenError> {
        let strict = dir.clone().strictly();
        let (table, tree) = (dir.files()?, dir.pstree()?);
        let paths = ancestors::find(dir, &tree, &table)?.paths;
        let entries = table.entries().iter().filter_map(|entry| entry.regular.as_deref());
        let vanishing: BTreeMap<u32, PathBuf> = entries
            .filter(|file| paths.contains(file.path()))
            .map(|file| (file.id, file.path().to_owned()))
            .collect();
        let mut sizes = BTreeMap::new();
        for (id, path) in &vanishing {
            let meta = fs::metadata(path).map_err(|source| failed("look at", path, source))?;
            sizes.insert(*id, meta.len());
        }
        let mut used = BTreeSet::new();
        let mut processes = Vec::new();
        for pid in living::pids(dir, &tree)? {
            let (mut memory, pagemap) = (dir.mm(pid)?, dir.pagemap(pid)?);
            if let Some(pieces) = flatten(&mut memory, &pagemap, |id| sizes.get(&id).copied()) {
                strict.mm(pid)?;
                strict.files()?;
                let (memory, pages_id) = (memory.clone(), pagemap.pages_id());
                processes.push(Changed { pid, memory, pages_id, pieces });
            }
            used.extend(references(dir, pid, &memory)?);
        }
        let unused = vanishing.keys().copied().filter(|id| !used.contains(id)).collect();
        Ok(Self { folder: dir.path().to_owned(), table, vanishing, unused, processes })
    }

    /// Whether the image depends on no other.
    pub(super) fn is_whole(&self) -> bool {
        self.processes.is_empty()
    }

    /// Whether this is the path of a pages file that nothing refers to any more.
    pub(super) fn vanishes(&self, path: &Path) -> bool {
        let mut ids = self.vanishing.iter().filter(|(_, known)| *known == path).map(|(id, _)| id).peekable();
        ids.peek().is_some() && ids.all(|id| self.unused.contains(id))
    }

    /// Writes what changes into a new folder; gives the names.
    pub(super) fn write(
        &self,
        folder: &Path,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<BTreeSet<String>, FlattenError> {
        let mut written = BTreeSet::new();
        if self.is_whole() {
            return Ok(written);
        }
        let writer = ImageWriter::new(folder);
        writer.files(self.table.entries().iter().filter(|entry| !self.unused.contains(&entry.id)))?;
        written.insert("files.img".to_owned());
        let total = self.processes.iter().flat_map(|process| &process.pieces).map(Piece::len).sum();
        let mut done = 0;
        for process in &self.processes {
            let map = Pagemap::of(process.pages_id, process.pieces.iter().map(|piece| piece.run))?;
            writer.mm(process.pid, &process.memory)?;
            writer.pagemap(process.pid, &map)?;
            let name = map.pages_file();
            let mut pages = Pages::create(&folder.join(&name), &self.folder.join(&name), &self.vanishing)?;
            for piece in &process.pieces {
                pages.append(piece)?;
                done += piece.len();
                progress(done, total);
            }
            let pid = process.pid;
            written.extend([name, format!("mm-{pid}.img"), format!("pagemap-{pid}.img")]);
        }
        Ok(written)
    }
}

/// The ids of files that a process refers to, beside what becomes anonymous: open, mapped, its program and folders.
fn references(dir: &ImageDir, pid: u32, memory: &Memory) -> Result<BTreeSet<u32>, FlattenError> {
    let mut used: BTreeSet<u32> = memory.vmas.iter().filter_map(Vma::file_id).collect();
    let fs = dir.fs(pid)?;
    used.extend([memory.exe_file_id, fs.cwd_id, fs.root_id]);
    used.extend(dir.fdinfo(dir.ids(pid)?.files_id)?.iter().map(|descriptor| descriptor.id));
    Ok(used)
}
