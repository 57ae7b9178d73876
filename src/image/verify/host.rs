//! What a host offers to a restore.

use std::fs;
use std::io;

use super::memory;
use crate::image::machine::Machine;
use crate::image::manifest::Manifest;

/// What a host offers to a restore. A value, so that a test can make one up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Kernel and processor.
    pub machine: Machine,
    /// Memory that a new process can have without swapping, in bytes; none if that is not known.
    pub available_memory: Option<u64>,
    /// The highest capability number that the kernel knows.
    pub last_capability: u32,
}

impl Host {
    /// This host, now.
    ///
    /// # Errors
    /// When the kernel does not say what it is.
    pub fn here() -> io::Result<Self> {
        Self::with(Machine::here()?)
    }

    /// This host, now, for a comparison with this image's: see [`Machine::here_or_as`].
    ///
    /// # Errors
    /// As for [`Host::here`].
    pub fn here_for(manifest: &Manifest) -> io::Result<Self> {
        Self::with(Machine::here_or_as(&manifest.machine)?)
    }

    fn with(machine: Machine) -> io::Result<Self> {
        let last = fs::read_to_string("/proc/sys/kernel/cap_last_cap")?;
        Ok(Self {
            machine,
            available_memory: memory::available(),
            last_capability: last.trim().parse().map_err(io::Error::other)?,
        })
    }
}
