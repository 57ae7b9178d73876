//! A path as it is stored: byte by byte in a record, since names need not be UTF-8, and as text in JSON.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A path that a program has to find again, whatever its name. JSON is for reading: there, what is no UTF-8 has
/// the replacement character in its place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredPath(PathBuf);

impl StoredPath {
    /// This path.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The path itself.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

impl Serialize for StoredPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(&self.0.display())
        } else {
            self.0.as_os_str().as_bytes().serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for StoredPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return String::deserialize(deserializer).map(Self::new);
        }
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        Ok(Self::new(OsString::from_vec(bytes)))
    }
}
