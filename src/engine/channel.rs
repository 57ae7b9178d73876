//! The two pipes between a restored process and whoever restored it: parameters in, a report out.
//!
//! The subject is dumped holding one end of each, with nobody at the other. A plain `criu restore` brings the
//! ends back as they are: end of file, and a broken pipe. `defrost restore` names the pipes to CRIU by their
//! inodes and puts its own in their place (`inherit_fd`, key `pipe:[INODE]`), which works in any namespace and
//! needs no path, no environment and no parent process to be guessed.
//!
//! Behind the parameters, in the same pipe, comes what the engine's time went into: it is known only when the process
//! runs already, which never waits for it before it serves.

mod handover;

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;
use serde::{Deserialize, Serialize};

pub use self::handover::{Handover, PhasesWriter, ReportReader};
use super::filling;
use crate::image::manifest::Phase;
use crate::image::record::{self, HEADER_LEN, Kind};
use crate::wake::{InstanceId, Origin, Params};

/// The most that parameters or a report may take: a pipe of an ordinary user's holds no more
/// (/proc/sys/fs/pipe-max-size).
const LIMIT: usize = 1024 * 1024;
/// How long a restored process waits for its parameters, which were written before it was restored.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a process that serves already waits for what the engine's time went into: written within microseconds of
/// its start.
const AFTERWARDS: Duration = Duration::from_secs(1);

/// How long whoever restored a process may take to read its report. He waits for it, unless he was stopped.
const READ: Duration = Duration::from_secs(60);

const PARAMS: Kind = Kind { magic: *b"DEFRPARA", version: 5 };
const PHASES: Kind = Kind { magic: *b"DEFRPHAS", version: 1 };
const REPORT: Kind = Kind { magic: *b"DEFRRPRT", version: 3 };

/// The subject's ends, held during the dump.
#[derive(Debug)]
pub struct Channel {
    params: OwnedFd,
    report: OwnedFd,
}

impl Channel {
    /// Makes both pipes and lets their other ends go.
    ///
    /// # Errors
    /// The kernel's own.
    pub fn new() -> io::Result<Self> {
        let (params, _) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let (_, report) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        Ok(Self { params, report })
    }

    /// The inodes of the pipe of the parameters, and of that of the report.
    ///
    /// # Errors
    /// The kernel's own.
    pub fn inodes(&self) -> io::Result<(u64, u64)> {
        Ok((rustix::fs::fstat(&self.params)?.st_ino, rustix::fs::fstat(&self.report)?.st_ino))
    }

    /// In a restored process: reads what was handed in. Parameters that cannot be read count as none, and as
    /// a failure to be reported.
    #[must_use]
    pub fn arrive(self) -> Arrival {
        let woke = Instant::now();
        let mut pipe = File::from(self.params);
        let (handed, failure) = match read_handed(&mut pipe) {
            Ok(handed) => (handed, None),
            Err(error) => (None, Some(format!("parameters of the restore: {error}"))),
        };
        let phases = handed.is_some().then_some(PhasesReader(pipe));
        let handed = handed.unwrap_or_default();
        if let Some(origin) = &handed.origin {
            filling::restored(origin);
        }
        let report = ReportWriter { pipe: self.report, awaited: handed.awaited };
        Arrival { woke, params: handed.params, origin: handed.origin, failure, report, phases }
    }
}

/// What travels into the restored process.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Handed {
    params: Params,
    /// What brings the process back.
    origin: Option<Origin>,
    /// Somebody waits for the report.
    awaited: bool,
}

/// Nothing after a plain `criu restore`.
fn read_handed(pipe: &mut File) -> io::Result<Option<Handed>> {
    let Some(bytes) = read_record(pipe, Instant::now() + PATIENCE)? else { return Ok(None) };
    record::decode(PARAMS, &bytes).map(Some).map_err(io::Error::other)
}

