//! Which pipes and Unix connections lie wholly inside one process.
//!
//! Pure: both the search for holders and the rules ask here. It must not open anything.

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use super::descriptors::Descriptor;
use super::kind::DescriptorKind;

/// For each descriptor whose other end is not among these: what to look for in other processes, as the text
/// of a link in `/proc/PID/fd`.
pub(super) fn open_ended(descriptors: &[Descriptor]) -> BTreeMap<RawFd, String> {
    descriptors
        .iter()
        .filter_map(|descriptor| Some((descriptor.fd, missing_end(descriptor, descriptors)?)))
        .collect()
}

fn missing_end(one: &Descriptor, all: &[Descriptor]) -> Option<String> {
    match &one.kind {
        DescriptorKind::Pipe { .. } | DescriptorKind::Fifo { .. } => {
            let ends = || all.iter().filter(|other| other.target == one.target).filter_map(end_of);
            let closed = ends().any(super::kind::PipeEnd::reads) && ends().any(super::kind::PipeEnd::writes);
            (!closed).then(|| one.target.clone())
        }
        DescriptorKind::Unix(socket) => {
            let peer = socket.peer()?;
            let inside =
                all.iter().any(|other| other.inode == peer && matches!(other.kind, DescriptorKind::Unix(_)));
            (!inside).then(|| format!("socket:[{peer}]"))
        }
        _ => None,
    }
}

fn end_of(descriptor: &Descriptor) -> Option<super::kind::PipeEnd> {
    match descriptor.kind {
        DescriptorKind::Pipe { end } | DescriptorKind::Fifo { end } => Some(end),
        _ => None,
    }
}
