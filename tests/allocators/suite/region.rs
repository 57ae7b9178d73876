//! Memory that the program maps itself, by a crate that calls the C library's functions, as most do.

use memmap2::{MmapMut, MmapOptions, RemapOptions, UncheckedAdvice};

use super::block::{Numbers, fill, nonzero_at, wrong_at};

pub const PAGE: usize = 4096;
/// Advice of madvise(2) that the crate does not know for memory like this.
const MADV_FREE: i32 = libc::MADV_FREE;

/// Pages, each with its seed; 0 stands for zeros.
pub struct Region {
    map: MmapMut,
    seeds: Vec<u64>,
}

impl Region {
    pub fn new(pages: usize, seed: u64) -> Self {
        let map = MmapOptions::new().len(pages * PAGE).map_anon().unwrap();
        let mut region = Self { map, seeds: vec![0; pages] };
        region.check();
        (0..pages).for_each(|page| region.write(page, seed + page as u64 + 1));
        region
    }

    pub fn pages(&self) -> usize {
        self.seeds.len()
    }

    pub fn page(&self, page: usize) -> &[u8] {
        &self.map[page * PAGE..(page + 1) * PAGE]
    }

    pub fn write(&mut self, page: usize, seed: u64) {
        fill(&mut self.map[page * PAGE..(page + 1) * PAGE], seed);
        self.seeds[page] = seed;
    }

    /// The first page that is not as it must be. Takes no memory.
    pub fn wrong_page(&self) -> Option<usize> {
        (0..self.pages()).find(|page| match self.seeds[*page] {
            0 => nonzero_at(self.page(*page)).is_some(),
            seed => wrong_at(self.page(*page), seed).is_some(),
        })
    }

    #[track_caller]
    pub fn check(&self) {
        let wrong = self.wrong_page();
        assert_eq!(wrong, None, "a region of {} pages at {:p}", self.pages(), self.map.as_ptr());
    }

    /// Gives pages back, which are zeros then.
    pub fn discard(&mut self, first: usize, pages: usize) {
        // SAFETY: nobody refers to these pages, which become zeros.
        let advised =
            unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, first * PAGE, pages * PAGE) };
        advised.unwrap();
        self.seeds[first..first + pages].fill(0);
    }

    /// Has the kernel free pages when it likes: each is as it was, or zeros.
    pub fn free(&mut self, first: usize, pages: usize) {
        let start = self.map[first * PAGE..].as_mut_ptr();
        // SAFETY: nobody refers to these pages, whose contents are looked at anew below.
        let freed = unsafe { libc::madvise(start.cast(), pages * PAGE, MADV_FREE) };
        assert_eq!(freed, 0, "{}", std::io::Error::last_os_error());
        for page in first..first + pages {
            // What is written to is there to stay, as it is by then.
            self.map[page * PAGE] ^= 0xff;
            self.map[page * PAGE] ^= 0xff;
            if nonzero_at(self.page(page)).is_none() {
                self.seeds[page] = 0;
            }
        }
        self.check();
    }

    /// The system call itself, without the C library.
    pub fn discard_by_system_call(&mut self, first: usize, pages: usize) {
        let start = self.map[first * PAGE..].as_mut_ptr();
        // SAFETY: nobody refers to these pages, whose contents are looked at by the test.
        let result = unsafe { libc::syscall(libc::SYS_madvise, start, pages * PAGE, libc::MADV_DONTNEED) };
        assert_eq!(result, 0);
    }

    /// Another number of pages; new ones are zeros.
    pub fn resize(&mut self, pages: usize) {
        // SAFETY: nobody refers to the memory, which may move.
        unsafe { self.map.remap(pages * PAGE, RemapOptions::new().may_move(true)) }.unwrap();
        self.seeds.resize(pages, 0);
    }

    /// Write-protects it, and takes that back.
    pub fn protect_for_a_while(self) -> Self {
        let Self { map, seeds } = self;
        let map = map.make_read_only().unwrap();
        let held = map.iter().step_by(PAGE).fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        let map = map.make_mut().unwrap();
        let holds = map.iter().step_by(PAGE).fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        assert_eq!(held, holds);
        Self { map, seeds }
    }

    /// One of the ways to use it.
    pub fn used(mut self, numbers: &mut Numbers) -> Self {
        let first = numbers.below(self.pages());
        let pages = 1 + numbers.below(self.pages() - first);
        match numbers.below(6) {
            0 | 1 => self.discard(first, pages),
            2 => self.free(first, pages),
            3 => (first..first + pages).for_each(|page| self.write(page, numbers.next() | 1)),
            4 => self.resize(1 + numbers.below(2 * self.pages()).min(511)),
            _ => self = self.protect_for_a_while(),
        }
        self
    }
}

impl Region {
    /// Whether this page is extended by zeros when it alone is, as a part of the mapping.
    pub fn part_is_extended(self, page: usize) -> bool {
        let seed = self.seeds[page];
        let mut map = std::mem::ManuallyDrop::new(self.map);
        let (start, len) = (map.as_mut_ptr(), map.len());
        let part = start.wrapping_add(page * PAGE);
        // SAFETY: the region is given up, and the part lies in it.
        let moved = unsafe { libc::mremap(part.cast(), PAGE, 3 * PAGE, libc::MREMAP_MAYMOVE) };
        assert_ne!(moved, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        // SAFETY: the call has made this many bytes there.
        let bytes = unsafe { std::slice::from_raw_parts(moved.cast::<u8>(), 3 * PAGE) };
        let right = wrong_at(&bytes[..PAGE], seed).is_none() && nonzero_at(&bytes[PAGE..]).is_none();
        for (start, len) in [(moved.cast(), 3 * PAGE), (start, len)] {
            // SAFETY: nobody refers to it any more; a hole in the range is no error.
            unsafe { libc::munmap(start.cast(), len) };
        }
        right
    }
}
