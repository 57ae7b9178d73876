//! The plan: what the program does, as bytes at a known address.
//!
//! Since the address is known when the plan is written, arguments of its system calls may point into it. The
//! layout is that of the structures here, in the machine's own byte order: a plan is read on the machine where it
//! was written, by the program of the same build.

use std::fmt;

// The structures are also compiled into the program.
include!("wire.rs");

impl Step {
    const ALL: [Self; 16] = [
        Self::Done,
        Self::Move,
        Self::Empty,
        Self::Map,
        Self::Fill,
        Self::Protect,
        Self::Notes,
        Self::Signals,
        Self::Timers,
        Self::Limits,
        Self::Process,
        Self::Descriptors,
        Self::Threads,
        Self::Thread,
        Self::Gather,
        Self::Credentials,
    ];

    /// The step with this number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|step| *step as u32 == number)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done => "handing over",
            Self::Move => "moving the restorer out of the way",
            Self::Empty => "emptying the address space",
            Self::Map => "mapping memory",
            Self::Fill => "reading pages",
            Self::Protect => "protecting memory",
            Self::Notes => "setting the kernel's notes on memory",
            Self::Signals => "setting signals",
            Self::Timers => "setting timers",
            Self::Limits => "setting resource limits",
            Self::Process => "setting attributes of the process",
            Self::Descriptors => "setting descriptor flags",
            Self::Threads => "starting threads",
            Self::Thread => "setting attributes of a thread",
            Self::Gather => "gathering the threads",
            Self::Credentials => "setting credentials",
        })
    }
}

impl Report {
    /// Bytes of a report.
    pub const LEN: usize = size_of::<Self>();

    /// Reads what the program wrote.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let word = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        Self {
            step: u32::from_ne_bytes(word(0)),
            index: u32::from_ne_bytes(word(4)),
            errno: i32::from_ne_bytes(word(8)),
        }
    }
}

/// Lays a plan out, for an address.
#[derive(Debug)]
pub struct Writer {
    home: u64,
    bytes: Vec<u8>,
}

impl Writer {
    /// A plan that will lie at `home`.
    #[must_use]
    pub fn new(home: u64) -> Self {
        Self { home, bytes: vec![0; size_of::<Header>()] }
    }

    /// Adds bytes; gives the address that they will have.
    pub fn data(&mut self, bytes: &[u8]) -> u64 {
        self.home + u64::from(self.blob(bytes).offset)
    }

    /// Adds bytes, as a part.
    pub fn blob(&mut self, bytes: &[u8]) -> Part {
        self.align();
        let part = Part { offset: narrow(self.bytes.len()), count: narrow(bytes.len()) };
        self.bytes.extend_from_slice(bytes);
        part
    }

    /// Adds a list of calls.
    pub fn calls(&mut self, calls: &[Call]) -> Part {
        self.list(calls, |call, words| {
            words.extend([u64::from(call.step) | u64::from(call.outcome) << 32, call.number]);
            words.extend(call.arguments);
            words.push(call.expected);
        })
    }

    /// Adds jobs, each a list of calls.
    pub fn jobs(&mut self, jobs: &[Vec<Call>]) -> Part {
        let lists: Vec<Part> = jobs.iter().map(|calls| self.calls(calls)).collect();
        self.list(&lists, |list, words| words.push(u64::from(list.offset) | u64::from(list.count) << 32))
    }

    /// Adds a list of threads, the leader first.
    pub fn threads(&mut self, threads: &[Thread]) -> Part {
        let part = |part: Part| u64::from(part.offset) | u64::from(part.count) << 32;
        self.list(threads, |thread, words| {
            words.extend([u64::from(thread.tid.cast_unsigned()), thread.tls, thread.clear_tid]);
            words.extend([part(thread.calls), part(thread.frame), thread.frame_at]);
        })
    }

    /// Bytes so far.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Whether nothing was added; the header is always there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.len() == size_of::<Header>()
    }

    /// The plan, with this header; its first fields, `home` and `size` are filled in.
    ///
    /// # Errors
    /// [`TooLarge`] when it takes more than [`SIZE_LIMIT`] bytes.
    pub fn finish(mut self, header: &Header) -> Result<Vec<u8>, TooLarge> {
        let part = |part: Part| u64::from(part.offset) | u64::from(part.count) << 32;
        if self.len() > SIZE_LIMIT {
            return Err(TooLarge(self.len()));
        }
        let h = Header { magic: MAGIC, version: VERSION, size: self.len(), home: self.home, ..*header };
        let mut words = vec![h.magic, u64::from(h.version) | u64::from(h.report.cast_unsigned()) << 32];
        words.extend([
            h.size,
            h.home,
            h.home_len,
            h.code,
            h.scratch,
            h.park,
            h.stacks,
            h.space_end,
            h.gadget,
        ]);
        for moved in h.moves {
            words.extend([moved.offset.cast_unsigned(), moved.len, moved.target]);
        }
        words.extend([h.maps, h.jobs, h.calls, h.threads, h.finish].map(part));
        words.push(u64::from(h.spare) | u64::from(h.helpers) << 32);
        for (place, word) in self.bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        Ok(self.bytes)
    }

    fn list<T>(&mut self, items: &[T], words_of: impl Fn(&T, &mut Vec<u64>)) -> Part {
        let mut words = Vec::new();
        items.iter().for_each(|item| words_of(item, &mut words));
        debug_assert_eq!(words.len() * 8, size_of_val(items), "a structure and its words differ");
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
        let Part { offset, .. } = self.blob(&bytes);
        Part { offset, count: narrow(items.len()) }
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(16), 0);
    }
}

/// A plan is refused long before its lengths exceed this.
fn narrow(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// A plan that the program would not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge(pub u64);

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the plan takes {} bytes, and may take {SIZE_LIMIT}", self.0)
    }
}

impl std::error::Error for TooLarge {}

#[cfg(all(test, target_endian = "little"))]
mod tests {
    use super::*;

    #[test]
    fn structures_are_laid_out_as_the_program_reads_them() {
        assert_eq!(size_of::<Header>() % 8, 0);
        assert_eq!(size_of::<Call>(), 72);
        assert_eq!(size_of::<Thread>(), 48);
        assert_eq!(Report::LEN, 12);
    }

    #[test]
    fn a_plan_knows_its_addresses() {
        let mut writer = Writer::new(0x7000);
        let at = writer.data(b"hello");
        let calls = writer.calls(&[Call { step: 3, number: 39, ..Call::default() }]);
        let header = Header { calls, home_len: 0x1000, spare: 40, ..Header::default() };
        let bytes = writer.finish(&header).unwrap();
        let offset = usize::try_from(at - 0x7000).unwrap();
        assert_eq!(&bytes[offset..offset + 5], b"hello");
        assert_eq!(&bytes[..8], b"DEFRPLAN");
        assert_eq!(bytes[usize::try_from(calls.offset).unwrap()], 3);
        assert_eq!(calls.count, 1);
        assert_eq!(bytes[16..24], (bytes.len() as u64).to_ne_bytes());
    }

    #[test]
    fn steps_have_numbers_and_names() {
        for step in Step::ALL {
            assert_eq!(Step::from_number(step as u32), Some(step));
            assert!(!step.to_string().is_empty());
        }
        assert_eq!(Step::from_number(99), None);
    }

    #[test]
    fn a_plan_that_is_too_large_is_refused() {
        let mut writer = Writer::new(0);
        writer.data(&vec![0; usize::try_from(SIZE_LIMIT).unwrap()]);
        assert!(writer.finish(&Header::default()).is_err());
    }
}
