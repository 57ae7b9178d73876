//! Why a server cannot be controlled as it should be.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::fifo::FifoError;
use super::name::NameError;
use super::pattern::PatternError;
use super::place::PlaceError;

/// Control did not start. Nothing of it is left: no socket, no handler of a signal, no reader.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The subject's name cannot name a socket.
    #[error(transparent)]
    Name(#[from] NameError),
    /// There is no safe folder for the socket.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// Another server has the name.
    #[error("the name {name} is taken by {}", Holder(*pid))]
    NameTaken {
        /// The name.
        name: String,
        /// The process that listens there, if it can be seen from here.
        pid: Option<i32>,
    },
    /// Another server listens at the path.
    #[error("the socket {} is in use by {}", path.display(), Holder(*pid))]
    PathTaken {
        /// The path.
        path: PathBuf,
        /// The process that listens there, if it can be seen from here.
        pid: Option<i32>,
    },
    /// The socket could not be made.
    #[error("no control socket: {source}")]
    Socket {
        /// Why.
        source: io::Error,
    },
    /// What SIGUSR2 shall checkpoint to cannot be understood.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// The FIFO cannot be used.
    #[error(transparent)]
    Fifo(#[from] FifoError),
    /// Standard input cannot be read.
    #[error("standard input cannot be read for requests: {source}")]
    Stdin {
        /// Why.
        source: io::Error,
    },
    /// Signals cannot be caught.
    #[error("signals cannot be caught: {source}")]
    Signals {
        /// Why.
        source: io::Error,
    },
}

impl ControlError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Name(error) => Some(error.hint().to_owned()),
            Self::Place(error) => Some(error.hint()),
            Self::NameTaken { .. } => {
                Some("give this one another name (--name), or end the other".to_owned())
            }
            Self::PathTaken { .. } => Some("give this one another path, or end the other".to_owned()),
            Self::Socket { .. } => Some("give the socket a short path in a folder of your own".to_owned()),
            Self::Pattern(error) => Some(error.hint().to_owned()),
            Self::Fifo(error) => Some(error.hint().to_owned()),
            Self::Stdin { .. } | Self::Signals { .. } => {
                Some("look at the limits on descriptors and threads".to_owned())
            }
        }
    }
}

struct Holder(Option<i32>);

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("a process out of sight"),
        }
    }
}
