//! The ends of whoever restores: parameters are written before, what the time went into after it, and the report is
//! read. It must not know how a process is restored.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::fs::OFlags;
use rustix::pipe::PipeFlags;

use super::{Handed, LIMIT, PARAMS, PHASES, REPORT, Report, read_record};
use crate::image::manifest::Phase;
use crate::image::record;
use crate::wake::{Origin, Params};

/// The restorer's ends, before and while the process is restored.
#[derive(Debug)]
pub struct Handover {
    /// To stand in for the pipe of the parameters.
    pub params: OwnedFd,
    /// To stand in for the pipe of the report.
    pub report: OwnedFd,
    /// Where the report will come out.
    pub reader: ReportReader,
    /// Where to tell afterwards what the time went into.
    pub phases: PhasesWriter,
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
        let mut write_params = File::from(write_params);
        write_params.write_all(&bytes)?;
        let (reader, phases) = (ReportReader(read_report), PhasesWriter(write_params));
        Ok(Self { params: read_params, report: write_report, reader, phases })
    }
}

/// The restorer's end of the parameters, once these are written.
#[derive(Debug)]
pub struct PhasesWriter(File);

impl PhasesWriter {
    /// Tells the restored process what the engine's time went into. It is for the process's own record and nobody
    /// depends on it: where the pipe is still full of parameters, or the process gone, it is left out.
    pub fn tell(mut self, phases: &[Phase]) {
        let told = || -> io::Result<()> {
            let bytes = record::encode(PHASES, &phases).map_err(io::Error::other)?;
            rustix::fs::fcntl_setfl(&self.0, rustix::fs::fcntl_getfl(&self.0)? | OFlags::NONBLOCK)?;
            self.0.write_all(&bytes)
        }();
        if let Err(error) = told {
            tracing::debug!("the restored process is not told of its phases: {error}");
        }
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
        let Some(bytes) = read_record(&mut File::from(self.0), deadline)? else { return Ok(None) };
        record::decode(REPORT, &bytes).map(Some).map_err(io::Error::other)
    }
}

impl AsFd for ReportReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
