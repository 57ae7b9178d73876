//! What an image is, beside CRIU's own files: the manifest, stored as `defrost.manifest`.
//!
//! Plain values, named so that the JSON of `defrost inspect` can be read without this page. One part is made
//! by the subject before the dump ([`SubjectRecord`], it travels to the process that finishes the folder), the
//! rest is found out afterwards by [`describe`](super::describe()). This module must not know how either is
//! done, nor where the file lies.
//!
//! Texts that need not be UTF-8 on Linux (arguments, paths) are stored with the replacement character in the
//! place of what is not: a checkpoint does not fail over a name.

mod ancestor;
mod clock;
mod id;
mod path;
#[cfg(test)]
pub(crate) mod tests;

use std::fs::Metadata;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::machine::Machine;
use super::record::{self, Kind, RecordError};

pub use ancestor::{Ancestor, AncestorFile};
pub use clock::Clock;
pub use id::ImageId;
pub use path::StoredPath;

/// The manifest's name in the image folder.
pub const MANIFEST_NAME: &str = "defrost.manifest";

/// Magic and format of the manifest. Every change of a type in this module raises the version, once for each
/// release.
pub const MANIFEST: Kind = Kind { magic: *b"DEFRMANI", version: 1 };

/// Magic and format of a [`SubjectRecord`] on its way to the process that finishes the folder.
pub const SUBJECT: Kind = Kind { magic: *b"DEFRSUBJ", version: 1 };

/// Everything known of one image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the defrost that completed the image.
    pub defrost: String,
    /// Format of this manifest as it was stored: a version of [`MANIFEST`].
    pub format: u32,
    /// The identity of this image, which its copies share.
    pub id: ImageId,
    /// When the image was completed, in nanoseconds since the Unix epoch.
    pub created_unix_ns: u64,
    /// What the server said of itself before the dump.
    pub subject: SubjectRecord,
    /// Whether all of it was put on disk before it was complete. One that was not is good until its host is started
    /// anew.
    pub durable: bool,
    /// The host of the dump.
    pub machine: Machine,
    /// The CRIU that dumped.
    pub criu: CriuRecord,
    /// Capabilities of the dumped root process.
    pub capabilities: Capabilities,
    /// Dumped processes, parents first.
    pub processes: Vec<ProcessRecord>,
    /// Files outside the image that a restore opens again: the program, mapped libraries, open files.
    pub needed: Vec<NeededFile>,
    /// Earlier images that memory is still mapped from. Empty for an image that is whole by itself.
    pub ancestors: Vec<Ancestor>,
    /// How many images were made one upon the other before this one: 0 without ancestors, else one more than the
    /// deepest of them.
    pub depth: u32,
    /// TCP listeners that were open at the dump: the engine binds them at restore, before the server runs. A
    /// server that quiesces has none here, but in [`SubjectRecord::listens`].
    pub listeners: Vec<Listen>,
    /// The files of the image folder, sorted by name; neither logs nor the manifest itself.
    pub files: Vec<ImageFile>,
    /// Memory contents in the image, in bytes: what a restore brings back before the first touch.
    pub present_bytes: u64,
    /// Pages of anonymous memory that a large block of the C library's allocator begins with, by address. A restore
    /// that maps the image must leave them out: see [`describe`](super::describe()).
    pub seams: Vec<u64>,
    /// Phases of the process that finished the folder, in order.
    pub phases: Vec<Phase>,
}

impl Manifest {
    /// From when the state in it is, in nanoseconds since the Unix epoch: the dump began then, and what the server did
    /// after it is not in the image. It was completed later, by what the phases took.
    #[must_use]
    pub fn taken_unix_ns(&self) -> u64 {
        let took = self.phases.iter().map(|phase| phase.micros).fold(0, u64::saturating_add);
        self.created_unix_ns.saturating_sub(took.saturating_mul(1000))
    }

    /// The manifest as stored bytes.
    ///
    /// # Errors
    /// See [`record::encode`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, RecordError> {
        record::encode(MANIFEST, self)
    }

    /// The manifest in these stored bytes.
    ///
    /// # Errors
    /// See [`record::decode`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RecordError> {
        record::decode(MANIFEST, bytes)
    }

    /// The image files whose contents are memory pages, summed, in bytes.
    #[must_use]
    pub fn bulk_bytes(&self) -> u64 {
        self.files.iter().filter(|file| file.bulk).map(|file| file.size).sum()
    }
}

