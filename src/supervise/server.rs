//! The server of a supervisor that brings it back: among the other processes, or in a pid namespace of its own where
//! others have its pids.
//!
//! It must not know why it is started, or how often.

use std::io;
use std::time::{Duration, Instant};

use super::attend::{Ending, attend_with, report_while_attending};
use super::companion::Companion;
use super::contained::Contained;
use super::lasting::Lasting;
use super::member::Up;
use super::namespace::Namespaces;
use super::restore::{EXIT, Restore};
use super::run::guard_of;
use super::signals::Signals;
use super::subject::Supervised;
use crate::engine::channel::{Report, ReportReader};
use crate::engine::{EngineName, RestoredProcess};
use crate::image::verify::{Finding, taken_pids};
use crate::wake::Origin;

/// How long it may take from when a restored process runs until it is ready.
const READY: Duration = Duration::from_secs(60);
/// How long a pid that only a zombie has may be waited for.
const PID_WAIT: Duration = Duration::from_secs(2);

/// A server that runs.
pub(super) enum Server {
    /// Among the other processes.
    Beside(Supervised),
    /// In a pid namespace of its own.
    Contained(Box<Contained>),
}

/// One that was restored and is ready.
pub(super) struct Returned {
    pub(super) server: Server,
    pub(super) origin: Origin,
    pub(super) report: Option<Report>,
}

impl Server {
    /// Its pid, as this process sees it.
    pub(super) fn pid(&self) -> i32 {
        match self {
            Self::Beside(supervised) => supervised.pid(),
            Self::Contained(contained) => contained.up().pid,
        }
    }

    /// How it ended. The companion ends when it is dropped, which can take its time.
    pub(super) fn attend<'a>(
        &mut self,
        signals: &mut Signals,
        lasting: &Lasting<'a>,
    ) -> io::Result<(Ending, Companion<'a>)> {
        let mut companion = Companion::start(lasting.beside, self.pid());
        let ending = match self {
            Self::Beside(supervised) => {
                let guard = guard_of(supervised)?;
                attend_with(signals, supervised, guard, &mut companion)?
            }
            Self::Contained(contained) => contained.attend(signals, &mut companion)?,
        };
        Ok((ending, companion))
    }
}

/// Restores, and waits until the server has said that it is ready: in a pid namespace where its pids are taken.
///
/// # Errors
/// Why it does not come back. Nothing of it runs.
pub(super) fn bring_back(signals: &mut Signals, restore: &Restore<'_>) -> Result<Returned, String> {
    if let Some(taker) = taken_pids(restore.image, PID_WAIT).first() {
        return contained(signals, restore, taker);
    }
    match restore.start(true, false) {
        Ok(restored) => among_others(signals, restored),
        // It was free when it was looked at.
        Err(failure) => match failure.taker() {
            Some(taker) => contained(signals, restore, taker),
            None => Err(failure.to_string()),
        },
    }
}

fn among_others(signals: &mut Signals, restored: RestoredProcess) -> Result<Returned, String> {
    let RestoredProcess { pid, origin, report, .. } = restored;
    let supervised = Supervised::new(pid).map_err(|error| error.to_string())?;
    let report = match report.map(|reader| ready(signals, &supervised, reader)).transpose() {
        Ok(report) => report,
        Err(why) => {
            end(&supervised).map_err(|error| error.to_string())?;
            return Err(format!("it did not become ready: {why}"));
        }
    };
    Ok(Returned { server: Server::Beside(supervised), origin, report })
}

fn contained(signals: &mut Signals, restore: &Restore<'_>, taker: &Finding) -> Result<Returned, String> {
    // CRIU needs capabilities over the host, which nobody has in a user namespace.
    if restore.engine.name() == EngineName::Criu && Namespaces::possible().with_user() {
        return Err(taker.to_string());
    }
    tracing::warn!("{taker}: it is restored in a pid namespace of its own");
    let contained = Contained::start(restore, READY, signals).map_err(|failure| failure.to_string())?;
    let Up { origin, report, .. } = contained.up().clone();
    Ok(Returned { server: Server::Contained(Box::new(contained)), origin, report })
}

/// The report of a process that is ready, or why it is not.
fn ready(signals: &mut Signals, supervised: &Supervised, reader: ReportReader) -> Result<Report, String> {
    match report_while_attending(signals, supervised, reader, Some(Instant::now() + READY)) {
        Ok(Some(report)) if report.failures.is_empty() => Ok(report),
        Ok(Some(report)) => Err(report.failures.join("; ")),
        Ok(None) => Err("it has ended".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Ends a restored process that is of no use.
fn end(supervised: &Supervised) -> io::Result<()> {
    if !super::guard::ends_within(supervised, EXIT) {
        supervised.signal(nix::sys::signal::Signal::SIGKILL);
    }
    super::restore::reap(supervised.pid()).map(drop)
}
