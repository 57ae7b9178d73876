//! `defrost restore`: a process from an image, in the foreground under this supervisor, or left to itself.

use std::io;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::attend::{Ending, attend, become_subreaper, report_while_attending};
use super::guard::ends_within;
use super::namespace::NamespaceError;
use super::run::guard_of;
use super::signals::Signals;
use super::subject::Supervised;
use crate::engine::channel::Report;
use crate::engine::{self, Engine, RestoreOrder};
use crate::image::Image;
use crate::image::manifest::Phase;
use crate::image::verify::Finding;
use crate::wake::{Origin, Params};

/// How long a process that has reported a failure may take to exit.
pub(super) const EXIT: Duration = Duration::from_secs(5);

/// What to restore, and for how long to wait.
#[derive(Clone, Copy, Debug)]
pub struct Restore<'a> {
    /// What restores.
    pub engine: &'a dyn Engine,
    /// The image, verified already.
    pub image: &'a Image,
    /// What the process is given.
    pub params: &'a Params,
    /// How long it may take until the process runs.
    pub deadline: Duration,
    /// Why this engine: a phrase.
    pub why: &'a str,
    /// What made it necessary, for the process's own record: a phrase.
    pub cause: Option<&'a str>,
}

/// A restore that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreFailure {
    /// The engine failed; nothing of the image runs.
    #[error(transparent)]
    Engine(#[from] engine::RestoreError),
    /// The process was restored, and some of it does not work.
    #[error("the restored process is not ready: {}{}", .failures.join("; "), still_alive(*.alive))]
    NotReady {
        /// What failed: each a sentence.
        failures: Vec<String>,
        /// Its pid, if it was told to stay.
        alive: Option<i32>,
    },
    /// The process was restored and ended before it was ready.
    #[error("the restored process ended before it was ready: {}", how(*.0))]
    Ended(Ending),
    /// What filled the memory of the process was ended, so the process had to be.
    #[error(
        "process {0} was ended: its pager or the keeper of that was ended before all of its memory was there"
    )]
    Unfilled(i32),
    /// The process was restored and did not become ready. It has been killed.
    #[error("the restored process was not ready within {0:?} and was killed")]
    Late(Duration),
    /// The image has no way to say that it is ready. The process runs.
    #[error(
        "readiness is unknown: the image was not made by a defrost server's own checkpoint; process {0} runs"
    )]
    Mute(i32),
    /// The image has no way to say that it is ready, and the process, which was alone in a namespace, has been ended.
    #[error(
        "readiness is unknown: the image was not made by a defrost server's own checkpoint; it was ended"
    )]
    MuteEnded,
    /// There was no pid namespace for it; nothing runs.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// It failed in a pid namespace of its own, all of which has ended; told in its words.
    #[error("{text}")]
    Within {
        /// What failed, and why.
        text: String,
        /// What to do about it.
        hint: Option<String>,
        /// Whether this host cannot, rather than this restore.
        of_the_host: bool,
    },
    /// A system call of the supervisor's failed.
    #[error("the supervisor failed: {0}")]
    Supervisor(#[from] io::Error),
}

impl RestoreFailure {
    /// Who has a pid of the image, if that is what it failed at: nothing runs, and in a pid namespace of its own it
    /// would.
    #[must_use]
    pub fn taker(&self) -> Option<&Finding> {
        match self {
            Self::Engine(error) => error.taker(),
            _ => None,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Engine(error) => error.hint(),
            Self::NotReady { .. } => Some("mend what the resources name; the image is unharmed".to_owned()),
            Self::Ended(_) => Some("restore it in the foreground, and read the server's own log".to_owned()),
            Self::Unfilled(_) => Some(
                "look for a kill or an out-of-memory event in the kernel's log, or restore with --memory map"
                    .to_owned(),
            ),
            Self::Late(_) => {
                Some("allow more time by --ready-timeout, or look at what the server waits for".to_owned())
            }
            Self::Mute(_) | Self::MuteEnded => Some("leave out --wait-ready".to_owned()),
            Self::Namespace(error) => error.hint(),
            Self::Within { hint, .. } => hint.clone(),
            Self::Supervisor(_) => None,
        }
    }

    /// Whether this host cannot do it, rather than this restore.
    #[must_use]
    pub fn is_of_the_host(&self) -> bool {
        match self {
            Self::Engine(error) => error.is_of_the_host(),
            Self::Namespace(_) => true,
            Self::Within { of_the_host, .. } => *of_the_host,
            _ => false,
        }
    }
}

fn still_alive(pid: Option<i32>) -> String {
    pid.map(|pid| format!("; process {pid} stays, as it was told to")).unwrap_or_default()
}

