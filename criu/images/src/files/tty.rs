//! Terminals: open ones (`files.img`) and the terminals behind them (`tty-info.img`).

use super::owner::Owner;

/// An open terminal.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct TtyFile {
    /// File id.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// Id in `tty-info.img`.
    #[prost(uint32, required, tag = "2")]
    pub terminal_id: u32,
    /// `O_*` status flags.
    #[prost(uint32, required, tag = "3")]
    pub flags: u32,
    /// Who gets its signals.
    #[prost(message, required, tag = "4")]
    pub owner: Owner,
    /// File id of the entry that has its path.
    #[prost(uint32, optional, tag = "6")]
    pub file_id: Option<u32>,
}

/// One record of `tty-info.img`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Terminal {
    /// Id that open terminals refer to.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// Kind of terminal; [`TtyKind`].
    #[prost(enumeration = "TtyKind", required, tag = "2")]
    pub kind: i32,
    /// Slave side is locked.
    #[prost(bool, required, tag = "3")]
    pub locked: bool,
    /// Exclusive mode.
    #[prost(bool, required, tag = "4")]
    pub exclusive: bool,
    /// Packet mode.
    #[prost(bool, required, tag = "5")]
    pub packet_mode: bool,
    /// Session it controls.
    #[prost(uint32, required, tag = "6")]
    pub sid: u32,
    /// Foreground process group.
    #[prost(uint32, required, tag = "7")]
    pub pgrp: u32,
    /// Device number.
    #[prost(uint32, required, tag = "8")]
    pub rdev: u32,
    /// Settings.
    #[prost(message, optional, tag = "9")]
    pub termios: Option<Termios>,
    /// Settings that may not change.
    #[prost(message, optional, tag = "10")]
    pub termios_locked: Option<Termios>,
    /// Size of the window.
    #[prost(message, optional, tag = "11")]
    pub window: Option<WindowSize>,
    /// Index of a pseudo-terminal.
    #[prost(message, optional, tag = "12")]
    pub pty: Option<PtyIndex>,
    /// Device of its file system.
    #[prost(uint32, optional, tag = "13")]
    pub device: Option<u32>,
    /// User of the device file.
    #[prost(uint32, optional, tag = "14")]
    pub uid: Option<u32>,
    /// Group of the device file.
    #[prost(uint32, optional, tag = "15")]
    pub gid: Option<u32>,
}

/// Settings of a terminal, see `termios(3)`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Termios {
    /// Input flags.
    #[prost(uint32, required, tag = "1")]
    pub input: u32,
    /// Output flags.
    #[prost(uint32, required, tag = "2")]
    pub output: u32,
    /// Control flags.
    #[prost(uint32, required, tag = "3")]
    pub control: u32,
    /// Local flags.
    #[prost(uint32, required, tag = "4")]
    pub local: u32,
    /// Line discipline.
    #[prost(uint32, required, tag = "5")]
    pub line: u32,
    /// Input speed, in baud.
    #[prost(uint32, required, tag = "6")]
    pub input_speed: u32,
    /// Output speed, in baud.
    #[prost(uint32, required, tag = "7")]
    pub output_speed: u32,
    /// Control characters.
    #[prost(uint32, repeated, packed = "false", tag = "8")]
    pub characters: Vec<u32>,
}

/// Size of a terminal window.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct WindowSize {
    /// Rows.
    #[prost(uint32, required, tag = "1")]
    pub rows: u32,
    /// Columns.
    #[prost(uint32, required, tag = "2")]
    pub columns: u32,
    /// Width in pixels.
    #[prost(uint32, required, tag = "3")]
    pub width: u32,
    /// Height in pixels.
    #[prost(uint32, required, tag = "4")]
    pub height: u32,
}

/// A pseudo-terminal.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PtyIndex {
    /// Number in `/dev/pts`.
    #[prost(uint32, required, tag = "1")]
    pub index: u32,
}

/// Kinds of terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum TtyKind {
    /// Not known to CRIU.
    Unknown = 0,
    /// Pseudo-terminal.
    Pty = 1,
    /// System console.
    Console = 2,
    /// Virtual terminal.
    Virtual = 3,
    /// Controlling terminal, `/dev/tty`.
    Controlling = 4,
    /// Supplied at restore.
    External = 5,
    /// Serial line.
    Serial = 6,
}
