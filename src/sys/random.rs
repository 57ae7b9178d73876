//! Random bytes of the kernel: the same in no two restores of one image.

use std::io;

/// `N` random bytes by getrandom(2). `N` is at most 256, up to which the call is never cut short.
///
/// # Errors
/// The kernel's own, with none of the calls that this crate supports.
pub fn fresh<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let count = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())?;
    if count == N { Ok(bytes) } else { Err(io::Error::from(io::ErrorKind::UnexpectedEof)) }
}
