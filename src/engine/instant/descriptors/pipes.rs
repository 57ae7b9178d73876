//! Pipes with and without a name, with what is in them.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use criu_images::{Fifo, Pipe, PipeData};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::PipeFlags;

use super::super::source::Source;
use super::files::{self, ASYNC};

/// What a pipe holds.
#[derive(Debug, Default)]
struct Content {
    capacity: Option<u32>,
    bytes: Vec<u8>,
}

/// How to make a pipe without a name.
#[derive(Debug)]
pub(super) struct Unnamed {
    /// Files of the table, the one to read from first; one may be missing.
    ends: [Option<u32>; 2],
    flags: [OFlags; 2],
    content: Content,
}

/// How to open a pipe with a name.
#[derive(Debug)]
pub(super) struct Named {
    path: PathBuf,
    flags: OFlags,
    /// For the first of several that are the same pipe.
    content: Option<Content>,
}

impl Content {
    fn of(all: &[(PipeData, Vec<u8>)], pipe_id: u32) -> Self {
        let found = all.iter().find(|(data, _)| data.pipe_id == pipe_id);
        found.map_or_else(Self::default, |(data, bytes)| Self {
            capacity: data.capacity,
            bytes: bytes.clone(),
        })
    }

    /// Fills a pipe, which does not block from then on.
    fn put(&self, writer: &OwnedFd) -> io::Result<()> {
        if let Some(capacity) = self.capacity
            && rustix::pipe::fcntl_getpipe_size(writer)? != capacity as usize
        {
            rustix::pipe::fcntl_setpipe_size(writer, capacity as usize)?;
        }
        // It was in a pipe of this capacity, so it does not block; should it, it is an error.
        rustix::io::ioctl_fionbio(writer, true)?;
        std::fs::File::from(writer.try_clone()?).write_all(&self.bytes)
    }
}

impl Unnamed {
    /// Decides.
    ///
    /// # Errors
    /// What the descriptor is, if the pipe cannot be made again.
    pub(super) fn of(source: &Source, pipe: &Pipe) -> Result<Self, String> {
        let mut ends = [None, None];
        let mut all_flags = [OFlags::empty(); 2];
        let others = source.files.entries().iter().filter_map(|entry| entry.pipe.as_deref());
        for end in others.filter(|other| other.pipe_id == pipe.pipe_id) {
            let flags = OFlags::from_bits_retain(end.flags);
            let which = match flags & OFlags::RWMODE {
                OFlags::RDONLY => 0,
                OFlags::WRONLY => 1,
                _ => return Err("an end of a pipe that reads and writes".to_owned()),
            };
            if ends[which].replace(end.id).is_some() {
                return Err("an end of a pipe that was opened anew".to_owned());
            }
            all_flags[which] = flags - OFlags::RWMODE - ASYNC;
        }
        let content = Content::of(&source.pipes, pipe.pipe_id);
        let packets = all_flags[1].contains(OFlags::DIRECT);
        if packets && !content.bytes.is_empty() {
            return Err("a pipe with packets in it, whose lengths the image does not tell".to_owned());
        }
        Ok(Self { ends, flags: all_flags, content })
    }

    /// The files of the table that it makes.
    pub(super) fn files(&self) -> impl Iterator<Item = u32> {
        self.ends.iter().flatten().copied()
    }

    /// Makes it, and hands over each end with its file.
    ///
    /// # Errors
    /// The kernel's own.
    pub(super) fn make(&self, mut keep: impl FnMut(u32, OwnedFd) -> io::Result<()>) -> io::Result<()> {
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        self.content.put(&writer)?;
        for ((end, file), flags) in [reader, writer].into_iter().zip(self.ends).zip(self.flags) {
            if let Some(file) = file {
                rustix::fs::fcntl_setfl(&end, flags)?;
                keep(file, end)?;
            }
        }
        Ok(())
    }
}

impl Named {
    /// Decides.
    ///
    /// # Errors
    /// What the descriptor is, if the pipe cannot be opened again.
    pub(super) fn of(source: &Source, fifo: &Fifo) -> Result<Self, String> {
        let file =
            source.files.get(fifo.file_id.unwrap_or(fifo.id)).and_then(|entry| entry.regular.as_deref());
        let file = file.ok_or("a named pipe without a name in the image")?;
        files::is_fifo(file.path(), file.mode)?;
        let mut same = source.files.entries().iter().filter_map(|entry| entry.fifo.as_deref());
        let first = same.find(|other| other.pipe_id == fifo.pipe_id);
        let fills = first.is_none_or(|first| first.id == fifo.id);
        Ok(Self {
            path: file.path().to_owned(),
            flags: files::flags(file),
            content: fills.then(|| Content::of(&source.fifos, fifo.pipe_id)),
        })
    }

    /// Opens it.
    ///
    /// # Errors
    /// The kernel's own.
    pub(super) fn open(&self) -> io::Result<OwnedFd> {
        // Neither waits for another end, nor is one missing, while both are held.
        let both = rustix::fs::open(&self.path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let end = rustix::fs::open(&self.path, self.flags | OFlags::CLOEXEC, Mode::empty())?;
        if let Some(content) = &self.content {
            content.put(&both)?;
        }
        Ok(end)
    }
}
