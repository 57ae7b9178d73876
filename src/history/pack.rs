//! Packs: files of pages, each with a table of the hashes of its pages.
//!
//! A pack is written once and never changed. The table is a record with a checksum of its own, and no page is handed
//! out that does not have the hash that stands there. A page is 4 KiB: CRIU writes the pages of a process one after
//! the other, so that one page more shifts all that follow; of two checkpoints of an idle server 2 % of the pages
//! differ, and nearly all pieces of 16 KiB. This module must not know what the pages are.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use super::error::{HistoryError, Trouble, failed};
use super::folder::{digests_name, pack_name, read_private, temporary};
use super::index::Place;
use crate::image::digest::Digest;
use crate::image::record::{self, Kind};

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;

/// Most pages of one pack: 256 MiB, with a table of 2 MiB.
const PAGES: usize = if cfg!(test) { 512 } else { 65_536 };

const TABLE: Kind = Kind { magic: *b"DEFRPACK", version: 1 };

/// The hashes of the pages of one pack, in order.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Table {
    pack: u64,
    pub(super) digests: Vec<Digest>,
}

impl Table {
    /// That of this pack.
    pub(super) fn read(dir: &Path, pack: u64) -> Result<Self, Trouble> {
        let name = digests_name(pack);
        let bytes = read_private(&dir.join(&name)).map_err(Trouble::reading)?;
        let table = record::decode::<Self>(TABLE, &bytes);
        let table = table.map_err(|error| Trouble::loss(format!("{name}: {error}")))?;
        if table.pack == pack {
            Ok(table)
        } else {
            Err(Trouble::loss(format!("{name} is of pack {}", table.pack)))
        }
    }
}

/// A pack that is read.
#[derive(Debug)]
pub(super) struct Pack {
    name: String,
    data: File,
    table: Table,
}

impl Pack {
    /// Opens this pack. It stays readable when it is pruned meanwhile.
    pub(super) fn open(dir: &Path, pack: u64) -> Result<Self, Trouble> {
        let table = Table::read(dir, pack)?;
        let name = pack_name(pack);
        let path = dir.join(&name);
        let reading = |error| Trouble::reading(failed("open", &path)(error));
        // O_NONBLOCK: a FIFO of that name must not hold us.
        let data = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(&path);
        let data = data.map_err(reading)?;
        let meta = data.metadata().map_err(reading)?;
        let expected = (table.digests.len() * PAGE) as u64;
        match meta.len() {
            _ if !meta.is_file() => Err(Trouble::loss(format!("{name} is no regular file"))),
            length if length != expected => {
                Err(Trouble::loss(format!("{name} has {length} bytes, {expected} expected")))
            }
            _ => Ok(Self { name, data, table }),
        }
    }

    /// Fills the buffer with as many pages as it holds, from this one on; each has the right hash.
    pub(super) fn read(&self, first: u32, buffer: &mut [u8]) -> Result<(), String> {
        self.read_raw(first, buffer)?;
        for (page, bytes) in (first as usize..).zip(buffer.chunks(PAGE)) {
            if self.table.digests.get(page) != Some(&Digest::of(bytes)) {
                return Err(format!("{} has other contents in page {page} than were stored", self.name));
            }
        }
        Ok(())
    }

    /// Whether these bytes are what this page holds at this moment.
    pub(super) fn holds(&self, page: u32, bytes: &[u8], buffer: &mut [u8]) -> bool {
        self.read_raw(page, buffer).is_ok() && buffer == bytes
    }

    fn read_raw(&self, first: u32, buffer: &mut [u8]) -> Result<(), String> {
        let at = u64::from(first) * PAGE as u64;
        self.data.read_exact_at(buffer, at).map_err(|error| format!("{}: {error}", self.name))
    }

    /// How many pages it has.
    pub(super) fn pages(&self) -> u32 {
        u32::try_from(self.table.digests.len()).unwrap_or(u32::MAX)
    }
}

/// Writes pages into new packs.
#[derive(Debug)]
pub(super) struct Packer {
    dir: PathBuf,
    next: u64,
    open: Option<Open>,
    /// The packs that have their names.
    finished: Vec<u64>,
    bytes: u64,
}

#[derive(Debug)]
struct Open {
    data: BufWriter<NamedTempFile>,
    table: Table,
}

impl Packer {
    /// The first pack that is written has this number.
    pub(super) fn new(dir: &Path, next: u64) -> Self {
        Self { dir: dir.to_owned(), next, open: None, finished: Vec::new(), bytes: 0 }
    }

    /// Adds a page, and says where it is going to be.
    pub(super) fn append(&mut self, bytes: &[u8], digest: Digest) -> Result<Place, HistoryError> {
        if self.open.as_ref().is_some_and(|open| open.table.digests.len() >= PAGES) {
            self.close()?;
        }
        let open = match &mut self.open {
            Some(open) => open,
            none => {
                let table = Table { pack: self.next, digests: Vec::new() };
                let data = BufWriter::with_capacity(256 * PAGE, temporary(&self.dir)?);
                self.next += 1;
                none.insert(Open { data, table })
            }
        };
        open.data.write_all(bytes).map_err(failed("write to", &self.dir))?;
        let page = u32::try_from(open.table.digests.len()).unwrap_or(u32::MAX);
        open.table.digests.push(digest);
        Ok(Place { pack: open.table.pack, page })
    }

    /// Has all that was added on disk, under its names. Gives the bytes that were written.
    pub(super) fn finish(&mut self) -> Result<u64, HistoryError> {
        self.close()?;
        Ok(self.bytes)
    }

    fn close(&mut self) -> Result<(), HistoryError> {
        let Some(Open { data, table }) = self.open.take() else { return Ok(()) };
        let write = failed("write to", &self.dir);
        let data = data.into_inner().map_err(|error| write(error.into_error()))?;
        data.as_file().sync_all().map_err(failed("write to", &self.dir))?;
        let bytes = record::encode(TABLE, &table)?;
        let mut digests = temporary(&self.dir)?;
        digests
            .write_all(&bytes)
            .and_then(|()| digests.as_file().sync_all())
            .map_err(failed("write to", &self.dir))?;
        for (file, name) in [(data, pack_name(table.pack)), (digests, digests_name(table.pack))] {
            let path = self.dir.join(name);
            file.persist_noclobber(&path).map_err(|error| failed("create", &path)(error.error))?;
        }
        self.bytes += (table.digests.len() * PAGE + bytes.len()) as u64;
        self.finished.push(table.pack);
        Ok(())
    }

    /// Removes what was written: nobody refers to it.
    pub(super) fn discard(self) {
        for pack in &self.finished {
            remove(&self.dir, *pack);
        }
    }
}

/// Removes a pack, as far as that can be done; what stays is tried again with the next pruning.
pub(super) fn remove(dir: &Path, pack: u64) {
    for name in [digests_name(pack), pack_name(pack)] {
        let _ = std::fs::remove_file(dir.join(name));
    }
}
