//! The line between the helper and the process that it dumps: an abstract Unix socket with a random name.
//!
//! The subject connects only when it is known to go on. Nothing of the line can be in the image then, which a
//! pipe or a pidfd would be. The helper first gives back the descriptors that it kept, and reports when the
//! image is complete or has failed for good.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::sys::message;

/// The most that a report may take.
const LIMIT: u64 = 64 * 1024;

/// The random part of the line's name.
pub(super) type LinkName = [u8; 16];

fn address(name: &LinkName) -> io::Result<SocketAddr> {
    let hex: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    SocketAddr::from_abstract_name(format!("defrost-helper-{hex}"))
}

/// The helper's end.
#[derive(Debug)]
pub(super) struct Listener(UnixListener);

impl Listener {
    pub(super) fn bind(name: &LinkName) -> io::Result<Self> {
        let listener = UnixListener::bind_addr(&address(name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// Waits for the subject; others of another user are turned away. `None` when the deadline passes, or
    /// `gone`, the subject's pidfd, says that it ended.
    pub(super) fn accept(&self, gone: &OwnedFd, deadline: Instant) -> io::Result<Option<Peer>> {
        loop {
            match self.0.accept() {
                Ok((stream, _)) => {
                    let same_user =
                        rustix::net::sockopt::socket_peercred(&stream)?.uid == rustix::process::geteuid();
                    if same_user {
                        stream.set_nonblocking(false)?;
                        stream.set_write_timeout(Some(Duration::from_secs(5)))?;
                        return Ok(Some(Peer(stream)));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() || !wait_for(&self.0, gone, left)? {
                        return Ok(None);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether the listener became readable before the time was over and before the subject ended.
fn wait_for(listener: impl AsFd, gone: &OwnedFd, left: Duration) -> io::Result<bool> {
    let limit = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
    let listener = listener.as_fd();
    let mut waiting = [PollFd::new(&listener, PollFlags::IN), PollFd::new(gone, PollFlags::IN)];
    match rustix::event::poll(&mut waiting, Some(&limit)) {
        Ok(_) => Ok(waiting[1].revents().is_empty()),
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// The subject, as the helper sees it.
#[derive(Debug)]
pub(super) struct Peer(UnixStream);

impl Peer {
    /// Gives the kept descriptors back.
    pub(super) fn give_back(&self, kept: &[OwnedFd]) -> io::Result<()> {
        let kept: Vec<_> = kept.iter().map(AsFd::as_fd).collect();
        message::send(&self.0, b"K", &kept)
    }

    /// Reports, and ends the line.
    pub(super) fn report(mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }
}

/// The subject's end.
#[derive(Debug)]
pub(super) struct Link(UnixStream);

impl Link {
    /// Connects to the helper and takes the kept descriptors back. A helper that has not given them back within
    /// `limit` is killed: it must not end a subject that serves again.
    pub(super) fn connect(name: &LinkName, limit: Duration) -> io::Result<(Self, Vec<OwnedFd>)> {
        let stream = UnixStream::connect_addr(&address(name)?)?;
        stream.set_read_timeout(Some(limit))?;
        let (count, kept) = message::receive(&stream, &mut [0]).inspect_err(|error| {
            if error.kind() == io::ErrorKind::WouldBlock
                && let Ok(helper) = rustix::net::sockopt::socket_peercred(&stream)
            {
                // It may have ended just now.
                let _ = rustix::process::kill_process(helper.pid, rustix::process::Signal::KILL);
            }
        })?;
        if count == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        Ok((Self(stream), kept))
    }

    /// Waits for the report.
    pub(super) fn report(self, limit: Duration) -> io::Result<Vec<u8>> {
        self.0.set_read_timeout(Some(limit))?;
        let mut bytes = Vec::new();
        self.0.take(LIMIT).read_to_end(&mut bytes)?;
        if bytes.is_empty() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_helper_that_does_not_answer_is_killed() {
        let name = *b"link-test-silent";
        // A stand-in that listens and says nothing: the listener is handed over, so it is the peer that is seen.
        let hex: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        let script = "import socket,sys,time\ns=socket.socket(socket.AF_UNIX)\n\
                      s.bind('\\0defrost-helper-'+sys.argv[1]);s.listen()\nprint('up',flush=True);time.sleep(60)";
        let mut helper =
            Command::new("python3").args(["-c", script, &hex]).stdout(Stdio::piped()).spawn().unwrap();
        let mut up = [0; 3];
        helper.stdout.take().unwrap().read_exact(&mut up).unwrap();
        let error = Link::connect(&name, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&helper.wait().unwrap()), Some(9));
    }

    #[test]
    fn a_helper_that_is_gone_is_seen_at_once() {
        let error = Link::connect(b"link-test-nobody", Duration::from_secs(60)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
