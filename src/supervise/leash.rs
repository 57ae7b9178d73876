//! What ties process 1 of a pid namespace to the supervisor outside: when that is killed, the process in here ends;
//! when it gives leave, this one goes on alone.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::guard::GRACE;
use super::link::{Link, Word};
use super::subject::Supervised;
use crate::sys::descriptors;

/// The tie, as long as it holds or its end has not been carried out.
#[derive(Debug)]
pub(super) enum Leash<'a> {
    /// The supervisor lives.
    Held(&'a Link),
    /// It is dead, and the process has until then to stop by itself.
    Cut(Instant),
}

impl Leash<'_> {
    /// What to watch while the supervisor lives.
    pub(super) fn link(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Held(link) => Some(link.as_fd()),
            Self::Cut(_) => None,
        }
    }

    /// How long until something has to be done.
    pub(super) fn left(&self) -> Option<Duration> {
        match self {
            Self::Held(_) => None,
            Self::Cut(until) => Some(until.saturating_duration_since(Instant::now())),
        }
    }

    /// Does what is to be done now. `None` when there is nothing left to watch.
    pub(super) fn look(self, supervised: &Supervised) -> Option<Self> {
        match self {
            Self::Held(link) => match link.word() {
                Word::None => Some(Self::Held(link)),
                Word::Release => {
                    let_go_of_standard();
                    None
                }
                Word::End => {
                    supervised.signal(Signal::SIGTERM);
                    // It may be stopped, for a dump that was never finished.
                    supervised.signal(Signal::SIGCONT);
                    Some(Self::Cut(Instant::now() + GRACE))
                }
            },
            Self::Cut(until) if Instant::now() < until => Some(Self::Cut(until)),
            Self::Cut(_) => {
                supervised.signal(Signal::SIGKILL);
                None
            }
        }
    }
}

/// Whoever reads what the supervisor wrote waits for the end of all writers. Nothing more is said from here.
fn let_go_of_standard() {
    let Ok(null) = std::fs::File::options().read(true).write(true).open("/dev/null") else { return };
    for number in 0..=2 {
        let _ = descriptors::replace_standard(number, &null);
    }
}
