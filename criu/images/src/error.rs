//! Why an image file could not be read, and what to do about it.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// A file of an image could not be read. Reading changes nothing, so after any of these both the
/// image and the process it was made of are as before.
///
/// `file` is the name inside the folder, `offset` the byte in the file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The folder cannot be opened or is none.
    #[error("{}: not an image folder: {source}", path.display())]
    Folder {
        /// The path as it was given.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file that has to be there is not.
    #[error("{file}: file is missing")]
    Missing {
        /// Its name.
        file: String,
    },
    /// The system refused to open or read a file.
    #[error("{file}: cannot be read: {source}")]
    Io {
        /// Its name.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// A FIFO, socket, device or folder has the name of an image file.
    #[error("{file}: not a regular file")]
    NotRegular {
        /// Its name.
        file: String,
    },
    /// A file exceeds [`MAX_FILE`](crate::MAX_FILE).
    #[error("{file}: {size} bytes, at most {limit} are read")]
    TooLarge {
        /// Its name.
        file: String,
        /// Its size in bytes.
        size: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// A file does not begin as its kind does.
    #[error("{file}: at byte {offset}: magic number {found:#010x} where {expected:#010x} was expected")]
    Magic {
        /// Its name.
        file: String,
        /// Where the magic number is.
        offset: u64,
        /// What it should be.
        expected: u32,
        /// What it is.
        found: u32,
    },
    /// A file ends inside a magic number, a length or a record.
    #[error("{file}: at byte {offset}: {expected} bytes expected, {left} left")]
    Cut {
        /// Its name.
        file: String,
        /// Where the missing part should start.
        offset: u64,
        /// Length of that part in bytes.
        expected: u64,
        /// Bytes up to the end of the file.
        left: u64,
    },
    /// A record exceeds [`MAX_RECORD`](crate::MAX_RECORD).
    #[error("{file}: at byte {offset}: record of {length} bytes, at most {limit} are read")]
    RecordTooLong {
        /// Name of the file.
        file: String,
        /// Where the record's length is.
        offset: u64,
        /// The length in bytes.
        length: u32,
        /// The limit in bytes.
        limit: u32,
    },
    /// A file has more records than [`MAX_RECORDS`](crate::MAX_RECORDS).
    #[error("{file}: at byte {offset}: more than {limit} records")]
    TooManyRecords {
        /// Its name.
        file: String,
        /// Where the first record too many is.
        offset: u64,
        /// The limit.
        limit: usize,
    },
    /// A record has more parts than [`MAX_PARTS`](crate::MAX_PARTS).
    #[error("{file}: at byte {offset}: {message} with more than {limit} parts")]
    TooManyParts {
        /// Name of the file.
        file: String,
        /// Where the record is.
        offset: u64,
        /// CRIU's name of the message.
        message: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A file has fewer or more records than its kind has.
    #[error("{file}: at byte {offset}: {expected} expected")]
    RecordCount {
        /// Its name.
        file: String,
        /// Where a record is missing, or the first too many.
        offset: u64,
        /// What was expected there: `one record` or `end of file`.
        expected: &'static str,
    },
    /// A record is no message of the kind.
    #[error("{file}: at byte {offset}: {message} expected: {source}")]
    Decode {
        /// Name of the file.
        file: String,
        /// Where the record is.
        offset: u64,
        /// CRIU's name of the message.
        message: &'static str,
        /// What the decoder said.
        source: prost::DecodeError,
    },
    /// A record lacks a required field. CRIU refuses it too.
    #[error("{file}: at byte {offset}: {message} without required field {field}")]
    MissingField {
        /// Name of the file.
        file: String,
        /// Where the record is.
        offset: u64,
        /// CRIU's name of the message.
        message: &'static str,
        /// Field numbers from the message inwards, joined by dots.
        field: String,
    },
    /// A record of a kind where every field counts has an unknown one.
    #[error("{file}: at byte {offset}: {message} with unknown field {field}")]
    UnknownField {
        /// Name of the file.
        file: String,
        /// Where the record is.
        offset: u64,
        /// CRIU's name of the message.
        message: &'static str,
        /// Field numbers from the message inwards, joined by dots.
        field: String,
    },
    /// A record says what cannot be.
    #[error("{file}: at byte {offset}: {what}")]
    Invalid {
        /// Name of the file.
        file: String,
        /// Where the record is.
        offset: u64,
        /// What cannot be.
        what: &'static str,
    },
}

impl ReadError {
    /// Name of the file inside the folder; `None` if it is about the folder.
    #[must_use]
    pub fn file(&self) -> Option<&str> {
        match self {
            Self::Folder { .. } => None,
            Self::Missing { file }
            | Self::Io { file, .. }
            | Self::NotRegular { file }
            | Self::TooLarge { file, .. }
            | Self::Magic { file, .. }
            | Self::Cut { file, .. }
            | Self::RecordTooLong { file, .. }
            | Self::TooManyRecords { file, .. }
            | Self::TooManyParts { file, .. }
            | Self::RecordCount { file, .. }
            | Self::Decode { file, .. }
            | Self::MissingField { file, .. }
            | Self::UnknownField { file, .. }
            | Self::Invalid { file, .. } => Some(file),
        }
    }

    /// Byte in the file, where there is one.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        match self {
            Self::Folder { .. }
            | Self::Missing { .. }
            | Self::Io { .. }
            | Self::NotRegular { .. }
            | Self::TooLarge { .. } => None,
            Self::Magic { offset, .. }
            | Self::Cut { offset, .. }
            | Self::RecordTooLong { offset, .. }
            | Self::TooManyRecords { offset, .. }
            | Self::TooManyParts { offset, .. }
            | Self::RecordCount { offset, .. }
            | Self::Decode { offset, .. }
            | Self::MissingField { offset, .. }
            | Self::UnknownField { offset, .. }
            | Self::Invalid { offset, .. } => Some(*offset),
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Folder { .. } => "name the folder that a checkpoint wrote",
            Self::Missing { .. } => "copy the whole folder again, or make a new checkpoint",
            Self::Io { .. } => "read the image as the user who made it, and look for disk errors",
            Self::NotRegular { .. } => "do not trust this folder; make a new checkpoint",
            Self::UnknownField { .. } => {
                "the image is of a later CRIU, perhaps with compressed pages; restore it with that CRIU"
            }
            Self::TooLarge { .. } | Self::TooManyRecords { .. } | Self::TooManyParts { .. } => {
                "if the process really is that large, restore the image with CRIU directly"
            }
            Self::Magic { .. }
            | Self::Cut { .. }
            | Self::RecordTooLong { .. }
            | Self::RecordCount { .. }
            | Self::Decode { .. }
            | Self::MissingField { .. }
            | Self::Invalid { .. } => {
                "the file is damaged or of another CRIU; copy the folder again, or make a new checkpoint"
            }
        }
    }
}
