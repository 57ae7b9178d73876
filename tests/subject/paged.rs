//! Memory that is filled on demand, while the process gives it back, moves, copies and unmaps it.

use std::sync::Arc;

use async_trait::async_trait;
use defrost::resource::HookError;
use defrost::{Resource, Wake};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use super::role::Role;
use super::stage::Stage;
use crate::support::host::skip;

const PAGE: usize = 4096;
/// Pages of each block: more than what one fault brings, many times.
const PAGES: usize = 1024;
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// A mapping of the subject's own, each page of which begins with a number.
#[derive(Clone, Copy, Debug)]
struct Block {
    start: usize,
    /// The number of its first page.
    first: u64,
}

impl Block {
    fn new(first: u64) -> Self {
        let len = PAGES * PAGE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let all = unsafe { libc::mmap(std::ptr::null_mut(), len + PAGE, READ_WRITE, ANONYMOUS, -1, 0) };
        assert_ne!(all, libc::MAP_FAILED);
        // SAFETY: its first page, which keeps the block apart from what is mapped before it.
        assert_eq!(unsafe { libc::mprotect(all, PAGE, libc::PROT_NONE) }, 0);
        let start = all as usize + PAGE;
        let block = Self { start, first };
        (0..PAGES).for_each(|page| block.write(page, block.number(page)));
        block
    }

    fn number(self, page: usize) -> u64 {
        self.first + page as u64
    }

    fn at(self, page: usize) -> *mut u64 {
        (self.start + page * PAGE) as *mut u64
    }

    fn read(self, page: usize) -> u64 {
        // SAFETY: the page is mapped and no reference to it exists; volatile, since the kernel changes it too.
        unsafe { self.at(page).read_volatile() }
    }

    fn write(self, page: usize, number: u64) {
        // SAFETY: as for reading.
        unsafe { self.at(page).write_volatile(number) }
    }

    fn is_whole(self, pages: std::ops::Range<usize>) -> bool {
        pages.into_iter().all(|page| self.read(page) == self.number(page))
    }

    fn is_zero(self, pages: std::ops::Range<usize>) -> bool {
        pages.into_iter().all(|page| self.read(page) == 0)
    }

    fn advise(self, pages: std::ops::Range<usize>, advice: i32) {
        // SAFETY: pages of this block, which no reference points to.
        let done = unsafe { libc::madvise(self.at(pages.start).cast(), pages.len() * PAGE, advice) };
        assert_eq!(done, 0);
    }
}

/// Does everything at the wake.
struct Changes {
    role: Role,
    blocks: [Block; 7],
}

#[async_trait]
impl Resource for Changes {
    async fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        if wake.restored().is_none() {
            return Ok(());
        }
        let [given, forked, moved, unmapped, protected, threaded, handed] = self.blocks;
        for (name, right) in [
            ("given back", gives_back(given)),
            ("forked", forks(forked)),
            ("moved", moves(moved)),
            ("unmapped", unmaps(unmapped)),
            ("protected", protects(protected)),
            ("read at once", reads_at_once(threaded)),
            ("handed to a system call", hands_on(handed)),
            ("program", std::process::Command::new("true").status().is_ok_and(|status| status.success())),
        ] {
            if !right {
                self.role.diary.note("wrong", name);
            }
        }
        self.role.diary.note("changed", std::process::id());
        Ok(())
    }
}

fn gives_back(block: Block) -> bool {
    let touched = block.is_whole(100..110);
    block.advise(100..300, libc::MADV_DONTNEED);
    let zero = block.is_zero(100..300);
    block.write(200, 7);
    touched && zero && block.read(200) == 7 && block.is_whole(0..100) && block.is_whole(300..PAGES)
}

fn forks(block: Block) -> bool {
    let child = |life: &dyn Fn() -> bool| {
        // SAFETY: the child reads and writes memory that is mapped, makes system calls, and leaves by _exit.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let status = i32::from(!life());
                // SAFETY: ends this process at once.
                unsafe { libc::_exit(status) }
            }
            ForkResult::Parent { child } => matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))),
        }
    };
    let reads = child(&|| block.is_whole(0..PAGES));
    let changes = child(&|| {
        block.write(10, 99);
        block.advise(20..40, libc::MADV_DONTNEED);
        block.is_zero(20..40) && block.read(10) == 99 && block.is_whole(40..PAGES)
    });
    reads && changes && block.is_whole(0..PAGES)
}

