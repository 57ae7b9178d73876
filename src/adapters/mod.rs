//! Resources for what most servers hold: listeners and their connections, files, standard streams, random
//! generators.
//!
//! Each registers itself with a [`Context`](crate::Context) and can be used through a cycle as if nothing
//! happened. Adapters know the contract and how a cycle ended; they must not know engines, images, or who asked
//! for the checkpoint.

mod accepting;
pub mod data_file;
mod kernel_rng;
pub mod listen_error;
pub mod log_file;
pub mod rng;
pub mod split_rng;
pub mod stdio;
pub mod tcp_listener;
pub mod tracking;
mod turn;
pub mod unix_listener;

#[cfg(test)]
mod tests;

pub use accepting::{DEFAULT_BACKLOG, DEFAULT_DRAIN_LIMIT};
pub use data_file::{Change, DataFile, DataFileError, DataFileGuard, DataFileOptions, OnChange};
pub use listen_error::ListenError;
pub use log_file::{LogFile, LogFileError};
pub use rng::{Rng, reseed_with};
pub use split_rng::SplitRng;
pub use stdio::{Stdio, StdioError};
pub use tcp_listener::{TcpListener, TcpOptions};
pub use tracking::{Connections, Counts, Peer, Quiescing, StuckConnections, Tracked};
pub use unix_listener::{UnixListener, UnixOptions};
