//! Writing the small files of an image: each into a folder that is not an image yet.
//!
//! A message is written as its fields, so whoever changes a file that was read must have read it
//! [strictly](crate::ImageDir::strictly): what this crate does not know would be lost. Knows neither where the
//! values come from nor when an image is complete. Pages are raw bytes, which need no writer.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use prost::Message;
use thiserror::Error;

use crate::files::FileEntry;
use crate::format::{self, Layout};
use crate::memory::Memory;
use crate::pagemap::{Pagemap, PagemapHead};

/// Why a file could not be written. A part of it may be there; the folder is no image.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The system refused.
    #[error("{file}: cannot be written: {source}")]
    Io {
        /// Its name.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// It would be larger than what is read again: [`MAX_FILE`](crate::MAX_FILE),
    /// [`MAX_RECORD`](crate::MAX_RECORD) or [`MAX_RECORDS`](crate::MAX_RECORDS).
    #[error("{file}: too large to be read again")]
    TooLarge {
        /// Its name.
        file: String,
    },
    /// The value is none that a file can have.
    #[error("{file}: {what}")]
    Invalid {
        /// Its name.
        file: String,
        /// What cannot be.
        what: &'static str,
    },
}

/// Writes files into a folder, readable by the owner only. A file that is there already is refused.
#[derive(Clone, Debug)]
pub struct ImageWriter {
    path: PathBuf,
}

impl ImageWriter {
    /// Into this folder, which exists.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Writes `mm-PID.img`.
    ///
    /// # Errors
    /// See [`WriteError`]; so do all methods below.
    pub fn mm(&self, pid: u32, memory: &Memory) -> Result<(), WriteError> {
        self.put(&format!("mm-{pid}.img"), Layout::Memory, std::iter::once(memory.encode_to_vec()))
    }

    /// Writes `pagemap-PID.img`; its pages file is the caller's to write.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn pagemap(&self, pid: u32, map: &Pagemap) -> Result<(), WriteError> {
        let head = PagemapHead { pages_id: map.pages_id() }.encode_to_vec();
        let records = std::iter::once(head).chain(map.entries().map(|entry| entry.encode_to_vec()));
        self.put(&format!("pagemap-{pid}.img"), Layout::Pagemap, records)
    }

    /// Writes `files.img`.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn files<'a>(&self, entries: impl IntoIterator<Item = &'a FileEntry>) -> Result<(), WriteError> {
        let records = entries.into_iter().map(Message::encode_to_vec);
        self.put("files.img", Layout::Files, records)
    }

    fn put(
        &self,
        name: &str,
        layout: Layout,
        records: impl Iterator<Item = Vec<u8>>,
    ) -> Result<(), WriteError> {
        let bytes = format::contents(layout, records)
            .ok_or_else(|| WriteError::TooLarge { file: name.to_owned() })?;
        let open = OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.path.join(name));
        open.and_then(|mut file| file.write_all(&bytes))
            .map_err(|source| WriteError::Io { file: name.to_owned(), source })
    }
}
