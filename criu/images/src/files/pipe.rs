//! Pipes, named or not, and what is in them (`fifo-data.img`, `pipes-data.img`).

use super::owner::Owner;

/// One end of a pipe.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Pipe {
    /// File id.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// Inode of the pipe, the number in `pipe:[N]`.
    #[prost(uint32, required, tag = "2")]
    pub pipe_id: u32,
    /// `O_*` status flags.
    #[prost(uint32, required, tag = "3")]
    pub flags: u32,
    /// Who gets its signals.
    #[prost(message, required, tag = "4")]
    pub owner: Owner,
}

/// One end of a named pipe.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Fifo {
    /// File id.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// Inode of the pipe.
    #[prost(uint32, required, tag = "2")]
    pub pipe_id: u32,
    /// File id of the entry that has its path.
    #[prost(uint32, optional, tag = "3")]
    pub file_id: Option<u32>,
}

/// What is in a pipe: a record of `pipes-data.img` or `fifo-data.img`, followed there by its bytes.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PipeData {
    /// Inode of the pipe.
    #[prost(uint32, required, tag = "1")]
    pub pipe_id: u32,
    /// Number of bytes in it.
    #[prost(uint32, required, tag = "2")]
    pub length: u32,
    /// How many bytes it can hold.
    #[prost(uint32, optional, tag = "3")]
    pub capacity: Option<u32>,
}
