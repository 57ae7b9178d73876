//! The connection to a CRIU worker: one message is one datagram of a SOCK_SEQPACKET pair. Knows no process; who starts
//! the worker at the other end is up to [`swrk`](crate::swrk), or for a self-dump to somebody outside the dumped tree.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use prost::Message;

use crate::deadline::{Deadline, Ready};
use crate::error::{Error, Operation, Problem};
use crate::message::{Features, Kind, Notify, Options, Request, Response};
use crate::options::{DumpOptions, DumpTarget, RestoreOptions};
use crate::version::Version;

/// The largest answer that is read, in bytes. CRIU's answers have less than two thousand: its error text is one line.
pub const RESPONSE_LIMIT: usize = 64 * 1024;

/// What a self-dump comes to. Like fork, it may return twice, in two processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SelfDump {
    /// The images are written, and this is still the process that was dumped (`leave_running`).
    Dumped,
    /// This is a process restored from the images.
    Restored,
    /// There is no dump; the process was resumed unharmed. The cause is in CRIU's log.
    Refused {
        /// CRIU's errno, which only a few failures have.
        errno: Option<i32>,
        /// The first error that CRIU logged, which seldom is the cause: see [`diagnose`](crate::log::diagnose).
        first_error: Option<String>,
    },
}

/// The answer to a notify message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consent {
    /// Go on.
    Given,
    /// Give the operation up. CRIU heeds it up to `post-dump` and `post-restore`; at `pre-resume` and `post-resume` it
    /// only logs it.
    Refused,
}

/// Who answers notify messages.
pub type OnNotify<'a> = &'a mut dyn FnMut(&Notify) -> Consent;

/// One end of the pair. CRIU takes the process that made the pair for the requester.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    /// Tells the end of the worker, where that is a child of this process.
    worker: Option<OwnedFd>,
}

impl Connection {
    /// Makes the pair: this end, and the one for the worker. Both are closed on exec, and the second must be closed in
    /// this process once the worker has it, or the end of the worker is not noticed.
    ///
    /// # Errors
    /// [`Error::Protocol`] when there is no descriptor or memory left.
    pub fn pair() -> Result<(Connection, OwnedFd), Error> {
        let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
        let (socket, worker) = pair.map_err(|errno| Error::Protocol {
            operation: Operation::Start,
            problem: Problem::Socket(errno.into()),
        })?;
        Ok((Connection { socket, worker: None }, worker))
    }

    /// Has a wait for an answer end with the worker, whose end this descriptor tells. The end of the connection would
    /// not do: a killed worker may leave a process behind that holds a copy.
    pub(crate) fn watch(&mut self, worker: OwnedFd) {
        self.worker = Some(worker);
    }

    /// Asks for the version.
    ///
    /// # Errors
    /// [`Error::Deadline`], [`Error::Died`], [`Error::Protocol`]; the other end is left as it is.
    pub fn version(&self, limit: Duration) -> Result<Version, Error> {
        let request = Request { kind: Kind::Version.into(), ..Request::default() };
        let response = self.exchange(Operation::Version, &request, Deadline::after(limit), None)?;
        let incomplete =
            || Error::Protocol { operation: Operation::Version, problem: Problem::Incomplete("version") };
        let version = response.version.as_ref().ok_or_else(incomplete)?;
        let number = |value: i32| u32::try_from(value).map_err(|_| incomplete());
        Ok(Version {
            major: number(version.major)?,
            minor: number(version.minor)?,
            sublevel: number(version.sublevel.unwrap_or(0))?,
        })
    }

    /// Waits until the worker has come so far that it answers, and has it wait for another request.
    ///
    /// # Errors
    /// As [`Connection::version`].
    pub(crate) fn stay(&self, limit: Duration) -> Result<(), Error> {
        let request = Request { kind: Kind::Version.into(), keep_open: Some(true), ..Request::default() };
        self.exchange(Operation::Version, &request, Deadline::after(limit), None).map(drop)
    }

