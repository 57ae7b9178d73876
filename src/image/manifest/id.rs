//! The identity of an image: the same in all its copies, another in every other image.

use std::fmt;
use std::io;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::sys;

/// 128 random bits, given when the image was completed. Text and JSON show them as 32 hex digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ImageId(u128);

impl ImageId {
    /// A new one from the kernel.
    ///
    /// # Errors
    /// The kernel has no random numbers.
    pub fn fresh() -> io::Result<Self> {
        sys::random::fresh().map(u128::from_be_bytes).map(Self)
    }

    /// One that a test knows.
    #[cfg(test)]
    pub(super) fn known(id: u128) -> Self {
        Self(id)
    }
}

impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Serialize for ImageId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            self.0.to_be_bytes().serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for ImageId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return <[u8; 16]>::deserialize(deserializer).map(u128::from_be_bytes).map(Self);
        }
        let text = String::deserialize(deserializer)?;
        u128::from_str_radix(&text, 16).map(Self).map_err(D::Error::custom)
    }
}
