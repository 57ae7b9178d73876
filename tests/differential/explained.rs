//! What may differ between two restores of one image, and why. Everything else is a defect.
//!
//! Memory has its own exceptions, all in [`super::pages`]: where the kernel notes the processor that a thread runs on
//! (rseq(2)); dead memory below the stack pointer, where the instant engine leaves the frame that a thread came back
//! by; memory that the kernel may drop at any time (MAP_DROPPABLE), which CRIU fills and the engine does not; and the
//! program's ledger, where the engine notes what it has mapped ([`super::areas::Original`]). Mappings are compared as
//! they are to the program ([`super::areas`]): a mapping that is cut into pieces, and one of the image's pages file,
//! which stands for anonymous memory, are what they were.

/// How far a field may differ.
#[derive(Clone, Copy, Debug)]
pub enum Allowance {
    /// At will.
    Any,
    /// By no more than this.
    Within(u64),
    /// By the parameters of a restore.
    Handed,
    /// What the instant engine restores is as the image says, and what CRIU restores is not.
    AsDumped,
}

use Allowance::{Any, AsDumped, Handed, Within};

/// How parameters begin, as the bytes of a pipe: `DEFRPARA`.
const PARAMETERS: &str = "Some([68, 69, 70, 82, 80, 65, 82, 65, ";

/// The longest that may pass between the dump and the second dump, in seconds.
const TEST: u64 = 120;

/// Paths of fields, in which a star stands for anything, with the reason for the difference.
pub const TABLE: &[(&str, Allowance, &str)] = &[
    (
        "process.flags",
        Any,
        "CRIU's process is a fork (PF_FORKNOEXEC), and the engine's has executed a program",
    ),
    (
        "proc * FDSize",
        Any,
        "the table of descriptors never shrinks, and CRIU's own lie above the process's (choose_service_fd_base)",
    ),
    ("process.personality", AsDumped, "CRIU does not set it again"),
    (
        "thread *.registers.floating.xsave.xstate_bv",
        Any,
        "a processor may count a state as in use that is as it was at the start; the states themselves are compared",
    ),
    ("descriptor *.content", Handed, "`defrost restore` hands parameters in, and `criu restore` has none"),
    ("clocks.*.sec", Within(TEST), "clocks go on while a process is restored"),
    ("clocks.*.nsec", Any, "clocks go on while a process is restored"),
    ("process.timers.real.value_sec", Within(TEST), "the timer goes on"),
    ("process.timers.*.value_usec", Any, "the timer goes on"),
    ("process.timers.cpu_*.value_sec", Within(1), "the timer goes on while the process is restored"),
    ("process.timers.posix.*.value_sec", Within(TEST), "the timer goes on"),
    ("process.timers.posix.*.value_nsec", Any, "the timer goes on"),
    ("descriptor *.timerfd.value_sec", Within(TEST), "the timer goes on"),
    ("descriptor *.timerfd.value_nsec", Any, "the timer goes on"),
];

/// A field of the three dumps: the image, and the processes that were restored from it by CRIU and by the engine.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    pub dumped: Option<&'a String>,
    pub criu: Option<&'a String>,
    pub instant: Option<&'a String>,
}

/// Why a field may differ, if it may.
pub fn explanation(path: &str, values: Values<'_>) -> Option<&'static str> {
    let Values { dumped, criu, instant } = values;
    let number = |value: Option<&String>| value?.parse::<u64>().ok();
    TABLE.iter().filter(|(pattern, ..)| matches(pattern, path)).find_map(|(_, allowance, reason)| {
        let allowed = match allowance {
            Any => criu.is_some() == instant.is_some(),
            Within(limit) => number(criu)?.abs_diff(number(instant)?) <= *limit,
            Handed => instant?.starts_with(PARAMETERS),
            AsDumped => instant == dumped,
        };
        allowed.then_some(*reason)
    })
}

fn matches(pattern: &str, path: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| path.strip_prefix(first)) else { return false };
    let mut last = "";
    for part in parts {
        last = part;
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.is_empty() || (pattern.contains('*') && path.ends_with(last) && !last.is_empty())
}
