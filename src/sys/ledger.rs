//! The ledger: which files stand in for memory of this process that was anonymous.
//!
//! A restore may bring anonymous memory back as private mappings of a file that holds its contents. For the
//! process that is the same memory, but not for the kernel: where the process gives such memory back or extends
//! it, the file shows. [`discard`](super::discard) and [`remap`](super::remap) make up for it, and ask here.
//!
//! Whoever maps the memory writes the ledger, from outside, before any thread runs: it maps one page of the file,
//! with no access, over the first free *anchor*, and sets the count. Which addresses are concerned is not
//! written down: the C library moves, protects and unmaps memory behind everyone's back, and what was true at the
//! restore is soon wrong. The kernel knows it at any time, and knows the file by that of the anchor, which also
//! keeps its inode number from becoming another file's. Anchors are memory like any other: a dump carries them on.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use super::areas::{Area, Areas, Kind};
use super::call::PAGE;

/// How many files there can be: each restore by mapping of an image that was itself dumped from mapped memory
/// adds one.
pub const ANCHORS: usize = 15;

#[repr(C, align(4096))]
struct Ledger {
    /// How many anchors are in use.
    count: AtomicU32,
    rest: [u8; PAGE - 4],
    anchors: UnsafeCell<[[u8; PAGE]; ANCHORS]>,
}

// SAFETY: the count is atomic, and no program ever reads or writes an anchor.
unsafe impl Sync for Ledger {}

/// All zeros, so it takes no room in the program's file, and no memory until it is used.
static LEDGER: Ledger =
    Ledger { count: AtomicU32::new(0), rest: [0; PAGE - 4], anchors: UnsafeCell::new([[0; PAGE]; ANCHORS]) };

/// Where the ledger is, for whoever will restore this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Address of the count, a `u32`.
    pub count: u64,
    /// Address of the first of [`ANCHORS`] pages.
    pub anchors: u64,
}

/// Where the ledger is. `None` where it is not looked at by all who should: where the calls of this process do
/// not get to the functions that do (another program was started, and loaded this library), and with other C
/// libraries than glibc, whose allocator extends memory in a way of its own.
#[must_use]
pub fn place() -> Option<Place> {
    // Exposed, since it is written from outside: the compiler must not take the count for what it is at first.
    let count = (&raw const LEDGER.count).expose_provenance() as u64;
    let anchors = LEDGER.anchors.get().expose_provenance() as u64;
    (cfg!(target_env = "gnu") && is_heeded()).then_some(Place { count, anchors })
}

/// Whether everyone who calls these functions gets those of this crate.
fn is_heeded() -> bool {
    // SAFETY: the call reads a word of what the kernel passed to this program.
    let dynamic_linker = unsafe { libc::getauxval(libc::AT_BASE) };
    // Without one everything is linked together, and there is one function of a name. How this crate was compiled does
    // not tell: the command is linked statically, and other programs with the same library are not.
    if dynamic_linker == 0 {
        return true;
    }
    let is_first = |name: &std::ffi::CStr, function: *const ()| {
        // SAFETY: the name ends with a zero byte.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        found.cast_const().cast() == function
    };
    is_first(c"madvise", super::discard::madvise as *const ())
        && is_first(c"mremap", super::remap::mremap as *const ())
}

/// Whether no file stands in for memory, as in every process that was not restored by mapping.
pub(super) fn is_empty() -> bool {
    // Written before any thread of this process ran.
    LEDGER.count.load(Ordering::Relaxed) == 0
}

/// The first mapping from `start` on, cut to `start..end`, that a file stands in for.
///
/// # Errors
/// As [`Areas::from`].
pub(super) fn next(areas: &Areas, start: usize, end: usize) -> Result<Option<Area>, c_int> {
    let mut at = start;
    while at < end {
        let Some(area) = areas.of_file_from(at)?.filter(|area| area.start < end) else { break };
        if is_stand_in(areas, area)? {
            return Ok(Some(area.within(start, end)));
        }
        at = area.end;
    }
    Ok(None)
}

/// Whether this is a private mapping of a file that stands in for memory.
///
/// # Errors
/// As [`Areas::from`].
pub(super) fn is_stand_in(areas: &Areas, area: Area) -> Result<bool, c_int> {
    let Kind::PrivateFile(_) = area.kind else { return Ok(false) };
    let first = LEDGER.anchors.get().addr();
    // The count is written from outside, and trusted no further than there are anchors.
    let count = (LEDGER.count.load(Ordering::Relaxed) as usize).min(ANCHORS);
    for anchor in (0..count).map(|number| first + number * PAGE) {
        let found = areas.of_file_from(anchor)?;
        let covers = found.filter(|found| found.start <= anchor && found.kind == area.kind);
        if covers.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Enters a file, as a restore does from outside.
#[cfg(test)]
pub(super) fn enter(file: &std::fs::File) {
    use std::os::fd::AsRawFd;
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _turn = TURN.lock();
    let number = LEDGER.count.load(Ordering::Relaxed);
    assert!((number as usize) < ANCHORS);
    let anchor = LEDGER.anchors.get().addr() + number as usize * PAGE;
    let flags = (libc::MAP_PRIVATE | libc::MAP_FIXED).cast_unsigned() as usize;
    let fd = file.as_raw_fd().cast_unsigned() as usize;
    // SAFETY: nobody uses an anchor.
    unsafe { super::call::call(libc::SYS_mmap, [anchor, PAGE, 0, flags, fd, 0]) }.unwrap();
    LEDGER.count.store(number + 1, Ordering::SeqCst);
}
