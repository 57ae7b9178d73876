//! Making what is behind descriptors. It must not know the image, nor the numbers that they will have.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use criu_images::{SocketOptions, TimerFd};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;

use super::same;
use crate::sys::descriptors::above;

/// CRIU's answer to a self-dump, as the restored process reads it: type DUMP, success, restored.
const RESTORED: [u8; 8] = [8, 1, 16, 1, 26, 2, 8, 1];

/// How to make what is behind one or more descriptors.
#[derive(Debug)]
pub(super) enum Make {
    Open {
        path: PathBuf,
        flags: OFlags,
        position: u64,
        size: Option<u64>,
        mode: Option<u32>,
    },
    EventFd {
        counter: u64,
        flags: u32,
    },
    Epoll,
    TimerFd(Box<TimerFd>),
    /// A pipe, whose ends are files of the table, the one to read from first; one may be missing.
    Pipe {
        files: [Option<u32>; 2],
        flags: [OFlags; 2],
        capacity: Option<u32>,
        contents: Vec<u8>,
    },
    /// A connected pair.
    Pair {
        kind: SocketType,
        files: [u32; 2],
        nonblocking: [bool; 2],
        options: Box<[SocketOptions; 2]>,
    },
    Service {
        nonblocking: bool,
    },
    /// Given at the restore: one of the stand-ins, by its index.
    Given(usize),
}

/// What is made, before it has its number: by file id.
pub(super) type Made = BTreeMap<u32, OwnedFd>;

/// Makes what is behind one or more files of the table, `id` among them, under numbers from `floor` on.
///
/// # Errors
/// The kernel's own; `Other` when a file is not what it was.
pub(super) fn one(id: u32, make: &Make, given: &[OwnedFd], floor: i32, made: &mut Made) -> io::Result<()> {
    let mut keep = |id: u32, fd: &dyn AsFd| -> io::Result<()> {
        made.insert(id, above(fd.as_fd(), floor)?);
        Ok(())
    };
    match make {
        Make::Open { path, flags, position, size, mode } => {
            let file = rustix::fs::open(path, *flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())?;
            let file = std::fs::File::from(file);
            same(&file.metadata()?, *size, *mode).map_err(io::Error::other)?;
            if file.metadata()?.is_file() {
                rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(*position))?;
            }
            keep(id, &file)
        }
        Make::EventFd { counter, flags } => {
            let flags = rustix::event::EventfdFlags::from_bits_truncate(*flags & OFlags::NONBLOCK.bits());
            let fd = rustix::event::eventfd(0, flags)?;
            if *counter != 0 {
                rustix::io::write(&fd, &counter.to_ne_bytes())?;
            }
            keep(id, &fd)
        }
        Make::Epoll => keep(id, &rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC)?),
        Make::TimerFd(timer) => keep(id, &timerfd(timer)?),
        Make::Pipe { files, flags, capacity, contents } => {
            let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            if let Some(capacity) = capacity
                && rustix::pipe::fcntl_getpipe_size(&writer)? != *capacity as usize
            {
                rustix::pipe::fcntl_setpipe_size(&writer, *capacity as usize)?;
            }
            // It was in a pipe of this capacity, so it does not block; should it, it is an error.
            rustix::io::ioctl_fionbio(&writer, true)?;
            std::fs::File::from(writer.try_clone()?).write_all(contents)?;
            for (index, end) in [reader, writer].iter().enumerate() {
                if let Some(file) = files[index] {
                    rustix::fs::fcntl_setfl(end, flags[index])?;
                    keep(file, end)?;
                }
            }
            Ok(())
        }
        Make::Pair { kind, files, nonblocking, options } => {
            let pair = rustix::net::socketpair(AddressFamily::UNIX, *kind, SocketFlags::CLOEXEC, None)?;
            for (index, end) in [&pair.0, &pair.1].into_iter().enumerate() {
                buffers(end, &options[index])?;
                rustix::io::ioctl_fionbio(end, nonblocking[index])?;
                keep(files[index], end)?;
            }
            Ok(())
        }
        Make::Service { nonblocking } => {
            let flags = SocketFlags::CLOEXEC;
            let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            rustix::net::send(&pair.1, &RESTORED, rustix::net::SendFlags::NOSIGNAL)?;
            rustix::io::ioctl_fionbio(&pair.0, *nonblocking)?;
            keep(id, &pair.0)
        }
        Make::Given(index) => match given.get(*index) {
            Some(fd) => keep(id, fd),
            None => Err(io::ErrorKind::NotFound.into()),
        },
    }
}

fn timerfd(timer: &TimerFd) -> io::Result<OwnedFd> {
    use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
    let clock = match i32::try_from(timer.clock) {
        Ok(libc::CLOCK_REALTIME) => TimerfdClockId::Realtime,
        Ok(libc::CLOCK_MONOTONIC) => TimerfdClockId::Monotonic,
        Ok(libc::CLOCK_BOOTTIME) => TimerfdClockId::Boottime,
        _ => return Err(io::ErrorKind::Unsupported.into()),
    };
    let flags = TimerfdFlags::from_bits_truncate(timer.flags & OFlags::NONBLOCK.bits());
    let fd = rustix::time::timerfd_create(clock, flags | TimerfdFlags::CLOEXEC)?;
    let time = |sec: u64, nsec: u64| Timespec { tv_sec: sec.cast_signed(), tv_nsec: nsec.cast_signed() };
    let setting = Itimerspec {
        it_interval: time(timer.interval_sec, timer.interval_nsec),
        it_value: time(timer.value_sec, timer.value_nsec),
    };
    rustix::time::timerfd_settime(&fd, TimerfdTimerFlags::empty(), &setting)?;
    Ok(fd)
}

/// Buffers as they were, if they are not what every socket gets here. The kernel doubles what it is given.
fn buffers(socket: &OwnedFd, options: &SocketOptions) -> io::Result<()> {
    use rustix::net::sockopt;
    if sockopt::socket_send_buffer_size(socket)? != options.send_buffer as usize {
        sockopt::set_socket_send_buffer_size_force(socket, options.send_buffer as usize / 2)?;
    }
    if sockopt::socket_recv_buffer_size(socket)? != options.receive_buffer as usize {
        sockopt::set_socket_recv_buffer_size_force(socket, options.receive_buffer as usize / 2)?;
    }
    Ok(())
}
