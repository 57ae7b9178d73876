//! Starting the process: a child with the right pid, which makes its descriptors, becomes the restorer, and reports
//! when it runs.

use std::convert::Infallible;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use criu_images::ImageDir;
use criu_restorer::plan::{Report, Step};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;

use super::pager::{Pager, Record, Run};
use super::plan::{Plan, Wanted, plan};
use super::proc_self::{self, Write as SelfWrite};
use super::source::Source;
use super::support::{self, Reasons};
use super::{InstantEngine, recorder};
use crate::engine::channel::{Handover, PhasesWriter, ReportReader};
use crate::engine::{EngineName, RestoreError, RestoreOrder, RestoredProcess};
use crate::image::manifest::Clock;
use crate::sys;
use crate::wake::{Origin, Params};

/// Steps of the child before it becomes the restorer are numbered from here on, those of the restorer below.
const OWN_STEPS: u32 = 1000;

/// What the child does by itself.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
enum OwnStep {
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

/// Restores the image of the order, as a child of the calling process, which must have one thread.
pub(super) fn restore(
    engine: &InstantEngine,
    order: &RestoreOrder<'_>,
) -> Result<RestoredProcess, RestoreError> {
    let deadline = Instant::now() + order.deadline;
    let mut clock = Clock::start();
    let mut reasons = Reasons::default();
    support::image(order.image, &mut reasons);
    let Some(program) = criu_restorer::PROGRAM.filter(|_| reasons.is_empty()) else {
        reasons.add_if(criu_restorer::PROGRAM.is_none(), "there is no restorer for this machine");
        return Err(RestoreError::Unsupported(reasons.into_vec()));
    };
    let folder = ImageDir::open(order.image.path())?.with(order.image.contents());
    let source = Source::read(folder, &mut reasons)?;
    let Some(source) = source else { return Err(RestoreError::Unsupported(reasons.into_vec())) };
    support::process(&source, order.stays, &mut reasons);
    let writes = proc_self::writes(&source.task, &mut reasons);
    let subject = &order.image.manifest().subject;
    let given = match (subject.parameter_pipe, subject.report_pipe) {
        (Some(params), Some(report)) => vec![params, report],
        _ if *order.params != Params::default() => return Err(RestoreError::NoParameters),
        _ => Vec::new(),
    };
    clock.lap("read the image");
    let started = |step: &str| {
        let step = step.to_owned();
        move |source| RestoreError::Start { step, source }
    };
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)
        .map_err(|error| started("making a pipe")(error.into()))?;
    let record = engine.record(order.image);
    let wanted = Wanted { memory: engine.memory, pages: engine.prefetched(), record: record.as_ref() };
    let made = plan(&source, order.image.manifest(), &wanted, &writer, &given, &mut reasons)
        .map_err(started("planning"))?;
    let Some(plan) = made else { return Err(RestoreError::Unsupported(reasons.into_vec())) };
    clock.lap("plan");
    let origin = Origin {
        engine: EngineName::Instant.to_string(),
        reason: order.why.to_owned(),
        memory: Some(plan.memory.to_string()),
        memory_reason: plan.memory_reason.to_owned(),
        cause: order.cause.map(str::to_owned),
    };
    let Ends { stand_ins, report, told } =
        if given.is_empty() { Ends::default() } else { hand_over(order, &origin)? };
    let child = Child { source: &source, plan: &plan, program, writes: &writes, stand_ins: &stand_ins };
    let pid = child.start(&writer, deadline, order.deadline)?;
    clock.lap("make the process and its descriptors");
    // With these goes our last copy of the end that the child reports to: its death shows at the other.
    let Plan { pager, large, files, .. } = plan;
    drop((writer, stand_ins, files));
    match outcome_with(pager.as_ref(), pid, reader, deadline) {
        Ok(Outcome::Runs) => {
            clock.lap("make its memory and threads");
            if let (None, Some(record)) = (pager, record) {
                record_mapped(pid, &large, &record);
            }
            let phases = clock.into_phases();
            if let Some(told) = told {
                told.tell(&phases);
            }
            Ok(RestoredProcess { pid, report, origin, phases })
        }
        failed => {
            let ended = end(pid);
            Err(match failed {
                Ok(Outcome::Failed { step, source }) => RestoreError::Start { step, source },
                Ok(Outcome::Silent) => RestoreError::Start {
                    step: "running the restorer".to_owned(),
                    source: io::Error::other(ended),
                },
                _ => RestoreError::Late(order.deadline),
            })
        }
    }
}

