//! Events in a file: records one after the other, each with a header of its own, and how they are read again.
//!
//! Since each record begins with the same eight bytes and has a checksum, what is damaged is passed over, with its
//! place and reason, and the rest is still read. It must not know who writes the file.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read};

use super::event::Event;
use crate::image::record::{HEADER_LEN, Kind, RecordError, announced_len, decode, encode};
use crate::wake::InstanceId;

/// What the records of a file are. Raise the version with every change of [`Event`].
pub const KIND: Kind = Kind { magic: *b"defr-evt", version: 1 };

/// The longest record, in bytes: above what the limits of an event allow.
pub const RECORD_LIMIT: usize = 256 << 10;

/// How much is read at once.
const PIECE: usize = 64 << 10;

/// The record of an event.
///
/// # Errors
/// [`RecordError::TooLong`], of an event beyond its limits.
pub(super) fn stored(event: &Event) -> Result<Vec<u8>, RecordError> {
    let bytes = encode(KIND, event)?;
    if bytes.len() > RECORD_LIMIT { Err(RecordError::TooLong(bytes.len())) } else { Ok(bytes) }
}

/// One thing that a file holds.
#[derive(Debug)]
#[non_exhaustive]
pub enum Item {
    /// An event.
    Event(Event),
    /// Something that is no event any more.
    Loss(Loss),
}

/// A place in a file that could not be read. What follows it can.
#[derive(Debug)]
#[non_exhaustive]
pub struct Loss {
    /// Where it begins.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
    /// What is wrong with it.
    pub cause: RecordError,
}

impl Loss {
    /// Whether it is an intact record of another defrost's.
    #[must_use]
    pub fn is_of_other_version(&self) -> bool {
        matches!(self.cause, RecordError::Newer { .. } | RecordError::Older { .. })
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at offset {} are lost: {}", self.bytes, self.offset, self.cause)
    }
}

/// Reads the events of a file.
///
/// It ends where no whole record follows. When the file has grown since, it goes on from there; when it has not,
/// [`torn`](Self::torn) tells what is left over.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    buffer: Vec<u8>,
    /// Where in the file the buffer begins.
    offset: u64,
}

impl<R: Read> Reader<R> {
    /// Reads from the beginning of a record.
    pub fn new(source: R) -> Self {
        Self::at(source, 0)
    }

    pub(super) fn at(source: R, offset: u64) -> Self {
        Self { source, buffer: Vec::new(), offset }
    }

    /// The next event or loss; `None` when there is no whole record any more.
    ///
    /// # Errors
    /// Those of reading the file.
    pub fn next_item(&mut self) -> io::Result<Option<Item>> {
        if !self.fill(HEADER_LEN)? {
            return Ok(None);
        }
        let length = announced_len(&self.buffer).unwrap_or(usize::MAX);
        let magic_fits = self.buffer.starts_with(&KIND.magic);
        if magic_fits && length <= RECORD_LIMIT {
            if !self.fill(length)? {
                return Ok(self.passes_over_a_torn_one(length));
            }
            match decode::<Event>(KIND, &self.buffer[..length]) {
                Ok(event) => {
                    self.consume(length);
                    return Ok(Some(Item::Event(event)));
                }
                Err(cause @ (RecordError::Newer { .. } | RecordError::Older { .. })) => {
                    return Ok(Some(self.lose(length, cause)));
                }
                Err(cause) => return self.pass_over(cause).map(Some),
            }
        }
        let cause = match self.buffer.first_chunk() {
            Some(found) if !magic_fits => RecordError::Magic { found: *found, expected: KIND.magic },
            _ => RecordError::TooLong(length),
        };
        self.pass_over(cause).map(Some)
    }

    /// What was left at the end, which is less than a record; `None` when the file ends with a whole one.
    #[must_use]
    pub fn torn(&self) -> Option<Loss> {
        let (len, expected) = (self.buffer.len(), announced_len(&self.buffer).unwrap_or(HEADER_LEN));
        let cause = RecordError::Short { len, expected };
        (len > 0).then_some(Loss { offset: self.offset, bytes: len as u64, cause })
    }

    /// Up to where the file was read, which may be behind the last whole record.
    pub fn position(&self) -> u64 {
        self.offset + self.buffer.len() as u64
    }

    /// Whether what is left over may be the beginning of a record.
    pub(super) fn begins_like_one(&self) -> bool {
        self.buffer.iter().zip(&KIND.magic).all(|(found, expected)| found == expected)
    }

