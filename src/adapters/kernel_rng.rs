//! The kernel's random generator, for rand.
//!
//! Rand's own looks getrandom(2) up by its name in the C library, which a statically linked program has no names of;
//! then it opens /dev/urandom, for good, and that would be in every image.

use std::io;

use rand::{TryCryptoRng, TryRng};
use rustix::rand::{GetRandomFlags, getrandom};

/// It, by getrandom(2) alone.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KernelRng;

impl TryRng for KernelRng {
    type Error = io::Error;

    fn try_next_u32(&mut self) -> io::Result<u32> {
        let mut bytes = [0; 4];
        self.try_fill_bytes(&mut bytes)?;
        Ok(u32::from_ne_bytes(bytes))
    }

    fn try_next_u64(&mut self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.try_fill_bytes(&mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn try_fill_bytes(&mut self, mut left: &mut [u8]) -> io::Result<()> {
        while !left.is_empty() {
            match getrandom(&mut *left, GetRandomFlags::empty()) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => left = &mut left[count..],
                // Larger pieces can be cut short by a signal.
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl TryCryptoRng for KernelRng {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_filled_and_no_two_values_agree() {
        let mut bytes = vec![0; 100_000];
        KernelRng.try_fill_bytes(&mut bytes).unwrap();
        assert!(bytes.chunks(64).all(|chunk| chunk.iter().any(|byte| *byte != 0)));
        assert_ne!(KernelRng.try_next_u64().unwrap(), KernelRng.try_next_u64().unwrap());
        KernelRng.try_fill_bytes(&mut []).unwrap();
    }
}
