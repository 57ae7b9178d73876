//! Descriptors sent from process to process over a Unix socket: SCM_RIGHTS of unix(7).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

/// How many descriptors one message can carry: SCM_MAX_FD of the kernel's include/net/scm.h.
pub const MOST_DESCRIPTORS: usize = 253;

/// Sends `bytes` (at least one) with these descriptors beside them.
///
/// # Errors
/// The kernel's own; `InvalidInput` when there are more than [`MOST_DESCRIPTORS`].
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if descriptors.len() > MOST_DESCRIPTORS {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let parts = [io::IoSlice::new(bytes)];
    let sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(&socket, &parts, &mut control, SendFlags::NOSIGNAL)
    })?;
    if sent == bytes.len() { Ok(()) } else { Err(io::Error::from(io::ErrorKind::WriteZero)) }
}

/// Receives up to `buffer.len()` bytes, and the descriptors beside them, which are close-on-exec.
///
/// # Errors
/// The kernel's own, among them `WouldBlock` after the socket's own time limit.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [io::IoSliceMut::new(buffer)];
    // With a time limit on the socket, a stop and SIGCONT interrupt this without any handler: signal(7).
    let message = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(&socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => rights.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    Ok((message.bytes, descriptors.collect()))
}
