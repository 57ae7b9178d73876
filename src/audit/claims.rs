//! Who answers for which descriptor, handed to the audit as plain data.
//!
//! It must not know resources or contexts: their owner collects this from them.

use std::os::fd::RawFd;

use super::blocker::Owner;
use super::descriptors::Descriptor;

/// What is known of the descriptors of a process. An empty one means that nobody answers for anything, as for
/// a process that does not know defrost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claims {
    /// Descriptors that resources answer for, each with the resource's name. They pass if CRIU can carry them.
    pub by_resource: Vec<(RawFd, String)>,
    /// Descriptors that are not in the process when it is dumped: held elsewhere meanwhile. They pass.
    pub kept: Vec<RawFd>,
    /// Descriptors that were there at start-up, with the text of their link in `/proc/PID/fd` then. They do
    /// not pass; their origin is named, as long as the number still has that target.
    pub inherited: Vec<(RawFd, String)>,
    /// Descriptors of the checkpoint's own machinery, which it puts away itself. They pass.
    pub service: Vec<RawFd>,
}

impl Claims {
    /// Whether the descriptor will not be there, or is dealt with, when the dump runs.
    #[must_use]
    pub fn exempt(&self, fd: RawFd) -> bool {
        self.kept.contains(&fd) || self.service.contains(&fd)
    }

    /// Who answers for the descriptor.
    #[must_use]
    pub fn owner(&self, descriptor: &Descriptor) -> Owner {
        if let Some((_, name)) = self.by_resource.iter().find(|(fd, _)| *fd == descriptor.fd) {
            return Owner::Resource(name.clone());
        }
        let inherited =
            self.inherited.iter().any(|(fd, target)| *fd == descriptor.fd && *target == descriptor.target);
        if inherited { Owner::Inherited } else { Owner::Unregistered }
    }
}
