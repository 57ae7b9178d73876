//! Sockets of the local family.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::owner::Owner;
use super::socket::{Shutdown, SocketOptions};

/// A local socket.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UnixSocket {
    /// File id.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// Socket inode, the number in `socket:[N]`.
    #[prost(uint32, required, tag = "2")]
    pub inode: u32,
    /// `SOCK_*` type.
    #[prost(uint32, required, tag = "3")]
    pub kind: u32,
    /// Kernel's socket state; 1 established, 7 closed, 10 listening.
    #[prost(uint32, required, tag = "4")]
    pub state: u32,
    /// `O_*` status flags.
    #[prost(uint32, required, tag = "5")]
    pub flags: u32,
    /// CRIU's flags; external, service socket, callback.
    #[prost(uint32, required, tag = "6")]
    pub uflags: u32,
    /// Length of the accept queue.
    #[prost(uint32, required, tag = "7")]
    pub backlog: u32,
    /// Inode of the peer, 0 if none.
    #[prost(uint32, required, tag = "8")]
    pub peer: u32,
    /// Who gets its signals.
    #[prost(message, required, tag = "9")]
    pub owner: Owner,
    /// Socket options.
    #[prost(message, required, tag = "10")]
    pub options: SocketOptions,
    /// Address it is bound to; begins with a zero byte if abstract.
    #[prost(bytes = "vec", required, tag = "11")]
    pub name: Vec<u8>,
    /// Directions shut down.
    #[prost(enumeration = "Shutdown", optional, tag = "12")]
    pub shutdown: Option<i32>,
    /// Owner and mode of the bound file.
    #[prost(message, optional, tag = "13")]
    pub permissions: Option<FilePermissions>,
    /// Folder a relative address starts from.
    #[prost(bytes = "vec", optional, tag = "14")]
    pub folder: Option<Vec<u8>>,
    /// The bound file was unlinked.
    #[prost(bool, optional, tag = "15")]
    pub deleted: Option<bool>,
    /// Network namespace it lives in.
    #[prost(uint32, optional, tag = "16")]
    pub ns_id: Option<u32>,
    /// Mount the bound file is on, -1 if not recorded.
    #[prost(sint32, optional, default = "-1", tag = "17")]
    pub mount_id: Option<i32>,
}

/// Owner and mode of a bound file.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FilePermissions {
    /// File type and permissions.
    #[prost(uint32, required, tag = "1")]
    pub mode: u32,
    /// User.
    #[prost(uint32, required, tag = "2")]
    pub uid: u32,
    /// Group.
    #[prost(uint32, required, tag = "3")]
    pub gid: u32,
}

impl UnixSocket {
    /// Path it is bound to; `None` if unnamed or abstract.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        let end = self.name.iter().position(|b| *b == 0).unwrap_or(self.name.len());
        (end > 0).then(|| Path::new(OsStr::from_bytes(&self.name[..end])))
    }
}
