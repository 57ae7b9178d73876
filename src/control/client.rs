//! The other end of a control socket: one request, one answer, within a deadline. It needs no async runtime.
//!
//! It must not know how a socket is found, nor print what it hears.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket};

use super::answer::Answer;
use super::lines::LINE_LIMIT;

/// The longest answer, in bytes: lists in answers are cut well before.
pub const ANSWER_LIMIT: usize = 4 * 1024 * 1024;

/// The pause before another attempt while a server has no room for more clients.
const PAUSE: Duration = Duration::from_millis(10);

/// How often a question is asked whose connection ends before the answer.
const ATTEMPTS: u32 = 4;

/// A connection to a server's control socket.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    path: PathBuf,
    /// What was read beyond the last answer.
    beyond: Vec<u8>,
}

impl Client {
    /// Connects, trying for at most `limit`.
    ///
    /// # Errors
    /// [`ClientError::NotThere`], [`ClientError::NotListening`] when the server has ended without tidying up,
    /// [`ClientError::Late`] when it is too busy, and [`ClientError::Io`].
    pub fn connect(path: &Path, limit: Duration) -> Result<Self, ClientError> {
        let owned = || path.to_owned();
        let deadline = Instant::now() + limit;
        loop {
            match attempt(path) {
                Ok(socket) => {
                    let stream = UnixStream::from(socket);
                    stream
                        .set_nonblocking(false)
                        .map_err(|source| ClientError::Io { path: owned(), source })?;
                    return Ok(Self { stream, path: owned(), beyond: Vec::new() });
                }
                // unix(7): the queue of connections to be accepted is full.
                Err(Errno::EAGAIN) if Instant::now() < deadline => std::thread::sleep(PAUSE),
                Err(Errno::EAGAIN) => return Err(ClientError::Late { path: owned(), waited: limit }),
                Err(Errno::ENOENT) => return Err(ClientError::NotThere { path: owned() }),
                Err(Errno::ECONNREFUSED) => return Err(ClientError::NotListening { path: owned() }),
                Err(errno) => return Err(ClientError::Io { path: owned(), source: errno.into() }),
            }
        }
    }

    /// Connects, asks one thing that changes nothing, and gives the answer. A checkpoint ends all connections, even one on
    /// which a question is on its way: it is asked again then.
    ///
    /// # Errors
    /// As [`connect`](Self::connect) and [`request`](Self::request); [`ClientError::Closed`] when the answer does not come
    /// in several attempts.
    pub fn inquire(path: &Path, line: &[u8], limit: Duration) -> Result<Answer, ClientError> {
        Self::inquire_of(path, line, limit).map(|(answer, _)| answer)
    }

    /// As [`inquire`](Self::inquire), with the [pid](Self::peer_pid) of the process that answered.
    ///
    /// # Errors
    /// As [`inquire`](Self::inquire).
    pub fn inquire_of(
        path: &Path,
        line: &[u8],
        limit: Duration,
    ) -> Result<(Answer, Option<i32>), ClientError> {
        let deadline = Instant::now() + limit;
        let mut attempts = 1;
        loop {
            let mut client = Self::connect(path, left(deadline))?;
            match client.request(line, left(deadline)).map(|answer| (answer, client.peer_pid())) {
                Err(ClientError::Closed { .. }) if attempts < ATTEMPTS && Instant::now() < deadline => {
                    attempts += 1;
                    std::thread::sleep(PAUSE);
                }
                // The whole of the time, not what was left of it.
                Err(ClientError::Late { path, .. }) => return Err(ClientError::Late { path, waited: limit }),
                other => return other,
            }
        }
    }

    /// The process that listens at the other end, if it can be seen from here.
    #[must_use]
    pub fn peer_pid(&self) -> Option<i32> {
        getsockopt(&self.stream, PeerCredentials).ok().map(|peer| peer.pid()).filter(|pid| *pid > 0)
    }

