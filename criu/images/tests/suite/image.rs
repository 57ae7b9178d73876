//! A small whole image as values, to be changed and written. It has one process with two threads,
//! a zombie, two listeners, a memfd, and an unlinked file.

use std::fs;
use std::path::Path;

use criu_images::*;
use prost::Message;
use tempfile::TempDir;

pub(crate) const PID: u32 = 10;
pub(crate) const THREAD: u32 = 11;
pub(crate) const ZOMBIE: u32 = 12;
pub(crate) const FILES_ID: u32 = 2;
pub(crate) const SHARED: u64 = 77;
const COMMON: u32 = 0x5456_4319;

/// Every file of the image as values. Fields may be changed before writing.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) inventory: Inventory,
    pub(crate) pstree: Vec<Process>,
    pub(crate) cores: Vec<(u32, Core)>,
    pub(crate) ids: KernelIds,
    pub(crate) mm: Memory,
    pub(crate) pagemap: (PagemapHead, Vec<PagemapEntry>),
    pub(crate) shared_pagemap: (PagemapHead, Vec<PagemapEntry>),
    pub(crate) pages: Vec<(u32, u64)>,
    pub(crate) files: Vec<FileEntry>,
    pub(crate) fdinfo: Vec<Fdinfo>,
    pub(crate) fs: FsInfo,
    pub(crate) memfds: Vec<Memfd>,
    pub(crate) remaps: Vec<Remap>,
}

impl Image {
    pub(crate) fn new() -> Self {
        Self {
            inventory: Inventory { img_version: 2, fdinfo_per_id: Some(true), ..Default::default() },
            pstree: vec![
                Process { pid: PID, ppid: 0, pgid: PID, sid: PID, threads: vec![PID, THREAD] },
                // What CRIU writes as the zombie's thread is no thread.
                Process { pid: ZOMBIE, ppid: PID, pgid: PID, sid: PID, threads: vec![0xdead_beef] },
            ],
            cores: vec![(PID, core(true, 1)), (THREAD, core(false, 1)), (ZOMBIE, zombie())],
            ids: KernelIds { vm_id: 1, files_id: FILES_ID, fs_id: 1, sighand_id: 1, ..Default::default() },
            mm: Memory {
                exe_file_id: 1,
                vmas: vec![
                    vma(0x1000, 0x3000, VmaStatus::FILE_PRIVATE, 1),
                    vma(0x3000, 0x9000, VmaStatus::ANON_PRIVATE, 0),
                    vma(0xa000, 0xc000, VmaStatus::ANON_SHARED, SHARED),
                    vma(0xc000, 0xd000, VmaStatus::FILE_SHARED | VmaStatus::MEMFD, 5),
                ],
                ..Default::default()
            },
            pagemap: (PagemapHead { pages_id: 1 }, vec![run(0x2000, 2, 4), run(0x5000, 1, 6)]),
            shared_pagemap: (PagemapHead { pages_id: 2 }, vec![run(0, 1, 4)]),
            pages: vec![(1, 3), (2, 1)],
            files: vec![
                regular(1, "/srv/app", Some(9000)),
                regular(2, "/dev/null", None),
                listener(3, 2, &[u32::from_le_bytes([127, 0, 0, 1])], 8080),
                listener(4, 10, &[0, 0, 0, u32::from_le_bytes([0, 0, 0, 1])], 8081),
                memfd(5),
                regular(6, "/", None),
                regular(7, "/tmp/gone", Some(3)),
            ],
            fdinfo: [(0, 2, FileKind::Regular), (3, 3, FileKind::InetSocket), (4, 4, FileKind::InetSocket)]
                .map(|(fd, id, kind)| Fdinfo { id, flags: 0, kind: kind as i32, fd, selinux_label: None })
                .to_vec(),
            fs: FsInfo { cwd_id: 6, root_id: 6, umask: Some(0o22) },
            memfds: vec![Memfd {
                name: b"cache".to_vec(),
                size: 4096,
                shared_memory_id: SHARED as u32,
                inode_id: 1,
                ..Default::default()
            }],
            remaps: vec![Remap { file_id: 7, remap_id: 0x1a, kind: Some(RemapKind::Ghost as i32) }],
        }
    }

