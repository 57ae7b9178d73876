//! `defrost run` for a server that is checkpointed as it goes, and comes back from its last checkpoint after a crash.
//!
//! It must not know where checkpoints are kept, nor how they are asked for: it is handed both.

use std::io;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::Signal;

use super::attend::{Ending, become_subreaper, wait_for};
use super::course::{Course, Step};
use super::restore::Restore;
use super::run::{Launch, RunError, pass_low_pids, start};
use super::server::{Returned, Server, bring_back};
use super::signals::Signals;
use super::subject::Supervised;
use super::told::{self, Back, Crash, in_words};
use crate::engine::Engine;
use crate::events::Draft;
use crate::image::Image;
use crate::wake::Params;

/// How long a restore may take until the server runs.
const RESTORE: Duration = Duration::from_secs(60);

/// The checkpoints of the server that runs.
pub trait Past {
    /// The numbers of those that there are.
    fn numbers(&self) -> Vec<u64>;

    /// One of them, and what restores it.
    ///
    /// # Errors
    /// [`Unfit`], with all that is wrong.
    fn bring(&self, number: u64) -> Result<Brought, Unfit>;
}

/// A checkpoint that can be restored.
#[derive(Debug)]
pub struct Brought {
    /// It, verified but for whether its pids are free.
    pub image: Image,
    /// What restores it.
    pub engine: Box<dyn Engine>,
    /// Why this engine: a phrase.
    pub why: String,
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
    /// So many crashes in a row, with no new checkpoint between them, lead to a cold start, and so many failures of its
    /// own within a minute; as many cold starts end it.
    pub limit: u32,
    /// Is told what happens, as it happens. It must neither fail nor wait for long.
    pub tell: &'a dyn Fn(Draft),
}

impl std::fmt::Debug for Lasting<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lasting").field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// Starts the program, and attends it and what comes back of it until one ends that is not to come back: by its own
/// exit with 0, by a checkpoint, after a signal that asked this process to end it, or for crashing too often. If that
/// signal comes while nothing runs, it has ended with 0. The
/// caller must have one thread.
///
/// # Errors
/// [`RunError`]; after `Start` nothing runs.
pub fn run(launch: &Launch, lasting: &Lasting<'_>) -> Result<Ending, RunError> {
    let outcome = run_on(launch, lasting);
    (lasting.tell)(told::end(&outcome));
    outcome
}

fn run_on(launch: &Launch, lasting: &Lasting<'_>) -> Result<Ending, RunError> {
    become_subreaper()?;
    pass_low_pids()?;
    let mut signals = Signals::watch()?;
    let floor = lasting.past.and_then(|past| past.numbers().last().copied()).unwrap_or(0);
    let mut course = Course::new(lasting.limit, floor);
    let mut server = Server::Beside(start(launch)?);
    (lasting.tell)(told::start(server.pid()));
    loop {
        let (pid, since) = (server.pid(), Instant::now());
        let (ending, companion) = server.attend(&mut signals, lasting)?;
        if !is_crash(ending) {
            return Ok(ending);
        }
        let (ran, at) = (since.elapsed(), SystemTime::now());
        if signals.asked_to_end() {
            tracing::warn!("{}, after it was asked to end: it stays ended", in_words(ending, "the server"));
            return Ok(ending);
        }
        tracing::error!("the server has crashed: {}", in_words(ending, "it"));
        // What it stores may be what comes back.
        drop(companion);
        let crash = Crash { ending, pid, at, ran };
        course.crashed(Instant::now(), ran, ending != Ending::Signaled(Signal::SIGKILL));
        if let Some(past) = lasting.past {
            course.learn(&past.numbers());
        }
        (lasting.tell)(told::crash(&crash, course.row() + 1));
        let Some(past) = lasting.past else { return Ok(ending) };
        let again = Again { launch, past, tell: lasting.tell, crash };
        match again.start(&mut signals, &mut course)? {
            Start::Runs(again) => server = again,
            Start::Failed => return Ok(ending),
            // There was nothing left to end.
            Start::AskedToEnd => return Ok(Ending::Exited(0)),
        }
    }
}

/// The server once more.
struct Again<'a> {
    launch: &'a Launch,
    past: &'a dyn Past,
    tell: &'a dyn Fn(Draft),
    crash: Crash,
}

/// What came of it.
enum Start {
    Runs(Server),
    /// It has crashed too often, and stays ended.
    Failed,
    /// This process was asked to end.
    AskedToEnd,
}

impl Again<'_> {
    /// Tries until it runs, or is to stay ended.
    fn start(&self, signals: &mut Signals, course: &mut Course) -> Result<Start, RunError> {
        loop {
            let (step, pause) = course.next(&self.past.numbers());
            if rest(signals, pause)? {
                return Ok(Start::AskedToEnd);
            }
            match step {
                Step::End => {
                    let row = course.row();
                    tracing::error!("it has crashed {row} times in a row, and stays ended");
                    (self.tell)(told::gave_up(row));
                    return Ok(Start::Failed);
                }
                Step::Cold => {
                    tracing::warn!("starting cold: there is no checkpoint that helps");
                    let started = start(self.launch);
                    (self.tell)(told::cold(pause, started.as_ref().map(Supervised::pid)));
                    match started {
                        Ok(supervised) => return Ok(Start::Runs(Server::Beside(supervised))),
                        Err(error) => tracing::error!("{error}"),
                    }
                }
                Step::Restore(number) => {
                    let begun = Instant::now();
                    match self.restore(signals, number, pause) {
                        Ok(server) => return Ok(Start::Runs(server)),
                        Err(Unfit { text, may_pass }) => {
                            tracing::error!("checkpoint {number} does not come back: {text}");
                            (self.tell)(told::unfit(number, may_pass, begun.elapsed(), &text));
                            if !may_pass {
                                course.unusable(number);
                            }
                        }
                    }
                }
            }
        }
    }

    /// A checkpoint restored, when it has said that it is ready.
    fn restore(&self, signals: &mut Signals, number: u64, pause: Duration) -> Result<Server, Unfit> {
        let begun = Instant::now();
        let Brought { image, engine, why } = self.past.bring(number)?;
        let params = Params::default();
        let lost = self.crash.after(image.manifest().taken_unix_ns());
        let cause = self.crash.cause(number, lost);
        let restore = Restore {
            engine: &*engine,
            image: &image,
            params: &params,
            deadline: RESTORE,
            why: &why,
            cause: Some(&cause),
        };
        let returned = bring_back(signals, &restore).map_err(|text| Unfit { text, may_pass: true })?;
        let Returned { server, origin, report } = returned;
        let (took, pid, origin) = (begun.elapsed(), server.pid(), &origin);
        let generation = report.map(|report| report.generation);
        tracing::warn!(
            number,
            generation,
            "checkpoint {number} is back as process {pid} after {} ms, by {origin}",
            took.as_millis(),
        );
        (self.tell)(told::restored(&Back { number, pid, lost, pause, took, generation, origin }));
        Ok(server)
    }
}

/// Waits this long, or until it is asked to end, which it tells. There is no server that could take SIGHUP or SIGQUIT
/// for anything else.
fn rest(signals: &mut Signals, pause: Duration) -> io::Result<bool> {
    let until = Instant::now() + pause;
    loop {
        let ends = |signal: &Signal| matches!(signal, Signal::SIGHUP | Signal::SIGQUIT);
        if signals.arrived().iter().any(ends) || signals.asked_to_end() {
            return Ok(true);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
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
