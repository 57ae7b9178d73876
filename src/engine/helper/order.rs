//! What the helper is told, and what it reports: records that travel between two processes of one program.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::link::LinkName;
use crate::engine::{Complete, DumpError};
use crate::image::SubjectRecord;
use crate::image::record::Kind;

pub(super) const ORDER: Kind = Kind { magic: *b"DEFRORDR", version: 1 };
pub(super) const REPORT: Kind = Kind { magic: *b"DEFRHREP", version: 1 };

/// A path, byte by byte: serde's own takes UTF-8 only.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Bytes(Vec<u8>);

impl From<&Path> for Bytes {
    fn from(path: &Path) -> Self {
        Self(path.as_os_str().as_bytes().to_vec())
    }
}

impl Bytes {
    pub(super) fn to_path(&self) -> PathBuf {
        OsString::from_vec(self.0.clone()).into()
    }
}

/// What the helper is told.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    /// The folder to dump into.
    pub(super) partial: Bytes,
    /// The image's final name.
    pub(super) target: Bytes,
    /// The CRIU program.
    pub(super) criu: Bytes,
    /// The process that is dumped.
    pub(super) subject_pid: i32,
    pub(super) subject: SubjectRecord,
    pub(super) leave_running: bool,
    /// Whether the image is to be on disk before it is complete.
    pub(super) durable: bool,
    pub(super) link: LinkName,
    /// How many kept descriptors follow.
    pub(super) kept: u32,
    /// Which of them is told the outcome if the subject ends.
    pub(super) answer: Option<u32>,
    /// How long CRIU may take.
    pub(super) deadline_ms: u64,
}

/// What the helper reports.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Report {
    Complete { image: Bytes, bytes: u64, frozen_us: u64, took_us: u64 },
    Failed { cause: String, hint: Option<String>, log: Option<Bytes> },
}

impl Report {
    pub(super) fn into_result(self) -> Result<Complete, DumpError> {
        match self {
            Self::Complete { image, bytes, frozen_us, took_us } => {
                Ok(Complete { image: Some(image.to_path()), bytes, frozen_us, took_us })
            }
            Self::Failed { cause, hint, log } => {
                Err(DumpError::Reported { cause, hint, log: log.map(|log| log.to_path()) })
            }
        }
    }
}