fn how(ending: Ending) -> String {
    match ending {
        Ending::Exited(status) => format!("exit status {status}"),
        Ending::Signaled(signal) => format!("signal {signal}"),
        Ending::Checkpointed => "by a checkpoint".to_owned(),
        Ending::Unfilled => "its memory could not be filled".to_owned(),
    }
}

/// A process that was restored and left to itself.
#[derive(Debug)]
pub struct Detached {
    /// Its pid.
    pub pid: i32,
    /// What brought it back.
    pub origin: Origin,
    /// What the engine's time went into, in order.
    pub phases: Vec<Phase>,
    /// What it reported, if it was waited for.
    pub report: Option<Report>,
}

impl Restore<'_> {
    pub(super) fn start(
        &self,
        awaited: bool,
        stays: bool,
    ) -> Result<engine::RestoredProcess, RestoreFailure> {
        let Self { image, params, deadline, why, cause, .. } = *self;
        let order = RestoreOrder { image, params, awaited, stays, deadline, why, cause };
        Ok(self.engine.restore(&order)?)
    }

    /// Restores and attends the process until it ends. `runs` is called when it has been restored, and `ready` when
    /// it has reported. The caller must have one thread.
    ///
    /// If it fails, and this process has been asked to end meanwhile, it ends by that signal.
    ///
    /// # Errors
    /// [`RestoreFailure`]; after `Engine` nothing runs.
    pub fn attend(
        &self,
        runs: &mut dyn FnMut(i32, &Origin, &[Phase]),
        ready: &mut dyn FnMut(i32, &Report),
    ) -> Result<Ending, RestoreFailure> {
        become_subreaper()?;
        let mut signals = Signals::watch()?;
        let restored = match self.start(true, true) {
            Ok(restored) => restored,
            // Whoever would try something else is not to: the end was asked for.
            Err(failure) => {
                tracing::debug!("{failure}");
                return signals.end_signal().map(Ending::Signaled).ok_or(failure);
            }
        };
        let supervised = Supervised::new(restored.pid)?;
        let guard = guard_of(&supervised)?;
        runs(restored.pid, &restored.origin, &restored.phases);
        let mut failures = None;
        if let Some(reader) = restored.report
            && let Some(report) = report_while_attending(&mut signals, &supervised, reader, None)?
        {
            if report.failures.is_empty() {
                ready(restored.pid, &report);
            } else {
                failures = Some(report.failures);
            }
        }
        let ending = attend(&mut signals, &supervised, guard)?;
        match failures {
            Some(failures) => Err(RestoreFailure::NotReady { failures, alive: None }),
            None if ending == Ending::Unfilled => Err(RestoreFailure::Unfilled(restored.pid)),
            None => Ok(ending),
        }
    }

    /// Restores and leaves the process to itself; first waits until it is ready, if a time is given for that.
    ///
    /// # Errors
    /// [`RestoreFailure`]: nothing runs, unless the text says so.
    pub fn detach(&self, wait_ready: Option<Duration>) -> Result<Detached, RestoreFailure> {
        let restored = self.start(wait_ready.is_some(), false)?;
        let (pid, origin, phases) = (restored.pid, restored.origin, restored.phases);
        let Some(limit) = wait_ready else { return Ok(Detached { pid, origin, phases, report: None }) };
        let Some(reader) = restored.report else { return Err(RestoreFailure::Mute(pid)) };
        let supervised = Supervised::new(pid)?;
        match reader.wait(Instant::now() + limit) {
            Ok(Some(report)) if report.failures.is_empty() => {
                Ok(Detached { pid, origin, phases, report: Some(report) })
            }
            Ok(Some(report)) => {
                let exited = ends_within(&supervised, EXIT);
                if exited {
                    waitpid(Pid::from_raw(pid), None).map_err(io::Error::from)?;
                }
                Err(RestoreFailure::NotReady { failures: report.failures, alive: (!exited).then_some(pid) })
            }
            Ok(None) => {
                if !ends_within(&supervised, EXIT) {
                    supervised.signal(Signal::SIGKILL);
                }
                Err(RestoreFailure::Ended(reap(pid)?))
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                supervised.signal(Signal::SIGKILL);
                reap(pid)?;
                Err(RestoreFailure::Late(limit))
            }
            Err(error) => Err(error.into()),
        }
    }
}

pub(super) fn reap(pid: i32) -> io::Result<Ending> {
    match waitpid(Pid::from_raw(pid), None)? {
        WaitStatus::Signaled(_, signal, _) => Ok(Ending::Signaled(signal)),
        WaitStatus::Exited(_, status) => Ok(Ending::Exited(status)),
        _ => Err(io::Error::from(io::ErrorKind::InvalidData)),
    }
}
