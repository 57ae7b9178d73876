//! What waits in the receive queues of local sockets (`sk-queues.img`).

/// One packet: a record, followed in the file by its bytes. Of a stream it is what CRIU read at once.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Packet {
    /// File id of the socket that it waits for.
    #[prost(uint32, required, tag = "1")]
    pub file_id: u32,
    /// Number of bytes.
    #[prost(uint32, required, tag = "2")]
    pub length: u32,
    /// Messages beside the bytes.
    #[prost(message, repeated, tag = "4")]
    pub control: Vec<ControlMessage>,
    /// Who sent it, if the socket asks for that (`SO_PASSCRED`).
    #[prost(message, optional, tag = "128")]
    pub sender: Option<SenderCredentials>,
}

/// A message beside the bytes of a packet.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ControlMessage {
    /// `SCM_*` type.
    #[prost(uint32, required, tag = "1")]
    pub kind: u32,
    /// File ids of passed descriptors.
    #[prost(uint32, repeated, packed = "false", tag = "2")]
    pub file_ids: Vec<u32>,
}

/// Who sent a packet.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SenderCredentials {
    /// User.
    #[prost(uint32, required, tag = "1")]
    pub uid: u32,
    /// Group.
    #[prost(uint32, required, tag = "2")]
    pub gid: u32,
    /// Process.
    #[prost(uint32, required, tag = "3")]
    pub pid: u32,
}
