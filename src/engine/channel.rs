//! The two pipes between a restored process and whoever restored it: parameters in, a report out.
//!
//! The subject is dumped holding one end of each, with nobody at the other. A plain `criu restore` brings the
//! ends back as they are: end of file, and a broken pipe. `defrost restore` names the pipes to CRIU by their
//! inodes and puts its own in their place (`inherit_fd`, key `pipe:[INODE]`), which works in any namespace and
//! needs no path, no environment and no parent process to be guessed.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;
use serde::{Deserialize, Serialize};

use super::filling;
use crate::image::record::{self, Kind};
use crate::wake::{InstanceId, Origin, Params};

/// The most that parameters or a report may take: a pipe of an ordinary user's holds no more
/// (/proc/sys/fs/pipe-max-size).
const LIMIT: usize = 1024 * 1024;
/// How long a restored process waits for its parameters, which were written before it was restored.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long whoever restored a process may take to read its report. He waits for it, unless he was stopped.
const READ: Duration = Duration::from_secs(60);

const PARAMS: Kind = Kind { magic: *b"DEFRPARA", version: 3 };
const REPORT: Kind = Kind { magic: *b"DEFRRPRT", version: 2 };

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
        let (handed, failure) = match read_handed(self.params) {
            Ok(handed) => (handed, None),
            Err(error) => (Handed::default(), Some(format!("parameters of the restore: {error}"))),
        };
        if let Some(origin) = &handed.origin {
            filling::restored(origin);
        }
        let report = ReportWriter { pipe: self.report, awaited: handed.awaited };
        Arrival { params: handed.params, origin: handed.origin, failure, report }
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

fn read_handed(pipe: OwnedFd) -> io::Result<Handed> {
    let bytes = read_within(pipe, Instant::now() + PATIENCE)?;
    if bytes.is_empty() {
        return Ok(Handed::default());
    }
    record::decode(PARAMS, &bytes).map_err(io::Error::other)
}

