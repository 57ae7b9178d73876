//! Memory.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use crate::differential::play::{Play, until_in_call};
use crate::differential::sys::{self, Region, call};

const PAGE: usize = 4096;
const READ: i32 = libc::PROT_READ;
const WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// What /proc tells of the mapping at this address, but for how much of it is there.
fn described(place: usize) -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let wanted = |line: &str| line.starts_with("VmFlags");
    let mut found = Vec::new();
    let mut inside = false;
    for line in maps.lines() {
        if let Some((start, end)) = line.split_whitespace().next().and_then(|range| range.split_once('-')) {
            let hex = |text| usize::from_str_radix(text, 16).unwrap();
            inside = (hex(start)..hex(end)).contains(&place);
            if inside {
                found.push(line.split_whitespace().nth(1).unwrap().to_owned());
            }
        } else if inside && wanted(line) {
            found.push(line.to_owned());
        }
    }
    found
}

pub fn heap(play: &mut Play) {
    let large: Vec<u64> = (0..8 * 1024 * 1024_u64).map(|index| index.wrapping_mul(0x9e37_79b9)).collect();
    let small: Vec<String> = (0..10_000).map(|index| index.to_string()).collect();
    play.dump();
    let whole = large.iter().zip(0_u64..).all(|(word, index)| *word == index.wrapping_mul(0x9e37_79b9));
    play.expect(whole, "a large piece of the heap has changed");
    let whole = small.iter().enumerate().all(|(index, text)| *text == index.to_string());
    play.expect(whole, "small pieces of the heap have changed");
}

/// Recursion until so many bytes of the stack are in use, at the end of which something is done.
fn deep(top: usize, bytes: usize, end: &mut dyn FnMut()) -> usize {
    let frame = std::hint::black_box([bytes; 64]);
    let place = frame.as_ptr() as usize;
    if top - place >= bytes {
        end();
    } else {
        assert_eq!(deep(top, bytes, end), bytes * frame.len(), "a frame of the stack has changed");
    }
    std::hint::black_box(&frame).iter().sum()
}

/// Six megabytes of the main thread's stack are in use, and more is needed afterwards.
pub fn deep_stack(play: &mut Play) {
    let top = std::ptr::from_ref(&play) as usize;
    deep(top, 6 << 20, &mut || {
        play.dump();
        deep(top, 7 << 20, &mut || ());
    });
}

/// The main thread sleeps with its stack pointer at the end of what its stack has grown to.
pub fn edge_of_the_stack(play: &mut Play) {
    let go = Arc::new(AtomicU32::new(0));
    let leader = sys::tid();
    std::thread::scope(|scope| {
        let other = Arc::clone(&go);
        scope.spawn(move || {
            until_in_call(leader, libc::SYS_futex);
            play.dump();
            sys::release(&other);
        });
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.ends_with("[stack]")).unwrap();
        let start = usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
        sys::sleep_at(start + 256, &go);
    });
}

/// A thousand mappings of three protections, each with content of its own.
pub fn thousand_areas(play: &mut Play) {
    let all = Region::new(1_000 * 2 * PAGE);
    let protections = [WRITE, READ, libc::PROT_NONE, READ | libc::PROT_EXEC];
    let parts: Vec<Region> = (0..1_000).map(|index| all.part(index * 2 * PAGE, 2 * PAGE)).collect();
    for (index, part) in parts.iter().enumerate() {
        part.part(0, PAGE).fill(index as u64);
        part.protect(protections[index % 4]);
    }
    play.dump();
    for (index, part) in parts.iter().enumerate() {
        let readable = sys::is_readable(part.start);
        play.same(format!("area {index} can be read"), readable, index % 4 != 2);
        part.protect(WRITE);
        play.expect(part.part(0, PAGE).holds(index as u64), format!("area {index} has changed"));
        let rest = part.part(PAGE, PAGE).read();
        play.expect(
            rest.iter().all(|byte| *byte == 0),
            format!("area {index} is not clear behind its first page"),
        );
    }
}