    /// Asks whether the kernel has all that CRIU needs at least. `criu check` proves little: see
    /// [`self_test`](crate::self_test).
    ///
    /// # Errors
    /// As [`Connection::version`].
    pub fn check(&self, limit: Duration) -> Result<bool, Error> {
        let request = Request { kind: Kind::Check.into(), ..Request::default() };
        Ok(self.exchange(Operation::Check, &request, Deadline::after(limit), None)?.success)
    }

    /// Asks for optional features of the kernel.
    ///
    /// # Errors
    /// As [`Connection::version`].
    pub fn feature_check(&self, limit: Duration) -> Result<Features, Error> {
        let all = Features { mem_track: Some(true), lazy_pages: Some(true), pidfd_store: Some(true) };
        let request = Request { kind: Kind::FeatureCheck.into(), features: Some(all), ..Request::default() };
        let response = self.exchange(Operation::FeatureCheck, &request, Deadline::after(limit), None)?;
        response.features.ok_or(Error::Protocol {
            operation: Operation::FeatureCheck,
            problem: Problem::Incomplete("features"),
        })
    }

    /// Dumps another process. The answer may be a failure. `work_dir` is a descriptor of this process.
    ///
    /// # Errors
    /// As [`Connection::version`], and [`Problem::Target`] for [`DumpTarget::Requester`]. The target goes on when the
    /// worker dies or is killed.
    pub fn dump(
        &self,
        options: &DumpOptions,
        work_dir: Option<BorrowedFd<'_>>,
        limit: Duration,
        on_notify: Option<OnNotify<'_>>,
    ) -> Result<Response, Error> {
        if options.target == DumpTarget::Requester {
            return Err(Error::Protocol { operation: Operation::Dump, problem: Problem::Target });
        }
        let mut opts = options.to_message(work_dir.map(|fd| fd.as_raw_fd()));
        opts.notify_scripts = on_notify.is_some().then_some(true);
        self.exchange(Operation::Dump, &order(Kind::Dump, opts), Deadline::after(limit), on_notify)
    }

    /// Restores. The answer may be a failure, and then too may carry a pid. The worker must have the inherited descriptors
    /// from `first_inherited` on.
    ///
    /// # Errors
    /// As [`Connection::version`]. What was restored so far is then left as it is.
    pub fn restore(
        &self,
        options: &RestoreOptions,
        work_dir: Option<BorrowedFd<'_>>,
        first_inherited: RawFd,
        limit: Duration,
        on_notify: Option<OnNotify<'_>>,
    ) -> Result<Response, Error> {
        let mut opts = options.to_message(work_dir.map(|fd| fd.as_raw_fd()), first_inherited);
        opts.notify_scripts = on_notify.is_some().then_some(true);
        self.exchange(Operation::Restore, &order(Kind::Restore, opts), Deadline::after(limit), on_notify)
    }

    /// Dumps the process that made the pair. Blocks, and must be called from a thread that may (not from one of an async
    /// runtime). The worker must be no descendant of this process, and its working folder is the images folder. The
    /// answer on this socket is the only verdict: CRIU stores the socket's inode with the image, and gives the restored
    /// process a fresh pair with this very answer queued.
    ///
    /// Never with notify scripts: CRIU would freeze this process and then wait for its acknowledgement.
    ///
    /// # Errors
    /// In each case this process goes on. [`Error::Died`]: CRIU ended without an answer. [`Error::Deadline`]: CRIU may
    /// still be at it, and who started it must kill it. [`Problem::Target`] for [`DumpTarget::Pid`]: with the own pid
    /// set, CRIU would not answer the restored process.
    pub fn self_dump(self, options: &DumpOptions, limit: Duration) -> Result<SelfDump, Error> {
        let operation = Operation::SelfDump;
        if options.target != DumpTarget::Requester || options.work_folder.is_some() {
            return Err(Error::Protocol { operation, problem: Problem::Target });
        }
        let request = order(Kind::Dump, options.to_message(None));
        let response = self.exchange(operation, &request, Deadline::after(limit), None)?;
        if !response.success {
            return Ok(SelfDump::Refused { errno: response.errno, first_error: response.first_error });
        }
        let dump = response
            .dump
            .ok_or(Error::Protocol { operation, problem: Problem::Incomplete("verdict on the dump") })?;
        Ok(if dump.restored() { SelfDump::Restored } else { SelfDump::Dumped })
    }

