//! Protobuf below the level of messages: what a decoder passes over in silence. Knows no message.
//!
//! `prost` fills a missing required field with zero and drops an unknown one. CRIU refuses the
//! first, and the second may change what the rest means. Both show when the decoded message is
//! encoded again and the two are laid side by side, because a required field is always encoded.

use prost::bytes::Buf;
use prost::encoding::{WireType, decode_key, decode_varint};

/// Messages nested deeper than this are not looked into. CRIU's go to 5.
const MAX_DEPTH: usize = 8;

/// One field as it is on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field<'a> {
    number: u32,
    /// The bytes of a length-delimited field, `None` for a number.
    body: Option<&'a [u8]>,
}

/// How a record differs from what was understood of it. Paths are field numbers from the message
/// inwards, joined by dots.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    /// First required field that is not there.
    pub(crate) missing: Option<String>,
    /// First field that is not known.
    pub(crate) unknown: Option<String>,
}

/// Compares a record with the message decoded from it and encoded again.
pub(crate) fn compare(raw: &[u8], understood: &[u8]) -> Difference {
    let mut difference = Difference::default();
    if raw != understood {
        descend(raw, understood, &mut Vec::new(), &mut difference);
    }
    difference
}

fn descend(raw: &[u8], understood: &[u8], path: &mut Vec<u32>, difference: &mut Difference) {
    let Some(raw) = sorted(raw) else {
        // It was decoded, so it holds a group, which no message of CRIU's has.
        difference.unknown.get_or_insert_with(|| "group".to_owned());
        return;
    };
    let understood = sorted(understood).unwrap_or_default();
    let (mut raw, mut understood) = (raw.as_slice(), understood.as_slice());
    loop {
        let number = match (raw.first(), understood.first()) {
            (None, None) => return,
            (Some(field), None) | (None, Some(field)) => field.number,
            (Some(a), Some(b)) => a.number.min(b.number),
        };
        let (mine, raw_rest) = split(raw, number);
        let (theirs, understood_rest) = split(understood, number);
        path.push(number);
        match (mine.is_empty(), theirs.is_empty()) {
            (true, _) => note(&mut difference.missing, path),
            // An empty packed list is the one known field that vanishes.
            (_, true) if mine.iter().all(|f| f.body == Some(&[])) => {}
            (_, true) => note(&mut difference.unknown, path),
            // Lists keep their length; of a field given twice the last counts.
            _ if path.len() < MAX_DEPTH => {
                for (a, b) in mine.iter().rev().zip(theirs.iter().rev()) {
                    if let (Some(a), Some(b)) = (a.body, b.body)
                        && a != b
                    {
                        descend(a, b, path, difference);
                    }
                }
            }
            _ => {}
        }
        path.pop();
        (raw, understood) = (raw_rest, understood_rest);
    }
}

fn note(place: &mut Option<String>, path: &[u32]) {
    place.get_or_insert_with(|| path.iter().map(u32::to_string).collect::<Vec<_>>().join("."));
}

fn split<'a, 'b>(fields: &'b [Field<'a>], number: u32) -> (&'b [Field<'a>], &'b [Field<'a>]) {
    fields.split_at(fields.iter().take_while(|f| f.number == number).count())
}

/// Fields by number, in their order within a number; `None` if the bytes are no message.
fn sorted(bytes: &[u8]) -> Option<Vec<Field<'_>>> {
    let mut fields = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        fields.push(next(&mut rest)?);
    }
    fields.sort_by_key(|f| f.number);
    Some(fields)
}

/// Takes one field off the front; `None` if there is none, or a group.
fn next<'a>(rest: &mut &'a [u8]) -> Option<Field<'a>> {
    let (number, kind) = decode_key(rest).ok()?;
    let length = match kind {
        WireType::Varint => {
            decode_varint(rest).ok()?;
            return Some(Field { number, body: None });
        }
        WireType::SixtyFourBit => 8,
        WireType::ThirtyTwoBit => 4,
        WireType::LengthDelimited => usize::try_from(decode_varint(rest).ok()?).ok()?,
        WireType::StartGroup | WireType::EndGroup => return None,
    };
    let body = rest.get(..length)?;
    rest.advance(length);
    Some(Field { number, body: (kind == WireType::LengthDelimited).then_some(body) })
}

/// Number of length-delimited parts at any depth, as far as `limit`. Text that happens to look like
/// a message counts as one, so this is an upper bound.
pub(crate) fn parts(bytes: &[u8], limit: usize) -> usize {
    count(bytes, limit, 0)
}

fn count(bytes: &[u8], limit: usize, depth: usize) -> usize {
    let mut total = 0;
    let mut rest = bytes;
    while !rest.is_empty() && total < limit {
        let Some(field) = next(&mut rest) else { break };
        if let Some(body) = field.body {
            total += 1;
            if depth < MAX_DEPTH && !body.is_empty() {
                total += count(body, limit - total.min(limit), depth + 1);
            }
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_records_do_not_differ() {
        assert_eq!(compare(b"\x08\x01", b"\x08\x01"), Difference::default());
    }

    #[test]
    fn a_field_only_in_the_record_is_unknown() {
        assert_eq!(compare(b"\x08\x01\x28\x07", b"\x08\x01").unknown.as_deref(), Some("5"));
    }

    #[test]
    fn a_field_only_in_what_was_understood_is_missing() {
        assert_eq!(compare(b"\x08\x01", b"\x08\x01\x10\0").missing.as_deref(), Some("2"));
    }

    #[test]
    fn paths_lead_into_messages() {
        let difference = compare(b"\x1a\x02\x08\x01", b"\x1a\x04\x08\x01\x10\0");
        assert_eq!(difference.missing.as_deref(), Some("3.2"));
    }

    #[test]
    fn order_and_long_numbers_are_no_difference() {
        assert_eq!(compare(b"\x10\x02\x08\x81\0", b"\x08\x01\x10\x02"), Difference::default());
    }

    #[test]
    fn a_packed_list_equals_the_same_list_spread_out() {
        assert_eq!(compare(b"\x2a\x02\x01\x02", b"\x28\x01\x28\x02"), Difference::default());
        assert_eq!(compare(b"\x2a\0", b""), Difference::default());
    }

    #[test]
    fn parts_are_counted_at_every_depth_up_to_the_limit() {
        // Field 1 holding two empty fields 2.
        let bytes = b"\x0a\x04\x12\0\x12\0";
        assert_eq!(parts(bytes, 100), 3);
        assert!(parts(bytes, 2) >= 2);
    }
}
