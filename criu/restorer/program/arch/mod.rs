//! The machine: system calls, the first instruction, and the jumps that no language has.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

/// The largest error number that a system call returns, negated.
const LARGEST_ERRNO: isize = 4095;

/// The error number in the result of a system call.
pub(crate) fn errno(result: isize) -> Option<i32> {
    (-LARGEST_ERRNO..0).contains(&result).then_some(-result as i32)
}

/// The structure of clone3(2), in its second version, which has `set_tid`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct CloneArguments {
    pub(crate) flags: u64,
    pub(crate) pidfd: u64,
    pub(crate) child_tid: u64,
    pub(crate) parent_tid: u64,
    pub(crate) exit_signal: u64,
    pub(crate) stack: u64,
    pub(crate) stack_size: u64,
    pub(crate) tls: u64,
    pub(crate) set_tid: u64,
    pub(crate) set_tid_size: u64,
}
