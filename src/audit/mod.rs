//! What of a process would prevent a checkpoint, found before anything is frozen.
//!
//! A scan reads the process once: its descriptors from `/proc/PID/fd`, its sockets from the kernel's lists, its
//! mappings and its state. The rules join that with the [`Claims`] of whoever answers for what, and decide by
//! one question: would CRIU dump it, and would a plain `criu restore` bring it back? What would not is a
//! [`Blocker`], what comes back but might surprise is a [`Note`].
//!
//! ```no_run
//! use defrost::audit::{Audit, Claims};
//!
//! let report = Audit::of_self(&Claims::default())?;
//! for blocker in &report.blockers {
//!     eprintln!("{blocker}\nhint: {}", blocker.remedy);
//! }
//! # Ok::<(), defrost::audit::AuditError>(())
//! ```
//!
//! The audit only looks: it closes nothing, and a process is the same after it. It must not know resources,
//! contexts or engines; claims come as plain data.

mod blocker;
mod carry;
mod claims;
mod descriptors;
mod fdinfo;
mod holders;
mod kind;
mod mappings;
mod pairs;
mod process;
mod remedy;
mod resolve;
mod rules;
mod scan;
mod sock_diag;
mod sockets;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use rules::judge;
use scan::Scan;

pub use blocker::{Blocker, BlockerKind, Note, Owner};
pub use claims::Claims;
pub use descriptors::Descriptor;
pub use kind::{CharDevice, DescriptorKind, FileName, PipeEnd, RegularFile, Watched};
pub use mappings::{Mapping, MappingKind};
pub use process::{ProcessName, ProcessState};
pub use sockets::{OtherSocket, TcpSocket, TcpState, UdpSocket, UnixSocket, UnixState, UnixStyle};

/// The audit of one process. It blocks for about a millisecond, or up to half a second where it has to find the
/// process at the other end of a pipe or Unix connection among very many.
#[derive(Debug, Clone, Copy)]
pub struct Audit;

/// Whose turn it is to audit the own process.
static TURN: Mutex<()> = Mutex::new(());

impl Audit {
    /// Audits the calling process. One at a time: another thread's audit is waited for, since its descriptors would be
    /// found as the process's.
    ///
    /// # Errors
    /// When the kernel refuses to tell. The process is unharmed; without an audit there is no checkpoint.
    pub fn of_self(claims: &Claims) -> Result<Report, AuditError> {
        let scan = {
            let _alone = TURN.lock().unwrap_or_else(PoisonError::into_inner);
            Scan::read(None, claims)?
        };
        Ok(judge(scan, claims))
    }

    /// Audits any process, by its number in the pid namespace of `/proc`. Needs the right to trace it, as
    /// [`ptrace(2)`](https://man7.org/linux/man-pages/man2/ptrace.2.html) does.
    ///
    /// # Errors
    /// When there is no such process, or the kernel refuses to tell. Both processes are unharmed.
    pub fn of_process(pid: i32, claims: &Claims) -> Result<Report, AuditError> {
        Ok(judge(Scan::read(Some(pid), claims)?, claims))
    }
}

/// The outcome of an audit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The process as a whole.
    pub process: ProcessState,
    /// What prevents a checkpoint: descriptors by number, then mappings, then the process.
    pub blockers: Vec<Blocker>,
    /// What does not, but may surprise.
    pub notes: Vec<Note>,
    /// All descriptors, by number.
    pub descriptors: Vec<Descriptor>,
    /// The mappings that matter, by address.
    pub mappings: Vec<Mapping>,
}

impl Report {
    /// Whether nothing prevents a checkpoint.
    #[must_use]
    pub fn is_clear(&self) -> bool {
        self.blockers.is_empty()
    }
}

/// The audit could not read the process, which lives on unharmed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// There is no such process, or it has ended meanwhile.
    #[error("process {pid}: does not exist")]
    NoProcess {
        /// The number asked for.
        pid: i32,
    },
    /// The process belongs to somebody else.
    #[error("process {pid}: its {what} may not be read")]
    Denied {
        /// The number asked for.
        pid: i32,
        /// The part that was refused.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel does not tell.
    #[error("audit: cannot read the {what} of the process")]
    Unreadable {
        /// The part that is missing.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl AuditError {
    fn new(pid: Option<i32>, what: &'static str, source: io::Error) -> Self {
        match (pid, source.kind()) {
            (Some(pid), io::ErrorKind::NotFound) => Self::NoProcess { pid },
            (Some(pid), io::ErrorKind::PermissionDenied) => Self::Denied { pid, what, source },
            _ => Self::Unreadable { what, source },
        }
    }

    /// What to do about it, if anything.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Denied { .. } => Some("run it as the user of that process, or as root"),
            Self::NoProcess { .. } => None,
            Self::Unreadable { .. } => Some("mount /proc, and allow netlink sockets of the family sock_diag"),
        }
    }
}
