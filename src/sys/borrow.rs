//! A child that lives in this process's memory until it becomes another program, as vfork(2) and posix_spawn(3) make
//! them: nothing is copied that exec(2) throws away, which takes longer than the rest of a fork.
//!
//! Unlike vfork, it has a pid of the caller's choice, a stack of its own, and the caller waits with a deadline.

use std::arch::asm;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use rustix::event::Timespec;
use rustix::thread::futex;

use super::process::{exit_now, one_thread};

/// How long a pid that is taken is waited for: the kernel frees that of a process a little later than it lets its
/// parent see the end (`release_task` in kernel/exit.c).
const TAKEN: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(1);
/// Exit status of a child that became no other program.
const FAILED: i32 = 125;
/// Bytes of the child's stack. Only what it touches is ever there.
const STACK: usize = 1024 * 1024;
/// Bytes below it that nobody may touch.
const GUARD: usize = 4096;
/// The word is cleared, and its waiter woken, when the child has left this memory (clone(2), CLONE_CHILD_CLEARTID;
/// the kernel's mm_release does so on exec too).
const FLAGS: libc::c_int = libc::CLONE_VM | libc::CLONE_CHILD_CLEARTID;

/// Starts a child with this pid, in a process with one thread: clone3(2) with `set_tid`, which needs
/// CAP_CHECKPOINT_RESTORE. It runs `child` with all signals blocked and a copy of the descriptor table, and exits when
/// that returns. It should become another program. The caller waits until it has, or has ended, and changes nothing
/// meanwhile.
///
/// What `child` changes in memory is changed. The C library does not know of this process: it must not use what that
/// caches about threads.
///
/// # Errors
/// `TimedOut` when the child still has this memory after `limit`; it has been killed and reaped then. `Unsupported` when
/// the process has more than one thread: it would go on, and take locks and memory that the child takes too.
/// `AlreadyExists` when the pid is taken; else the kernel's own. There is no child then.
pub fn start_as(pid: i32, limit: Duration, child: &mut dyn FnMut()) -> io::Result<Pid> {
    one_thread()?;
    let stack = Stack::new()?;
    let here = AtomicU32::new(1);
    let mut task = Task(child);
    // SAFETY: all fields are numbers, for which zero is valid.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = FLAGS.unsigned_abs().into();
    arguments.child_tid = here.as_ptr() as u64;
    arguments.exit_signal = libc::SIGCHLD.unsigned_abs().into();
    arguments.stack = stack.bottom() as u64;
    arguments.stack_size = STACK as u64;
    arguments.set_tid = (&raw const pid) as u64;
    arguments.set_tid_size = 1;
    // No handler may run in the child, nor beside it in the caller.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let begun = Instant::now();
    let cloned = loop {
        // SAFETY: the stack is as large as said and used by nobody else; it, the task and all that this refers to stay
        // until the child has left this memory, and this process, which has one thread, only waits for that.
        let cloned = unsafe { clone(&arguments, &raw mut task) };
        if cloned != -(libc::EEXIST as isize) || begun.elapsed() >= TAKEN {
            break cloned;
        }
        std::thread::sleep(PAUSE);
    };
    let started = match cloned {
        1.. => {
            wait_until_gone(&here, Pid::from_raw(pid), Instant::now() + limit).map(|()| Pid::from_raw(pid))
        }
        error => Err(io::Error::from_raw_os_error(i32::try_from(-error).unwrap_or(libc::EIO))),
    };
    // What was blocked before stays so; there is nothing to do if that fails.
    let _ = before.thread_set_mask();
    started
}

/// What the child runs.
struct Task<'a>(&'a mut dyn FnMut());

extern "C" fn run(task: *mut Task<'_>) -> ! {
    // SAFETY: `start_as` passes the address of its task, and does not touch it while the child is here.
    let task = unsafe { &mut *task };
    (task.0)();
    exit_now(FAILED);
}

/// clone3(2); the child runs the task on the stack of the arguments. Gives the pid, or a negative error number.
///
/// # Safety
/// The stack must be the child's alone, and the task valid, until the child has left this memory.
unsafe fn clone(arguments: &libc::clone_args, task: *mut Task<'_>) -> isize {
    let result: isize;
    // SAFETY: the caller's part keeps the stack and the task. The parent goes on behind the call as from any other; the
    // child has the registers that were set here, an aligned stack, no caller, and never comes back from `run`.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 as isize => result,
            in("rdi") std::ptr::from_ref(arguments),
            in("rsi") size_of::<libc::clone_args>(),
            in("r12") task,
            in("r13") run as extern "C" fn(*mut Task<'_>) -> !,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

fn wait_until_gone(here: &AtomicU32, pid: Pid, deadline: Instant) -> io::Result<()> {
    while here.load(Ordering::Acquire) != 0 {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match futex::wait(here, futex::Flags::empty(), 1, Some(&left)) {
            Ok(()) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            // Only what is dead leaves the memory alone.
            Err(error) => {
                kill(pid, Signal::SIGKILL)?;
                waitpid(pid, None)?;
                return Err(error.into());
            }
        }
    }
    Ok(())
}

/// Memory for a stack, with a guard below.
struct Stack(*mut libc::c_void);

impl Stack {
    fn new() -> io::Result<Self> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK);
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), GUARD + STACK, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self(base);
        // SAFETY: the lowest page of the mapping that was just made, which nothing uses.
        if unsafe { libc::mprotect(base, GUARD, libc::PROT_NONE) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(stack)
    }

    fn bottom(&self) -> usize {
        self.0 as usize + GUARD
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and whoever ran on it is gone.
        unsafe { libc::munmap(self.0, GUARD + STACK) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_more_threads_is_refused() {
        // The test harness has threads, or the first test of a file would have been refused nothing.
        std::thread::scope(|scope| {
            let (stop, stopped) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || stopped.recv().is_err());
            let error = start_as(1, Duration::from_secs(1), &mut || {}).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::Unsupported);
            drop(stop);
        });
    }
}