    /// Sends one line (without its newline) and waits at most `limit` for the answer. A checkpoint takes as long
    /// as the memory is large: about a second for each gigabyte.
    ///
    /// # Errors
    /// [`ClientError::Closed`] when the connection ends first, [`ClientError::Late`], and others. After any of
    /// them this connection is of no more use; what was asked for may happen all the same.
    pub fn request(&mut self, line: &[u8], limit: Duration) -> Result<Answer, ClientError> {
        let answer = self.ask(line, limit)?;
        Answer::parse(&answer).ok_or_else(|| ClientError::Unintelligible { path: self.path.clone() })
    }

    /// As [`request`](Self::request), for what is answered in several lines: gives the first one, without its
    /// newline.
    ///
    /// # Errors
    /// As [`request`](Self::request).
    pub fn ask(&mut self, line: &[u8], limit: Duration) -> Result<Vec<u8>, ClientError> {
        if line.len() > LINE_LIMIT || line.contains(&b'\n') {
            return Err(ClientError::NotALine);
        }
        let deadline = Instant::now() + limit;
        let sent = [line, b"\n"].concat();
        self.stream.set_write_timeout(Some(left(deadline))).map_err(|source| self.failed(source, limit))?;
        self.stream.write_all(&sent).map_err(|source| self.failed(source, limit))?;
        self.read_line(deadline, limit)
    }

    /// The next line of an answer of several, if it comes within `limit`.
    ///
    /// # Errors
    /// As [`request`](Self::request). After [`ClientError::Late`] it may be asked for again.
    pub fn next_line(&mut self, limit: Duration) -> Result<Vec<u8>, ClientError> {
        self.read_line(Instant::now() + limit, limit)
    }

    fn read_line(&mut self, deadline: Instant, limit: Duration) -> Result<Vec<u8>, ClientError> {
        let mut line = std::mem::take(&mut self.beyond);
        let end = self.read_up_to_newline(&mut line, deadline, limit);
        self.beyond = line.split_off(*end.as_ref().unwrap_or(&0));
        end?;
        line.pop();
        Ok(line)
    }

    /// Reads until there is a newline, and gives the length of the line with that.
    fn read_up_to_newline(
        &mut self,
        line: &mut Vec<u8>,
        deadline: Instant,
        limit: Duration,
    ) -> Result<usize, ClientError> {
        let mut buffer = [0; 4096];
        let mut searched = 0;
        loop {
            if let Some(found) = line[searched..].iter().position(|byte| *byte == b'\n') {
                return Ok(searched + found + 1);
            }
            searched = line.len();
            if line.len() > ANSWER_LIMIT {
                return Err(ClientError::Unintelligible { path: self.path.clone() });
            }
            if Instant::now() >= deadline {
                return Err(ClientError::Late { path: self.path.clone(), waited: limit });
            }
            self.stream
                .set_read_timeout(Some(left(deadline)))
                .map_err(|source| self.failed(source, limit))?;
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(ClientError::Closed { path: self.path.clone() }),
                Ok(count) => line.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error, limit)),
            }
        }
    }

    fn failed(&self, source: io::Error, limit: Duration) -> ClientError {
        let path = self.path.clone();
        match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ClientError::Late { path, waited: limit },
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ClientError::Closed { path },
            _ => ClientError::Io { path, source },
        }
    }
}

/// One attempt to connect that does not wait for room in the queue.
fn attempt(path: &Path) -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let stream = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(stream.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(stream)
}

/// What is left of the time; a millisecond at the least, since zero means no limit to the kernel.
fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

