//! An image as fields: everything but the contents of memory.

use std::collections::HashMap;
use std::fmt::Display;
use std::path::Path;

use criu_images::{Core, FileEntry, FileKind, ImageDir, KernelIds, PAGE_SIZE};
use defrost::sys::ledger::ANCHORS;

use super::areas::{self, Original};
use super::fields::{Fields, add};

/// Reads the image of one process. Numbers that the kernel or CRIU gave by chance are replaced by what they tell:
/// which descriptors are the same file, which ends belong together. `original` is what was restored.
pub fn read(folder: &Path, pid: u32, original: &Original) -> Fields {
    let image = ImageDir::open(folder).unwrap();
    let files = image.files().unwrap();
    let path = |id: u32| files.get(id).and_then(|entry| entry.path()).map(|path| path.display().to_string());
    let mut fields = Fields::new();
    let process = image.pstree().unwrap().remove(0);
    let mut tids = process.threads.clone();
    tids.sort_unstable();
    add(&mut fields, "tree", &criu_images::Process { threads: tids.clone(), ..process });
    for tid in tids {
        let Core { thread_info, task, thread, .. } = image.core(tid).unwrap();
        add(&mut fields, &format!("thread {tid}.registers"), &thread_info.unwrap());
        add(&mut fields, &format!("thread {tid}"), &thread.unwrap());
        if let Some(task) = task {
            add(&mut fields, "process", &task);
        }
    }
    let mut memory = image.mm(pid).unwrap();
    let vmas = std::mem::take(&mut memory.vmas);
    fields.insert("memory.program".to_owned(), format!("{:?}", path(memory.exe_file_id)));
    memory.exe_file_id = 0;
    add(&mut fields, "memory", &memory);
    for area in areas::of(&vmas, &path, Some(original)) {
        fields.insert(format!("area {}", area.place()), format!("{:?}", area.traits));
    }
    let folders = image.fs(pid).unwrap();
    fields.insert("folder".to_owned(), format!("{:?}", path(folders.cwd_id)));
    fields.insert("root".to_owned(), format!("{:?}", path(folders.root_id)));
    fields.insert("umask".to_owned(), format!("{:?}", folders.umask));
    let ids = image.ids(pid).unwrap();
    namespaces(&ids, &image.inventory().unwrap().root_ids.unwrap(), &mut fields);
    descriptors(&image, ids.files_id, &mut fields);
    if let Some(clocks) = image.timens().unwrap() {
        add(&mut fields, "clocks", &clocks);
    }
    fields
}

/// The image that is restored, as far as its restores are compared to it.
pub fn original(folder: &Path, pid: u32) -> Original {
    let image = ImageDir::open(folder).unwrap();
    let files = image.files().unwrap();
    let path = |id: u32| files.get(id).and_then(|entry| entry.path()).map(|path| path.display().to_string());
    let areas = areas::of(&image.mm(pid).unwrap().vmas, &path, None);
    let whole = defrost::image::Image::open(folder).unwrap();
    let ledger = whole.manifest().subject.ledger.map(|ledger| {
        let page = ledger.count - ledger.count % PAGE_SIZE;
        page..ledger.anchors + ANCHORS as u64 * PAGE_SIZE
    });
    Original { areas, ledger: ledger.unwrap_or_default() }
}

/// Which namespaces are those of CRIU itself.
fn namespaces(own: &KernelIds, root: &KernelIds, fields: &mut Fields) {
    for (name, own, root) in [
        ("pid", own.pid_ns_id, root.pid_ns_id),
        ("net", own.net_ns_id, root.net_ns_id),
        ("ipc", own.ipc_ns_id, root.ipc_ns_id),
        ("uts", own.uts_ns_id, root.uts_ns_id),
        ("mnt", own.mnt_ns_id, root.mnt_ns_id),
        ("user", own.user_ns_id, root.user_ns_id),
        ("cgroup", own.cgroup_ns_id, root.cgroup_ns_id),
        ("time", own.time_ns_id, root.time_ns_id),
    ] {
        fields.insert(format!("namespace {name} is shared"), (own == root).to_string());
    }
}

/// Numbers by the order in which they are met.
#[derive(Default)]
struct Names(HashMap<String, usize>);

impl Names {
    fn of(&mut self, number: impl Display) -> String {
        let next = self.0.len();
        format!("#{}", self.0.entry(number.to_string()).or_insert(next))
    }
}

fn descriptors(image: &ImageDir, files_id: u32, fields: &mut Fields) {
    let files = image.files().unwrap();
    let pipes = image.pipes_data().unwrap();
    let mut open = image.fdinfo(files_id).unwrap();
    open.sort_by_key(|info| info.fd);
    let (mut ids, mut inodes) = (Names::default(), Names::default());
    for info in open {
        let name = format!("descriptor {}", info.fd);
        let entry = files.get(info.id).unwrap();
        let mut put = |what: &str, value: String| fields.insert(format!("{name}.{what}"), value);
        put("flags", info.flags.to_string());
        put("kind", FileKind::try_from(info.kind).unwrap().to_string());
        put("file", ids.of(info.id));
        put("path", format!("{:?}", entry.path()));
        if let Some(pipe) = &entry.pipe {
            put("pipe", inodes.of(pipe.pipe_id));
            let content = pipes.iter().find(|(data, _)| data.pipe_id == pipe.pipe_id);
            put("capacity", format!("{:?}", content.map(|(data, _)| data.capacity)));
            put("content", format!("{:?}", content.map(|(_, bytes)| bytes)));
        }
        if let Some(socket) = &entry.unix {
            put("socket", inodes.of(socket.inode));
            put("peer", if socket.peer == 0 { "none".to_owned() } else { inodes.of(socket.peer) });
        }
        add(fields, &name, &without_numbers(entry.clone()));
    }
}

/// The record without what is compared as a relation.
fn without_numbers(mut entry: FileEntry) -> FileEntry {
    entry.id = 0;
    if let Some(file) = &mut entry.regular {
        (file.id, file.mount_id, file.name) = (0, None, Vec::new());
    }
    if let Some(pipe) = &mut entry.pipe {
        (pipe.id, pipe.pipe_id) = (0, 0);
    }
    if let Some(socket) = &mut entry.unix {
        (socket.id, socket.inode, socket.peer) = (0, 0, 0);
    }
    if let Some(file) = &mut entry.eventfd {
        file.id = 0;
    }
    if let Some(file) = &mut entry.timerfd {
        file.id = 0;
    }
    if let Some(file) = &mut entry.epoll {
        file.id = 0;
        file.watched.sort_by_key(|watch| watch.fd);
        for watch in &mut file.watched {
            (watch.id, watch.device, watch.inode, watch.position) = (0, None, None, None);
        }
    }
    if let Some(file) = &mut entry.signalfd {
        file.id = 0;
    }
    entry
}
