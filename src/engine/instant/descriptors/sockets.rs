//! What sockets of all families have in common: options of the socket level, directions that were shut down.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use criu_images::{Shutdown, SocketOptions};
use rustix::net::sockopt;

use crate::sys::socket::set_option;

/// setsockopt(2): whether the kernel may resize the buffers by itself.
const SO_BUF_LOCK: i32 = 72;

/// One option, as the kernel takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    level: i32,
    name: i32,
    value: Vec<u8>,
}

impl Setting {
    /// An option that is a number, or on and off.
    pub(super) fn number(level: i32, name: i32, value: u32) -> Self {
        Self { level, name, value: value.to_ne_bytes().to_vec() }
    }

    /// Sets it.
    ///
    /// # Errors
    /// The kernel's own.
    pub(super) fn apply(&self, socket: impl AsFd) -> io::Result<()> {
        set_option(socket, self.level, self.name, &self.value)
    }
}

/// The options of a socket.
#[derive(Debug)]
pub(super) struct Options {
    /// Those that differ from what a new socket has.
    settings: Vec<Setting>,
    send_buffer: u32,
    receive_buffer: u32,
    buffer_lock: u32,
}

impl Options {
    /// Decides.
    ///
    /// # Errors
    /// What the socket is, if not all can be set again.
    pub(super) fn of(options: &SocketOptions) -> Result<Self, String> {
        if !options.filter.is_empty() {
            return Err("a socket with a packet filter".to_owned());
        }
        let mut settings = Vec::new();
        let mut add = |name, value: Option<u32>, usual| {
            let value = value.filter(|value| *value != usual);
            settings.extend(value.map(|value| Setting::number(libc::SOL_SOCKET, name, value)));
        };
        for (name, on) in [
            (libc::SO_REUSEADDR, options.reuse_address),
            (libc::SO_REUSEPORT, options.reuse_port),
            (libc::SO_PASSCRED, options.pass_credentials),
            (libc::SO_PASSSEC, options.pass_label),
            (libc::SO_DONTROUTE, options.dont_route),
            (libc::SO_NO_CHECK, options.no_checksum),
            (libc::SO_BROADCAST, options.broadcast),
            (libc::SO_KEEPALIVE, options.keepalive),
        ] {
            add(name, on.map(u32::from), 0);
        }
        add(libc::SO_PRIORITY, options.priority, 0);
        add(libc::SO_RCVLOWAT, options.receive_low_water, 1);
        add(libc::SO_MARK, options.mark, 0);
        add(libc::SO_OOBINLINE, options.oob_inline, 0);
        if let Some(seconds) = options.linger {
            // struct linger: on, seconds.
            settings.push(several(libc::SO_LINGER, [1, seconds].map(u32::to_ne_bytes).concat()));
        }
        for (name, seconds, micros) in [
            (libc::SO_SNDTIMEO, options.send_timeout_sec, options.send_timeout_usec),
            (libc::SO_RCVTIMEO, options.receive_timeout_sec, options.receive_timeout_usec),
        ] {
            if (seconds, micros) != (0, 0) {
                settings.push(several(name, [seconds, micros].map(u64::to_ne_bytes).concat()));
            }
        }
        if let Some(device) = &options.bound_device {
            settings.push(several(libc::SO_BINDTODEVICE, device.clone().into_bytes()));
        }
        let (send_buffer, receive_buffer) = (options.send_buffer, options.receive_buffer);
        let buffer_lock = options.buffer_lock.unwrap_or(0);
        Ok(Self { settings, send_buffer, receive_buffer, buffer_lock })
    }

    /// Sets all of them.
    ///
    /// # Errors
    /// The kernel's own.
    pub(super) fn apply(&self, socket: &OwnedFd) -> io::Result<()> {
        // A size that is set is locked: the kernel takes it for the program's own choice.
        let mut locked = self.buffer_lock != 0;
        let (send, receive) = (self.send_buffer as usize, self.receive_buffer as usize);
        if sockopt::socket_send_buffer_size(socket)? != send {
            set_send_buffer(socket, send / 2)?;
            locked = true;
        }
        if sockopt::socket_recv_buffer_size(socket)? != receive {
            let size = receive / 2;
            forced(sockopt::set_socket_recv_buffer_size_force(socket, size), || {
                sockopt::set_socket_recv_buffer_size(socket, size)
            })?;
            locked = true;
        }
        if locked {
            Setting::number(libc::SOL_SOCKET, SO_BUF_LOCK, self.buffer_lock).apply(socket)?;
        }
        self.settings.iter().try_for_each(|setting| setting.apply(socket))
    }
}

/// Sets a send buffer; the kernel doubles the size.
///
/// # Errors
/// The kernel's own.
pub(super) fn set_send_buffer(socket: &OwnedFd, size: usize) -> io::Result<()> {
    forced(sockopt::set_socket_send_buffer_size_force(socket, size), || {
        sockopt::set_socket_send_buffer_size(socket, size)
    })
}

/// Beyond the limit for all, a size takes CAP_NET_ADMIN (socket(7)); up to it, it can be had without.
fn forced(
    result: rustix::io::Result<()>,
    within_limits: impl FnOnce() -> rustix::io::Result<()>,
) -> io::Result<()> {
    match result {
        Err(rustix::io::Errno::PERM) => Ok(within_limits()?),
        result => Ok(result?),
    }
}

fn several(name: i32, value: Vec<u8>) -> Setting {
    Setting { level: libc::SOL_SOCKET, name, value }
}

/// What shutdown(2) was called with.
///
/// # Errors
/// What the socket is, when the image says something else.
pub(super) fn shut_down(number: Option<i32>) -> Result<Option<rustix::net::Shutdown>, String> {
    Ok(match Shutdown::try_from(number.unwrap_or(0)) {
        Ok(Shutdown::None) => None,
        Ok(Shutdown::Read) => Some(rustix::net::Shutdown::Read),
        Ok(Shutdown::Write) => Some(rustix::net::Shutdown::Write),
        Ok(Shutdown::Both) => Some(rustix::net::Shutdown::Both),
        Err(_) => return Err("a socket that is shut down in an unknown way".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What CRIU records of a new socket.
    fn usual() -> SocketOptions {
        SocketOptions {
            send_buffer: 212_992,
            receive_buffer: 212_992,
            reuse_address: Some(false),
            receive_low_water: Some(1),
            keepalive: Some(false),
            ..SocketOptions::default()
        }
    }

    #[test]
    fn a_new_socket_takes_no_call() {
        assert_eq!(Options::of(&usual()).unwrap().settings, []);
    }

    #[test]
    fn what_differs_is_set_as_the_kernel_takes_it() {
        let options = SocketOptions {
            reuse_port: Some(true),
            receive_low_water: Some(9),
            linger: Some(5),
            receive_timeout_usec: 7,
            ..usual()
        };
        let socket =
            rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None)
                .unwrap();
        Options::of(&options).unwrap().apply(&socket).unwrap();
        assert!(sockopt::socket_reuseport(&socket).unwrap());
        assert_eq!(sockopt::socket_linger(&socket).unwrap().unwrap().as_secs(), 5);
        let limit = sockopt::socket_timeout(&socket, sockopt::Timeout::Recv).unwrap().unwrap();
        assert!(limit.as_micros() >= 7, "{limit:?}");
        assert_eq!(sockopt::socket_recv_buffer_size(&socket).unwrap(), 212_992);
    }

    #[test]
    fn a_filter_is_a_reason() {
        let filtered = SocketOptions { filter: vec![6], ..usual() };
        assert!(Options::of(&filtered).unwrap_err().contains("filter"));
    }
}
