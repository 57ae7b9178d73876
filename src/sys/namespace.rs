//! Namespaces: making a process in new ones, and asking who owns one.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use nix::unistd::Pid;

use super::process::{Fork, one_thread};

/// fork(2) into a new pid namespace, as its process 1, and a new mount namespace; with `user` also into a new user
/// namespace that owns them, where the child has every capability and no user is mapped yet (user_namespaces(7)).
/// For a process with one thread.
///
/// # Errors
/// `Unsupported` when the process has more than one thread; else the kernel's own: EPERM without the right to make
/// them, ENOSPC at the limits of /proc/sys/user.
pub fn fork_into_namespaces(user: bool) -> io::Result<Fork> {
    one_thread()?;
    // SAFETY: all fields are numbers, for which zero is valid.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    let kinds = libc::CLONE_NEWPID | libc::CLONE_NEWNS | if user { libc::CLONE_NEWUSER } else { 0 };
    arguments.flags = u64::from(kinds.unsigned_abs());
    arguments.exit_signal = libc::SIGCHLD.unsigned_abs().into();
    if let Some(place) = place_of_tid() {
        // As the C library's own fork has it: then what it caches about its thread is right in the child.
        arguments.flags |= u64::from((libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID).unsigned_abs());
        arguments.child_tid = place;
    }
    let size = size_of::<libc::clone_args>();
    // SAFETY: as for fork: without CLONE_VM and a stack, the child goes on here in a copy of this memory, and the
    // process has one thread, so no lock is held by a thread that the child lacks.
    match unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size) } {
        0 => Ok(Fork::Child),
        child @ 1.. => {
            i32::try_from(child).map(|pid| Fork::Parent(Pid::from_raw(pid))).map_err(io::Error::other)
        }
        _ => Err(io::Error::last_os_error()),
    }
}

/// Where glibc keeps the id of this thread: it tells the kernel, which clears it at the thread's end
/// (PR_GET_TID_ADDRESS of prctl(2)). Other C libraries keep something else there.
fn place_of_tid() -> Option<u64> {
    if !cfg!(target_env = "gnu") {
        return None;
    }
    let mut place = 0_u64;
    // SAFETY: the kernel writes one pointer, of the size of this word, to this address.
    let result = unsafe { libc::prctl(libc::PR_GET_TID_ADDRESS, &raw mut place) };
    (result == 0 && place != 0).then_some(place)
}

/// The user namespace that owns this one. The descriptor is close-on-exec.
///
/// # Errors
/// The kernel's own: `PermissionDenied` when it is neither that of this process nor below it (ioctl_ns(2)).
pub fn owner(namespace: impl AsFd) -> io::Result<OwnedFd> {
    // SAFETY: the call takes no argument and touches no memory.
    let owner = unsafe { libc::ioctl(namespace.as_fd().as_raw_fd(), libc::NS_GET_USERNS) };
    if owner < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a number that the kernel has just returned is open and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(owner) })
}

/// Takes a capability out of the bounding set of this thread for good, so that no program that it starts gets it:
/// capabilities(7). Needs CAP_SETPCAP.
///
/// # Errors
/// The kernel's own.
pub fn drop_from_bounding_set(capability: u32) -> io::Result<()> {
    // SAFETY: the call takes a number and touches no memory of ours.
    let result = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(capability), 0, 0, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
