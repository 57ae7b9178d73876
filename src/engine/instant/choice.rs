//! How memory comes back, and why in this way.
//!
//! Mapping is right where the process makes up for what it changes: where memory that it gives back, or extends,
//! goes through the functions of this library, which learn of the mapping from the process's ledger
//! (`sys::ledger`). Any allocator that is linked into the program calls them.
//!
//! What does not is the C library itself. glibc's malloc gives memory back by `MADV_DONTNEED` of its own, and does
//! not count on zeros: calloc takes memory for fresh only beyond what the arena has ever used (malloc.c,
//! `__libc_calloc`: `max_system_mem` of the main arena, `mprotect_size` of a heap of another), and what it cuts
//! off lies below that. Its realloc extends large blocks, which `seams` sees to.

use std::fs::File;

use criu_images::{PAGE_SIZE, Vma, VmaStatus};
use criu_restorer::plan::{Call, Step};
use rustix::fs::StatVfsMountFlags;

use super::MemoryMode;
use super::layout::Layout;
use super::plan::exactly;
use super::support::Reasons;
use crate::image::Manifest;
use crate::sys::ledger::ANCHORS;

/// Linux that answers a process about its own mappings (PROCMAP_QUERY).
const TELLS_OF_MAPPINGS: (u32, u32) = (6, 11);
/// Most large blocks that are mapped around: each is a mapping of its own then, beside the page that is not, and
/// a process may have 65,530 (vm.max_map_count).
const MOST_SEAMS: usize = 16_384;
/// futex(2): sets a word, and wakes up to none of those who wait for it.
const FUTEX_WAKE_OP_PRIVATE: u64 = 5 | 128;

const NEVER_EXECUTABLE: &str = "the image is on a file system that is mounted noexec, and memory that is mapped from \
     there can never become executable; use --memory copy or fault, or move the image";

/// A way, which is never [`MemoryMode::Auto`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) memory: MemoryMode,
    /// A phrase.
    pub(super) reason: &'static str,
    /// What the process has to be told, if it heeds it.
    pub(super) entry: Option<Entry>,
}

/// Chooses, for an image on a file system of which memory may be `executable` or not. Copying asks nothing of the
/// process: it is what is left, and where another such way has its place. What was asked for and must not be is a
/// reason against the restore.
pub(super) fn choose(
    manifest: &Manifest,
    layout: &Layout,
    executable: bool,
    wanted: MemoryMode,
    reasons: &mut Reasons,
) -> Choice {
    reasons.add_if(wanted == MemoryMode::Map && !executable, NEVER_EXECUTABLE);
    let entry = entry(manifest, layout);
    let (memory, reason) = match (wanted, &entry) {
        (MemoryMode::Auto, _) if !executable => {
            (MemoryMode::Copy, "the image's file system is mounted noexec")
        }
        (MemoryMode::Auto, Ok(_)) if manifest.seams.len() > MOST_SEAMS => {
            (MemoryMode::Copy, "the process has too many large blocks of memory to map around")
        }
        (MemoryMode::Auto, Ok(_)) => {
            (MemoryMode::Map, "the process gives memory back by defrost's functions")
        }
        (MemoryMode::Auto, Err(reason)) => (MemoryMode::Copy, *reason),
        (wanted, _) => (wanted, "it was asked for"),
    };
    Choice { memory, reason, entry: entry.ok().filter(|_| memory == MemoryMode::Map) }
}