/// Advice of every kind that lasts, on small and on large pieces.
pub fn advice(play: &mut Play) {
    let advice = [
        libc::MADV_DONTFORK,
        libc::MADV_DONTDUMP,
        libc::MADV_MERGEABLE,
        libc::MADV_HUGEPAGE,
        libc::MADV_NOHUGEPAGE,
        libc::MADV_SEQUENTIAL,
        libc::MADV_RANDOM,
        libc::MADV_WIPEONFORK,
    ];
    let mut regions = Vec::new();
    for advice in advice {
        for pages in [3, 300] {
            let region = Region::new(pages * PAGE);
            region.fill(pages as u64);
            // A hole on either side, so that it stays a mapping of its own.
            region.part(0, PAGE).protect(libc::PROT_NONE);
            let region = region.part(PAGE, (pages - 1) * PAGE);
            // Kernels may lack one.
            let taken = region.advise(advice);
            region.fill(advice.unsigned_abs().into());
            regions.push((advice, region, taken, described(region.start)));
        }
    }
    play.dump();
    for (advice, region, taken, before) in regions {
        play.expect(
            region.holds(advice.unsigned_abs().into()),
            format!("memory with advice {advice} has changed"),
        );
        play.same(format!("memory with advice {advice} ({taken:?})"), described(region.start), before);
        let of_child = sys::in_child(|| if sys::is_readable(region.start) { region.read()[0] } else { 1 });
        let expected = match (advice, taken) {
            (libc::MADV_DONTFORK, Ok(_)) => 1,
            (libc::MADV_WIPEONFORK, Ok(_)) => 0,
            _ => region.read()[0],
        };
        play.same(format!("memory with advice {advice} in a child"), of_child, expected);
    }
}

/// Pages that are guarded without a mapping of their own, and one that may not be touched, with content.
pub fn guards(play: &mut Play) {
    /// madvise(2), Linux 6.13.
    const MADV_GUARD_INSTALL: i32 = 102;
    const MADV_GUARD_REMOVE: i32 = 103;
    let region = Region::new(600 * PAGE);
    region.fill(7);
    let guard = region.part(100 * PAGE, 5 * PAGE);
    let guarded = guard.advise(MADV_GUARD_INSTALL) == Ok(0);
    let hidden = region.part(595 * PAGE, 5 * PAGE);
    hidden.fill(8);
    hidden.protect(libc::PROT_NONE);
    play.dump();
    play.same("a guard can be read", sys::is_readable(guard.start + PAGE), !guarded);
    play.expect(sys::is_readable(guard.start - 1), "the page before a guard cannot be read");
    play.expect(sys::is_readable(guard.start + 5 * PAGE), "the page behind a guard cannot be read");
    play.expect(region.part(0, 100 * PAGE).holds(7), "memory before a guard has changed");
    if guarded {
        play.same("removing a guard", guard.advise(MADV_GUARD_REMOVE), Ok(0));
        play.expect(guard.read().iter().all(|byte| *byte == 0), "a removed guard is not clear");
    }
    play.expect(!sys::is_readable(hidden.start), "memory without access can be read");
    hidden.protect(READ);
    play.expect(hidden.holds(8), "memory without access has changed");
}

/// A file mapped privately and written to here and there, and a part of it made read-only then.
pub fn private_file(play: &mut Play) {
    let path = play.folder.join("mapped");
    let content: Vec<u8> = (0..400 * PAGE + 100).map(|index| (index / 7) as u8).collect();
    fs::write(&path, &content).unwrap();
    let file = File::open(&path).unwrap();
    let region = Region::map(401 * PAGE, WRITE, libc::MAP_PRIVATE, file.as_raw_fd());
    drop(file);
    region.part(3 * PAGE, PAGE).fill(3);
    region.part(100 * PAGE, 200 * PAGE).fill(4);
    region.part(300 * PAGE, 50 * PAGE).protect(READ);
    region.part(290 * PAGE, 5 * PAGE).protect(libc::PROT_NONE);
    play.dump();
    region.part(290 * PAGE, 5 * PAGE).protect(READ);
    play.expect(region.part(3 * PAGE, PAGE).holds(3), "a changed page is lost");
    play.expect(region.part(100 * PAGE, 200 * PAGE).holds(4), "many changed pages are lost");
    for from in [0, 4 * PAGE, 300 * PAGE, 399 * PAGE] {
        play.expect(
            region.part(from, PAGE).read() == content[from..from + PAGE],
            format!("page {from:x} is another"),
        );
    }
    let mut last = content[400 * PAGE..].to_vec();
    last.resize(PAGE, 0);
    play.expect(region.part(400 * PAGE, PAGE).read() == last, "the page at the end of the file is another");
}

/// Code made at run time: some that can be written still, some that cannot, and much of it.
pub fn code_made_at_run_time(play: &mut Play) {
    /// `mov eax, NUMBER; ret`
    fn returns(number: u8) -> [u8; 6] {
        [0xb8, number, 0, 0, 0, 0xc3]
    }
    let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let codes: Vec<(Region, u8)> =
        [(1, all), (2, READ | libc::PROT_EXEC), (200, all), (200, READ | libc::PROT_EXEC)]
            .into_iter()
            .zip(40..)
            .map(|((pages, protection), number)| {
                let code = Region::new(pages * PAGE);
                code.fill(number.into());
                code.write(&returns(number));
                code.protect(protection);
                (code, number)
            })
            .collect();
    play.dump();
    for (code, number) in codes {
        play.same("a call of code made at run time", code.run(), number.into());
    }
}

