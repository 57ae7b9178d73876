//! Starting the process: a child with the right pid, which makes its descriptors, becomes the restorer, and reports
//! when it runs.

use std::convert::Infallible;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use criu_images::ImageDir;
use rustix::pipe::PipeFlags;

use super::outcome::{OWN_STEPS, Outcome, OwnStep, end, outcome_with};
use super::pager::{Record, Run};
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
    let given = pipes(order)?;
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
    let pid = child.start(&writer, deadline, order.deadline).map_err(|error| or_taken(order, error))?;
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
                Ok(Outcome::Taken { step, source }) => or_taken(order, RestoreError::Start { step, source }),
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

/// The inodes of the pipes of the image that others are to stand in for; empty where it has none.
fn pipes(order: &RestoreOrder<'_>) -> Result<Vec<u64>, RestoreError> {
    let subject = &order.image.manifest().subject;
    match (subject.parameter_pipe, subject.report_pipe) {
        (Some(params), Some(report)) => Ok(vec![params, report]),
        _ if *order.params != Params::default() => Err(RestoreError::NoParameters),
        _ => Ok(Vec::new()),
    }
}

/// The failure to make a process or thread, which may be that its number is taken.
fn or_taken(order: &RestoreOrder<'_>, failure: RestoreError) -> RestoreError {
    match failure {
        RestoreError::Start { step, source } if source.kind() == io::ErrorKind::AlreadyExists => {
            RestoreError::pid_taken(order.image, format!("{step}: {source}"))
        }
        other => other,
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

/// Has the mapped pages recorded that the process touches. It runs all the same if that cannot be.
fn record_mapped(pid: i32, large: &[Run], record: &Record) {
    if let Err(error) = recorder::start(pid, large, record) {
        tracing::warn!(%error, "the working set is not recorded");
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
}
