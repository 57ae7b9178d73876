//! Content hashes: BLAKE3, of files of any size, read in pieces.
//!
//! The one place that names blake3. This module must not know what the files are.

use std::fmt;
use std::fs::File;
use std::io::{self, Seek};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A BLAKE3 hash. Text and JSON show it as 64 hex digits, stored records as 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The hash of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// The hash of this file from its beginning, and how many bytes it has. Memory use does not grow with it.
    ///
    /// # Errors
    /// Those of seeking and reading.
    pub fn of_file(mut file: File) -> io::Result<(Self, u64)> {
        file.rewind()?;
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(file)?;
        Ok((Self(*hasher.finalize().as_bytes()), hasher.count()))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            self.0.serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return <[u8; 32]>::deserialize(deserializer).map(Self);
        }
        let text = String::deserialize(deserializer)?;
        let hash = blake3::Hash::from_hex(&text).map_err(D::Error::custom)?;
        Ok(Self(*hash.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_hashes_as_its_bytes() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let bytes = vec![7_u8; 300_001];
        file.write_all(&bytes).unwrap();
        let (digest, size) = Digest::of_file(file.reopen().unwrap()).unwrap();
        assert_eq!((digest, size), (Digest::of(&bytes), 300_001));
    }

    #[test]
    fn json_shows_hex_and_reads_it_back() {
        let digest = Digest::of(b"");
        let json = serde_json::to_string(&digest).unwrap();
        assert!(json.starts_with("\"af1349b9f5f9a1a6"), "{json}");
        assert_eq!(serde_json::from_str::<Digest>(&json).unwrap(), digest);
        serde_json::from_str::<Digest>("\"af13\"").unwrap_err();
    }
}
