//! Stored records: a serde value as a checksummed, versioned run of bytes.
//!
//! The one place that names bincode. Its 3.0.0 is a deliberate compile error and its authors have declared
//! every version unmaintained (the advisory is about maintenance; no defect is known), so it is pinned to
//! =2.0.1 and kept behind this module: limits and the checksum stand in front of it, no type of it appears in
//! a signature, and another serde format (postcard is the nearest) can take its place by raising the version
//! of each [`Kind`]. This module must not know what is stored.
//!
//! Layout, little-endian, the same for every kind and every version to come:
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | magic of the kind |
//! | 8..12 | version of the body's format |
//! | 12..16 | length of the body |
//! | 16..20 | CRC-32 (IEEE) of bytes 0..16 and of the body |
//! | 20.. | the body, nothing after it |

use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Bytes in front of the body.
pub const HEADER_LEN: usize = 20;

/// Longest body that is written or read, in bytes. A manifest of a process with a thousand mapped files has
/// about 200 KiB; this is far above anything real and far below what would hurt a small host.
pub const BODY_LIMIT: usize = 16 << 20;

const CONFIG: Configuration<LittleEndian, Varint, Limit<BODY_LIMIT>> =
    bincode::config::standard().with_limit::<BODY_LIMIT>();

/// What sort of record it is, and the version of its body that this program writes and reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The first eight bytes.
    pub magic: [u8; 8],
    /// Raised by every change of the stored type: bincode bodies do not describe themselves.
    pub version: u32,
}

/// Why bytes are no record of the kind asked for, or a value could not become one. Nothing was changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Fewer bytes than the header, or than the header announces.
    #[error("record ends after {len} bytes, {expected} expected")]
    Short {
        /// Bytes given.
        len: usize,
        /// Bytes needed.
        expected: usize,
    },
    /// The first eight bytes are those of nothing known, or of another kind.
    #[error("record begins with {}, {} expected", found.escape_ascii(), expected.escape_ascii())]
    Magic {
        /// The bytes there.
        found: [u8; 8],
        /// The magic of the kind.
        expected: [u8; 8],
    },
    /// Bytes follow the end that the header announces.
    #[error("record is followed by {0} stray bytes")]
    Trailing(usize),
    /// A bit is not what it was when the record was written.
    #[error("record has checksum {found:08x}, {expected:08x} expected")]
    Checksum {
        /// Computed from the bytes.
        found: u32,
        /// Stored in the header.
        expected: u32,
    },
    /// An intact record in a format that is still unknown here.
    #[error("record was made by a newer defrost: format {found}, this one reads {known}")]
    Newer {
        /// Version of the record.
        found: u32,
        /// Version of [`Kind`].
        known: u32,
    },
    /// An intact record in a format that is no longer read.
    #[error("record was made by an older defrost: format {found}, this one reads {known}")]
    Older {
        /// Version of the record.
        found: u32,
        /// Version of [`Kind`].
        known: u32,
    },
    /// A body longer than [`BODY_LIMIT`].
    #[error("record has a body of {0} bytes, more than the limit of {BODY_LIMIT}")]
    TooLong(usize),
    /// The checksum is right and the body still is not a value of the type: written by a faulty program.
    #[error("record cannot be decoded: {0}")]
    Body(String),
    /// The value cannot be stored.
    #[error("record cannot be encoded: {0}")]
    Encode(String),
}

impl RecordError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Newer { .. } => "use the defrost that made it, or a newer one",
            Self::Older { .. } => "make a new checkpoint with this defrost, or use the one that made it",
            Self::Encode(_) | Self::TooLong(_) => "this is a defect of defrost: please report it",
            _ => "the file is damaged: copy it again from its source, or make a new checkpoint",
        }
    }
}

/// The bytes of a record of this kind.
///
/// # Errors
/// [`RecordError::Encode`] and [`RecordError::TooLong`].
pub fn encode<T: Serialize>(kind: Kind, value: &T) -> Result<Vec<u8>, RecordError> {
    let body =
        bincode::serde::encode_to_vec(value, CONFIG).map_err(|e| RecordError::Encode(e.to_string()))?;
    let length = u32::try_from(body.len())
        .ok()
        .filter(|_| body.len() <= BODY_LIMIT)
        .ok_or(RecordError::TooLong(body.len()))?;
    let mut bytes = Vec::with_capacity(HEADER_LEN + body.len());
    bytes.extend_from_slice(&kind.magic);
    bytes.extend_from_slice(&kind.version.to_le_bytes());
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&checksum(&bytes, &body).to_le_bytes());
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// How long the record is that begins with these bytes, header and body, as the header says; `None` of fewer bytes
/// than a header has. Nothing of it has been checked.
#[must_use]
pub fn announced_len(bytes: &[u8]) -> Option<usize> {
    let header = bytes.first_chunk::<HEADER_LEN>()?;
    Some(HEADER_LEN.saturating_add(word(header, 12) as usize))
}

