//! Why a listener could not listen. It must not know why it had to.

use std::io;
use std::path::PathBuf;

/// Why a listener could not be bound. The process is alive and does not listen at the address; a cycle that
/// wakes it later tries again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Something else listens there.
    #[error("{place} is in use by another socket")]
    InUse {
        /// The kind and the address: `tcp 127.0.0.1:80`.
        place: String,
    },
    /// What is at the path of a Unix socket is something else, and stays untouched.
    #[error("{} exists and is not a socket", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The address given at restore cannot be understood.
    #[error("{name}.listen={given} is not an address: {why}")]
    Unreadable {
        /// The name that the listener is registered under.
        name: String,
        /// The value as given.
        given: String,
        /// What is wrong with it.
        why: String,
    },
    /// The kernel refused for any other reason.
    #[error("{place} cannot be listened on: {source}")]
    Bind {
        /// The kind and the address.
        place: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl ListenError {
    pub(super) fn bind(place: &str, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::AddrInUse {
            Self::InUse { place: place.to_owned() }
        } else {
            Self::Bind { place: place.to_owned(), source }
        }
    }

    /// Whether waiting can help.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Self::InUse { .. })
    }

    /// What to do about it, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::InUse { .. } => Some(
                "end the process that listens there, or give this one another address by NAME.listen=ADDR",
            ),
            Self::NotASocket { .. } => Some("remove the file, or give the listener another path"),
            Self::Unreadable { .. } => Some("give IP:PORT, [IP6]:PORT or :PORT; port 0 takes a free one"),
            Self::Bind { .. } => None,
        }
    }
}

impl From<ListenError> for io::Error {
    fn from(error: ListenError) -> Self {
        let kind = match &error {
            ListenError::InUse { .. } => io::ErrorKind::AddrInUse,
            ListenError::NotASocket { .. } => io::ErrorKind::AlreadyExists,
            ListenError::Unreadable { .. } => io::ErrorKind::InvalidInput,
            ListenError::Bind { source, .. } => source.kind(),
        };
        io::Error::new(kind, error)
    }
}
