//! How the restorer opens the descriptor of the faults and hands it over: by calls of the plan, without a change of
//! the program. It must not know what comes of it.

use std::ops::Range;

use criu_restorer::plan::{Call, Step, Writer};

use super::super::plan::{any, exactly};
use crate::sys::userfault;

/// The numbers of descriptors in the restored process, at the time of the plan.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine::instant) struct Handing {
    /// The lowest that is free: the one that the kernel gives next.
    pub(in crate::engine::instant) free: u64,
    /// The socket that leads to the pager.
    pub(in crate::engine::instant) socket: u64,
}

/// Calls that have the faults of these ranges told to the pager. The descriptor is open in between only.
pub(in crate::engine::instant) fn calls(
    handing: Handing,
    ranges: &[Range<u64>],
    writer: &mut Writer,
) -> Vec<Call> {
    let Handing { free, socket } = handing;
    let flags = u64::from(userfault::OPEN_FLAGS.unsigned_abs());
    let mut calls = vec![exactly(Step::Map, libc::SYS_userfaultfd, &[flags], free)];
    let registrations =
        ranges.iter().map(|range| userfault::registration(range.start, range.end - range.start));
    for (number, argument) in std::iter::once(userfault::handshake()).chain(registrations) {
        let at = writer.data(&argument);
        calls.push(any(Step::Map, libc::SYS_ioctl, &[free, number, at]));
    }
    let header = message(free, writer);
    let quiet = u64::from(libc::MSG_NOSIGNAL.unsigned_abs());
    calls.push(exactly(Step::Map, libc::SYS_sendmsg, &[socket, header, quiet], 1));
    calls.push(any(Step::Map, libc::SYS_close, &[free]));
    calls
}

/// A message of one byte with this descriptor: sendmsg(2), cmsg(3), SCM_RIGHTS of unix(7). Gives its address.
fn message(descriptor: u64, writer: &mut Writer) -> u64 {
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    let byte = writer.data(&[1]);
    let part = writer.data(&words(&[byte, 1]));
    // Its length is that of struct cmsghdr and an int; its room is rounded up to words.
    let (level, kind) = (libc::SOL_SOCKET.unsigned_abs(), libc::SCM_RIGHTS.unsigned_abs());
    let control = [20, u64::from(level) | u64::from(kind) << 32, descriptor];
    let control_at = writer.data(&words(&control));
    // struct msghdr: name and its length, parts, control and its length, flags.
    writer.data(&words(&[0, 0, part, 1, control_at, size_of_val(&control) as u64, 0]))
}
