//! All of an image that a restore needs, read once. Knows nothing of what becomes of it.

use std::path::Path;

use criu_images::{
    Core, Fdinfo, FileKind, FileTable, FsInfo, ImageDir, Inventory, KernelIds, Memfd, Memory, Packet,
    Pagemap, PipeData, Process, ReadError, Remap, TaskCore, ThreadCore, ThreadInfoX86, TimeNamespace,
};

use super::sound;
use super::support::Reasons;

/// An image of one process.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) folder: ImageDir,
    pub(super) inventory: Inventory,
    pub(super) process: Process,
    pub(super) ids: KernelIds,
    pub(super) task: TaskCore,
    /// The leader first.
    pub(super) threads: Vec<SourceThread>,
    pub(super) memory: Memory,
    pub(super) pagemap: Pagemap,
    pub(super) files: FileTable,
    pub(super) descriptors: Vec<Fdinfo>,
    /// Files that had lost their names.
    pub(super) remaps: Vec<Remap>,
    pub(super) memfds: Vec<Memfd>,
    pub(super) pipes: Vec<(PipeData, Vec<u8>)>,
    pub(super) fifos: Vec<(PipeData, Vec<u8>)>,
    /// What waits to be read from local sockets, in the order of arrival.
    pub(super) queues: Vec<(Packet, Vec<u8>)>,
    pub(super) fs: FsInfo,
    pub(super) clocks: Option<TimeNamespace>,
}

/// A thread of it.
#[derive(Debug)]
pub(super) struct SourceThread {
    pub(super) tid: u32,
    pub(super) core: ThreadCore,
    pub(super) info: ThreadInfoX86,
}

impl Source {
    /// Reads the image in this folder. `None` when it is of another shape altogether, with a reason added.
    ///
    /// # Errors
    /// What cannot be read.
    pub(super) fn read(folder: ImageDir, reasons: &mut Reasons) -> Result<Option<Self>, ReadError> {
        let mut processes = folder.pstree()?;
        let count = processes.len();
        let Some(process) = processes.pop().filter(|_| count == 1) else {
            reasons.add(format!("the image has {count} processes, and one is supported"));
            return Ok(None);
        };
        let pid = process.pid;
        let mut tids = process.threads.clone();
        tids.retain(|tid| *tid != pid);
        tids.insert(0, pid);
        let mut task = None;
        let mut threads = Vec::with_capacity(tids.len());
        for tid in tids {
            let Core { thread_info, task: of_task, thread, .. } = folder.core(tid)?;
            task = task.or(of_task);
            match (thread, thread_info) {
                (Some(core), Some(info)) => threads.push(SourceThread { tid, core, info }),
                _ => reasons.add(format!("thread {tid} has no registers of this machine")),
            }
        }
        let Some(task) = task.filter(|_| reasons.is_empty()) else {
            reasons.add("the image does not describe a living process".to_owned());
            return Ok(None);
        };
        let ids = folder.ids(pid)?;
        let (memory, descriptors) = (folder.mm(pid)?, folder.fdinfo(ids.files_id)?);
        if let Some(defect) = sound::defect(&memory, &descriptors) {
            reasons.add(defect);
            return Ok(None);
        }
        let files = folder.files()?;
        // Most images have none of these, and reading a file that is not there takes time too.
        let has = |kind| files.entries().iter().any(|entry| entry.file_kind() == Some(kind));
        Ok(Some(Self {
            inventory: folder.inventory()?,
            task,
            threads,
            memory,
            pagemap: folder.pagemap(pid)?,
            descriptors,
            remaps: folder.remaps()?,
            memfds: if has(FileKind::Memfd) { folder.memfds()? } else { Vec::new() },
            pipes: folder.pipes_data()?,
            fifos: if has(FileKind::Fifo) { folder.fifos_data()? } else { Vec::new() },
            queues: folder.socket_queues()?,
            files,
            fs: folder.fs(pid)?,
            clocks: folder.timens()?,
            process,
            ids,
            folder,
        }))
    }

    /// Whether a file in the table had lost its name, so that its path leads to another one, or nowhere.
    pub(super) fn is_nameless(&self, id: u32) -> bool {
        self.remaps.iter().any(|remap| remap.file_id == id)
    }

    /// The path of a file in the table that was opened by path.
    pub(super) fn path(&self, id: u32) -> Option<&Path> {
        self.files.get(id)?.regular.as_deref().map(criu_images::RegularFile::path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_of_several_processes_is_a_reason_not_an_error() {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("criu/images/tests/fixtures/rich");
        let mut reasons = Reasons::default();
        assert!(Source::read(ImageDir::open(fixture).unwrap(), &mut reasons).unwrap().is_none());
        let reasons = reasons.into_vec();
        assert!(reasons.len() == 1 && reasons[0].contains("processes, and one is supported"), "{reasons:?}");
    }

    #[test]
    fn a_folder_that_is_no_image_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let folder = ImageDir::open(folder.path()).unwrap();
        assert!(Source::read(folder, &mut Reasons::default()).is_err());
    }
}