    /// Writes all files into a new folder.
    pub(crate) fn write(&self) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        put(path, "inventory.img", &[0x5831_3116], &[encode(&self.inventory)]);
        put(path, "pstree.img", &[COMMON, 0x5027_3030], &all(&self.pstree));
        for (tid, core) in &self.cores {
            put(path, &format!("core-{tid}.img"), &[COMMON, 0x5505_3847], &[encode(core)]);
        }
        put(path, &format!("ids-{PID}.img"), &[COMMON, 0x5443_2030], &[encode(&self.ids)]);
        put(path, &format!("mm-{PID}.img"), &[COMMON, 0x5749_2820], &[encode(&self.mm)]);
        put_pagemap(path, &format!("pagemap-{PID}.img"), &self.pagemap);
        put_pagemap(path, &format!("pagemap-shmem-{SHARED}.img"), &self.shared_pagemap);
        for (id, pages) in &self.pages {
            fs::write(path.join(format!("pages-{id}.img")), vec![0; (pages * PAGE_SIZE) as usize]).unwrap();
        }
        put(path, "files.img", &[COMMON, 0x5630_3138], &all(&self.files));
        put(path, &format!("fdinfo-{FILES_ID}.img"), &[COMMON, 0x5621_3732], &all(&self.fdinfo));
        put(path, &format!("fs-{PID}.img"), &[COMMON, 0x5140_3912], &[encode(&self.fs)]);
        put(path, "memfd.img", &[COMMON, 0x4845_3499], &all(&self.memfds));
        put(path, "remap-fpath.img", &[COMMON, 0x5913_3954], &all(&self.remaps));
        fs::write(path.join("ghost-file-1a.img"), b"abc").unwrap();
        dir
    }

    /// Writes the image and verifies it.
    pub(crate) fn verify(&self) -> Report {
        let dir = self.write();
        verify(&ImageDir::open(dir.path()).unwrap())
    }

    /// Findings as text.
    pub(crate) fn findings(&self) -> Vec<String> {
        self.verify().findings.iter().map(Finding::to_string).collect()
    }

    pub(crate) fn core_mut(&mut self, tid: u32) -> &mut Core {
        self.cores.iter_mut().find_map(|(t, core)| (*t == tid).then_some(core)).unwrap()
    }
}

/// Writes one file: magic numbers, then each record with its length.
pub(crate) fn put(dir: &Path, name: &str, magics: &[u32], records: &[Vec<u8>]) {
    let mut bytes: Vec<u8> = magics.iter().flat_map(|m| m.to_le_bytes()).collect();
    for record in records {
        bytes.extend((record.len() as u32).to_le_bytes());
        bytes.extend(record);
    }
    fs::write(dir.join(name), bytes).unwrap();
}

/// Reads one file by the method its name belongs to; `None` if it is none that is read.
pub(crate) fn read(dir: &Path, name: &str) -> Option<Result<(), ReadError>> {
    let image = ImageDir::open(dir).unwrap();
    let stem = name.strip_suffix(".img").unwrap_or(name);
    let (kind, number) = stem.rsplit_once('-').unwrap_or((stem, ""));
    let id = number.parse().unwrap_or(0);
    Some(match (kind, stem) {
        (_, "inventory") => image.inventory().map(drop),
        (_, "pstree") => image.pstree().map(drop),
        ("core", _) => image.core(id).map(drop),
        ("ids", _) => image.ids(id).map(drop),
        ("mm", _) => image.mm(id).map(drop),
        ("pagemap", _) => image.pagemap(id).map(drop),
        ("pagemap-shmem", _) => image.shared_pagemap(id.into()).map(drop),
        (_, "files") => image.files().map(drop),
        ("fdinfo", _) => image.fdinfo(id).map(drop),
        ("fs", _) => image.fs(id).map(drop),
        (_, "timens-0") => image.timens().map(drop),
        (_, "stats-dump") => image.stats_dump().map(drop),
        (_, "stats-restore") => image.stats_restore().map(drop),
        (_, "cpuinfo") => image.cpuinfo().map(drop),
        (_, "memfd") => image.memfds().map(drop),
        (_, "tty-info") => image.terminals().map(drop),
        (_, "remap-fpath") => image.remaps().map(drop),
        _ => return None,
    })
}

