//! What became of the child: it reports how far it came, first by itself and then as the restorer, when it runs or
//! fails.
//!
//! It must not know how the child is made.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::time::Instant;

use criu_restorer::plan::{Report, Step};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::pager::Pager;

/// Steps of the child before it becomes the restorer are numbered from here on, those of the restorer below.
pub(super) const OWN_STEPS: u32 = 1000;

/// What the child does by itself.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(super) enum OwnStep {
    Session,
    Accounts,
    Clocks,
    Folder,
    Memory,
    Descriptors,
    Numbers,
    Program,
}

impl OwnStep {
    const NAMES: [&str; 8] = [
        "making its session",
        "setting its out-of-memory score and audit user",
        "setting its clocks",
        "entering its working folder",
        "filling its shared memory",
        "making descriptor",
        "numbering its descriptors",
        "starting the restorer",
    ];
}

/// What became of the child.
pub(super) enum Outcome {
    Runs,
    Failed {
        step: String,
        source: io::Error,
    },
    /// Failed for the number of a thread.
    Taken {
        step: String,
        source: io::Error,
    },
    /// It is gone, or was never heard of.
    Silent,
}

/// Starts the pager, if there is to be one, and waits for the report, and until the pager is in charge. Unless that
/// is so the child must be ended before the pager is dropped.
///
/// # Errors
/// `TimedOut` at the deadline, or the kernel's own.
pub(super) fn outcome_with(
    pager: Option<&Pager>,
    pid: i32,
    reader: OwnedFd,
    deadline: Instant,
) -> io::Result<Outcome> {
    let Some(pager) = pager else { return outcome(reader, deadline) };
    let failed = |source| Outcome::Failed { step: "filling its memory".to_owned(), source };
    let keeper = match pager.start(pid) {
        Ok(keeper) => keeper,
        Err(error) => return Ok(failed(error)),
    };
    match outcome(reader, deadline)? {
        Outcome::Runs => Ok(pager.is_ready(&keeper, deadline).map_or_else(failed, |()| Outcome::Runs)),
        other => Ok(other),
    }
}

/// Waits for the report.
///
/// # Errors
/// `TimedOut` at the deadline, or the kernel's own.
fn outcome(reader: OwnedFd, deadline: Instant) -> io::Result<Outcome> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        let mut waiting = [PollFd::new(&reader, PollFlags::IN)];
        match rustix::event::poll(&mut waiting, Some(&limit)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut bytes = [0; Report::LEN];
    // It is written at once, so it is there as a whole, or the other end is closed.
    if File::from(reader).read_exact(&mut bytes).is_err() {
        return Ok(Outcome::Silent);
    }
    let Report { step, index, errno } = Report::from_bytes(bytes);
    if step == Step::Done as u32 {
        return Ok(Outcome::Runs);
    }
    let name = match step.checked_sub(OWN_STEPS) {
        Some(own) => OwnStep::NAMES.get(own as usize).copied().unwrap_or("an unknown step").to_owned(),
        None => Step::from_number(step).map_or_else(|| "an unknown step".to_owned(), |step| step.to_string()),
    };
    let source = match errno {
        0 => io::Error::other("the result was not as planned"),
        errno => io::Error::from_raw_os_error(errno),
    };
    let name = format!("{name} ({index})");
    if step == Step::Threads as u32 && errno == libc::EEXIST {
        return Ok(Outcome::Taken { step: name, source });
    }
    Ok(Outcome::Failed { step: name, source })
}

/// Kills the child and reaps it; says how it ended.
pub(super) fn end(pid: i32) -> String {
    let pid = Pid::from_raw(pid);
    let _ = kill(pid, Signal::SIGKILL);
    match waitpid(pid, None) {
        Ok(WaitStatus::Signaled(_, signal, _)) => format!("it was ended by {signal}"),
        Ok(WaitStatus::Exited(_, status)) => format!("it exited with status {status}"),
        Ok(_) => "it ended".to_owned(),
        Err(error) => format!("it cannot be waited for: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use rustix::pipe::PipeFlags;

    use super::*;

    #[test]
    fn a_report_is_told_by_the_name_of_its_step() {
        let outcome_of = |step: u32, errno: i32| {
            let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
            let bytes = [step, 7, errno.cast_unsigned()].map(u32::to_ne_bytes).concat();
            File::from(writer).write_all(&bytes).unwrap();
            outcome(reader, Instant::now() + Duration::from_secs(5)).unwrap()
        };
        assert!(matches!(outcome_of(0, 0), Outcome::Runs));
        let named = |outcome| match outcome {
            Outcome::Failed { step, source } => format!("{step}: {source}"),
            _ => String::new(),
        };
        assert!(named(outcome_of(3, libc::ENOMEM)).starts_with("mapping memory (7): "));
        assert!(named(outcome_of(OWN_STEPS + 5, libc::ENOENT)).starts_with("making descriptor (7): "));
        assert_eq!(named(outcome_of(4, 0)), "reading pages (7): the result was not as planned");
        let threads = Step::Threads as u32;
        assert!(matches!(outcome_of(threads, libc::EEXIST), Outcome::Taken { .. }));
        assert!(named(outcome_of(3, libc::EEXIST)).starts_with("mapping memory (7): "), "no number");
    }

    #[test]
    fn silence_is_told_from_being_late() {
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        drop(writer);
        let soon = Instant::now() + Duration::from_secs(5);
        assert!(matches!(outcome(reader, soon), Ok(Outcome::Silent)));
        let (reader, _writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        let late = outcome(reader, Instant::now()).err().map(|error| error.kind());
        assert_eq!(late, Some(io::ErrorKind::TimedOut));
    }
}
