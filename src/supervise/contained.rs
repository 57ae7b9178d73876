//! A restored process in a pid namespace of its own, from the side of a supervisor that has signals of its own already
//! and attends one process at a time, whichever way that was started.
//!
//! It must not know why it is not among the others.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::{getegid, geteuid};

use super::attend::{Ending, attend_with, forward, wait_for};
use super::companion::Companion;
use super::inner::{Inner, SLACK, Wait};
use super::member::{Forked, Member, State, Up};
use super::namespace::Namespaces;
use super::restore::{Restore, RestoreFailure};
use super::signals::{HeldBack, Signals};
use crate::sys::process::exit_now;

/// A process that runs in a namespace of its own. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Contained {
    member: Box<Member>,
    up: Up,
}

impl Contained {
    /// Restores, and waits until the process is ready, for as long as `ready` once it runs. Signals are forwarded
    /// meanwhile. The caller must have one thread.
    ///
    /// # Errors
    /// [`RestoreFailure`]: nothing runs.
    pub(super) fn start(
        restore: &Restore<'_>,
        ready: Duration,
        signals: &mut Signals,
    ) -> Result<Self, RestoreFailure> {
        let namespaces = Namespaces::possible();
        let user = (geteuid().as_raw(), getegid().as_raw());
        let held = HeldBack::new()?;
        let mut member = match Member::fork(1, namespaces)? {
            Forked::Inside(link) => {
                let inner = Inner { restore: *restore, wait: Wait::Ready(ready), namespaces, user };
                // Before the descriptors are closed that a handler would write to.
                let status = match signals.leave() {
                    Ok(()) => inner.live(link, held),
                    Err(_) => 1,
                };
                exit_now(status.into())
            }
            Forked::Outside(member) => member,
        };
        drop(held);
        let limit = restore.deadline + ready + SLACK;
        let deadline = Instant::now() + limit;
        while matches!(member.state, State::Waiting) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(RestoreFailure::Late(limit));
            }
            wait_for(&[member.link.as_fd(), signals.as_fd()], Some(left))?;
            member.hear()?;
            signals.arrived().into_iter().for_each(|signal| forward(&member.init, signal));
        }
        match std::mem::replace(&mut member.state, State::Silent) {
            State::Up(up) => Ok(Self { member, up }),
            State::Failed(failure) => Err(failure),
            State::NotReady { failures, .. } => Err(RestoreFailure::NotReady { failures, alive: None }),
            State::Silent | State::Waiting => Err(RestoreFailure::Ended(member.end())),
        }
    }

    /// What is known of the process; its pid as this process sees it.
    pub(super) fn up(&self) -> &Up {
        &self.up
    }

    /// Attends it until it has ended, as [`attend_with`]. When this supervisor is killed, process 1 of the namespace
    /// ends it: no guard is needed.
    ///
    /// # Errors
    /// As [`attend_with`].
    pub(super) fn attend(
        &mut self,
        signals: &mut Signals,
        companion: &mut Companion<'_>,
    ) -> io::Result<Ending> {
        let ending = attend_with(signals, &self.member.init, None, companion)?;
        self.member.ended = Some(ending);
        Ok(of_the_process(ending))
    }
}

/// How the process ended, from the end of process 1, which exits as a shell does.
fn of_the_process(ending: Ending) -> Ending {
    match ending {
        Ending::Exited(status @ 129..) => Signal::try_from(status - 128).map_or(ending, Ending::Signaled),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_known_through_process_1() {
        let known = [
            (Ending::Exited(128 + 9), Ending::Signaled(Signal::SIGKILL)),
            (Ending::Exited(128 + 15), Ending::Signaled(Signal::SIGTERM)),
            (Ending::Exited(0), Ending::Exited(0)),
            (Ending::Exited(7), Ending::Exited(7)),
            (Ending::Exited(128), Ending::Exited(128)),
            (Ending::Exited(255), Ending::Exited(255)),
            (Ending::Signaled(Signal::SIGKILL), Ending::Signaled(Signal::SIGKILL)),
        ];
        for (of_init, of_process) in known {
            assert_eq!(of_the_process(of_init), of_process);
            assert_eq!(of_init.status(), of_process.status(), "what is handed on stays the same");
        }
    }
}
