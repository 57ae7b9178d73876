//! A point in time after which a wait gives up. Every wait of this crate goes through here.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// When to give up, and how long that was from the start (for the error's text).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    at: Option<Instant>,
    limit: Duration,
}

/// How a wait for a descriptor and for a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ready {
    /// The descriptor can be read, or is at its end.
    Yes,
    /// It cannot, and the process has ended.
    Ended,
    /// The deadline passed first.
    Late,
}

impl Deadline {
    /// Starts the clock. A limit too long for the clock never passes.
    pub(crate) fn after(limit: Duration) -> Deadline {
        Deadline { at: Instant::now().checked_add(limit), limit }
    }

    /// The whole time allowed.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// What is left; zero when it has passed.
    pub(crate) fn remaining(&self) -> Duration {
        self.at.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Waits until `fd` can be read, or is at its end. `false` when the deadline passed first.
    pub(crate) fn readable(&self, fd: impl AsFd) -> io::Result<bool> {
        self.ready(fd.as_fd(), PollFlags::POLLIN)
    }

    /// The same, but gives up when `end`, a descriptor of a process, says that it has ended.
    pub(crate) fn readable_before(&self, fd: impl AsFd, end: impl AsFd) -> io::Result<Ready> {
        loop {
            let left = self.remaining();
            let mut both =
                [PollFd::new(fd.as_fd(), PollFlags::POLLIN), PollFd::new(end.as_fd(), PollFlags::POLLIN)];
            match poll(&mut both, timeout(left)) {
                Ok(0) if left.is_zero() => return Ok(Ready::Late),
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) if both[0].any() == Some(true) => return Ok(Ready::Yes),
                // What it wrote between the two looks of poll(2) is there now.
                Ok(_) => {
                    let wrote =
                        poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO)? > 0;
                    return Ok(if wrote { Ready::Yes } else { Ready::Ended });
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Waits until `fd` can be written. `false` when the deadline passed first.
    pub(crate) fn writable(&self, fd: impl AsFd) -> io::Result<bool> {
        self.ready(fd.as_fd(), PollFlags::POLLOUT)
    }

    /// The last look, with a timeout of zero, always comes after the deadline: a process that was restored in the
    /// middle of this wait may find that the clock has jumped far past it, while the answer is already there.
    fn ready(&self, fd: BorrowedFd<'_>, flags: PollFlags) -> io::Result<bool> {
        loop {
            let left = self.remaining();
            match poll(&mut [PollFd::new(fd, flags)], timeout(left)) {
                Ok(0) if left.is_zero() => return Ok(false),
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return Ok(true),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// poll(2) counts whole milliseconds: round up, so that a wait does not spin through its last one.
fn timeout(left: Duration) -> PollTimeout {
    let millis = left.as_nanos().div_ceil(1_000_000);
    i32::try_from(millis)
        .ok()
        .and_then(|millis| PollTimeout::try_from(millis).ok())
        .unwrap_or(PollTimeout::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn looks_once_more_after_the_deadline() {
        let (reader, mut writer) = io::pipe().unwrap();
        let passed = Deadline::after(Duration::ZERO);
        assert!(!passed.readable(&reader).unwrap());
        writer.write_all(b"x").unwrap();
        assert!(passed.readable(&reader).unwrap());
    }

    #[test]
    fn gives_up_in_time_and_takes_any_limit() {
        let (reader, writer) = io::pipe().unwrap();
        let start = Instant::now();
        assert!(!Deadline::after(Duration::from_millis(20)).readable(&reader).unwrap());
        assert!(start.elapsed() >= Duration::from_millis(20));
        drop(writer);
        assert!(Deadline::after(Duration::MAX).readable(&reader).unwrap(), "the end counts as readable");
    }
}
