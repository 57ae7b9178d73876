//! A thread that uses memory in every way, and panics when its contents are not what they must be.

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::block::{Block, Numbers, fill, wrong_at};
use super::region::{PAGE, Region};

/// Most that a worker holds, in blocks and bytes.
const MOST_BLOCKS: usize = 800;
const MOST_BYTES: usize = 10 << 20;
const REGIONS: usize = 6;
/// Bytes of stack that a new thread uses.
const STACK: usize = 512 * 1024;

pub struct Worker {
    numbers: Numbers,
    blocks: Vec<Block>,
    bytes: usize,
    regions: Vec<Region>,
    trim: fn(),
}

impl Worker {
    /// One that holds as much as it may.
    pub fn new(seed: u64, trim: fn()) -> Self {
        let mut numbers = Numbers::from(seed);
        let regions =
            (0..REGIONS).map(|_| Region::new(64 + numbers.below(200), numbers.next() >> 1)).collect();
        let mut worker = Self { numbers, blocks: Vec::new(), bytes: 0, regions, trim };
        while worker.blocks.len() < MOST_BLOCKS && worker.bytes < MOST_BYTES {
            worker.allocate();
        }
        worker
    }

    /// All that it holds is right.
    pub fn check(&self) {
        self.blocks.iter().for_each(Block::check);
        self.regions.iter().for_each(Region::check);
    }

    /// One of the ways.
    pub fn turn(&mut self) {
        match self.numbers.below(1000) {
            0..250 => self.allocate(),
            250..600 => self.free(),
            600..750 => self.resize(),
            750..960 => self.use_region(),
            960..975 => (self.trim)(),
            975..985 => self.fork(),
            985..997 => self.thread(),
            _ => execute(),
        }
        while self.blocks.len() > MOST_BLOCKS || self.bytes > MOST_BYTES {
            self.free();
        }
    }

    fn len(&mut self) -> usize {
        let most = match self.numbers.below(100) {
            0..70 => 4 << 10,
            70..95 => 128 << 10,
            95..99 => 1 << 20,
            _ => 4 << 20,
        };
        1 + self.numbers.below(most)
    }

    fn allocate(&mut self) {
        let (seed, len) = (self.numbers.next(), self.len());
        self.blocks.push(Block::new(seed, len));
        self.bytes += len;
    }

    fn free(&mut self) {
        if self.blocks.is_empty() {
            return;
        }
        let index = self.numbers.below(self.blocks.len());
        let block = self.blocks.swap_remove(index);
        block.check();
        self.bytes -= block.bytes.len();
    }

    fn resize(&mut self) {
        if self.blocks.is_empty() {
            return;
        }
        let (index, len) = (self.numbers.below(self.blocks.len()), self.len());
        let block = &mut self.blocks[index];
        block.check();
        self.bytes = self.bytes - block.bytes.len() + len;
        block.resize(len);
    }

    fn use_region(&mut self) {
        let index = self.numbers.below(self.regions.len());
        let region = self.regions.swap_remove(index).used(&mut self.numbers);
        region.check();
        self.regions.push(region);
        if self.numbers.below(20) == 0 {
            let fresh = Region::new(64 + self.numbers.below(200), self.numbers.next() >> 1);
            self.regions.swap_remove(0);
            self.regions.push(fresh);
        }
    }

    /// A child sees the same, and gives memory back as its parent does.
    fn fork(&mut self) {
        let index = self.numbers.below(self.regions.len());
        // SAFETY: the child takes no memory and no lock, and ends by _exit.
        match unsafe { libc::fork() } {
            -1 => panic!("fork: {}", std::io::Error::last_os_error()),
            0 => {
                let wrong = |block: &Block| wrong_at(&block.bytes, block.seed).is_some();
                let before = self.blocks.iter().take(50).any(wrong);
                let region = &mut self.regions[index];
                region.discard(0, region.pages());
                let status = i32::from(before) | i32::from(region.wrong_page().is_some()) << 1;
                // SAFETY: it ends the child and touches no memory.
                unsafe { libc::_exit(status) };
            }
            child => {
                let ended = waitpid(Pid::from_raw(child), None);
                assert!(matches!(ended, Ok(WaitStatus::Exited(_, 0))), "a forked child: {ended:?}");
                self.regions[index].check();
            }
        }
    }

    /// A new thread has a stack and memory of its own.
    fn thread(&mut self) {
        let seed = self.numbers.next();
        let thread = std::thread::Builder::new().stack_size(4 * STACK).spawn(move || {
            let mut stack = [0_u8; STACK];
            fill(&mut stack, seed);
            let blocks: Vec<_> = (1..20).map(|number| Block::new(seed, number * PAGE / 2)).collect();
            blocks.iter().for_each(Block::check);
            assert_eq!(wrong_at(&stack, seed), None, "a thread's stack");
        });
        thread.unwrap().join().unwrap();
    }
}

/// Another program.
fn execute() {
    let status = std::process::Command::new("true").status();
    assert!(status.as_ref().is_ok_and(std::process::ExitStatus::success), "{status:?}");
}