/// Why there is no answer. Nothing is known of the server beyond what the text says.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// There is no such socket.
    #[error("there is no control socket at {}", path.display())]
    NotThere {
        /// The path.
        path: PathBuf,
    },
    /// The socket is a left-over.
    #[error("nobody listens at {}: the server has ended", path.display())]
    NotListening {
        /// The path.
        path: PathBuf,
    },
    /// The connection ended before the answer.
    #[error("the server closed the connection without an answer: it may have ended")]
    Closed {
        /// The socket's path.
        path: PathBuf,
    },
    /// The time was up.
    #[error("no answer from {} within {waited:?}", path.display())]
    Late {
        /// The socket's path.
        path: PathBuf,
        /// How long was waited.
        waited: Duration,
    },
    /// What should be sent is not one line.
    #[error("a request is one line of at most {LINE_LIMIT} bytes")]
    NotALine,
    /// What came back is no answer.
    #[error("what answers at {} is not a defrost server", path.display())]
    Unintelligible {
        /// The socket's path.
        path: PathBuf,
    },
    /// The kernel's reason.
    #[error("{}: {source}", path.display())]
    Io {
        /// The socket's path.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

impl ClientError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NotThere { .. } => {
                Some("start the server, or look for its name among the sockets there are")
            }
            Self::NotListening { .. } => Some("start or restore it; the old socket is replaced by then"),
            Self::Closed { .. } => Some("if a checkpoint was asked for, look at the image folder"),
            Self::Late { .. } => Some("allow more time, or look at what the server is doing"),
            Self::NotALine => Some("send one request at a time, and give the image a shorter path"),
            Self::Unintelligible { .. } => Some("give the path of a control socket"),
            Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Some("run it as the user of that server, or as root")
            }
            Self::Io { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    const AMPLE: Duration = Duration::from_secs(20);

    #[test]
    fn a_question_that_is_cut_off_is_asked_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            drop(listener.accept().unwrap());
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 7]).unwrap();
            drop(stream);
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 7]).unwrap();
            stream.write_all(b"ok: well\n").unwrap();
            drop(stream);
            // From here on each time.
            (0..ATTEMPTS).for_each(|_| drop(listener.accept().unwrap()));
        });
        assert_eq!(Client::inquire(&path, b"status", AMPLE).unwrap().text, "well");
        assert!(matches!(Client::inquire(&path, b"status", AMPLE), Err(ClientError::Closed { .. })));
        server.join().unwrap();
        assert!(matches!(Client::inquire(&path, b"status", AMPLE), Err(ClientError::NotListening { .. })));
    }

    /// Asks once; the stand-in for the server sends `reply` and closes.
    fn asked(reply: &'static [u8]) -> Result<Answer, ClientError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 7];
            stream.read_exact(&mut request).unwrap();
            stream.write_all(reply).unwrap();
        });
        let mut client = Client::connect(&path, AMPLE).unwrap();
        assert_eq!(client.peer_pid(), Some(std::process::id().cast_signed()));
        let answer = client.request(b"status", AMPLE);
        server.join().unwrap();
        answer
    }

    #[test]
    fn answers_are_told_apart() {
        let answer = asked(b"ok: echo, pid 1\nok: more\n").unwrap();
        assert_eq!((answer.ok, answer.text.as_str()), (true, "echo, pid 1"));
        let answer = asked(b"error: it is late; hint: go to bed\n").unwrap();
        assert_eq!((answer.ok, answer.text.as_str()), (false, "it is late"));
        assert_eq!(answer.hint.as_deref(), Some("go to bed"));
        assert_eq!(asked(b"{\"a\":1}\n").unwrap().text, "{\"a\":1}");
        assert!(matches!(asked(b"HTTP/1.1 400\n"), Err(ClientError::Unintelligible { .. })));
        assert!(matches!(asked(b"ok: half"), Err(ClientError::Closed { .. })));
    }

    #[test]
    fn a_silent_server_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let mut client = Client::connect(&path, AMPLE).unwrap();
        let error = client.request(b"status", Duration::from_millis(30)).unwrap_err();
        assert!(matches!(error, ClientError::Late { .. }), "{error}");
        drop(listener);
        assert!(matches!(Client::connect(&path, AMPLE), Err(ClientError::NotListening { .. })));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(Client::connect(&path, AMPLE), Err(ClientError::NotThere { .. })));
    }

    #[test]
    fn only_one_line_is_sent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let _listener = UnixListener::bind(&path).unwrap();
        let mut client = Client::connect(&path, AMPLE).unwrap();
        assert!(matches!(client.request(b"a\nb", AMPLE), Err(ClientError::NotALine)));
        assert!(matches!(client.request(&[b'a'; LINE_LIMIT + 1], AMPLE), Err(ClientError::NotALine)));
    }
}