/// What the subject says of itself before the dump.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubjectRecord {
    /// The name by which commands address the server.
    pub name: String,
    /// Its pid, in its own PID namespace.
    pub pid: u32,
    /// Its arguments, the program's name first.
    pub argv: Vec<String>,
    /// Absolute path of its program.
    pub exe: String,
    /// Its current folder.
    pub cwd: String,
    /// How often this state has been restored up to the dump: 0 for an original.
    pub generation: u64,
    /// The instance id that was dumped, 32 hex digits.
    pub instance: String,
    /// When the server was first started cold, in nanoseconds since the Unix epoch.
    pub session_started_unix_ns: u64,
    /// Registered resources, in order of registration.
    pub resources: Vec<ResourceRecord>,
    /// Addresses that resources will bind again after a restore; the dump holds no socket of them.
    pub listens: Vec<Listen>,
    /// Blockers that a policy or the user overrode, as they were worded.
    pub overridden: Vec<String>,
    /// Inode of the pipe through which a restore hands in its parameters, if there is one.
    pub parameter_pipe: Option<u64>,
    /// Inode of the pipe through which a restored process reports, if there is one.
    pub report_pipe: Option<u64>,
    /// Where a restore by mapping tells the process that a file stands in for its memory; none where the process
    /// would not heed it.
    pub ledger: Option<LedgerRecord>,
    /// Whether the original was to go on after the dump.
    pub leave_running: bool,
    /// Phases inside the subject, in order.
    pub phases: Vec<Phase>,
}

impl SubjectRecord {
    /// The record as bytes for the process that finishes the folder.
    ///
    /// # Errors
    /// See [`record::encode`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, RecordError> {
        record::encode(SUBJECT, self)
    }

    /// The record in these bytes.
    ///
    /// # Errors
    /// See [`record::decode`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RecordError> {
        record::decode(SUBJECT, bytes)
    }
}

/// One registered resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceRecord {
    /// The name it was registered under.
    pub name: String,
    /// What it says of itself.
    pub description: String,
}

/// One TCP address that a restore binds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listen {
    /// The resource it belongs to; empty if it is none of a resource.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// Whether it shares the port with others that also ask to share it (SO_REUSEPORT).
    pub reuse_port: bool,
}

/// How long one part of a checkpoint took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// Its name, in plain words.
    pub name: String,
    /// Its duration in microseconds.
    pub micros: u64,
}

/// The CRIU that dumped, and what a restore has to repeat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CriuRecord {
    /// Its version: major, minor, sublevel.
    pub version: (u32, u32, u32),
    /// Command-line flags without which `criu restore` refuses this image; empty for one that needs none.
    pub restore_flags: Vec<String>,
}

/// Addresses in a process of its ledger: see [`sys::ledger`](crate::sys::ledger).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerRecord {
    /// Of the count of entries, 32 bits.
    pub count: u64,
    /// Of the first of the pages that are entries.
    pub anchors: u64,
}

/// Capability sets, as bit masks by capability number (linux/capability.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Those in force.
    pub effective: u64,
    /// Those that may be put in force.
    pub permitted: u64,
    /// Those kept over an exec by file capabilities.
    pub inheritable: u64,
    /// The upper bound. A restorer whose bounding set has more needs CAP_SETPCAP to drop the rest; CRIU hangs
    /// without it.
    pub bounding: u64,
    /// Those kept over an exec of any program.
    pub ambient: u64,
}

/// One dumped process. All its numbers have to be free at restore.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// Process id.
    pub pid: u32,
    /// Parent; 0 for the root of the dumped tree.
    pub parent: u32,
    /// Process group.
    pub group: u32,
    /// Session.
    pub session: u32,
    /// Thread ids, the process id among them.
    pub threads: Vec<u32>,
    /// Its short name (comm).
    pub command: String,
}

/// What a restore needs a file for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Need {
    /// It is the program of a process.
    Program,
    /// It is mapped: a library, a data file, a cache.
    Mapped,
    /// It is open.
    Open,
    /// It is the current or root folder of a process, or an open folder.
    Folder,
}

/// One file outside the image that a restore opens again by its path. CRIU compares size, mode and build-id;
/// the content hash is defrost's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeededFile {
    /// Absolute path.
    pub path: String,
    /// What for.
    pub need: Need,
    /// Its size in bytes; none where any size will do (append-only logs, folders).
    pub size: Option<u64>,
    /// Type and permissions, as in `st_mode`.
    pub mode: u32,
    /// Device, inode and time of last change: while all are the same the contents need not be read.
    pub stamp: Stamp,
    /// Its GNU build-id, in hex, if it is an ELF file that has one.
    pub build_id: Option<String>,
    /// BLAKE3 of its contents at the time of the dump; none for folders and for files that any size will do for.
    pub blake3: Option<Digest>,
}

/// What tells a file from its successor under the same path, on one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Last change of the contents, in nanoseconds since the Unix epoch.
    pub modified_unix_ns: i64,
    /// Last change of contents or attributes, in nanoseconds since the Unix epoch. No program can set it.
    pub changed_unix_ns: i64,
}

impl Stamp {
    /// The stamp of a file.
    #[must_use]
    pub fn of(meta: &Metadata) -> Self {
        let nanoseconds =
            |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
        Self {
            device: meta.dev(),
            inode: meta.ino(),
            modified_unix_ns: nanoseconds(meta.mtime(), meta.mtime_nsec()),
            changed_unix_ns: nanoseconds(meta.ctime(), meta.ctime_nsec()),
        }
    }
}

/// One file of the image folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageFile {
    /// Its name in the folder.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// BLAKE3 of its contents.
    pub blake3: Digest,
    /// Whether it holds memory pages: big, and checked by size alone unless asked for more.
    pub bulk: bool,
}
