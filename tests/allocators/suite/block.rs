//! Contents that can be checked: every word follows from a seed.

/// Numbers that follow from a seed: splitmix64.
pub struct Numbers(u64);

impl Numbers {
    pub fn from(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }
}

/// Bytes that repeat, but for the first word of each, which tells its place.
const ROW: usize = 4096;
const WORD: usize = 8;

/// A row of a seed. No word of it is zero, so that memory that was lost is never right.
fn row(seed: u64) -> [u8; ROW] {
    let mut row = [0; ROW];
    let mut numbers = Numbers::from(seed);
    row.chunks_exact_mut(WORD).for_each(|word| word.copy_from_slice(&(numbers.next() | 1).to_ne_bytes()));
    row
}

/// The rows are compared as wholes: word by word it would take long without optimization.
fn place(seed: u64, number: usize) -> [u8; WORD] {
    (seed.wrapping_add(number as u64) << 1 | 1).to_ne_bytes()
}

pub fn fill(bytes: &mut [u8], seed: u64) {
    let mut row = row(seed);
    for (number, part) in bytes.chunks_mut(ROW).enumerate() {
        row[..WORD].copy_from_slice(&place(seed, number));
        part.copy_from_slice(&row[..part.len()]);
    }
}

/// Where a wrong row begins. Takes no memory of the allocator's: a forked child calls it.
pub fn wrong_at(bytes: &[u8], seed: u64) -> Option<usize> {
    let mut row = row(seed);
    bytes.chunks(ROW).enumerate().find_map(|(number, part)| {
        row[..WORD].copy_from_slice(&place(seed, number));
        (*part != row[..part.len()]).then_some(number * ROW)
    })
}

/// Where a row begins that is not all zeros.
pub fn nonzero_at(bytes: &[u8]) -> Option<usize> {
    bytes.chunks(ROW).position(|part| *part != [0; ROW][..part.len()]).map(|number| number * ROW)
}

/// Memory of the allocator's, full of its seed's words.
pub struct Block {
    pub seed: u64,
    pub bytes: Vec<u8>,
}

impl Block {
    pub fn new(seed: u64, len: usize) -> Self {
        let mut bytes = vec![0; len];
        // calloc: what is not zero here was zero for the allocator.
        assert_eq!(nonzero_at(&bytes), None, "{len} fresh bytes are not zero");
        fill(&mut bytes, seed);
        Self { seed, bytes }
    }

    #[track_caller]
    pub fn check(&self) {
        let wrong = wrong_at(&self.bytes, self.seed);
        assert_eq!(wrong, None, "a block of {} bytes at {:p}", self.bytes.len(), self.bytes.as_ptr());
    }

    /// Another length, by realloc.
    pub fn resize(&mut self, len: usize) {
        let kept = self.bytes.len().min(len);
        self.bytes.truncate(kept);
        self.bytes.shrink_to_fit();
        self.bytes.reserve_exact(len - kept);
        self.check();
        self.bytes.resize(len, 0);
        fill(&mut self.bytes, self.seed);
    }
}
