//! Descriptors that were there when the process started, where they were not closed then.

use std::os::fd::RawFd;
use std::sync::OnceLock;

static INHERITED: OnceLock<Vec<(RawFd, String)>> = OnceLock::new();

/// Remembers them, once, with their targets in `/proc/self/fd`.
pub(crate) fn remember(inherited: Vec<(RawFd, String)>) {
    let _ = INHERITED.set(inherited);
}

/// What was remembered.
pub(crate) fn remembered() -> Vec<(RawFd, String)> {
    INHERITED.get().cloned().unwrap_or_default()
}
