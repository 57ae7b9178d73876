//! Everything that the rules decide on, read once.
//!
//! The only part of the audit that touches the system. It must not judge.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;

use super::AuditError;
use super::claims::Claims;
use super::descriptors::{self, Descriptor, Home};
use super::holders::{self, Holders};
use super::mappings::{self, Mapping};
use super::pairs;
use super::process::{self, ProcessState};
use super::resolve;

/// A process as it was at one moment. Threads that run meanwhile may have changed it since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scan {
    /// The process as a whole.
    pub(super) process: ProcessState,
    /// Its descriptors.
    pub(super) descriptors: Vec<Descriptor>,
    /// Its mappings, as far as they matter.
    pub(super) mappings: Vec<Mapping>,
    /// Who holds the other ends of what is not wholly inside.
    pub(super) holders: Holders,
}

impl Scan {
    /// Reads the process with this number, or the own one.
    pub(super) fn read(pid: Option<i32>, claims: &Claims) -> Result<Self, AuditError> {
        let own = pid.is_none_or(|pid| u32::try_from(pid) == Ok(std::process::id()));
        let folder = match pid {
            Some(pid) if !own => PathBuf::from(format!("/proc/{pid}")),
            _ => PathBuf::from("/proc/self"),
        };
        let home = Home { folder, own };
        let step = |what: &'static str| move |source: io::Error| AuditError::new(pid, what, source);
        let process = process::scan(&home).map_err(step("state"))?;
        let mappings = mappings::scan(&home).map_err(step("mappings"))?;
        let mut descriptors = descriptors::scan(&home).map_err(step("descriptors"))?;
        resolve::sockets(&home, &mut descriptors).map_err(step("sockets"))?;
        let ends: HashSet<String> = pairs::open_ended(&descriptors)
            .into_iter()
            .filter(|(fd, _)| !claims.exempt(*fd))
            .map(|(_, target)| target)
            .collect();
        let holders = holders::search(process.process.pid, &ends);
        Ok(Self { process, descriptors, mappings, holders })
    }
}
