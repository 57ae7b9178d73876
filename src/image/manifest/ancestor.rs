//! What an image records of the earlier images that its memory is still in.
//!
//! A process whose memory was mapped from an image has in its next image only what it changed, and a mapping of
//! the earlier pages file for the rest. That file is plain pages: it needs none of its own image's ancestors, so
//! all that an image depends on stands here, at one level.

use serde::{Deserialize, Serialize};

use super::Stamp;
use super::id::ImageId;
use super::path::StoredPath;
use crate::image::digest::Digest;

/// An earlier image that this one depends on: it must stay where it is, as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ancestor {
    /// Its folder. CRIU knows the path too, so it counts as absolute and fixed.
    pub image: StoredPath,
    /// Its identity at the time of the dump.
    pub id: ImageId,
    /// The files of it that memory is mapped from, sorted by name.
    pub files: Vec<AncestorFile>,
}

/// A pages file of an ancestor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AncestorFile {
    /// Its name in the folder.
    pub name: String,
    /// Its size in bytes. CRIU compares it.
    pub size: u64,
    /// Type and permissions, as in `st_mode`. CRIU compares them.
    pub mode: u32,
    /// What it was at the dump: while it was not written since, the contents need not be read.
    pub stamp: Stamp,
    /// BLAKE3 of its contents, as its own image recorded it.
    pub blake3: Digest,
    /// How much of it is mapped, in bytes; some of that may have been changed since.
    pub mapped_bytes: u64,
}