    /// Has at least `wanted` bytes in the buffer, unless the file ends before.
    fn fill(&mut self, wanted: usize) -> io::Result<bool> {
        while self.buffer.len() < wanted {
            let room = PIECE.max(wanted - self.buffer.len()) as u64;
            if self.source.by_ref().take(room).read_to_end(&mut self.buffer)? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn consume(&mut self, count: usize) {
        self.buffer.drain(..count);
        self.offset += count as u64;
    }

    fn lose(&mut self, count: usize, cause: RecordError) -> Item {
        let offset = self.offset;
        self.consume(count);
        Item::Loss(Loss { offset, bytes: count as u64, cause })
    }

    /// Passes over what is damaged, up to what looks like a record again.
    fn pass_over(&mut self, cause: RecordError) -> io::Result<Item> {
        let (offset, mut skipped) = (self.offset, 0_u64);
        // Even a record that is right there may be what it is said to be no more.
        let mut from = 1;
        loop {
            if let Some(at) = find_magic(&self.buffer, from) {
                self.consume(at);
                return Ok(Item::Loss(Loss { offset, bytes: skipped + at as u64, cause }));
            }
            // A beginning of the magic may be the end of the buffer.
            let settled = self.buffer.len().saturating_sub(KIND.magic.len() - 1);
            self.consume(settled);
            skipped += settled as u64;
            from = 0;
            if !self.fill(self.buffer.len() + 1)? {
                let rest = self.buffer.len();
                self.consume(rest);
                return Ok(Item::Loss(Loss { offset, bytes: skipped + rest as u64, cause }));
            }
        }
    }

    /// A record that was not written to its end, with another's behind it. Nothing, when there is none: more of it
    /// may be on its way.
    fn passes_over_a_torn_one(&mut self, expected: usize) -> Option<Item> {
        let mut from = 1;
        while let Some(at) = find_magic(&self.buffer, from) {
            let rest = &self.buffer[at..];
            let whole = announced_len(rest).and_then(|length| rest.get(..length));
            if whole.is_some_and(|whole| decode::<Event>(KIND, whole).is_ok()) {
                return Some(self.lose(at, RecordError::Short { len: at, expected }));
            }
            from = at + 1;
        }
        None
    }
}

fn find_magic(bytes: &[u8], from: usize) -> Option<usize> {
    memchr::memmem::find(bytes.get(from..)?, &KIND.magic).map(|at| from + at)
}

/// Tells events that it has met before.
///
/// What was recorded between the closing of a file and the dump is written by every process that goes on from
/// there, the original and each restored one. Each instance's events are in the order of their sequence numbers.
#[derive(Debug, Default)]
pub struct Once {
    next: HashMap<InstanceId, u64>,
}

impl Once {
    /// Whether this event is met for the first time.
    pub fn is_new(&mut self, event: &Event) -> bool {
        let next = self.next.entry(event.origin.instance).or_default();
        let new = event.sequence >= *next;
        if new {
            *next = event.sequence + 1;
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::events::{Draft, Recorder};

    fn records(count: u64) -> Vec<Vec<u8>> {
        let events = Recorder::default();
        (0..count).for_each(|n| events.record(|| Draft::new("n").with("n", n).message("some text")));
        events.read(0, usize::MAX).events.iter().map(|event| stored(event).unwrap()).collect()
    }

    /// The sequence numbers that can be read, the losses as they are told, and what is torn.
    fn read(bytes: &[u8]) -> (Vec<u64>, Vec<String>, Option<u64>) {
        let mut reader = Reader::new(bytes);
        let (mut events, mut losses) = (Vec::new(), Vec::new());
        let mut covered = 0;
        while let Some(item) = reader.next_item().unwrap() {
            match item {
                Item::Event(event) => events.push(event.sequence),
                Item::Loss(loss) => {
                    assert!(loss.bytes > 0 && loss.offset >= covered);
                    covered = loss.offset + loss.bytes;
                    losses.push(loss.to_string());
                }
            }
        }
        (events, losses, reader.torn().map(|loss| loss.bytes))
    }

    #[test]
    fn a_file_cut_anywhere_has_all_whole_records() {
        let records = records(3);
        let bytes = records.concat();
        for length in 0..=bytes.len() {
            let (events, losses, torn) = read(&bytes[..length]);
            let ends = [0, 1, 2, 3].map(|count| records[..count].concat().len());
            let whole = ends.iter().rposition(|end| *end <= length).unwrap();
            assert_eq!(events.len(), whole, "cut at {length}");
            assert!(losses.is_empty(), "{losses:?}");
            assert_eq!(torn, Some((length - ends[whole]) as u64).filter(|rest| *rest > 0));
        }
    }

    #[test]
    fn each_flipped_bit_costs_one_record() {
        let records = records(3);
        let middle = records[0].len()..records[0].len() + records[1].len();
        for at in middle.clone() {
            let mut bytes = records.concat();
            bytes[at] ^= 1 << (at % 8);
            let (events, losses, torn) = read(&bytes);
            assert_eq!(events, [0, 2], "byte {at}: {losses:?}");
            assert_eq!((losses.len(), torn), (1, None), "{losses:?}");
            let place = format!("{} bytes at offset {} are lost: ", middle.len(), middle.start);
            assert!(losses[0].starts_with(&place), "{losses:?}");
        }
    }

    #[test]
    fn a_torn_record_with_others_behind_it_is_passed_over() {
        let records = records(3);
        let bytes = [&records[0][..], &records[1][..30], &records[2][..]].concat();
        let (events, losses, torn) = read(&bytes);
        assert_eq!((events, losses.len(), torn), (vec![0, 2], 1, None));
    }

    #[test]
    fn a_file_that_grows_is_read_on() {
        let bytes = records(2).concat();
        let mut reader = Reader::new(io::Cursor::new(bytes[..bytes.len() - 1].to_vec()));
        assert!(matches!(reader.next_item().unwrap(), Some(Item::Event(_))));
        assert!(reader.next_item().unwrap().is_none());
        reader.source.get_mut().push(bytes[bytes.len() - 1]);
        assert!(matches!(reader.next_item().unwrap(), Some(Item::Event(event)) if event.sequence == 1));
        assert!(reader.torn().is_none());
    }

    #[test]
    fn another_version_is_told_and_passed_over() {
        let records = records(1);
        let newer = encode(Kind { version: 2, ..KIND }, &7_u8).unwrap();
        let (events, losses, _) = read(&[&newer[..], &records[0][..]].concat());
        assert_eq!(events, [0]);
        assert!(losses[0].contains("made by a newer defrost: format 2, this one reads 1"), "{losses:?}");
    }

    proptest! {
        #[test]
        fn no_bytes_panic_and_none_is_lost_untold(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..300),
            at in 0_usize..300,
        ) {
            bytes.splice(at.min(bytes.len())..at.min(bytes.len()), KIND.magic);
            read(&bytes);
        }
    }
}
