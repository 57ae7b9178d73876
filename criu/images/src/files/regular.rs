//! Regular files, folders and devices that are opened by path.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::owner::Owner;

/// Something opened by path. Mapped files, the executable and the working folder are entries too.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RegularFile {
    /// File id.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// `O_*` status flags.
    #[prost(uint32, required, tag = "2")]
    pub flags: u32,
    /// Offset, in bytes.
    #[prost(uint64, required, tag = "3")]
    pub position: u64,
    /// Who gets its signals.
    #[prost(message, required, tag = "5")]
    pub owner: Owner,
    /// Absolute path in the dumped mount namespace, of any bytes.
    #[prost(bytes = "vec", required, tag = "6")]
    pub name: Vec<u8>,
    /// Mount the path is on, -1 if not recorded.
    #[prost(sint32, optional, default = "-1", tag = "7")]
    pub mount_id: Option<i32>,
    /// Size in bytes. CRIU compares it at restore; absent for append-only writers.
    #[prost(uint64, optional, tag = "8")]
    pub size: Option<u64>,
    /// Supplied by a plugin or an option at restore.
    #[prost(bool, optional, tag = "9")]
    pub external: Option<bool>,
    /// File type and permissions. CRIU compares them at restore.
    #[prost(uint32, optional, tag = "10")]
    pub mode: Option<u32>,
    /// GNU build-id as words in memory order; see [`RegularFile::build_id`].
    #[prost(uint32, repeated, packed = "false", tag = "11")]
    pub build_id_words: Vec<u32>,
    /// CRC32C of the contents, if it was asked for.
    #[prost(uint32, optional, tag = "12")]
    pub checksum: Option<u32>,
    /// How the checksum was made.
    #[prost(uint32, optional, tag = "13")]
    pub checksum_config: Option<u32>,
    /// Parameter of the way it was made.
    #[prost(uint32, optional, tag = "14")]
    pub checksum_parameter: Option<u32>,
}

impl RegularFile {
    /// The absolute path.
    #[must_use]
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.name))
    }

    /// GNU build-id of an ELF file, empty if not recorded. CRIU pads it to whole words.
    #[must_use]
    pub fn build_id(&self) -> Vec<u8> {
        self.build_id_words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }
}
