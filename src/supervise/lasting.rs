//! `defrost run` for a server that is checkpointed as it goes, and comes back from its last checkpoint after a crash.
//!
//! It must not know where checkpoints are kept, nor how they are asked for: it is handed both.

use std::io;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::attend::{Ending, attend_with, become_subreaper, report_while_attending, wait_for};
use super::companion::Companion;
use super::course::{Course, Step};
use super::restore::{EXIT, Restore, RestoreFailure};
use super::run::{Launch, RunError, guard_of, pass_low_pids, start};
use super::signals::Signals;
use super::subject::Supervised;
use crate::engine::Engine;
use crate::image::Image;
use crate::wake::Params;

/// How long a restore may take until the server runs.
const RESTORE: Duration = Duration::from_secs(60);
/// How long it may take from then on until it is ready.
const READY: Duration = Duration::from_secs(60);

/// The checkpoints of the server that runs.
pub trait Past {
    /// The numbers of those that are complete, as far as one can see.
    fn complete(&self) -> Vec<u64>;

    /// One of them, verified, and what restores it.
    ///
    /// # Errors
    /// [`Unfit`], with all that is wrong.
    fn bring(&self, number: u64) -> Result<(Image, Box<dyn Engine>), Unfit>;
}

/// Why a checkpoint is not restored. Nothing was started.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Unfit {
    /// All that is wrong.
    pub text: String,
    /// Whether another attempt may work, as nothing is wrong with what is stored.
    pub may_pass: bool,
}

/// What happens beside the server, and after its end.
pub struct Lasting<'a> {
    /// Makes the command of the process that works beside a server of this pid.
    pub beside: &'a dyn Fn(i32) -> Command,
    /// Where it comes back from when it dies by a signal or an error; none to leave it ended.
    pub past: Option<&'a dyn Past>,
    /// So many crashes in a row, with no new checkpoint between them, lead to a cold start; as many cold starts end it.
    pub limit: u32,
}

impl std::fmt::Debug for Lasting<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lasting").field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// Starts the program, and attends it and what comes back of it until one ends that is not to come back: by its own
/// exit with 0, by a checkpoint, after a signal that asked this process to end it, or for crashing too often. The
/// caller must have one thread.
///
/// # Errors
/// [`RunError`]; after `Start` nothing runs.
pub fn run(launch: &Launch, lasting: &Lasting<'_>) -> Result<Ending, RunError> {
    become_subreaper()?;
    pass_low_pids()?;
    let mut signals = Signals::watch()?;
    let floor = lasting.past.and_then(|past| past.complete().last().copied()).unwrap_or(0);
    let mut course = Course::new(lasting.limit, floor);
    let mut supervised = start(launch)?;
    loop {
        let ending = attend_one(&mut signals, &supervised, lasting)?;
        let Some(past) = lasting.past.filter(|_| is_crash(ending) && !signals.asked_to_end()) else {
            return Ok(ending);
        };
        tracing::error!("the server has crashed: {}", in_words(ending));
        match again(&mut signals, launch, past, &mut course)? {
            Some(again) => supervised = again,
            None => return Ok(ending),
        }
    }
}

fn attend_one(signals: &mut Signals, supervised: &Supervised, lasting: &Lasting<'_>) -> io::Result<Ending> {
    let guard = guard_of(supervised)?;
    let mut companion = Companion::start(lasting.beside, supervised);
    attend_with(signals, supervised, guard, &mut companion)
}

/// The server once more; none if it is to stay ended.
fn again(
    signals: &mut Signals,
    launch: &Launch,
    past: &dyn Past,
    course: &mut Course,
) -> Result<Option<Supervised>, RunError> {
    loop {
        let (step, pause) = course.next(&past.complete());
        rest(signals, pause)?;
        if signals.asked_to_end() {
            return Ok(None);
        }
        match step {
            Step::End => {
                tracing::error!("it has crashed {} times in a row, and stays ended", course.row());
                return Ok(None);
            }
            Step::Cold => {
                tracing::warn!("starting cold: there is no checkpoint that helps");
                match start(launch) {
                    Ok(supervised) => return Ok(Some(supervised)),
                    Err(error) => tracing::error!("{error}"),
                }
            }
            Step::Restore(number) => match restore(signals, past, number) {
                Ok(supervised) => return Ok(Some(supervised)),
                Err(Unfit { text, may_pass }) => {
                    tracing::error!("checkpoint {number} does not come back: {text}");
                    if !may_pass {
                        course.unusable(number);
                    }
                }
            },
        }
    }
}

/// A checkpoint restored, when it has said that it is ready.
fn restore(signals: &mut Signals, past: &dyn Past, number: u64) -> Result<Supervised, Unfit> {
    let begun = Instant::now();
    let (image, engine) = past.bring(number)?;
    let params = Params::default();
    let restore = Restore {
        engine: &*engine,
        image: &image,
        params: &params,
        deadline: RESTORE,
        why: "it had crashed",
        cause: None,
    };
    let failed = |error: RestoreFailure| Unfit { text: error.to_string(), may_pass: true };
    let system = |error: io::Error| Unfit { text: error.to_string(), may_pass: true };
    let restored = restore.start(true, false).map_err(failed)?;
    let supervised = Supervised::new(restored.pid).map_err(system)?;
    let report = match restored.report {
        None => Ok(None),
        Some(reader) => {
            let deadline = Some(Instant::now() + READY);
            match report_while_attending(signals, &supervised, reader, deadline) {
                Ok(Some(report)) if report.failures.is_empty() => Ok(Some(report)),
                Ok(Some(report)) => Err(unready(report.failures.join("; "))),
                Ok(None) => Err(unready("it has ended".to_owned())),
                Err(error) => Err(unready(error.to_string())),
            }
        }
    };
    match report {
        Ok(report) => {
            let generation = report.map(|report| report.generation);
            tracing::warn!(
                number,
                generation,
                "checkpoint {number} is back as process {} after {} ms, by {}",
                restored.pid,
                begun.elapsed().as_millis(),
                restored.origin
            );
            Ok(supervised)
        }
        Err(unfit) => {
            end(&supervised).map_err(system)?;
            Err(unfit)
        }
    }
}

fn unready(why: String) -> Unfit {
    Unfit { text: format!("it did not become ready: {why}"), may_pass: true }
}

/// Ends a restored process that is of no use.
fn end(supervised: &Supervised) -> io::Result<()> {
    if !super::guard::ends_within(supervised, EXIT) {
        supervised.signal(Signal::SIGKILL);
    }
    super::restore::reap(supervised.pid()).map(drop)
}

/// Waits this long, or until it is asked to end.
fn rest(signals: &mut Signals, pause: Duration) -> io::Result<()> {
    let until = Instant::now() + pause;
    loop {
        signals.arrived();
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || signals.asked_to_end() {
            return Ok(());
        }
        wait_for(&[signals.as_fd()], Some(left))?;
    }
}

/// Whether it ended by what nobody wanted. These four signals are how a program is asked to end, by whomever.
fn is_crash(ending: Ending) -> bool {
    match ending {
        Ending::Exited(status) => status != 0,
        Ending::Signaled(Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP | Signal::SIGPIPE)
        | Ending::Checkpointed => false,
        Ending::Signaled(_) | Ending::Unfilled => true,
    }
}

fn in_words(ending: Ending) -> String {
    match ending {
        Ending::Exited(status) => format!("it exited with {status}"),
        Ending::Signaled(signal) => format!("{signal} ended it"),
        Ending::Checkpointed => "a checkpoint ended it".to_owned(),
        Ending::Unfilled => "its memory could not be filled".to_owned(),
    }
}