/// Reads one record and nothing behind it, within limits of time and size; none at the end of the pipe.
fn read_record(pipe: &mut File, deadline: Instant) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    loop {
        let length = record::announced_len(&bytes).unwrap_or(HEADER_LEN);
        if length > LIMIT {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        let read = bytes.len();
        if read == length {
            return Ok(Some(bytes));
        }
        if !readable(&*pipe, deadline)? {
            return Err(io::Error::from(io::ErrorKind::TimedOut));
        }
        bytes.resize(length, 0);
        match pipe.read(&mut bytes[read..]) {
            // What was torn off is told by whoever decodes it.
            Ok(0) => {
                bytes.truncate(read);
                return Ok((read > 0).then_some(bytes));
            }
            Ok(count) => bytes.truncate(read + count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => bytes.truncate(read),
            Err(error) => return Err(error),
        }
    }
}

/// Whether there is something to read, or the end, before the deadline. It looks once in any case: after a
/// restore the clock may have jumped.
fn readable(descriptor: impl AsFd, deadline: Instant) -> io::Result<bool> {
    let descriptor = descriptor.as_fd();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        let mut waiting = [PollFd::new(&descriptor, PollFlags::IN)];
        match rustix::event::poll(&mut waiting, Some(&limit)) {
            Ok(count) => return Ok(count > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// What a restored process finds.
#[derive(Debug)]
pub struct Arrival {
    /// When it ran its first instruction after the restore.
    pub woke: Instant,
    /// What was handed in; empty after a plain `criu restore`.
    pub params: Params,
    /// What brought the process back; `None` after a plain `criu restore`.
    pub origin: Option<Origin>,
    /// Why the parameters could not be read, if they could not.
    pub failure: Option<String>,
    /// Where to report to.
    pub report: ReportWriter,
    /// What the engine's time went into, to be read when the process serves; `None` after a plain `criu restore`.
    pub phases: Option<PhasesReader>,
}

/// The subject's end of the parameters, once these have been read.
#[derive(Debug)]
pub struct PhasesReader(File);

impl PhasesReader {
    /// What the engine's time went into, in order; empty where nobody tells, or not within a second. Blocks.
    #[must_use]
    pub fn read(mut self) -> Vec<Phase> {
        let read = read_record(&mut self.0, Instant::now() + AFTERWARDS);
        let bytes = read.ok().flatten().unwrap_or_default();
        record::decode(PHASES, &bytes).unwrap_or_default()
    }
}

/// The subject's end of the report.
#[derive(Debug)]
pub struct ReportWriter {
    pipe: OwnedFd,
    awaited: bool,
}

impl ReportWriter {
    /// Whether somebody waits for the report; else sending it takes no time.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.awaited
    }

    /// Reports, once, and waits until the report has been read: whoever reads it watches over this process from
    /// then on. Blocks. That nobody listens is no failure where nobody said that he would: after a plain restore.
    ///
    /// # Errors
    /// What kept the report from being read: `BrokenPipe` when the one who wanted it is gone.
    pub fn send(self, report: &Report) -> io::Result<()> {
        let bytes = record::encode(REPORT, report).map_err(io::Error::other)?;
        let mut pipe = File::from(self.pipe);
        match pipe.write_all(&bytes) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe && !self.awaited => Ok(()),
            Ok(()) if self.awaited => read_by_the_other_end(&pipe, Instant::now() + READ),
            written => written,
        }
    }
}

/// Waits until nothing of what was written is left in the pipe: ioctl_pipe(2), FIONREAD.
fn read_by_the_other_end(pipe: &File, deadline: Instant) -> io::Result<()> {
    let mut gone = false;
    while rustix::io::ioctl_fionread(pipe)? > 0 {
        if gone {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe));
        }
        // No event is asked for: an error, which means that the reader is gone, is always told. He may have read all
        // of it before.
        let pause = Timespec { tv_sec: 0, tv_nsec: 200_000 };
        match rustix::event::poll(&mut [PollFd::new(pipe, PollFlags::empty())], Some(&pause)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => gone = true,
            Err(error) => return Err(error.into()),
        }
        if Instant::now() > deadline {
            return Err(io::Error::from(io::ErrorKind::TimedOut));
        }
    }
    Ok(())
}

/// What a restored process says when its hooks are done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The identity of this restore.
    pub instance: InstanceId,
    /// How often this state has been restored.
    pub generation: u64,
    /// The path of its control socket, if it has one.
    pub socket: Option<String>,
    /// The TCP addresses that it can be reached at, each with its resource's name.
    pub addresses: Vec<(String, SocketAddr)>,
    /// What failed: each a sentence. Empty when it is ready.
    pub failures: Vec<String>,
    /// What the time from its first instruction to this report went into, in order.
    pub phases: Vec<Phase>,
}

#[cfg(test)]
mod tests;