    /// Sends a request, answers notify messages, and returns the answer. Without `on_notify` none is expected, and one
    /// that comes is refused: nobody has looked at it.
    fn exchange(
        &self,
        operation: Operation,
        request: &Request,
        deadline: Deadline,
        mut on_notify: Option<OnNotify<'_>>,
    ) -> Result<Response, Error> {
        self.send(operation, request, &deadline)?;
        loop {
            let response = self.receive(operation, &deadline)?;
            if response.kind == i32::from(Kind::Notify) {
                let notify = response.notify.unwrap_or_default();
                let consent = on_notify.as_mut().map_or(Consent::Refused, |answer| answer(&notify));
                let acknowledgement = Request {
                    kind: Kind::Notify.into(),
                    notify_success: Some(consent == Consent::Given),
                    ..Request::default()
                };
                self.send(operation, &acknowledgement, &deadline)?;
            } else if response.kind == request.kind {
                return Ok(response);
            } else {
                return Err(Error::Protocol { operation, problem: Problem::Unexpected(response.kind) });
            }
        }
    }

    fn send(&self, operation: Operation, request: &Request, deadline: &Deadline) -> Result<(), Error> {
        let bytes = request.encode_to_vec();
        loop {
            let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
            match send(self.socket.as_raw_fd(), &bytes, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => self.wait(operation, deadline, Direction::Out)?,
                Err(Errno::EPIPE | Errno::ECONNRESET) => return Err(died(operation)),
                Err(errno) => return Err(socket_failed(operation, errno.into())),
            }
        }
    }

    fn receive(&self, operation: Operation, deadline: &Deadline) -> Result<Response, Error> {
        let peek = MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC | MsgFlags::MSG_DONTWAIT;
        let size = loop {
            match recv(self.socket.as_raw_fd(), &mut [], peek) {
                Ok(0) | Err(Errno::ECONNRESET) => return Err(died(operation)),
                Ok(size) => break size,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => self.wait(operation, deadline, Direction::In)?,
                Err(errno) => return Err(socket_failed(operation, errno.into())),
            }
        };
        if size > RESPONSE_LIMIT {
            let problem = Problem::Oversize { size, limit: RESPONSE_LIMIT };
            return Err(Error::Protocol { operation, problem });
        }
        let mut bytes = vec![0; size];
        let size = recv(self.socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT)
            .map_err(|errno| socket_failed(operation, errno.into()))?;
        Response::decode(&bytes[..size])
            .map_err(|error| Error::Protocol { operation, problem: Problem::Undecodable(error) })
    }

    fn wait(&self, operation: Operation, deadline: &Deadline, direction: Direction) -> Result<(), Error> {
        let or_late = |ready| if ready { Ready::Yes } else { Ready::Late };
        let ready = match (direction, &self.worker) {
            (Direction::In, Some(worker)) => deadline.readable_before(&self.socket, worker),
            (Direction::In, None) => deadline.readable(&self.socket).map(or_late),
            (Direction::Out, _) => deadline.writable(&self.socket).map(or_late),
        };
        match ready {
            Ok(Ready::Yes) => Ok(()),
            Ok(Ready::Ended) => Err(died(operation)),
            Ok(Ready::Late) => Err(Error::Deadline { operation, limit: deadline.limit() }),
            Err(error) => Err(socket_failed(operation, error)),
        }
    }
}

/// What a wait is for.
#[derive(Debug, Clone, Copy)]
enum Direction {
    In,
    Out,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn order(kind: Kind, options: Options) -> Request {
    Request { kind: kind.into(), opts: Some(Box::new(options)), ..Request::default() }
}

fn died(operation: Operation) -> Error {
    Error::Died { operation, status: None, cause: None }
}

fn socket_failed(operation: Operation, error: io::Error) -> Error {
    Error::Protocol { operation, problem: Problem::Socket(error) }
}

#[cfg(test)]
mod tests;
