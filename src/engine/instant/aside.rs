//! Processes of ours beside the restored one, with their own session and nothing of ours but a few descriptors.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use nix::sys::signal::{SigSet, SigmaskHow};
use nix::unistd::Pid;

use crate::sys::descriptors::{above, adopt, close_inherited, install};
use crate::sys::process::{Fork, exit_now, fork};

/// The first descriptor behind the standard streams.
const FIRST: i32 = 3;
/// Facility *daemon* and level *error*: syslog(3).
const PRIORITY: u32 = 3 << 3 | 3;

/// Starts a child of the calling process, which must have one thread, with this name and, beside standard streams that
/// lead nowhere, copies of these descriptors. It leads a session in `/`, blocks all signals, so that a group's or a
/// session's end does not reach it, and exits with what `life` gives.
///
/// # Errors
/// Those of fork(2): there is no child then.
pub(super) fn start<const N: usize>(
    name: &CStr,
    kept: [BorrowedFd<'_>; N],
    life: impl FnOnce(io::Result<[OwnedFd; N]>) -> i32,
) -> io::Result<Pid> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let forked = fork();
    if let Ok(Fork::Child) = forked {
        exit_now(life(detach(name, kept)));
    }
    before.thread_set_mask()?;
    match forked? {
        Fork::Parent(pid) => Ok(pid),
        Fork::Child => exit_now(0),
    }
}

fn detach<const N: usize>(name: &CStr, kept: [BorrowedFd<'_>; N]) -> io::Result<[OwnedFd; N]> {
    nix::unistd::setsid()?;
    rustix::thread::set_name(name)?;
    rustix::process::chdir("/")?;
    let floor = FIRST + i32::try_from(N).map_err(|_| io::ErrorKind::InvalidInput)?;
    let nowhere = File::options().read(true).write(true).open("/dev/null")?;
    let mut copies = Vec::with_capacity(N + 1);
    for fd in std::iter::once(nowhere.as_fd()).chain(kept) {
        copies.push(above(fd, floor)?);
    }
    // Closed by number below, as is all that this process has of the caller's.
    let (_nowhere, copies) = (ManuallyDrop::new(nowhere), ManuallyDrop::new(copies));
    let (streams, numbered) = copies.split_at(1);
    let table = (0..FIRST).map(|number| (number, &streams[0])).chain((FIRST..).zip(numbered));
    install(&table.collect::<Vec<_>>(), floor)?;
    close_inherited(Some(FIRST..=floor - 1))?;
    let adopted: Option<Vec<OwnedFd>> = (FIRST..floor).map(adopt).collect();
    adopted.and_then(|all| all.try_into().ok()).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Writes a line to the system log: nobody watches such a process. Where there is no log, nobody wants to know.
pub(super) fn tell(text: &str) {
    let line = format!("<{PRIORITY}>defrost[{}]: {text}", std::process::id());
    let sent = UnixDatagram::unbound().and_then(|socket| {
        // A log that does not keep up must not hold us.
        socket.set_nonblocking(true)?;
        socket.send_to(line.as_bytes(), "/dev/log")
    });
    // There is nobody else to tell.
    let _ = sent;
}
