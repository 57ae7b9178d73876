//! Why there is no image. In each of these cases the process that was asked lives and serves on.

use std::fmt;

use crate::audit::{AuditError, Blocker};
use crate::context::HookFailure;
use crate::engine::DumpError;

/// A checkpoint that failed. The original process goes on.
#[derive(Debug)]
#[non_exhaustive]
pub struct CheckpointError {
    /// How far it came.
    pub phase: Phase,
    /// Everything that was found wrong, never only the first.
    pub causes: Vec<Cause>,
    /// What failed when the resources were woken again: these do not work, unlike all others.
    pub rollback: Vec<HookFailure>,
}

/// How far a checkpoint came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// It was refused at once; nothing was disturbed.
    Request,
    /// Resources were put down.
    Quiesce,
    /// The process was looked over.
    Audit,
    /// Its state was written.
    Dump,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Request => "request",
            Self::Quiesce => "quiesce",
            Self::Audit => "audit",
            Self::Dump => "dump",
        })
    }
}

/// One thing that prevented a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// Another one is under way, perhaps the one in whose hook this was asked for.
    #[error("a checkpoint is already running")]
    AlreadyRunning,
    /// A resource could not be put down.
    #[error(transparent)]
    Hook(#[from] HookFailure),
    /// Something would not survive the dump or the restore.
    #[error("{0}")]
    Blocker(Blocker),
    /// The process could not be looked over.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The engine failed.
    #[error(transparent)]
    Dump(#[from] DumpError),
    /// A thread or task of the checkpoint's own failed.
    #[error("{what}: {source}")]
    Internal {
        /// Which.
        what: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

impl Cause {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::AlreadyRunning => Some("wait for its end".to_owned()),
            Self::Hook(failure) => Some(match &failure.cause {
                crate::context::HookCause::Late(_) => {
                    format!("look at what {} waits for, or give it a longer deadline", failure.resource)
                }
                _ => format!("mend what {} complains of and ask again", failure.resource),
            }),
            Self::Blocker(blocker) => Some(blocker.remedy.clone()),
            Self::Audit(error) => error.hint().map(str::to_owned),
            Self::Dump(error) => error.hint(),
            Self::Internal { .. } => Some("look at the limits on threads and memory".to_owned()),
        }
    }
}

impl CheckpointError {
    pub(crate) fn new(phase: Phase, causes: Vec<Cause>) -> Self {
        Self { phase, causes, rollback: Vec::new() }
    }

    /// What to do, one sentence for each cause, none twice.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        let mut hints: Vec<String> = Vec::new();
        for hint in self.causes.iter().filter_map(Cause::hint) {
            if !hints.contains(&hint) {
                hints.push(hint);
            }
        }
        hints
    }
}

impl fmt::Display for CheckpointError {
    /// One line: phase, causes, who is alive.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no checkpoint ({}): ", self.phase)?;
        for (index, cause) in self.causes.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{cause}")?;
        }
        if self.rollback.is_empty() {
            return f.write_str("; the server goes on");
        }
        f.write_str("; the server goes on, but not all of it: ")?;
        for (index, failure) in self.rollback.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{failure}")?;
        }
        Ok(())
    }
}

impl std::error::Error for CheckpointError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.causes.first().map(|cause| cause as _)
    }
}