fn moves(block: Block) -> bool {
    let part = 512;
    // SAFETY: the first half of the block goes to where the kernel chooses, and is known by that from here on.
    let start =
        unsafe { libc::mremap(block.at(0).cast(), part * PAGE, 2 * part * PAGE, libc::MREMAP_MAYMOVE) };
    let there = Block { start: start as usize, ..block };
    let rest = block.is_whole(part..PAGES);
    start != libc::MAP_FAILED && rest && there.is_whole(0..part) && there.is_zero(part..2 * part)
}

fn unmaps(block: Block) -> bool {
    let (from, len) = (block.at(300).cast(), 400 * PAGE);
    // SAFETY: pages of this block, which nothing refers to.
    assert_eq!(unsafe { libc::munmap(from, len) }, 0);
    // SAFETY: new memory in their place, where nothing is.
    let again = unsafe { libc::mmap(from, len, READ_WRITE, ANONYMOUS | libc::MAP_FIXED_NOREPLACE, -1, 0) };
    again == from && block.is_zero(300..700) && block.is_whole(0..300) && block.is_whole(700..PAGES)
}

fn protects(block: Block) -> bool {
    // Pages of one cluster with different protection: a copy must not cross.
    for page in (1..64).step_by(3) {
        // SAFETY: a page of this block, which is only read from here on.
        assert_eq!(unsafe { libc::mprotect(block.at(page).cast(), PAGE, libc::PROT_READ) }, 0);
    }
    block.is_whole(0..PAGES)
}

fn reads_at_once(block: Block) -> bool {
    let quarter = PAGES / 4;
    std::thread::scope(|scope| {
        // Each begins elsewhere and reads all of it.
        let readers: Vec<_> = (0..4)
            .map(|number| {
                scope.spawn(move || {
                    let first = number * quarter;
                    block.is_whole(first..PAGES) && block.is_whole(0..first)
                })
            })
            .collect();
        readers.into_iter().all(|reader| reader.join().unwrap())
    })
}

/// System calls meet missing pages too.
fn hands_on(block: Block) -> bool {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    (0..PAGES).step_by(7).all(|page| {
        // SAFETY: the page is mapped, and not changed meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts(block.at(page).cast::<u8>(), 8) };
        let mut back = [0; 8];
        rustix::io::write(&writer, bytes).is_ok_and(|count| count == 8)
            && rustix::io::read(&reader, &mut back).is_ok_and(|count| count == 8)
            && u64::from_ne_bytes(back) == block.number(page)
    })
}

pub fn program(role: Role) {
    let mut next = 1;
    let blocks = [(); 7].map(|()| {
        next += 1 << 32;
        Block::new(next)
    });
    Role::run(async move {
        let stand = role.open();
        let changes = Arc::new(Changes { role: role.clone(), blocks });
        stand.subject.context().register("changes", changes).forever();
        stand.serve().await;
    });
}

/// While something is recorded nothing is filled unasked.
pub fn memory_changes_while_it_is_empty(stage: &Stage) {
    changes(stage, &["--record=300"]);
}

pub fn memory_changes_while_it_is_filled(stage: &Stage) {
    for _ in 0..3 {
        changes(stage, &[]);
    }
}

fn changes(stage: &Stage, more: &[&str]) {
    if let Err(reason) = defrost::engine::instant::pager::possible() {
        return skip("memory that is filled on demand", &reason);
    }
    let image = stage.start("paged", &[]).checkpoint(stage, "img");
    let arguments = [&["--engine", "instant", "--memory", "fault"], more].concat();
    let before = stage.diary.texts("changed").len();
    let (revived, _) = stage.restore(&image, &arguments, before + 1);
    stage.diary.read("changed", before + 1);
    assert_eq!(stage.diary.texts("wrong"), Vec::<String>::new());
    revived.end();
}
