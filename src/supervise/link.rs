//! The socket between a supervisor and process 1 of a pid namespace: there goes what became of the restore, back
//! goes the leave to do without the supervisor. Its end says that the other side is dead.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use crate::engine::channel::Report;
use crate::image::record::{self, Kind};
use crate::sys::message;
use crate::wake::Origin;

/// The most that is told at once. The kernel takes somewhat more in one piece (/proc/sys/net/core/wmem_default).
const LIMIT: usize = 128 * 1024;

const TOLD: Kind = Kind { magic: *b"DEFRTOLD", version: 1 };

/// What lets process 1 do without its supervisor.
const RELEASE: u8 = b'r';

/// What became of a restore in a namespace of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Told {
    /// The process runs, and is ready if its report was waited for.
    Up { origin: Origin, report: Option<Report> },
    /// The process runs, if it is `alive`, and not all of it works.
    NotReady { failures: Vec<String>, alive: bool },
    /// Nothing runs.
    Failed(Failed),
}

/// A failure in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Failed {
    pub(super) text: String,
    pub(super) hint: Option<String>,
    pub(super) of_the_host: bool,
}

/// One end.
#[derive(Debug)]
pub(super) struct Link(OwnedFd);

/// What has come from the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Nothing.
    None,
    /// Its leave.
    Release,
    /// It is dead.
    End,
}

impl Link {
    /// Both ends: the supervisor's, and that of process 1.
    pub(super) fn pair() -> io::Result<(Self, Self)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, other) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self(one), Self(other)))
    }

    /// Tells the supervisor, with a hold on the process that it is about.
    pub(super) fn tell(&self, told: &Told, process: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut bytes = record::encode(TOLD, told).map_err(io::Error::other)?;
        if bytes.len() > LIMIT {
            let text = format!("the restored process reported {} bytes, too much to hand on", bytes.len());
            let failed = Told::Failed(Failed { text, hint: None, of_the_host: false });
            bytes = record::encode(TOLD, &failed).map_err(io::Error::other)?;
        }
        message::send(&self.0, &bytes, process.as_slice())
    }

    /// What process 1 has told, which can be read. `None` when it has ended without.
    pub(super) fn told(&self) -> io::Result<Option<(Told, Option<OwnedFd>)>> {
        let mut bytes = vec![0; LIMIT];
        match message::receive(&self.0, &mut bytes) {
            Ok((0, _)) => Ok(None),
            Ok((count, mut held)) => {
                let told = record::decode(TOLD, &bytes[..count]).map_err(io::Error::other)?;
                Ok(Some((told, held.pop())))
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lets process 1 do without its supervisor. One that has ended already is no error.
    pub(super) fn release(&self) {
        let _ = message::send(&self.0, &[RELEASE], &[]);
    }

    /// What has come from the supervisor by now.
    pub(super) fn word(&self) -> Word {
        let mut byte = [0];
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.0, &mut byte[..])) {
            Ok(1..) if byte == [RELEASE] => Word::Release,
            Ok(1..) | Err(rustix::io::Errno::AGAIN) => Word::None,
            Ok(0) | Err(_) => Word::End,
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether the other end of this socket or pipe is closed.
pub(super) fn is_gone(end: impl AsFd) -> bool {
    let end = end.as_fd();
    let mut look = [PollFd::new(&end, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut look, Some(&at_once)), Ok(1..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_hear_each_other_and_of_each_others_end() {
        let (outer, inner) = Link::pair().unwrap();
        assert_eq!(inner.word(), Word::None);
        assert_eq!(outer.told().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let told = Told::NotReady { failures: vec!["no".to_owned()], alive: true };
        inner.tell(&told, Some(inner.as_fd())).unwrap();
        let (heard, process) = outer.told().unwrap().unwrap();
        assert_eq!((heard, process.is_some()), (told, true));
        outer.release();
        assert_eq!(inner.word(), Word::Release);
        assert!(!is_gone(&inner));
        drop(outer);
        assert!(is_gone(&inner));
        assert_eq!(inner.word(), Word::End);
    }

    #[test]
    fn what_is_too_long_is_told_as_a_failure() {
        let (outer, inner) = Link::pair().unwrap();
        let told = Told::NotReady { failures: vec!["x".repeat(LIMIT)], alive: false };
        inner.tell(&told, None).unwrap();
        let (heard, _) = outer.told().unwrap().unwrap();
        assert!(matches!(heard, Told::Failed(Failed { text, .. }) if text.contains("too much to hand on")));
        drop(inner);
        assert!(outer.told().unwrap().is_none());
    }
}
