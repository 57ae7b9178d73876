//! Files and descriptors: whether every reference leads to a record of the right kind.

use std::collections::BTreeSet;

use super::Check;
use crate::files::{FileKind, RemapKind};
use crate::finding::Finding;

impl Check<'_> {
    /// Reads the file table and what its records lead to.
    pub(super) fn file_table(&mut self) {
        let Some(files) = self.read(self.dir.files()) else { return };
        let mut seen = BTreeSet::new();
        for entry in files.entries() {
            let what = match entry.part_id() {
                None => Some("without the part that its kind has"),
                Some(id) if id != entry.id => Some("its part has another id"),
                Some(_) if !seen.insert(entry.id) => Some("given twice"),
                Some(_) => None,
            };
            if let Some(what) = what {
                self.find(Finding::FileRecord { id: entry.id, what });
            }
        }
        self.files = Some(files);
        self.memfds();
        self.remaps();
    }

    /// Open memfds need a record of the memory behind them.
    fn memfds(&mut self) {
        let Some(memfds) = self.read(self.dir.memfds()) else { return };
        let known: BTreeSet<u64> = memfds.iter().map(|m| m.inode_id).collect();
        let entries = self.files.as_ref().map(|f| f.entries()).unwrap_or_default();
        let lost = entries.iter().filter_map(|e| e.memfd.as_deref());
        let lost: Vec<u32> = lost.filter(|m| !known.contains(&u64::from(m.inode_id))).map(|m| m.id).collect();
        for id in lost {
            self.find(Finding::FileRecord { id, what: "no memory for it in memfd.img" });
        }
    }

    /// Unlinked files need what stands in for them.
    fn remaps(&mut self) {
        let Some(remaps) = self.read(self.dir.remaps()) else { return };
        for remap in remaps {
            self.refer("remap-fpath.img", "unlinked file", remap.file_id, &[]);
            match remap.stand_in() {
                Some((RemapKind::Ghost, id)) => {
                    self.read(self.dir.size(&format!("ghost-file-{id:x}.img")));
                }
                Some((RemapKind::Linked, id)) => {
                    self.refer("remap-fpath.img", "hard link", id, &[FileKind::Regular]);
                }
                // CRIU makes up a process that is not in the tree.
                Some((RemapKind::Procfs, _)) => {}
                None => {
                    let (id, what) = (remap.file_id, "unlinked, with an unknown kind of stand-in");
                    self.find(Finding::FileRecord { id, what });
                }
            }
        }
    }

    pub(super) fn descriptors(&mut self, files_id: u32) {
        let Some(descriptors) = self.read(self.dir.fdinfo(files_id)) else { return };
        let file = format!("fdinfo-{files_id}.img");
        let mut numbers = BTreeSet::new();
        for descriptor in descriptors {
            let fd = descriptor.fd;
            if !numbers.insert(fd) {
                self.find(Finding::DescriptorTwice { file: file.clone(), fd });
            }
            let user = format!("descriptor {fd}");
            match FileKind::try_from(descriptor.kind) {
                Ok(kind) => self.refer(&file, &user, descriptor.id, &[kind]),
                Err(_) => self.wrong_kind(&file, &user, descriptor.id, None),
            }
        }
    }

    /// Checks a reference to a file id that may lead to any of some kinds, or to any at all if none
    /// is given.
    pub(super) fn refer(&mut self, file: &str, user: &str, id: u32, kinds: &[FileKind]) {
        let Some(files) = &self.files else { return };
        let Some(entry) = files.get(id) else {
            self.find(Finding::NoSuchFile { file: file.to_owned(), user: user.to_owned(), id });
            return;
        };
        let Some(&first) = kinds.first() else { return };
        if !entry.file_kind().is_some_and(|kind| kinds.contains(&kind)) {
            self.wrong_kind(file, user, id, Some(first));
        }
    }

    fn wrong_kind(&mut self, file: &str, user: &str, id: u32, expected: Option<FileKind>) {
        let found = self.files.as_ref().and_then(|f| f.get(id)).and_then(|e| e.file_kind());
        let (file, user) = (file.to_owned(), user.to_owned());
        self.find(Finding::WrongKind { file, user, id, expected, found });
    }
}
