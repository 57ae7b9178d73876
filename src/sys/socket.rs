//! Options of sockets, by number.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Sets an option of which only level, number and bytes are known: setsockopt(2).
///
/// The bytes must hold no address: options that do, such as packet filters, are not for this.
///
/// # Errors
/// The kernel's own; `InvalidInput` for more bytes than any option has.
pub fn set_option(socket: impl AsFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let length = libc::socklen_t::try_from(value.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel reads `length` bytes of the slice, and keeps no reference to it.
    match unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn an_option_is_set() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(!socket.broadcast().unwrap());
        set_option(&socket, libc::SOL_SOCKET, libc::SO_BROADCAST, &1_i32.to_ne_bytes()).unwrap();
        assert!(socket.broadcast().unwrap());
        let error = set_option(&socket, libc::SOL_SOCKET, libc::SO_BROADCAST, &[]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}