/// Whether memory that is mapped from this file can ever be executed. Where it cannot, mprotect(2) refuses later what
/// memory of the process's own may become, such as code that it makes as it runs.
///
/// # Errors
/// The kernel's own.
pub(super) fn is_executable(pages: &File) -> std::io::Result<bool> {
    Ok(!rustix::fs::fstatvfs(pages)?.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

/// A place in the process's ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Address of the count.
    count_at: u64,
    /// The count with this entry.
    count: u64,
    /// The page that is this entry.
    anchor: u64,
}

/// The first free entry, or why there is none.
fn entry(manifest: &Manifest, layout: &Layout) -> Result<Entry, &'static str> {
    let ledger =
        manifest.subject.ledger.ok_or("the process has no functions of defrost's to give memory back by")?;
    if manifest.machine.kernel_version().is_none_or(|version| version < TELLS_OF_MAPPINGS) {
        return Err("the kernel is older than 6.11 and does not tell a process of its mappings");
    }
    let sound = ledger.count.is_multiple_of(4) && ledger.anchors.is_multiple_of(PAGE_SIZE);
    if !sound || !layout.is_writable(ledger.count, ledger.count.saturating_add(4), 0) {
        return Err("the process's ledger is not where the image says");
    }
    let anchor = |number: u64| ledger.anchors.saturating_add(number * PAGE_SIZE);
    let kind = |number: u64| layout.at(anchor(number)).map_or(VmaStatus::empty(), Vma::area);
    // A used one is a mapping of the pages file of an earlier image, unless the image was made whole since.
    let used = |number: &u64| kind(*number).contains(VmaStatus::FILE_PRIVATE);
    let number = (0..ANCHORS as u64).take_while(used).count() as u64;
    if number == ANCHORS as u64 {
        return Err("the process's memory comes from as many images as it can tell apart");
    }
    if !kind(number).contains(VmaStatus::ANON_PRIVATE) {
        return Err("the process's ledger is not where the image says");
    }
    Ok(Entry { count_at: ledger.count, count: number + 1, anchor: anchor(number) })
}

