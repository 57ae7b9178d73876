//! x86-64. System calls as in syscall(2): number in rax, arguments in rdi, rsi, rdx, r10, r8, r9; rcx and r11 are
//! lost.

use core::arch::{asm, global_asm};

use super::CloneArguments;

/// Numbers of the system calls that the program makes by itself.
pub(crate) mod number {
    pub(crate) const WRITE: usize = 1;
    pub(crate) const MMAP: usize = 9;
    pub(crate) const MPROTECT: usize = 10;
    pub(crate) const MUNMAP: usize = 11;
    pub(crate) const PREAD64: usize = 17;
    pub(crate) const SCHED_YIELD: usize = 24;
    pub(crate) const MREMAP: usize = 25;
    pub(crate) const NANOSLEEP: usize = 35;
    pub(crate) const EXIT: usize = 60;
    pub(crate) const FUTEX: usize = 202;
    pub(crate) const EXIT_GROUP: usize = 231;
    pub(crate) const CLONE3: usize = 435;
    pub(crate) const CLOSE_RANGE: usize = 436;
}

global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {begin}",
    "ud2",
    begin = sym crate::begin,
);

// The compiler calls these for copies and clears of structures, wherever there is no libc.
global_asm!(
    ".globl memcpy",
    "memcpy:",
    "mov rax, rdi",
    "mov rcx, rdx",
    "rep movsb",
    "ret",
    ".globl memset",
    "memset:",
    "mov r8, rdi",
    "mov eax, esi",
    "mov rcx, rdx",
    "rep stosb",
    "mov rax, r8",
    "ret",
);

/// Makes a system call. Whether it is sound is the plan's affair: this program owns the whole process.
pub(crate) fn call(number: usize, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let result;
    // SAFETY: the instruction itself only changes rax, rcx and r11; nothing of what the calls change in memory
    // is known to the compiler except by addresses that were handed in.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number.cast_signed() => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// First byte of this program, and the byte after its last, at the address where it runs.
pub(crate) fn program() -> (usize, usize) {
    let (start, end): (usize, usize);
    // SAFETY: only computes two addresses.
    unsafe {
        asm!(
            "lea {start}, [rip + program_start]",
            "lea {end}, [rip + program_end]",
            start = out(reg) start, end = out(reg) end,
            options(nomem, nostack, preserves_flags),
        );
    }
    (start, end)
}

/// The address of a function of the program, where this very code runs. A plain cast would do for the original
/// only, where the compiler takes it from a table.
macro_rules! address_of {
    ($entry:path) => {{
        let address: usize;
        // SAFETY: only computes an address.
        unsafe {
            core::arch::asm!(
                "lea {address}, [rip + {entry}]",
                address = out(reg) address, entry = sym $entry,
                options(nomem, nostack, preserves_flags),
            );
        }
        address
    }};
}
pub(crate) use address_of;

/// Copies bytes.
///
/// # Safety
/// `len` bytes must be readable at `from` and writable at `to`, and not overlap.
pub(crate) unsafe fn copy(from: usize, to: usize, len: usize) {
    // SAFETY: by the contract.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") len => _, inout("rsi") from => _, inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Goes on at `entry` with another stack.
///
/// # Safety
/// `entry` must be code that takes two arguments and never returns, and `stack` the end of free memory.
pub(crate) unsafe fn enter(entry: usize, stack: usize, arguments: [usize; 2]) -> ! {
    // SAFETY: by the contract.
    unsafe {
        asm!(
            "mov rsp, {stack}",
            "call {entry}",
            "ud2",
            stack = in(reg) stack, entry = in(reg) entry,
            in("rdi") arguments[0], in("rsi") arguments[1],
            options(noreturn),
        );
    }
}

/// Makes a thread, or says why not. The new thread goes on at `entry`, on its own stack.
///
/// # Safety
/// As for [`enter`], with the stack in `clone`.
pub(crate) unsafe fn spawn(clone: &CloneArguments, entry: usize, arguments: [usize; 2]) -> isize {
    let result;
    // SAFETY: by the contract; in the new thread nothing but registers is used.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "mov rdi, r12",
            "mov rsi, r13",
            "call r14",
            "ud2",
            "2:",
            inlateout("rax") number::CLONE3.cast_signed() => result,
            in("rdi") (&raw const *clone) as usize, in("rsi") size_of::<CloneArguments>(),
            in("r12") arguments[0], in("r13") arguments[1], in("r14") entry,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    result
}

/// Makes one last system call, from restored code, which then returns into the signal frame at `frame`: its first
/// word is the address of code that calls rt_sigreturn(2), as in a frame that the kernel makes.
///
/// # Safety
/// `gadget` must be the address of `syscall; ret`, and `frame` that of a whole frame.
pub(crate) unsafe fn leave(gadget: usize, frame: usize, number: usize, arguments: [usize; 4]) -> ! {
    let [a, b, c, d] = arguments;
    // SAFETY: by the contract; no stack is used in between.
    unsafe {
        asm!(
            "mov rsp, {frame}",
            "jmp {gadget}",
            frame = in(reg) frame, gadget = in(reg) gadget,
            in("rax") number, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            options(noreturn),
        );
    }
}
