//! Memory that a file stands in for, made as a restore by mapping makes it, under the program's own `madvise` and
//! `mremap`: those of the C library's header, which the linker resolves to this crate's.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::ffi::c_int;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;

use super::call::PAGE;
use super::ledger;

const COLD: u8 = 7;
const WARM: u8 = 9;

/// Eight pages of a file full of [`COLD`], with no access before and after.
struct Lent {
    file: File,
    room: usize,
    start: usize,
}

const PAGES: usize = 8;

impl Lent {
    fn new() -> Self {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[COLD; PAGES * PAGE]).unwrap();
        ledger::enter(&file);
        let room = map(0, 3 * PAGES * PAGE, 0, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
        let start = room + PAGES * PAGE;
        let lent = Self { file, room, start };
        lent.map(lent.start, PAGES);
        lent
    }

    /// Maps the first pages of the file.
    fn map(&self, at: usize, pages: usize) {
        map(at, pages * PAGE, 3, libc::MAP_PRIVATE | libc::MAP_FIXED, self.file.as_raw_fd());
    }

    /// The first byte of each page.
    fn bytes(&self) -> Vec<u8> {
        (0..PAGES).map(|page| byte(self.start + page * PAGE)).collect()
    }

    fn advise(&self, page: usize, pages: usize, advice: c_int) -> Result<(), Option<i32>> {
        advise(self.start + page * PAGE, pages * PAGE, advice)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: all of it was mapped by this test.
        unsafe { libc::munmap(self.room as *mut _, 3 * PAGES * PAGE) };
    }
}

fn map(at: usize, len: usize, protection: c_int, flags: c_int, fd: c_int) -> usize {
    // SAFETY: the address is free, or of memory that this test has mapped.
    let address = unsafe { libc::mmap(at as *mut _, len, protection, flags, fd, 0) };
    assert_ne!(address, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    address.addr()
}

fn advise(at: usize, len: usize, advice: c_int) -> Result<(), Option<i32>> {
    // SAFETY: the memory is this test's.
    let result = unsafe { libc::madvise(at as *mut _, len, advice) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error()) }
}

fn remap(at: usize, len: usize, new: usize, flags: c_int, target: usize) -> Result<usize, Option<i32>> {
    // SAFETY: the memory is this test's.
    let address = unsafe { libc::mremap(at as *mut _, len, new, flags, target) };
    let failed = address == libc::MAP_FAILED;
    if failed { Err(std::io::Error::last_os_error().raw_os_error()) } else { Ok(address.addr()) }
}

fn byte(at: usize) -> u8 {
    // SAFETY: the memory is this test's, and readable.
    unsafe { (at as *const u8).read_volatile() }
}

fn write(at: usize, value: u8) {
    // SAFETY: the memory is this test's, and writable.
    unsafe { (at as *mut u8).write_volatile(value) };
}

#[test]
fn this_program_calls_the_functions_of_this_crate() {
    let place = ledger::place().expect("the ledger is looked at");
    assert!(place.count.is_multiple_of(PAGE as u64));
    assert_eq!(place.anchors, place.count + PAGE as u64);
}

#[test]
fn what_is_discarded_shows_zeros_and_not_the_file() {
    let lent = Lent::new();
    write(lent.start + 3 * PAGE, WARM);
    // SAFETY: the memory is this test's.
    let raw = unsafe { libc::syscall(libc::SYS_madvise, lent.start + 3 * PAGE, PAGE, libc::MADV_DONTNEED) };
    assert_eq!((raw, byte(lent.start + 3 * PAGE)), (0, COLD), "the kernel alone shows the file");
    lent.advise(1, 2, libc::MADV_DONTNEED).unwrap();
    lent.advise(4, 1, libc::MADV_FREE).unwrap();
    lent.advise(6, 1, super::discard::DONTNEED_LOCKED).unwrap();
    assert_eq!(lent.bytes(), [COLD, 0, 0, COLD, 0, COLD, 0, COLD]);
    write(lent.start + PAGE, WARM);
    lent.advise(0, PAGES, libc::MADV_DONTNEED).unwrap();
    assert_eq!(lent.bytes(), [0; PAGES]);
    // What is anonymous by now is freed by the kernel.
    write(lent.start, WARM);
    lent.advise(0, 1, libc::MADV_FREE).unwrap();
}

#[test]
fn protection_stays_and_holes_stay_holes() {
    let lent = Lent::new();
    // SAFETY: the memory is this test's.
    unsafe { libc::mprotect((lent.start + PAGE) as *mut _, PAGE, libc::PROT_READ) };
    // SAFETY: the memory is this test's.
    unsafe { libc::munmap((lent.start + 4 * PAGE) as *mut _, PAGE) };
    assert_eq!(lent.advise(0, PAGES, libc::MADV_DONTNEED), Err(Some(libc::ENOMEM)));
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(maps.contains(&format!("{:x}-{:x} r--p 00000000", lent.start + PAGE, lent.start + 2 * PAGE)));
    assert!(!maps.contains(&format!("{:x}-", lent.start + 4 * PAGE)), "the hole was filled");
    assert_eq!(byte(lent.start + PAGE), 0);
    assert_eq!(byte(lent.start + 7 * PAGE), 0);
}