/// The value in a record of this kind. No byte of the body is looked at before its checksum is right.
///
/// # Errors
/// Every [`RecordError`] but [`RecordError::Encode`].
pub fn decode<T: DeserializeOwned>(kind: Kind, bytes: &[u8]) -> Result<T, RecordError> {
    let (header, body) = bytes
        .split_at_checked(HEADER_LEN)
        .ok_or(RecordError::Short { len: bytes.len(), expected: HEADER_LEN })?;
    let mut magic = [0; 8];
    magic.copy_from_slice(&header[..8]);
    if magic != kind.magic {
        return Err(RecordError::Magic { found: magic, expected: kind.magic });
    }
    let [version, length, expected] = [8, 12, 16].map(|at| word(header, at));
    let length = length as usize;
    if length > BODY_LIMIT {
        return Err(RecordError::TooLong(length));
    }
    if body.len() < length {
        return Err(RecordError::Short { len: bytes.len(), expected: HEADER_LEN + length });
    }
    if body.len() > length {
        return Err(RecordError::Trailing(body.len() - length));
    }
    let found = checksum(&header[..16], body);
    if found != expected {
        return Err(RecordError::Checksum { found, expected });
    }
    if version > kind.version {
        return Err(RecordError::Newer { found: version, known: kind.version });
    }
    if version < kind.version {
        return Err(RecordError::Older { found: version, known: kind.version });
    }
    let (value, used) =
        bincode::serde::decode_from_slice(body, CONFIG).map_err(|e| RecordError::Body(e.to_string()))?;
    if used != body.len() {
        return Err(RecordError::Trailing(body.len() - used));
    }
    Ok(value)
}

fn word(header: &[u8], at: usize) -> u32 {
    header[at..at + 4].iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

fn checksum(header: &[u8], body: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(header);
    crc.update(body);
    crc.finalize()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const KIND: Kind = Kind { magic: *b"defr-tst", version: 3 };
    type Value = (u64, String, Vec<BTreeMap<String, Option<u32>>>);

    fn sample() -> Value {
        (7, "dir with ünïcode".into(), vec![BTreeMap::from([("a".into(), Some(1)), ("b".into(), None)])])
    }

    #[test]
    fn a_value_comes_back() {
        let bytes = encode(KIND, &sample()).unwrap();
        assert_eq!(decode::<Value>(KIND, &bytes).unwrap(), sample());
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_refused() {
        let bytes = encode(KIND, &sample()).unwrap();
        for len in 0..bytes.len() {
            let error = decode::<Value>(KIND, &bytes[..len]).unwrap_err();
            assert!(matches!(error, RecordError::Short { .. }), "cut at {len}: {error}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            decode::<Value>(KIND, &flipped).unwrap_err();
        }
    }

    #[test]
    fn another_kind_version_or_tail_is_named() {
        let bytes = encode(KIND, &sample()).unwrap();
        let error = decode::<Value>(Kind { magic: *b"defr-abc", ..KIND }, &bytes).unwrap_err();
        assert_eq!(error.to_string(), "record begins with defr-tst, defr-abc expected");

        let error = decode::<Value>(Kind { version: 2, ..KIND }, &bytes).unwrap_err();
        assert!(matches!(error, RecordError::Newer { found: 3, known: 2 }));
        assert_eq!(error.to_string(), "record was made by a newer defrost: format 3, this one reads 2");
        assert!(error.hint().contains("newer"));

        let error = decode::<Value>(Kind { version: 4, ..KIND }, &bytes).unwrap_err();
        assert!(matches!(error, RecordError::Older { found: 3, known: 4 }));

        let tail = [&bytes[..], b"xy"].concat();
        assert!(matches!(decode::<Value>(KIND, &tail).unwrap_err(), RecordError::Trailing(2)));
    }

    #[test]
    fn a_body_that_claims_more_than_it_holds_is_refused() {
        // A sealed record whose string announces 2^40 bytes: the checksum is right, the content is not.
        let mut body = vec![253];
        body.extend_from_slice(&(1_u64 << 40).to_le_bytes());
        let error = decode::<String>(KIND, &sealed(&body)).unwrap_err();
        assert!(matches!(error, RecordError::Body(_)), "{error}");
    }

    #[test]
    fn bytes_left_over_in_the_body_are_refused() {
        assert!(matches!(decode::<u8>(KIND, &sealed(&[1, 2])).unwrap_err(), RecordError::Trailing(1)));
    }

    fn sealed(body: &[u8]) -> Vec<u8> {
        let mut bytes = KIND.magic.to_vec();
        bytes.extend_from_slice(&KIND.version.to_le_bytes());
        bytes.extend_from_slice(&u32::try_from(body.len()).unwrap().to_le_bytes());
        bytes.extend_from_slice(&checksum(&bytes, body).to_le_bytes());
        bytes.extend_from_slice(body);
        bytes
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = decode::<Value>(KIND, &bytes);
        }

        #[test]
        fn no_sealed_body_panics(body in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = decode::<Value>(KIND, &sealed(&body));
        }

        #[test]
        fn any_value_comes_back(value in any::<(u64, String, Vec<Option<i32>>)>()) {
            let bytes = encode(KIND, &value).unwrap();
            prop_assert_eq!(decode::<(u64, String, Vec<Option<i32>>)>(KIND, &bytes).unwrap(), value);
        }
    }
}
