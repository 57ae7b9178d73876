//! The pager at work on memory of the test program's own, each test with a thread that waits for pages.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::mpsc;

use super::super::missing::Missing;
use super::*;
use crate::sys::userfault::{Handled, Userfault};

const PAGES: u64 = 600;

/// What a page of the file is filled with.
fn mark(page: u64) -> u8 {
    u8::try_from(page % 251 + 1).unwrap()
}

fn file() -> Pages {
    let mut bytes = Vec::new();
    for page in 0..PAGES {
        bytes.extend(std::iter::repeat_n(mark(page), PAGE_SIZE as usize));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pages");
    std::fs::write(&path, bytes).unwrap();
    Pages::of(&File::open(path).unwrap()).unwrap()
}

/// A pager for memory of these many pages, and what it did, once `toucher` is done with the memory and all is
/// filled; while that is `recorded`, nothing is filled unasked.
/// `None` where faults cannot be handled.
fn paged(
    recorded: bool,
    toucher: impl FnOnce(Handled) + Send + 'static,
) -> Option<(End, Account, Vec<Touch>)> {
    if let Err(reason) = super::super::possible() {
        eprintln!("skipped: {reason}");
        return None;
    }
    let fault = Userfault::open().unwrap();
    let memory = Handled::new(&fault, PAGES * PAGE_SIZE);
    let run = Run { start: memory.start, end: memory.start + memory.len, offset: 0 };
    let missing = Missing::new(std::slice::from_ref(&(run.start..run.end)), &[run]);
    // The process ends with the toucher, and whoever watches does not.
    let (process, lives) = rustix::pipe::pipe().unwrap();
    let (watch, _watches) = rustix::pipe::pipe().unwrap();
    let (sender, done) = mpsc::channel();
    std::thread::spawn(move || {
        toucher(memory);
        drop(lives);
        sender.send(()).unwrap();
    });
    let pages = file();
    let work = Work {
        space: Space::new(fault, missing),
        pages: &pages,
        first: &[],
        recording: recorded.then(|| Instant::now() + Duration::from_secs(60)),
        process: process.as_fd(),
        watch: watch.as_fd(),
    };
    let mut kept = Vec::new();
    let (end, mut account) = work.run(&mut |touched| kept = touched.to_vec()).unwrap();
    done.recv_timeout(Duration::from_secs(30)).expect("the thread goes on");
    account.touched.clear();
    kept.iter_mut().for_each(|touch| touch.page = touch.page.wrapping_sub(memory.start));
    Some((end, account, kept))
}

#[test]
fn all_pages_come_whether_asked_for_or_not() {
    let Some((end, account, _)) = paged(false, |memory| {
        for page in (0..PAGES).rev() {
            assert_eq!(memory.read(page * PAGE_SIZE), mark(page), "page {page}");
        }
    }) else {
        return;
    };
    assert_eq!(end, End::Done);
    // 64 KiB come at a time.
    assert!(account.faults <= PAGES.div_ceil(16) + 1, "{account:?}");
}

#[test]
fn pages_that_were_given_back_are_zero() {
    paged(true, |memory| {
        assert_eq!(memory.read(0), mark(0));
        memory.give_back(0, 20 * PAGE_SIZE);
        for page in 0..20 {
            assert_eq!(memory.read(page * PAGE_SIZE), 0, "page {page}");
        }
        assert_eq!(memory.read(20 * PAGE_SIZE), mark(20));
    });
}

#[test]
fn memory_that_moves_is_filled_where_it_went() {
    paged(true, |memory| {
        assert_eq!(memory.read(5 * PAGE_SIZE), mark(5));
        let memory = memory.moved();
        for page in 0..PAGES {
            assert_eq!(memory.read(page * PAGE_SIZE), mark(page), "page {page}");
        }
    });
}

#[test]
fn what_is_asked_for_is_recorded_page_by_page() {
    let Some((end, _, touched)) = paged(true, |memory| {
        for page in [7, 300, 8] {
            memory.read(page * PAGE_SIZE);
        }
    }) else {
        return;
    };
    assert_eq!(end, End::Done);
    let pages: Vec<u64> = touched.iter().map(|touch| touch.page / PAGE_SIZE).collect();
    assert_eq!(pages, [7, 300, 8]);
    assert!(touched.iter().all(|touch| !touch.write));
}

#[test]
fn what_is_to_come_first_comes_before_all_else() {
    if let Err(reason) = super::super::possible() {
        return eprintln!("skipped: {reason}");
    }
    let fault = Userfault::open().unwrap();
    let memory = Handled::new(&fault, PAGES * PAGE_SIZE);
    let run = Run { start: memory.start, end: memory.start + memory.len, offset: 0 };
    let missing = Missing::new(std::slice::from_ref(&(run.start..run.end)), &[run]);
    let at = |pages: Range<u64>| memory.start + pages.start * PAGE_SIZE..memory.start + pages.end * PAGE_SIZE;
    let file = file();
    let mut rounds = Rounds {
        spaces: vec![Space::new(fault, missing)],
        pages: &file,
        first: vec![at(500..PAGES), at(0..100)],
        recording: None,
        ended: false,
        last_fault: None,
        last_turn: Instant::now(),
        held_since: None,
        account: Account::default(),
    };
    while !rounds.first.is_empty() {
        assert_eq!(rounds.pause(), Duration::ZERO, "nobody has to wait for it");
        rounds.fill().unwrap();
    }
    // The rest of the last turn was for others.
    let left = rounds.spaces[0].missing.from(0).unwrap();
    assert_eq!(left.end, at(0..500).end);
    let first = at(100..PAGES).start;
    assert!((first..=first + STRIDE).contains(&left.start), "{left:?}");
    // They are there: nobody serves any more.
    for page in (0..100).chain(500..PAGES) {
        assert_eq!(memory.read(page * PAGE_SIZE), mark(page), "page {page}");
    }
}
