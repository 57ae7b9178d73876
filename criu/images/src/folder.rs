//! An image folder and its files, by name. Knows what each file holds, but not whether the files
//! fit together; that is [`verify`](crate::verify()).

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use prost::Message;

use crate::cpuinfo::CpuInfo;
use crate::decode::{Unknown, decode};
use crate::error::ReadError;
use crate::files::{Fdinfo, FileEntry, FileTable, GhostFile, Memfd, Packet, PipeData, Remap, Terminal};
use crate::format::{Layout, MAX_FILE, Records};
use crate::inventory::Inventory;
use crate::memory::Memory;
use crate::pagemap::{Pagemap, PagemapEntry, PagemapHead};
use crate::process::{FsInfo, KernelIds, Process};
use crate::stats::{DumpStats, RestoreStats, Stats};
use crate::task::Core;
use crate::time::TimeNamespace;

/// A folder that CRIU dumped into. Every call reads its file anew, unless its contents are at hand; nothing is kept
/// open.
#[derive(Clone, Debug)]
pub struct ImageDir {
    path: PathBuf,
    at_hand: Arc<Contents>,
    unknown: Unknown,
}

/// Contents of files that somebody has read already, by name.
pub type Contents = HashMap<String, Vec<u8>>;

impl ImageDir {
    /// Takes a folder for an image. No file is read yet.
    ///
    /// # Errors
    /// [`ReadError::Folder`] if the path does not lead to a folder.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, ReadError> {
        let path = path.into();
        match fs::read_dir(&path) {
            Ok(_) => Ok(Self { path, at_hand: Arc::default(), unknown: Unknown::Accepted }),
            Err(source) => Err(ReadError::Folder { path, source }),
        }
    }

    /// The same folder, read by somebody who will write what was read: [`ReadError::UnknownField`] for whatever
    /// would be lost on the way, in every file.
    #[must_use]
    pub fn strictly(self) -> Self {
        Self { unknown: Unknown::Refused, ..self }
    }

    /// The same folder, with the contents of some of its files: these are not read again.
    #[must_use]
    pub fn with(self, at_hand: Arc<Contents>) -> Self {
        Self { at_hand, ..self }
    }

    /// Where the folder is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads `inventory.img`.
    ///
    /// # Errors
    /// Any [`ReadError`]; so do all methods below.
    pub fn inventory(&self) -> Result<Inventory, ReadError> {
        self.one("inventory.img", Layout::Inventory, "inventory_entry")
    }

    /// Reads `pstree.img`: the processes, parents first.
    ///
    /// # Errors
    /// Any [`ReadError`].
    pub fn pstree(&self) -> Result<Vec<Process>, ReadError> {
        self.all("pstree.img", Layout::Pstree, "pstree_entry")
    }

    /// Reads `core-TID.img`.
    ///
    /// # Errors
    /// Any [`ReadError`].
    pub fn core(&self, tid: u32) -> Result<Core, ReadError> {
        self.one(&format!("core-{tid}.img"), Layout::Core, "core_entry")
    }

    /// Reads `ids-PID.img`.
    ///
    /// # Errors
    /// Any [`ReadError`].
    pub fn ids(&self, pid: u32) -> Result<KernelIds, ReadError> {
        self.one(&format!("ids-{pid}.img"), Layout::Ids, "task_kobj_ids_entry")
    }

    /// Reads `mm-PID.img`.
    ///
    /// # Errors
    /// Any [`ReadError`].
    pub fn mm(&self, pid: u32) -> Result<Memory, ReadError> {
        self.one(&format!("mm-{pid}.img"), Layout::Memory, "mm_entry")
    }

    /// Reads `pagemap-PID.img`.
    ///
    /// # Errors
    /// Any [`ReadError`]; [`ReadError::UnknownField`] for what a later CRIU added, because a field
    /// there can change where pages are.
    pub fn pagemap(&self, pid: u32) -> Result<Pagemap, ReadError> {
        self.page_map(&format!("pagemap-{pid}.img"))
    }

    /// Reads `pagemap-shmem-ID.img`; see [`Vma::shared_memory_id`](crate::Vma::shared_memory_id).
    ///
    /// # Errors
    /// As [`ImageDir::pagemap`].
    pub fn shared_pagemap(&self, id: u64) -> Result<Pagemap, ReadError> {
        self.page_map(&format!("pagemap-shmem-{id}.img"))
    }

    /// Reads `files.img`.
    ///
    /// # Errors
    /// Any [`ReadError`].
    pub fn files(&self) -> Result<FileTable, ReadError> {
        self.all::<FileEntry>("files.img", Layout::Files, "file_entry").map(FileTable::new)
    }

    /// Reads `fdinfo-FILESID.img`; the number is [`KernelIds::files_id`], not a pid.
    ///
    /// # Errors
    /// Any [`ReadError`].
    pub fn fdinfo(&self, files_id: u32) -> Result<Vec<Fdinfo>, ReadError> {
        self.all(&format!("fdinfo-{files_id}.img"), Layout::Fdinfo, "fdinfo_entry")
    }

    /// Reads `fs-PID.img`.
    ///
    /// # Errors
    /// Any [`ReadError`].
    pub fn fs(&self, pid: u32) -> Result<FsInfo, ReadError> {
        self.one(&format!("fs-{pid}.img"), Layout::Fs, "fs_entry")
    }

    /// Reads `timens-0.img`; `None` if the dump had no time namespace to record.
    ///
    /// # Errors
    /// Any [`ReadError`] but [`ReadError::Missing`]; so do the optional files below.
    pub fn timens(&self) -> Result<Option<TimeNamespace>, ReadError> {
        optional(self.one("timens-0.img", Layout::TimeNamespace, "timens_entry"))
    }

    /// Reads the figures of the dump from `stats-dump`.
    ///
    /// # Errors
    /// Any [`ReadError`] but [`ReadError::Missing`].
    pub fn stats_dump(&self) -> Result<Option<DumpStats>, ReadError> {
        let stats: Option<Stats> = optional(self.one("stats-dump", Layout::Stats, "stats_entry"))?;
        Ok(stats.and_then(|s| s.dump))
    }

    /// Reads the figures of the last restore from `stats-restore`. CRIU writes it into its work
    /// folder, which is the image folder unless it was told otherwise.
    ///
    /// # Errors
    /// Any [`ReadError`] but [`ReadError::Missing`].
    pub fn stats_restore(&self) -> Result<Option<RestoreStats>, ReadError> {
        let stats: Option<Stats> = optional(self.one("stats-restore", Layout::Stats, "stats_entry"))?;
        Ok(stats.and_then(|s| s.restore))
    }

    /// Reads `cpuinfo.img`; `None` if the dump was not asked to record the processor.
    ///
    /// # Errors
    /// Any [`ReadError`] but [`ReadError::Missing`].
    pub fn cpuinfo(&self) -> Result<Option<CpuInfo>, ReadError> {
        optional(self.one("cpuinfo.img", Layout::CpuInfo, "cpuinfo_entry"))
    }

    /// Reads `memfd.img`; empty if there is none.
    ///
    /// # Errors
    /// Any [`ReadError`] but [`ReadError::Missing`].
    pub fn memfds(&self) -> Result<Vec<Memfd>, ReadError> {
        optional(self.all("memfd.img", Layout::Memfd, "memfd_inode_entry")).map(Option::unwrap_or_default)
    }

    /// Reads `tty-info.img`; empty if there is none.
    ///
    /// # Errors
    /// Any [`ReadError`] but [`ReadError::Missing`].
    pub fn terminals(&self) -> Result<Vec<Terminal>, ReadError> {
        optional(self.all("tty-info.img", Layout::Terminals, "tty_info_entry")).map(Option::unwrap_or_default)
    }

    /// Reads `remap-fpath.img`; empty if there is none.
    ///
    /// # Errors
    /// Any [`ReadError`] but [`ReadError::Missing`].
    pub fn remaps(&self) -> Result<Vec<Remap>, ReadError> {
        optional(self.all("remap-fpath.img", Layout::Remaps, "remap_file_path_entry"))
            .map(Option::unwrap_or_default)
    }

    /// Reads `ghost-file-ID.img`, whose name has the id in hexadecimal: a file without a name, with its bytes unless
    /// they are [in pieces](GhostFile::in_pieces).
    ///
    /// # Errors
    /// Any [`ReadError`].
    pub fn ghost_file(&self, id: u32) -> Result<(GhostFile, Vec<u8>), ReadError> {
        let name = format!("ghost-file-{id:x}.img");
        let bytes = self.bytes(&name)?;
        let mut records = Records::new(&name, Layout::GhostFile, &bytes)?;
        let record = records.next().unwrap_or_else(|| Err(short(&name, &bytes)))?;
        let ghost: GhostFile = decode(record, "ghost_file_entry", self.unknown)?;
        let contents = if ghost.in_pieces == Some(true) { Vec::new() } else { records.rest().to_vec() };
        Ok((ghost, contents))
    }

    /// Reads `pipes-data.img`: what is in each pipe without a name, with its bytes; empty if there is no such file.
    ///
    /// # Errors
    /// Any [`ReadError`] but [`ReadError::Missing`].
    pub fn pipes_data(&self) -> Result<Vec<(PipeData, Vec<u8>)>, ReadError> {
        self.followed("pipes-data.img", Layout::PipesData, "pipe_data_entry", |data: &PipeData| data.length)
    }

    /// Reads `fifo-data.img`: what is in each named pipe, with its bytes; empty if there is no such file.
    ///
    /// # Errors
    /// Any [`ReadError`] but [`ReadError::Missing`].
    pub fn fifos_data(&self) -> Result<Vec<(PipeData, Vec<u8>)>, ReadError> {
        self.followed("fifo-data.img", Layout::FifosData, "pipe_data_entry", |data: &PipeData| data.length)
    }

    /// Reads `sk-queues.img`: what waits to be read from sockets, with its bytes, for each socket in the order of
    /// arrival; empty if there is no such file.
    ///
    /// # Errors
    /// Any [`ReadError`] but [`ReadError::Missing`].
    pub fn socket_queues(&self) -> Result<Vec<(Packet, Vec<u8>)>, ReadError> {
        self.followed("sk-queues.img", Layout::SocketQueues, "sk_packet_entry", |packet: &Packet| {
            packet.length
        })
    }

    /// Where the link `parent` leads: the image that this one is the difference to.
    ///
    /// # Errors
    /// [`ReadError::Io`] if there is such a name and it is no link or cannot be read.
    pub fn parent(&self) -> Result<Option<PathBuf>, ReadError> {
        match fs::read_link(self.path.join("parent")) {
            Ok(target) => Ok(Some(self.path.join(target))),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(ReadError::Io { file: "parent".to_owned(), source }),
        }
    }

    /// Size of a file that is not read here, such as `pages-1.img`, in bytes.
    ///
    /// # Errors
    /// [`ReadError::Missing`], [`ReadError::Io`] or [`ReadError::NotRegular`].
    pub fn size(&self, name: &str) -> Result<u64, ReadError> {
        let meta = fs::metadata(self.path.join(name)).map_err(|source| refused(name, source))?;
        if !meta.is_file() {
            return Err(ReadError::NotRegular { file: name.to_owned() });
        }
        Ok(meta.len())
    }

    fn page_map(&self, name: &str) -> Result<Pagemap, ReadError> {
        let bytes = self.bytes(name)?;
        let mut records = Records::new(name, Layout::Pagemap, &bytes)?;
        let head = records.next().unwrap_or_else(|| Err(short(name, &bytes)))?;
        let head: PagemapHead = decode(head, "pagemap_head", Unknown::Refused)?;
        let mut map = Pagemap::new(head.pages_id);
        for record in records {
            let record = record?;
            let entry: PagemapEntry = decode(record, "pagemap_entry", Unknown::Refused)?;
            map.push(&entry).map_err(|what| ReadError::Invalid {
                file: name.to_owned(),
                offset: record.offset,
                what,
            })?;
        }
        Ok(map)
    }

    fn one<M: Message + Default>(
        &self,
        name: &str,
        layout: Layout,
        message: &'static str,
    ) -> Result<M, ReadError> {
        let bytes = self.bytes(name)?;
        let mut records = Records::new(name, layout, &bytes)?;
        let record = records.next().unwrap_or_else(|| Err(short(name, &bytes)))?;
        if let Some(further) = records.next() {
            let (file, offset) = (name.to_owned(), further?.offset);
            return Err(ReadError::RecordCount { file, offset, expected: "end of file" });
        }
        decode(record, message, self.unknown)
    }

    fn all<M: Message + Default>(
        &self,
        name: &str,
        layout: Layout,
        message: &'static str,
    ) -> Result<Vec<M>, ReadError> {
        let bytes = self.bytes(name)?;
        Records::new(name, layout, &bytes)?.map(|r| decode(r?, message, self.unknown)).collect()
    }

    /// Records that are followed by as many bytes as each of them says; none if there is no such file.
    fn followed<M: Message + Default>(
        &self,
        name: &str,
        layout: Layout,
        message: &'static str,
        length: impl Fn(&M) -> u32,
    ) -> Result<Vec<(M, Vec<u8>)>, ReadError> {
        let Some(bytes) = optional(self.bytes(name))? else { return Ok(Vec::new()) };
        let mut records = Records::new(name, layout, &bytes)?;
        let mut all = Vec::new();
        while let Some(record) = records.next() {
            let record: M = decode(record?, message, self.unknown)?;
            let contents = records.raw(length(&record) as usize)?.to_vec();
            all.push((record, contents));
        }
        Ok(all)
    }

    /// Contents of a file. Takes no more memory than the file is long, nor than [`MAX_FILE`].
    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>, ReadError> {
        if let Some(bytes) = self.at_hand.get(name) {
            return Ok(Cow::Borrowed(bytes));
        }
        let (file, size) = self.open_file(name)?;
        let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
        // A file that grows meanwhile is read as far as it went when it was opened.
        file.take(size)
            .read_to_end(&mut bytes)
            .map_err(|source| ReadError::Io { file: name.to_owned(), source })?;
        Ok(Cow::Owned(bytes))
    }

    fn open_file(&self, name: &str) -> Result<(File, u64), ReadError> {
        // Without O_NONBLOCK, open(2) of a FIFO waits for a writer.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(self.path.join(name))
            .map_err(|source| refused(name, source))?;
        let meta = file.metadata().map_err(|source| refused(name, source))?;
        if !meta.is_file() {
            return Err(ReadError::NotRegular { file: name.to_owned() });
        }
        if meta.len() > MAX_FILE {
            let (file, size, limit) = (name.to_owned(), meta.len(), MAX_FILE);
            return Err(ReadError::TooLarge { file, size, limit });
        }
        Ok((file, meta.len()))
    }
}

fn short(name: &str, bytes: &[u8]) -> ReadError {
    ReadError::RecordCount { file: name.to_owned(), offset: bytes.len() as u64, expected: "one record" }
}

fn refused(name: &str, source: std::io::Error) -> ReadError {
    let file = name.to_owned();
    if source.kind() == ErrorKind::NotFound {
        ReadError::Missing { file }
    } else {
        ReadError::Io { file, source }
    }
}

fn optional<T>(read: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(ReadError::Missing { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