/// What stands in for the pipes of the image, where the report comes out, and where to tell of phases.
#[derive(Default)]
struct Ends {
    stand_ins: Vec<OwnedFd>,
    report: Option<ReportReader>,
    told: Option<PhasesWriter>,
}

fn hand_over(order: &RestoreOrder<'_>, origin: &Origin) -> Result<Ends, RestoreError> {
    let Handover { params, report, reader, phases } =
        Handover::new(order.params, origin, order.awaited).map_err(RestoreError::Parameters)?;
    Ok(Ends { stand_ins: vec![params, report], report: Some(reader), told: Some(phases) })
}

/// What became of the child.
enum Outcome {
    Runs,
    Failed {
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
fn outcome_with(pager: Option<&Pager>, pid: i32, reader: OwnedFd, deadline: Instant) -> io::Result<Outcome> {
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

/// Has the mapped pages recorded that the process touches. It runs all the same if that cannot be.
fn record_mapped(pid: i32, large: &[Run], record: &Record) {
    if let Err(error) = recorder::start(pid, large, record) {
        tracing::warn!(%error, "the working set is not recorded");
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
    Ok(Outcome::Failed { step: format!("{name} ({index})"), source })
}

/// Kills the child and reaps it; says how it ended.
fn end(pid: i32) -> String {
    let pid = Pid::from_raw(pid);
    let _ = kill(pid, Signal::SIGKILL);
    match waitpid(pid, None) {
        Ok(WaitStatus::Signaled(_, signal, _)) => format!("it was ended by {signal}"),
        Ok(WaitStatus::Exited(_, status)) => format!("it exited with status {status}"),
        Ok(_) => "it ended".to_owned(),
        Err(error) => format!("it cannot be waited for: {error}"),
    }
}

/// The child before it becomes the restorer.
struct Child<'a> {
    source: &'a Source,
    plan: &'a Plan,
    program: &'static [u8],
    writes: &'a [SelfWrite],
    stand_ins: &'a [OwnedFd],
}

impl Child<'_> {
    /// Starts it, and waits until it is the restorer; it reports to `report` if it fails before. The deadline is what
    /// is left of `limit`.
    fn start(&self, report: &OwnedFd, deadline: Instant, limit: Duration) -> Result<i32, RestoreError> {
        let failed = |step: &str| {
            let step = step.to_owned();
            move |source: io::Error| RestoreError::Start { step, source }
        };
        let program = sys::descriptors::sealed_program("defrost-restorer", self.program)
            .map_err(failed("storing the restorer"))?;
        let written = sys::descriptors::sealed_memfd("defrost-plan", &self.plan.bytes)
            .map_err(failed("storing the plan"))?;
        let pid = self.source.process.pid.cast_signed();
        let left = deadline.saturating_duration_since(Instant::now());
        let started = sys::borrow::start_as(pid, left, &mut || {
            let (step, index, error) = match self.become_restorer(&program, &written) {
                Ok(never) => match never {},
                Err(failure) => failure,
            };
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            let told = [OWN_STEPS + step as u32, index, errno.cast_unsigned()].map(u32::to_ne_bytes).concat();
            if let Ok(copy) = report.try_clone() {
                let _ = File::from(copy).write_all(&told);
            }
        });
        match started {
            Ok(pid) => Ok(pid.as_raw()),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(RestoreError::Late(limit)),
            Err(error) => Err(failed(&format!("making process {pid}"))(error)),
        }
    }

    fn become_restorer(
        &self,
        program: &OwnedFd,
        written: &OwnedFd,
    ) -> Result<Infallible, (OwnStep, u32, io::Error)> {
        let at = |step: OwnStep, index: u32| move |error: io::Error| (step, index, error);
        rustix::process::setsid().map_err(|error| at(OwnStep::Session, 0)(error.into()))?;
        proc_self::write(self.writes).map_err(|(index, error)| (OwnStep::Accounts, index, error))?;
        self.set_clocks().map_err(at(OwnStep::Clocks, 0))?;
        let folder = self.source.path(self.source.fs.cwd_id).unwrap_or("/".as_ref());
        rustix::process::chdir(folder).map_err(|error| at(OwnStep::Folder, 0)(error.into()))?;
        let descriptors = &self.plan.descriptors;
        let floor = descriptors.floor();
        self.plan.shared.fill().map_err(at(OwnStep::Memory, 0))?;
        let made = descriptors
            .make(self.stand_ins, &self.plan.shared)
            .map_err(|(number, error)| (OwnStep::Descriptors, number, error))?;
        let numbers = at(OwnStep::Numbers, 0);
        let kept = [program, written].map(|fd| sys::descriptors::above(fd, floor));
        let [program, written] = kept;
        let (program, written) = (program.map_err(numbers)?, written.map_err(numbers)?);
        for file in self.plan.files.iter().chain([&written]) {
            rustix::io::fcntl_setfd(file, rustix::io::FdFlags::empty())
                .map_err(|error| numbers(error.into()))?;
        }
        sys::descriptors::install(&descriptors.numbered(&made), floor).map_err(numbers)?;
        // Last: files are made under the mask of whoever restores, as they exist already.
        let mask = self.source.fs.umask.unwrap_or(0o022);
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(mask));
        let failed = |error: nix::errno::Errno| (OwnStep::Program, 0, error.into());
        let number = CString::new(written.as_raw_fd().to_string())
            .map_err(|error| at(OwnStep::Program, 0)(error.into()))?;
        let nothing: [CString; 0] = [];
        let by_descriptor = nix::fcntl::AtFlags::AT_EMPTY_PATH;
        nix::unistd::execveat(&program, c"", &[c"defrost-restorer".into(), number], &nothing, by_descriptor)
            .map_err(failed)
    }

    /// Has CLOCK_MONOTONIC and CLOCK_BOOTTIME go on where they were at the dump, as CRIU does: in a time namespace
    /// that begins with the next program (time_namespaces(7)).
    fn set_clocks(&self) -> io::Result<()> {
        let Some(dumped) = &self.source.clocks else { return Ok(()) };
        sys::process::own_clocks()?;
        // The namespace begins with the offsets of the one that we are in.
        let offsets = std::fs::read_to_string("/proc/self/timens_offsets")?;
        let mut lines = String::new();
        // Read one right after the other, so that what lies between them stays as it was.
        let monotonic = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let boottime = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        for (name, now, then) in
            [("monotonic", monotonic, &dumped.monotonic), ("boottime", boottime, &dumped.boottime)]
        {
            let now = i128::from(now.tv_sec) * NANOSECONDS + i128::from(now.tv_nsec);
            let then = i128::from(then.sec) * NANOSECONDS + i128::from(then.nsec);
            let own = offset_of(&offsets, name).ok_or(io::ErrorKind::InvalidData)?;
            let offset = then - (now - own);
            let (sec, nsec) = (offset.div_euclid(NANOSECONDS), offset.rem_euclid(NANOSECONDS));
            lines += &format!("{name} {sec} {nsec}\n");
        }
        std::fs::write("/proc/self/timens_offsets", lines)
    }
}

const NANOSECONDS: i128 = 1_000_000_000;

/// The offset of a clock in /proc/PID/timens_offsets, in nanoseconds.
fn offset_of(text: &str, clock: &str) -> Option<i128> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(clock))?;
    let mut numbers = line.split_whitespace().map(str::parse::<i128>);
    Some(numbers.next()?.ok()? * NANOSECONDS + numbers.next()?.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_of_clocks_are_read() {
        let text = "monotonic           -3  500000000\nboottime             0         0\n";
        assert_eq!(offset_of(text, "monotonic"), Some(-2_500_000_000));
        assert_eq!(offset_of(text, "boottime"), Some(0));
        assert_eq!(offset_of(text, "realtime"), None);
    }

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