/// The end of the heap moved by the program itself.
pub fn moved_break(play: &mut Play) {
    let region = Region { start: sys::move_break(300 * PAGE), len: 300 * PAGE };
    let end = region.start + region.len;
    region.fill(9);
    play.dump();
    play.expect(region.holds(9), "memory below the break has changed");
    let now = call(libc::SYS_brk, &[0]).unwrap();
    play.expect(now >= end, "the break has moved back");
    play.same("moving the break on", sys::move_break(PAGE), now);
}

/// Far more address space than there is memory, with something here and there, as garbage collectors have it.
pub fn sparse(play: &mut Play) {
    let len = 1 << 37;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let region = Region::map(len, libc::PROT_NONE, flags, -1);
    let parts: Vec<Region> = (0..16).map(|index| region.part(index * (len / 16), 100 * PAGE)).collect();
    for (part, seed) in parts.iter().zip(1..) {
        part.protect(WRITE);
        part.fill(seed);
    }
    play.dump();
    for (part, seed) in parts.iter().zip(1..) {
        play.expect(part.holds(seed), format!("part {seed} has changed"));
    }
    play.expect(!sys::is_readable(region.start + len / 32), "what could not be touched can be read");
}

/// A small mapping and a large one side by side, which the kernel keeps apart since the large one was moved there. Made
/// again they could be one, and with huge pages for all memory a page of the first would bring zeros of the second.
pub fn neighbours(play: &mut Play) {
    const HUGE: usize = 2 << 20;
    const MOVE_THERE: i32 = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let room = Region::new(4 * HUGE);
    let start = room.start.next_multiple_of(HUGE);
    let small = Region { start, len: 3 * PAGE };
    let large = Region::new(HUGE);
    let target = start + small.len;
    small.fill(1);
    large.fill(2);
    call(libc::SYS_mremap, &[large.start, HUGE, HUGE, MOVE_THERE as usize, target]).unwrap();
    let large = Region { start: target, len: HUGE };
    play.dump();
    play.expect(small.holds(1), "the small mapping has changed");
    play.expect(large.holds(2), "the large mapping has changed");
}

/// A mapping that grows downwards, other than the main thread's stack.
pub fn growing(play: &mut Play) {
    /// Far from where the kernel puts mappings, so that there is room below it.
    const START: usize = 0x6000_0000_0000;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_GROWSDOWN | libc::MAP_FIXED_NOREPLACE;
    let arguments = [START, 90 * PAGE, WRITE as usize, flags as usize, usize::MAX, 0];
    let start = call(libc::SYS_mmap, &arguments).unwrap();
    let region = Region { start, len: 90 * PAGE };
    region.fill(6);
    play.dump();
    play.expect(region.holds(6), "memory that grows has changed");
    let below = Region { start: start - 10 * PAGE, len: 10 * PAGE };
    below.fill(7);
    play.expect(below.holds(7) && region.holds(6), "memory does not grow any more");
}

/// Mappings at addresses that programs rarely have, which are also those that a restorer would like to use.
pub fn places(play: &mut Play) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let mut regions = Vec::new();
    for start in [0x1_0000, 0x40_0000, 0x1000_0000, 0x1000_0000_0000, 0x1000_0100_0000, 0x7fff_ffff_e000] {
        let arguments = [start, PAGE, WRITE as usize, flags as usize, usize::MAX, 0];
        // One of them may be the program's own already.
        if let Ok(start) = call(libc::SYS_mmap, &arguments) {
            let region = Region { start, len: PAGE };
            region.fill(start as u64);
            regions.push(region);
        }
    }
    play.expect(regions.len() >= 4, "few places are free");
    play.dump();
    for region in regions {
        play.expect(region.holds(region.start as u64), format!("memory at {:x} has changed", region.start));
    }
}

/// Memory that the kernel may take back at any time (MAP_DROPPABLE, Linux 6.11).
pub fn droppable(play: &mut Play) {
    const MAP_DROPPABLE: i32 = 8;
    let region = Region::map(100 * PAGE, WRITE, MAP_DROPPABLE | libc::MAP_ANONYMOUS, -1);
    region.fill(5);
    let before = described(region.start);
    play.dump();
    play.same("droppable memory", described(region.start), before);
    region.fill(6);
    play.expect(region.holds(6), "memory cannot be used any more");
}

/// Memory that must not be paged out.
pub fn locked(play: &mut Play) {
    let region = Region::new(100 * PAGE);
    region.fill(1);
    call(libc::SYS_mlock, &[region.start, region.len]).unwrap();
    let before = described(region.start);
    play.dump();
    play.expect(region.holds(1), "locked memory has changed");
    play.same("locked memory", described(region.start), before);
}