impl Entry {
    /// Calls that make the entry, once memory is in place by `calls`; none where nothing is mapped.
    pub(super) fn calls(&self, pages: u64, calls: &[Call]) -> Vec<Call> {
        let is_mapped =
            |call: &Call| call.number == libc::SYS_mmap.cast_unsigned() && call.arguments[4] == pages;
        if !calls.iter().any(is_mapped) {
            return Vec::new();
        }
        let flags = (libc::MAP_PRIVATE | libc::MAP_FIXED).cast_unsigned();
        let arguments = [self.anchor, PAGE_SIZE, libc::PROT_NONE as u64, flags.into(), pages, 0];
        // FUTEX_OP(FUTEX_OP_SET, count, FUTEX_OP_CMP_EQ, 0).
        let set = self.count << 12;
        let word = self.count_at;
        vec![
            exactly(Step::Map, libc::SYS_mmap, &arguments, self.anchor),
            exactly(Step::Map, libc::SYS_futex, &[word, FUTEX_WAKE_OP_PRIVATE, 0, 0, word, set], 0),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::manifest::LedgerRecord;
    use crate::image::manifest::tests::manifest;

    const COUNT: u64 = 0x5000;
    const ANCHORS_AT: u64 = COUNT + PAGE_SIZE;

    fn vma(start: u64, end: u64, kind: VmaStatus) -> Vma {
        Vma { start, end, prot: 3, status: (VmaStatus::REGULAR | kind).bits(), ..Vma::default() }
    }

    fn chosen(manifest: &Manifest, layout: &Layout, executable: bool, wanted: MemoryMode) -> Choice {
        let mut reasons = Reasons::default();
        let choice = choose(manifest, layout, executable, wanted, &mut reasons);
        assert_eq!(!reasons.is_empty(), wanted == MemoryMode::Map && !executable, "{reasons:?}");
        choice
    }

    /// A process that has been restored by mapping so many times.
    fn layout(used: u64) -> Layout {
        let free_from = ANCHORS_AT + used * PAGE_SIZE;
        let end = ANCHORS_AT + ANCHORS as u64 * PAGE_SIZE;
        let mut vmas = vec![vma(COUNT, ANCHORS_AT, VmaStatus::ANON_PRIVATE)];
        vmas.push(vma(ANCHORS_AT, free_from, VmaStatus::FILE_PRIVATE));
        vmas.push(vma(free_from, end, VmaStatus::ANON_PRIVATE));
        if used == 0 {
            vmas = vec![vma(COUNT, end, VmaStatus::ANON_PRIVATE)];
        }
        Layout::with(vmas)
    }

    fn heeding() -> Manifest {
        let mut manifest = manifest();
        manifest.subject.ledger = Some(LedgerRecord { count: COUNT, anchors: ANCHORS_AT });
        manifest.machine.kernel = "6.18.0".to_owned();
        manifest
    }

    fn reason(manifest: &Manifest, layout: &Layout) -> &'static str {
        let choice = chosen(manifest, layout, true, MemoryMode::Auto);
        assert_eq!((choice.memory, choice.entry), (MemoryMode::Copy, None));
        choice.reason
    }

    #[test]
    fn a_process_that_heeds_its_ledger_is_mapped() {
        for used in [0, 3] {
            let choice = chosen(&heeding(), &layout(used), true, MemoryMode::Auto);
            assert_eq!(choice.memory, MemoryMode::Map);
            let anchor = ANCHORS_AT + used * PAGE_SIZE;
            assert_eq!(choice.entry, Some(Entry { count_at: COUNT, count: used + 1, anchor }));
        }
    }

    #[test]
    fn an_image_that_was_made_whole_has_free_entries_again() {
        let end = ANCHORS_AT + ANCHORS as u64 * PAGE_SIZE;
        let unused = Vma { prot: 0, ..vma(ANCHORS_AT, ANCHORS_AT + PAGE_SIZE, VmaStatus::ANON_PRIVATE) };
        let layout = Layout::with(vec![
            vma(COUNT, ANCHORS_AT, VmaStatus::ANON_PRIVATE),
            unused,
            vma(ANCHORS_AT + PAGE_SIZE, end, VmaStatus::ANON_PRIVATE),
        ]);
        let entry = chosen(&heeding(), &layout, true, MemoryMode::Auto).entry.unwrap();
        assert_eq!((entry.count, entry.anchor), (1, ANCHORS_AT));
    }

    #[test]
    fn others_are_copied_for_a_reason() {
        let mut other = heeding();
        other.subject.ledger = None;
        assert!(reason(&other, &layout(0)).contains("no functions of defrost's"));
        other = heeding();
        other.seams = vec![0x1000; MOST_SEAMS + 1];
        assert!(reason(&other, &layout(0)).contains("too many large blocks"));
        other = heeding();
        other.machine.kernel = "6.10.2".to_owned();
        assert!(reason(&other, &layout(0)).contains("older than 6.11"));
        assert!(reason(&heeding(), &layout(ANCHORS as u64)).contains("as many images"));
        assert!(reason(&heeding(), &Layout::with(Vec::new())).contains("not where the image says"));
        other = heeding();
        other.subject.ledger = Some(LedgerRecord { count: u64::MAX - 3, anchors: u64::MAX - 4095 });
        assert!(reason(&other, &layout(0)).contains("not where the image says"));
    }

    #[test]
    fn what_is_asked_for_is_done() {
        let copy = chosen(&heeding(), &layout(0), true, MemoryMode::Copy);
        assert_eq!((copy.memory, copy.entry, copy.reason), (MemoryMode::Copy, None, "it was asked for"));
        let map = chosen(&heeding(), &layout(0), true, MemoryMode::Map);
        assert!(map.memory == MemoryMode::Map && map.entry.is_some());
        let mut other = heeding();
        other.subject.ledger = None;
        let map = chosen(&other, &layout(0), true, MemoryMode::Map);
        assert_eq!((map.memory, map.entry), (MemoryMode::Map, None));
    }

    #[test]
    fn what_could_not_be_executed_is_not_mapped_unasked() {
        let choice = chosen(&heeding(), &layout(0), false, MemoryMode::Auto);
        assert_eq!((choice.memory, choice.entry), (MemoryMode::Copy, None));
        assert!(choice.reason.contains("noexec"), "{}", choice.reason);
        assert_eq!(
            chosen(&heeding(), &layout(0), false, MemoryMode::Map).memory,
            MemoryMode::Map,
            "and refused"
        );
        assert!(is_executable(&tempfile::tempfile().unwrap()).is_ok());
    }

    #[test]
    fn an_entry_is_made_only_where_something_is_mapped() {
        let entry = chosen(&heeding(), &layout(0), true, MemoryMode::Map).entry.unwrap();
        assert_eq!(entry.calls(5, &[]), []);
        let mapped = exactly(Step::Map, libc::SYS_mmap, &[0x10_0000, 0x4_0000, 3, 0, 5, 0], 0x10_0000);
        let calls = entry.calls(5, &[mapped]);
        assert_eq!(calls.len(), 2);
        assert_eq!((calls[0].arguments[0], calls[1].arguments[4]), (ANCHORS_AT, COUNT));
    }
}
