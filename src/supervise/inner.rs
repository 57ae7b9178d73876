//! The life of process 1 of a pid namespace of a restore's own: it restores, tells its supervisor outside, and
//! attends the restored process.
//!
//! It must not know how many such namespaces there are.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::attend::{Ending, attend_leashed, report_while_attending};
use super::guard::ends_within;
use super::leash::Leash;
use super::link::{Failed, Link, Told};
use super::namespace::Namespaces;
use super::restore::{EXIT, Restore, RestoreFailure, reap};
use super::signals::{HeldBack, Signals};
use super::subject::Supervised;
use crate::engine::RestoredProcess;
use crate::sys::descriptors::close_inherited;

/// The exit status of a namespace in which nothing could be restored.
const FAILED: u8 = 1;

/// How much longer than all that a namespace has deadlines for its supervisor waits.
pub(super) const SLACK: Duration = Duration::from_secs(30);

/// Up to where a restore is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The process runs.
    Runs,
    /// It says that it is ready, within this time; else it is ended.
    Ready(Duration),
    /// It says whether it is ready, or ends, however long that takes.
    Report,
}

/// What process 1 is told.
#[derive(Debug)]
pub(super) struct Inner<'a> {
    pub(super) restore: Restore<'a>,
    pub(super) wait: Wait,
    pub(super) namespaces: Namespaces,
    /// User and group outside.
    pub(super) user: (u32, u32),
}

impl Inner<'_> {
    /// Lives, and returns the exit status to end with. To be called first thing in the forked process, in which
    /// nothing is owned but the link.
    pub(super) fn live(&self, link: Link, held: HeldBack) -> u8 {
        let number = link.as_fd().as_raw_fd();
        // Above all the supervisor's ends of other links: held here, nobody would see it die.
        if let Err(error) = close_inherited(Some(number..=number)) {
            return tell_failure(&link, &error.into());
        }
        let manifest = self.restore.image.manifest();
        if let Err(error) = self.namespaces.settle(self.user, manifest, &link) {
            return tell_failure(&link, &error.into());
        }
        match self.restore_and_attend(&link, held) {
            Ok(ending) => ending.status(),
            Err(failure) => tell_failure(&link, &failure),
        }
    }

    fn restore_and_attend(&self, link: &Link, held: HeldBack) -> Result<Ending, RestoreFailure> {
        let mut signals = Signals::watch()?;
        drop(held);
        let restored = self.restore.start(self.wait != Wait::Runs, true)?;
        let supervised = Supervised::new(restored.pid)?;
        let told = self.await_readiness(&mut signals, &supervised, restored)?;
        // From here on it ends with its supervisor by the leash: gracefully.
        nix::sys::prctl::set_pdeathsig(None).map_err(io::Error::from)?;
        if let Some(told) = told {
            link.tell(&told, Some(supervised.as_fd()))?;
        }
        Ok(attend_leashed(&mut signals, &supervised, Leash::Held(link))?)
    }

    /// Waits as far as was asked for, and says what there is to tell: nothing when the process ends without a
    /// report, where its end is all that was asked for.
    fn await_readiness(
        &self,
        signals: &mut Signals,
        supervised: &Supervised,
        restored: RestoredProcess,
    ) -> Result<Option<Told>, RestoreFailure> {
        let RestoredProcess { report, origin, .. } = restored;
        let limit = match self.wait {
            Wait::Runs => return Ok(Some(Told::Up { origin, report: None })),
            Wait::Ready(limit) => Some(limit),
            Wait::Report => None,
        };
        let Some(reader) = report else {
            if limit.is_none() {
                return Ok(Some(Told::Up { origin, report: None }));
            }
            end(supervised)?;
            return Err(RestoreFailure::MuteEnded);
        };
        let deadline = limit.map(|limit| Instant::now() + limit);
        match report_while_attending(signals, supervised, reader, deadline) {
            Ok(Some(report)) if report.failures.is_empty() => {
                Ok(Some(Told::Up { origin, report: Some(report) }))
            }
            Ok(Some(report)) => {
                let alive = limit.is_none() || !ends_within(supervised, EXIT);
                Ok(Some(Told::NotReady { failures: report.failures, alive }))
            }
            Ok(None) if limit.is_none() => Ok(None),
            Ok(None) => {
                if !ends_within(supervised, EXIT) {
                    supervised.signal(Signal::SIGKILL);
                }
                Err(RestoreFailure::Ended(reap(supervised.pid())?))
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                end(supervised)?;
                Err(RestoreFailure::Late(limit.unwrap_or_default()))
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn end(supervised: &Supervised) -> io::Result<()> {
    supervised.signal(Signal::SIGKILL);
    reap(supervised.pid()).map(drop)
}

/// Tells why nothing runs, and gives the exit status. Whatever still runs in the namespace ends with it.
fn tell_failure(link: &Link, failure: &RestoreFailure) -> u8 {
    let told = Told::Failed(Failed {
        text: failure.to_string(),
        hint: failure.hint(),
        of_the_host: failure.is_of_the_host(),
    });
    // A supervisor that is gone needs no reason.
    let _ = link.tell(&told, None);
    FAILED
}