#[test]
fn other_files_and_shared_memory_are_left_to_the_kernel() {
    let lent = Lent::new();
    let mut other = tempfile::tempfile().unwrap();
    other.write_all(&[COLD; PAGES * PAGE]).unwrap();
    for (page, flags) in [(0, libc::MAP_PRIVATE), (2, libc::MAP_SHARED)] {
        map(lent.start + page * PAGE, PAGE, 3, flags | libc::MAP_FIXED, other.as_raw_fd());
    }
    write(lent.start, COLD + 1);
    write(lent.start + 2 * PAGE, WARM);
    lent.advise(0, PAGES, libc::MADV_DONTNEED).unwrap();
    // Both are the first page of that file, into which the shared one writes.
    assert_eq!(lent.bytes(), [WARM, 0, WARM, 0, 0, 0, 0, 0]);
}

#[test]
fn locked_memory_is_not_discarded() {
    let lent = Lent::new();
    // SAFETY: the memory is this test's.
    let locked = unsafe { libc::mlock(lent.start as *const _, PAGE) } == 0;
    if locked {
        assert_eq!(lent.advise(0, 1, libc::MADV_DONTNEED), Err(Some(libc::EINVAL)));
        assert_eq!(byte(lent.start), COLD);
    }
    assert_eq!(lent.advise(0, 1, 77), Err(Some(libc::EINVAL)), "advice that nobody knows");
    assert_eq!(advise(lent.start + 1, 1, libc::MADV_DONTNEED), Err(Some(libc::EINVAL)));
    assert_eq!(lent.advise(0, 0, libc::MADV_DONTNEED), Ok(()));
}

#[test]
fn a_guard_leaves_nothing_behind_it() {
    let lent = Lent::new();
    if lent.advise(0, 1, super::discard::GUARD_INSTALL).is_ok() {
        const GUARD_REMOVE: c_int = 103;
        lent.advise(0, 1, GUARD_REMOVE).unwrap();
        assert_eq!(byte(lent.start), 0);
    }
}

#[test]
fn memory_that_is_extended_goes_on_with_zeros() {
    let lent = Lent::new();
    // In place: what is behind is taken, so it moves.
    let behind = lent.start + PAGES * PAGE;
    assert_eq!(remap(lent.start, PAGES * PAGE, 2 * PAGES * PAGE, 0, 0), Err(Some(libc::ENOMEM)));
    // SAFETY: the memory is this test's.
    unsafe { libc::munmap(behind as *mut _, PAGES * PAGE) };
    let same = remap(lent.start, PAGES * PAGE, (PAGES + 1) * PAGE, 0, 0).unwrap();
    assert_eq!((same, byte(behind)), (lent.start, 0));
    // Several mappings by now, and one of them the file's.
    let moved =
        remap(lent.start, (PAGES + 1) * PAGE, 1 << 20, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, far());
    let moved = moved.unwrap();
    let seen: Vec<u8> = (0..PAGES + 2).map(|page| byte(moved + page * PAGE)).collect();
    assert_eq!(seen, [COLD, COLD, COLD, COLD, COLD, COLD, COLD, COLD, 0, 0]);
    write(moved + (1 << 20) - 1, WARM);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains(&format!("{:x}-", lent.start)), "the old place is free");
    // It is still known where it is now.
    advise(moved, 1 << 20, libc::MADV_DONTNEED).unwrap();
    assert_eq!((byte(moved), byte(moved + PAGE)), (0, 0));
    // SAFETY: the memory is this test's.
    unsafe { libc::munmap(moved as *mut _, 1 << 20) };
}

#[test]
fn what_became_several_mappings_is_still_one_for_the_program() {
    let lent = Lent::new();
    lent.advise(2, 3, libc::MADV_DONTNEED).unwrap();
    let fixed = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let moved = remap(lent.start, PAGES * PAGE, PAGES * PAGE, fixed, far()).unwrap();
    assert_eq!((byte(moved + PAGE), byte(moved + 2 * PAGE), byte(moved + 5 * PAGE)), (COLD, 0, COLD));
    // With another protection in the middle it is not, as it never was.
    // SAFETY: the memory is this test's.
    unsafe { libc::mprotect((moved + 3 * PAGE) as *mut _, PAGE, libc::PROT_READ) };
    let extended = remap(moved, PAGES * PAGE, 1 << 20, libc::MREMAP_MAYMOVE, 0);
    assert_eq!(extended, Err(Some(libc::EFAULT)));
    // SAFETY: the memory is this test's.
    unsafe { libc::munmap(moved as *mut _, 1 << 20) };
}

#[test]
fn memory_that_moves_away_leaves_zeros_where_it_is_to_stay_mapped() {
    let lent = Lent::new();
    let dont_unmap = 4;
    let flags = libc::MREMAP_MAYMOVE | dont_unmap;
    let moved = remap(lent.start, PAGES * PAGE, PAGES * PAGE, flags, 0).unwrap();
    assert_eq!(byte(moved), COLD);
    assert_eq!(lent.bytes(), [0; PAGES]);
    let smaller = remap(moved, PAGES * PAGE, PAGE, libc::MREMAP_MAYMOVE, 0).unwrap();
    assert_eq!((smaller, byte(smaller)), (moved, COLD));
    // SAFETY: the memory is this test's.
    unsafe { libc::munmap(moved as *mut _, PAGE) };
}

/// Room of 1 MiB, which may be replaced.
fn far() -> usize {
    map(0, 1 << 20, 0, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
}
