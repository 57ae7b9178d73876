//! Processes: forking, detaching, and being found again.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::unistd::{ForkResult, Pid};

/// Which side of a fork this is.
#[derive(Debug, Clone, Copy)]
pub enum Fork {
    /// The parent, and its new child.
    Parent(Pid),
    /// The child.
    Child,
}

/// fork(2), for a process with one thread.
///
/// # Errors
/// `Unsupported` when the process has more than one thread: a lock that another of them holds would never be
/// released in the child. Else the kernel's own.
pub fn fork() -> io::Result<Fork> {
    one_thread()?;
    // SAFETY: the process has one thread, so no lock is held by a thread that the child lacks.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(Fork::Parent(child)),
        ForkResult::Child => Ok(Fork::Child),
    }
}

/// fork(2), with a table of descriptors that parent and child share: whatever one of them opens or closes, the other
/// has open or closed, and it stays open until both have ended. clone3(2), CLONE_FILES.
///
/// Neither may close a descriptor that the other uses. The C library does not know of this fork: the child must not
/// use what it caches about threads.
///
/// # Errors
/// As for [`fork`].
pub fn fork_sharing_descriptors() -> io::Result<Fork> {
    one_thread()?;
    // SAFETY: all fields are numbers, for which zero is valid.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = libc::CLONE_FILES.cast_unsigned().into();
    arguments.exit_signal = libc::SIGCHLD.unsigned_abs().into();
    let size = size_of::<libc::clone_args>();
    // SAFETY: as for fork: without CLONE_VM and a stack, the child goes on here in a copy of this memory, and the
    // process has one thread, so no lock is held by a thread that the child lacks.
    match unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size) } {
        0 => Ok(Fork::Child),
        child @ 1.. => {
            Ok(Fork::Parent(Pid::from_raw(i32::try_from(child).map_err(|_| io::ErrorKind::InvalidData)?)))
        }
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes a time namespace, which this process enters when it becomes another program (since Linux 6.1), and its
/// children when they are made: unshare(2) with CLONE_NEWTIME.
///
/// # Errors
/// The kernel's own.
pub fn own_clocks() -> io::Result<()> {
    // SAFETY: this namespace concerns neither descriptors nor memory of this process.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWTIME) }?;
    Ok(())
}

/// Starts `command` outside of this process's tree: in a session of its own, with the nearest subreaper or
/// init as its parent. Returns when the program runs.
///
/// # Errors
/// Those of fork and exec; nothing is left behind then.
pub fn spawn_detached(command: &mut Command) -> io::Result<()> {
    let detach = || {
        // Ignoring this signal outlives exec, and then nobody could wait for a child.
        // SAFETY: one system call, allowed between fork and exec.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        nix::unistd::setsid()?;
        // SAFETY: between fork and exec; the C library's fork may be called there, and the parent side leaves
        // at once by _exit, without running anything of the original's.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => Ok(()),
            // SAFETY: _exit ends this intermediate process without touching its copied memory.
            _ => unsafe { libc::_exit(0) },
        }
    };
    // SAFETY: `detach` makes system calls only; it neither allocates nor takes a lock.
    unsafe { command.pre_exec(detach) };
    // An error of the grandchild's exec comes back through the same pipe as the child's would.
    let mut intermediate = command.spawn()?;
    match intermediate.wait() {
        // The program has its children reaped by the kernel (SA_NOCLDWAIT): it has ended, or will at once.
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(()),
        done => done.map(drop),
    }
}

/// Has `command` start in a session of its own, so that it is its own session's and group's leader.
pub fn in_own_session(command: &mut Command) -> &mut Command {
    // SAFETY: setsid is one system call, allowed between fork and exec; it fails only for a group leader,
    // which a fresh child never is.
    unsafe { command.pre_exec(|| nix::unistd::setsid().map(drop).map_err(io::Error::from)) }
}

/// Has `command` start with no signal blocked: a supervisor blocks those that it forwards.
pub fn with_clear_mask(command: &mut Command) -> &mut Command {
    let clear = || {
        let none = nix::sys::signal::SigSet::empty();
        none.thread_set_mask().map_err(io::Error::from)
    };
    // SAFETY: sigprocmask is one system call, allowed between fork and exec.
    unsafe { command.pre_exec(clear) }
}

/// Sets a variable of the environment, in a process with one thread.
///
/// # Errors
/// `Unsupported` when there are more threads: one of them might be reading the environment.
pub fn set_variable(name: &str, value: &str) -> io::Result<()> {
    one_thread()?;
    // SAFETY: no other thread exists that could read the environment meanwhile.
    unsafe { std::env::set_var(name, value) };
    Ok(())
}

/// # Errors
/// `Unsupported` when the process has more threads, or the kernel does not say.
pub(super) fn one_thread() -> io::Result<()> {
    // Each thread is a folder in there, which a folder's count of links tells, beside its own two names.
    if std::fs::metadata("/proc/self/task")?.nlink() == 2 + 1 {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::Unsupported, "the process has more than one thread"))
}

/// Ends the process at once, running no destructor or exit handler of a parent that this was forked from.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: _exit never returns and touches no memory of ours.
    unsafe { libc::_exit(status) }
}
