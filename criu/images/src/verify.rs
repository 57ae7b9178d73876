//! Whether the files of an image are all there and fit together. Looks at the folder only: not at
//! the host's files, ports or pids, which a restore needs too.

mod memory;
mod table;
mod tree;

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::error::ReadError;
use crate::files::FileTable;
use crate::finding::Finding;
use crate::folder::ImageDir;
use crate::inventory::IMAGE_VERSION;

/// What [`verify`] found.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// Everything that is wrong, in the order of the files; empty if the image can be trusted to be
    /// whole.
    pub findings: Vec<Finding>,
    /// Processes in the image, the dead included.
    pub processes: usize,
    /// Threads in the image.
    pub threads: usize,
    /// Bytes of memory in the image, shared memory included.
    pub present_bytes: u64,
    /// Where the link `parent` leads, for an image that is the difference to another. The parent is
    /// not verified.
    pub parent: Option<PathBuf>,
}

impl Report {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Reads all files a restore reads and reports everything that is wrong with them at once.
///
/// The contents of memory cannot be told right from wrong here; their files are only measured.
/// Whoever wants that keeps checksums beside the image.
#[must_use]
pub fn verify(dir: &ImageDir) -> Report {
    let mut check = Check { dir, report: Report::default(), files: None, pages: BTreeSet::new() };
    check.inventory();
    check.parent();
    check.file_table();
    check.processes();
    check.report
}

/// A verification under way.
struct Check<'a> {
    dir: &'a ImageDir,
    report: Report,
    /// `None` if `files.img` could not be read; then nothing is said about references into it.
    files: Option<FileTable>,
    /// Numbers of the pages files met.
    pages: BTreeSet<u32>,
}

impl Check<'_> {
    fn find(&mut self, finding: Finding) {
        self.report.findings.push(finding);
    }

    /// The value, or `None` and a finding.
    fn read<T>(&mut self, result: Result<T, ReadError>) -> Option<T> {
        result.map_err(|error| self.find(Finding::Unreadable(error))).ok()
    }

    fn inventory(&mut self) {
        let Some(inventory) = self.read(self.dir.inventory()) else { return };
        if inventory.img_version != IMAGE_VERSION {
            self.find(Finding::Version { found: inventory.img_version });
        }
        if inventory.fdinfo_per_id != Some(true) {
            self.find(Finding::DescriptorsByPid);
        }
    }

    fn parent(&mut self) {
        let Some(link) = self.read(self.dir.parent()) else { return };
        self.report.parent = link;
    }

    fn has_parent(&self) -> bool {
        self.report.parent.as_deref().is_some_and(std::path::Path::is_dir)
    }
}