/// Names of all files in a folder that a method reads, sorted.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = entries.filter(|name| read(dir, name).is_some()).collect();
    names.sort();
    names
}

/// Where the magic numbers and lengths of a file are, four bytes each, and where its records end.
pub(crate) fn framing(name: &str, bytes: &[u8]) -> (Vec<usize>, Vec<usize>) {
    let mut words = if name == "inventory.img" { vec![0] } else { vec![0, 4] };
    let mut at = words.len() * 4;
    let mut ends = vec![at];
    while at < bytes.len() {
        words.push(at);
        at += 4 + u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        ends.push(at);
    }
    (words, ends)
}

pub(crate) fn run(vaddr: u64, pages: u64, flags: u32) -> PagemapEntry {
    PagemapEntry { vaddr, compat_nr_pages: 0, in_parent: None, flags: Some(flags), nr_pages: Some(pages) }
}

pub(crate) fn vma(start: u64, end: u64, status: VmaStatus, object: u64) -> Vma {
    let status = (VmaStatus::REGULAR | status).bits();
    Vma { start, end, object, status, fd: -1, ..Default::default() }
}

fn encode(message: &impl Message) -> Vec<u8> {
    message.encode_to_vec()
}

fn all<M: Message>(messages: &[M]) -> Vec<Vec<u8>> {
    messages.iter().map(encode).collect()
}

fn put_pagemap(dir: &Path, name: &str, (head, entries): &(PagemapHead, Vec<PagemapEntry>)) {
    let mut records = vec![encode(head)];
    records.extend(all(entries));
    put(dir, name, &[COMMON, 0x5608_4025], &records);
}

fn core(leader: bool, state: u32) -> Core {
    Core {
        machine: Machine::host() as i32,
        thread_info: Some(ThreadInfoX86::default()),
        task: leader.then(|| TaskCore { task_state: state, comm: b"app".to_vec(), ..Default::default() }),
        ids: None,
        thread: Some(ThreadCore { comm: Some(b"\xff".to_vec()), ..Default::default() }),
    }
}

fn zombie() -> Core {
    Core { thread_info: None, thread: None, ..core(true, 2) }
}

fn regular(id: u32, path: &str, size: Option<u64>) -> FileEntry {
    let file = RegularFile { id, name: path.into(), size, mode: Some(0o100_644), ..Default::default() };
    FileEntry { kind: FileKind::Regular as i32, id, regular: Some(Box::new(file)), ..Default::default() }
}

fn listener(id: u32, family: u32, address: &[u32], port: u32) -> FileEntry {
    let socket = InetSocket {
        id,
        family,
        kind: 1,
        protocol: 6,
        state: 10,
        src_port: port,
        backlog: 128,
        src_addr: address.to_vec(),
        ..Default::default()
    };
    FileEntry { kind: FileKind::InetSocket as i32, id, inet: Some(Box::new(socket)), ..Default::default() }
}

fn memfd(id: u32) -> FileEntry {
    let file = MemfdFile { id, inode_id: 1, ..Default::default() };
    FileEntry { kind: FileKind::Memfd as i32, id, memfd: Some(Box::new(file)), ..Default::default() }
}
