//! An image becomes a checkpoint of a history: what is not there yet is written, then the index.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::time::Instant;

use super::error::{HistoryError, failed};
use super::folder::{History, Writing};
use super::index::{Content, Index, Place, StoredFile, push};
use super::pack::{PAGE, Pack, Packer, Table};
use crate::events::event::micros;
use crate::image::digest::Digest;
use crate::image::manifest::Manifest;
use crate::image::{Image, flatten};

/// Files up to this size, in bytes, are stored in the index.
const SMALL: u64 = 64 << 10;
/// How much of a file is read at once.
const PIECE: usize = 256 * PAGE;

impl History {
    /// Stores an image, which stays where it is. An image that depends on others is made whole first, in its place.
    /// While that is done, and if it fails, the history is as it was.
    ///
    /// A page that is there already is referred to, after it was read: what is stored can be read at that moment,
    /// even where an earlier checkpoint has been damaged.
    ///
    /// # Errors
    /// See [`HistoryError`].
    pub fn add(&self, path: &Path) -> Result<Index, HistoryError> {
        self.stored(path, None)
    }

    /// The same, of a checkpoint that was begun at this moment.
    pub(super) fn add_begun(&self, path: &Path, begun: Instant) -> Result<Index, HistoryError> {
        self.stored(path, Some(begun))
    }

    fn stored(&self, path: &Path, begun: Option<Instant>) -> Result<Index, HistoryError> {
        let mut image = Image::open(path)?;
        if !image.manifest().ancestors.is_empty() {
            flatten(&image, None, &mut |_, _| {})?;
            image = Image::open(path)?;
        }
        let writing = self.write()?;
        self.store(&image, begun, &writing)
    }

    fn store(
        &self,
        image: &Image,
        begun: Option<Instant>,
        _writing: &Writing,
    ) -> Result<Index, HistoryError> {
        let last = self.numbers().into_iter().chain(self.checkouts()).max().unwrap_or(0);
        let mut keeper = Keeper::of(self);
        match keeper.files(image) {
            Ok((files, written)) => {
                let mut index = describe(image, last + 1, files)?;
                index.written_bytes = written;
                index.took_us = begun.map_or(0, |begun| micros(begun.elapsed()));
                match self.write_index(&index) {
                    Ok(_) => Ok(index),
                    Err(error) => {
                        keeper.packer.discard();
                        Err(error)
                    }
                }
            }
            Err(error) => {
                keeper.packer.discard();
                Err(error)
            }
        }
    }
}

fn describe(image: &Image, number: u64, files: Vec<StoredFile>) -> Result<Index, HistoryError> {
    let manifest = image.manifest();
    Ok(Index {
        number,
        id: manifest.id,
        created_unix_ns: manifest.created_unix_ns,
        server: manifest.subject.name.clone(),
        generation: manifest.subject.generation,
        pause_us: pause(manifest),
        took_us: 0,
        memory_bytes: manifest.present_bytes,
        image_bytes: files.iter().map(|file| file.size).sum(),
        written_bytes: 0,
        // What is stored of it is on disk when the index is.
        manifest: Manifest { durable: true, ..manifest.clone() }.to_bytes()?,
        files,
    })
}

/// From the first hook until the process goes on. One that was left running does that right after the dump.
fn pause(manifest: &Manifest) -> u64 {
    let all = manifest.subject.phases.iter().chain(&manifest.phases);
    all.filter(|phase| phase.name == "quiesce" || phase.name == "dump").map(|phase| phase.micros).sum()
}

/// Puts pages where they belong.
struct Keeper<'a> {
    history: &'a History,
    known: HashMap<Digest, Place>,
    /// Packs that were there before, opened when they are needed. None for one that cannot be read.
    packs: HashMap<u64, Option<Pack>>,
    /// Packs from this one on are written just now.
    first_new: u64,
    packer: Packer,
}

impl<'a> Keeper<'a> {
    fn of(history: &'a History) -> Self {
        let packs = history.packs();
        let first_new = packs.last().map_or(1, |last| last + 1);
        let mut known = HashMap::new();
        for pack in packs {
            match Table::read(history.path(), pack) {
                Ok(table) => {
                    known.extend(
                        (0..).zip(table.digests).map(|(page, digest)| (digest, Place { pack, page })),
                    );
                }
                Err(loss) => tracing::warn!("{}: {loss}", history.path().display()),
            }
        }
        let packer = Packer::new(history.path(), first_new);
        Self { history, known, packs: HashMap::new(), first_new, packer }
    }

    /// Stores all files of the image; gives where they are, and the bytes that were written.
    fn files(&mut self, image: &Image) -> Result<(Vec<StoredFile>, u64), HistoryError> {
        let mut files = Vec::new();
        for file in &image.manifest().files {
            let path = image.path().join(&file.name);
            let content = if file.size <= SMALL && !file.bulk {
                Content::Whole(fs::read(&path).map_err(failed("read", &path))?)
            } else {
                self.pages(&path, file.size)?
            };
            if let Content::Whole(bytes) = &content
                && Digest::of(bytes) != file.blake3
            {
                return Err(HistoryError::Changed { path });
            }
            files.push(StoredFile { name: file.name.clone(), size: file.size, content });
        }
        let small = files.iter().map(|file| match &file.content {
            Content::Whole(bytes) => bytes.len() as u64,
            Content::Pages(extents) => 8 * extents.len() as u64,
        });
        let small: u64 = small.sum();
        Ok((files, self.packer.finish()? + small))
    }

    fn pages(&mut self, path: &Path, size: u64) -> Result<Content, HistoryError> {
        let mut file = File::open(path).map_err(failed("read", path))?;
        let (mut extents, mut piece, mut total) = (Vec::new(), vec![0; PIECE], 0);
        let mut there = [0; PAGE];
        loop {
            let length = fill(&mut file, &mut piece).map_err(failed("read", path))?;
            if length == 0 {
                break;
            }
            total += length as u64;
            let end = length.next_multiple_of(PAGE);
            piece[length..end].fill(0);
            for page in piece[..end].chunks(PAGE) {
                push(&mut extents, self.place(page, &mut there)?);
            }
        }
        if total == size {
            Ok(Content::Pages(extents))
        } else {
            Err(HistoryError::Changed { path: path.into() })
        }
    }

    /// Where a page lies, or is going to.
    fn place(&mut self, page: &[u8], buffer: &mut [u8]) -> Result<Place, HistoryError> {
        let digest = Digest::of(page);
        if let Some(place) = self.known.get(&digest).copied()
            && self.is_there(place, page, buffer)
        {
            return Ok(place);
        }
        let place = self.packer.append(page, digest)?;
        self.known.insert(digest, place);
        Ok(place)
    }

    fn is_there(&mut self, place: Place, page: &[u8], buffer: &mut [u8]) -> bool {
        if place.pack >= self.first_new {
            return true;
        }
        let dir = self.history.path();
        let pack = self.packs.entry(place.pack).or_insert_with(|| Pack::open(dir, place.pack).ok());
        pack.as_ref().is_some_and(|pack| pack.holds(place.page, page, buffer))
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}