/// Reads to the end of the pipe, within limits of time and size.
fn read_within(pipe: OwnedFd, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut file = File::from(pipe);
    let mut buffer = [0; 4096];
    loop {
        if !readable(&file, deadline)? {
            return Err(io::Error::from(io::ErrorKind::TimedOut));
        }
        match file.read(&mut buffer) {
            Ok(0) => return Ok(bytes),
            Ok(_) if bytes.len() > LIMIT => return Err(io::Error::from(io::ErrorKind::FileTooLarge)),
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
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
    /// What was handed in; empty after a plain `criu restore`.
    pub params: Params,
    /// What brought the process back; `None` after a plain `criu restore`.
    pub origin: Option<Origin>,
    /// Why the parameters could not be read, if they could not.
    pub failure: Option<String>,
    /// Where to report to.
    pub report: ReportWriter,
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
    while rustix::io::ioctl_fionread(pipe)? > 0 {
        // No event is asked for: an error, which means that the reader is gone, is always told.
        let pause = Timespec { tv_sec: 0, tv_nsec: 200_000 };
        match rustix::event::poll(&mut [PollFd::new(pipe, PollFlags::empty())], Some(&pause)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Err(io::Error::from(io::ErrorKind::BrokenPipe)),
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
    /// How long its hooks took, in microseconds.
    pub hooks_us: u64,
}

/// The restorer's ends, before and while CRIU restores.
#[derive(Debug)]
pub struct Handover {
    /// To stand in for the pipe of the parameters.
    pub params: OwnedFd,
    /// To stand in for the pipe of the report.
    pub report: OwnedFd,
    /// Where the report will come out.
    pub reader: ReportReader,
}

impl Handover {
    /// Makes both pipes and writes the parameters, and what restores. Where the report is `awaited`, the restored
    /// process takes it for a failure that nobody reads it.
    ///
    /// # Errors
    /// `InvalidInput` when the parameters are larger than a pipe; else the kernel's own.
    pub fn new(params: &Params, origin: &Origin, awaited: bool) -> io::Result<Self> {
        let (read_params, write_params) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let (read_report, write_report) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let handed = Handed { params: params.clone(), origin: Some(origin.clone()), awaited };
        let bytes = record::encode(PARAMS, &handed).map_err(io::Error::other)?;
        let room = rustix::pipe::fcntl_getpipe_size(&write_params)?;
        if bytes.len() > LIMIT {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the parameters exceed 1 MiB"));
        }
        if bytes.len() > room {
            rustix::pipe::fcntl_setpipe_size(&write_params, LIMIT)?;
        }
        File::from(write_params).write_all(&bytes)?;
        Ok(Self { params: read_params, report: write_report, reader: ReportReader(read_report) })
    }
}

/// The restorer's end of the report.
#[derive(Debug)]
pub struct ReportReader(OwnedFd);

impl ReportReader {
    /// Waits for the report. `None` when the process ended, or let go of the pipe, without one.
    ///
    /// # Errors
    /// `TimedOut` when nothing came before the deadline; the process may live and come later.
    pub fn wait(self, deadline: Instant) -> io::Result<Option<Report>> {
        let bytes = read_within(self.0, deadline)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        record::decode(REPORT, &bytes).map(Some).map_err(io::Error::other)
    }
}

impl AsFd for ReportReader {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_restore_has_no_parameters_and_nobody_to_report_to() {
        let arrival = Channel::new().unwrap().arrive();
        assert_eq!(arrival.params, Params::default());
        assert_eq!(arrival.failure, None);
        let report = Report {
            instance: InstanceId::from_bytes([1; 16]),
            generation: 1,
            socket: None,
            addresses: vec![],
            failures: vec![],
            hooks_us: 0,
        };
        arrival.report.send(&report).unwrap();
    }

    #[test]
    fn parameters_go_in_and_the_report_comes_out() {
        let mut params = Params::default();
        params.args.push("x".repeat(200_000));
        params.settings.insert("http.listen".into(), "127.0.0.1:0".into());
        let origin = Origin { engine: "instant".into(), ..Origin::default() };
        let handover = Handover::new(&params, &origin, true).unwrap();
        // What CRIU does by inherit_fd.
        let channel = Channel { params: handover.params, report: handover.report };
        let arrival = channel.arrive();
        assert_eq!(arrival.params, params);
        assert_eq!(arrival.origin, Some(origin));
        assert_eq!(arrival.params.listen("http"), Some("127.0.0.1:0"));
        let report = Report {
            instance: InstanceId::from_bytes([2; 16]),
            generation: 3,
            socket: None,
            addresses: vec![],
            failures: vec![],
            hooks_us: 9,
        };
        let soon = Instant::now() + Duration::from_secs(5);
        let reader = std::thread::spawn(move || handover.reader.wait(soon).unwrap());
        arrival.report.send(&report).unwrap();
        assert_eq!(reader.join().unwrap(), Some(report));
    }

    #[test]
    fn a_process_that_dies_without_a_report_is_told_from_one_that_is_late() {
        let handover = Handover::new(&Params::default(), &Origin::default(), true).unwrap();
        let late = handover.reader.wait(Instant::now() + Duration::from_millis(20)).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        let handover = Handover::new(&Params::default(), &Origin::default(), true).unwrap();
        drop(handover.report);
        assert_eq!(handover.reader.wait(Instant::now() + Duration::from_secs(5)).unwrap(), None);
    }

    #[test]
    fn a_report_that_was_wanted_and_is_not_read_is_a_failure() {
        let report = Report {
            instance: InstanceId::from_bytes([3; 16]),
            generation: 1,
            socket: None,
            addresses: vec![],
            failures: vec![],
            hooks_us: 0,
        };
        for awaited in [true, false] {
            let Handover { params, report: pipe, reader } =
                Handover::new(&Params::default(), &Origin::default(), awaited).unwrap();
            drop(reader);
            let arrival = Channel { params, report: pipe }.arrive();
            assert_eq!(arrival.params, Params::default());
            let sent = arrival.report.send(&report);
            assert_eq!(sent.err().map(|error| error.kind()), awaited.then_some(io::ErrorKind::BrokenPipe));
        }
    }

    #[test]
    fn garbage_in_place_of_parameters_is_a_failure_not_a_crash() {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        File::from(write).write_all(b"no record at all").unwrap();
        let channel = Channel { params: read, ..Channel::new().unwrap() };
        let arrival = channel.arrive();
        assert_eq!(arrival.params, Params::default());
        assert!(arrival.failure.unwrap().starts_with("parameters of the restore: "));
    }
}
