//! What memory shows in a restored process after it was given back or extended, each way once.

use serde::{Deserialize, Serialize};

use super::block::{fill, nonzero_at, wrong_at};
use super::region::{PAGE, Region};

const SEED: u64 = 77;
const PAGES: usize = 256;
/// A block that the C library's allocator maps by itself, and about how far it is extended.
const GROWING: usize = 2 << 20;
const GROWN: usize = 64 << 20;

/// Memory that is filled before the dump.
pub struct Prepared {
    by_call: Region,
    by_function: Region,
    extended: Region,
    moved: Region,
    growing: Vec<Vec<u8>>,
}

/// What is seen: whether something is as it was before the dump, or as it ought to be.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// The dump's contents come back by the system call alone: the reason for all this.
    system_call_shows_the_file: bool,
    /// They do not by the C library's function.
    function_shows_zeros: bool,
    /// Extended memory goes on with zeros, and keeps what it held.
    extension_shows_zeros: bool,
    /// And so does a part of a mapping that is moved to be extended.
    part_shows_zeros: bool,
    /// Large blocks grow.
    blocks_grow: bool,
}

impl Shown {
    pub fn expected() -> Self {
        Self {
            system_call_shows_the_file: true,
            function_shows_zeros: true,
            extension_shows_zeros: true,
            part_shows_zeros: true,
            blocks_grow: true,
        }
    }
}

impl Prepared {
    pub fn new() -> Self {
        let region = || Region::new(PAGES, SEED);
        let growing = (0..3).map(|number| {
            let mut bytes = vec![0; GROWING];
            fill(&mut bytes, number);
            bytes
        });
        Self {
            by_call: region(),
            by_function: region(),
            extended: region(),
            moved: region(),
            growing: growing.collect(),
        }
    }

    pub fn look(mut self) -> Shown {
        let middle = PAGES / 2;
        self.by_call.write(middle, SEED);
        self.by_call.discard_by_system_call(middle, 1);
        let dumped = SEED + middle as u64 + 1;
        let system_call_shows_the_file = wrong_at(self.by_call.page(middle), dumped).is_none();

        self.by_function.discard(1, PAGES - 1);
        let function_shows_zeros = self.by_function.wrong_page().is_none();

        self.extended.resize(4 * PAGES);
        let extension_shows_zeros = self.extended.wrong_page().is_none();
        (0..4 * PAGES).for_each(|page| self.extended.write(page, 1));

        let part_shows_zeros = self.moved.part_is_extended(middle);

        let mut blocks_grow = true;
        for (number, bytes) in (0..).zip(&mut self.growing) {
            bytes.reserve_exact(GROWN - GROWING);
            blocks_grow &= wrong_at(bytes, number).is_none();
            // Behind the end of the file this would be SIGBUS.
            bytes.resize(GROWN, 0);
            blocks_grow &= nonzero_at(&bytes[GROWING..]).is_none();
            bytes.truncate(PAGE);
            bytes.shrink_to_fit();
            blocks_grow &= wrong_at(bytes, number).is_none();
        }
        Shown {
            system_call_shows_the_file,
            function_shows_zeros,
            extension_shows_zeros,
            part_shows_zeros,
            blocks_grow,
        }
    }
}
