//! Restores of one image at once, each in a pid namespace of its own, from their supervisor's side: all come up or
//! none, and each is on its own from then on. One is a number, too.
//!
//! It must not know what happens inside the namespaces: [`Wait`] says up to where.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, raise};
use nix::sys::wait::WaitPidFlag;
use nix::unistd::{getegid, geteuid};

use super::attend::{Ending, wait_for};
pub use super::inner::Wait;
use super::inner::{Inner, SLACK};
pub use super::member::Up;
use super::member::{Forked, Member, State};
use super::namespace::Namespaces;
use super::restore::{Restore, RestoreFailure};
use super::signals::{HeldBack, Signals};
use crate::engine::Engine;
use crate::image::Image;
use crate::sys::process::exit_now;
use crate::wake::Params;

/// What to restore, each time.
#[derive(Debug)]
pub struct Order<'a> {
    /// What restores.
    pub engine: &'a dyn Engine,
    /// The image, verified already.
    pub image: &'a Image,
    /// How long it may take until a process runs.
    pub deadline: Duration,
    /// Why this engine: a phrase.
    pub why: &'a str,
    /// What each gets of its own.
    pub namespaces: Namespaces,
    /// Up to where they are waited for. [`Wait::Report`] is for one alone.
    pub wait: Wait,
}

/// Why there is none of them: each failure with its number. Those that were up have been ended, too, unless the text
/// says so.
#[derive(Debug)]
pub struct ClonesFailure {
    /// How many there were to be.
    pub of: usize,
    /// What failed, by number.
    pub failures: Vec<(usize, RestoreFailure)>,
}

impl ClonesFailure {
    fn whole(of: usize, failure: impl Into<RestoreFailure>) -> Self {
        Self { of, failures: vec![(1, failure.into())] }
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        self.failures.iter().find_map(|(_, failure)| failure.hint())
    }

    /// Whether this host cannot do it, rather than this restore.
    #[must_use]
    pub fn is_of_the_host(&self) -> bool {
        self.failures.iter().any(|(_, failure)| failure.is_of_the_host())
    }
}

impl fmt::Display for ClonesFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (1, [(_, failure)]) = (self.of, &self.failures[..]) {
            return failure.fmt(f);
        }
        for (number, failure) in &self.failures {
            write!(f, "clone {number} of {}: {failure}; ", self.of)?;
        }
        f.write_str("none is left")
    }
}

impl std::error::Error for ClonesFailure {}

/// Processes in namespaces of their own. Dropping it ends those that have not been released.
#[derive(Debug)]
pub struct Clones {
    members: Vec<Member>,
    signals: Signals,
}

impl Clones {
    /// Restores once for each of `params`, all at the same time, and waits for all as far as the order says. The
    /// caller must have one thread.
    ///
    /// # Errors
    /// [`ClonesFailure`]: none is left.
    pub fn start(order: &Order<'_>, params: &[Params]) -> Result<Self, ClonesFailure> {
        let whole = |error: RestoreFailure| ClonesFailure::whole(params.len(), error);
        // From here until somebody forwards them, signals wait.
        let held = HeldBack::new().map_err(|error| whole(error.into()))?;
        let user = (geteuid().as_raw(), getegid().as_raw());
        let mut members = Vec::with_capacity(params.len());
        for (number, params) in (1..).zip(params) {
            match Member::fork(number, order.namespaces).map_err(whole)? {
                Forked::Inside(link) => {
                    let Order { engine, image, deadline, why, namespaces, wait } = *order;
                    let restore = Restore { engine, image, params, deadline, why, cause: None };
                    let inner = Inner { restore, wait, namespaces, user };
                    exit_now(inner.live(link, held).into())
                }
                Forked::Outside(member) => members.push(*member),
            }
        }
        let signals = Signals::watch().map_err(|error| whole(error.into()))?;
        drop(held);
        let mut clones = Self { members, signals };
        clones.wait(order).map_err(|error| whole(error.into()))?;
        clones.check(order.wait)?;
        Ok(clones)
    }

    /// Waits until it is known of each how it is.
    fn wait(&mut self, order: &Order<'_>) -> io::Result<()> {
        let limit = match order.wait {
            Wait::Report => None,
            Wait::Runs => Some(order.deadline),
            Wait::Ready(limit) => Some(order.deadline + limit),
        };
        let deadline = limit.map(|limit| Instant::now() + limit + SLACK);
        loop {
            let waiting = self.members.iter().filter(|member| matches!(member.state, State::Waiting));
            let mut watched: Vec<_> = waiting.map(|member| member.link.as_fd()).collect();
            if watched.is_empty() {
                return Ok(());
            }
            watched.push(self.signals.as_fd());
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            wait_for(&watched, left)?;
            let late = left.is_some_and(|left| left.is_zero());
            for member in &mut self.members {
                if matches!(member.state, State::Waiting) {
                    member.hear()?;
                }
                if late && matches!(member.state, State::Waiting) {
                    member.state = State::Failed(RestoreFailure::Late(limit.unwrap_or_default() + SLACK));
                }
            }
            self.forward();
        }
    }

    /// Whether all are as the order wants them.
    fn check(&mut self, wait: Wait) -> Result<(), ClonesFailure> {
        let of = self.members.len();
        let mut failures = Vec::new();
        for member in &mut self.members {
            let failure = match std::mem::replace(&mut member.state, State::Silent) {
                State::Failed(failure) => failure,
                State::Silent if wait != Wait::Report => RestoreFailure::Ended(member.end()),
                State::NotReady { failures, alive } if wait != Wait::Report => {
                    // One that was told to stay does, where no other depends on it.
                    let stays = of == 1 && alive.is_some();
                    if stays {
                        member.release();
                    }
                    RestoreFailure::NotReady { failures, alive: alive.filter(|_| stays) }
                }
                fine => {
                    member.state = fine;
                    continue;
                }
            };
            failures.push((member.number, failure));
        }
        if failures.is_empty() { Ok(()) } else { Err(ClonesFailure { of, failures }) }
    }

    /// Those that are up.
    pub fn up(&self) -> impl Iterator<Item = &Up> {
        self.members.iter().filter_map(|member| match &member.state {
            State::Up(up) => Some(up),
            _ => None,
        })
    }

    /// Attends them until all have ended: signals are forwarded to each. Gives 0 if all ended with that, else the
    /// first other status.
    ///
    /// # Errors
    /// [`RestoreFailure::NotReady`] of one that was not ready and has ended since; else the kernel's own.
    pub fn attend(mut self) -> Result<u8, RestoreFailure> {
        // Some may have ended before this.
        let mut statuses: Vec<u8> =
            self.members.iter().filter_map(|member| member.ended.map(Ending::status)).collect();
        loop {
            // Before each wait: the signal that one has ended may have been taken already.
            let there = self.members.iter_mut().filter(|member| member.ended.is_none());
            let ended = there.filter_map(|member| member.reap(Some(WaitPidFlag::WNOHANG)));
            statuses.extend(ended.map(Ending::status));
            if self.members.iter().all(|member| member.ended.is_some()) {
                break;
            }
            wait_for(&[self.signals.as_fd()], None)?;
            self.forward();
        }
        for member in &mut self.members {
            if let State::NotReady { failures, .. } = &mut member.state {
                return Err(RestoreFailure::NotReady { failures: std::mem::take(failures), alive: None });
            }
        }
        Ok(statuses.into_iter().find(|status| *status != 0).unwrap_or(0))
    }

    /// Leaves them to themselves.
    pub fn release(mut self) {
        self.members.iter_mut().for_each(Member::release);
    }

    fn forward(&mut self) {
        for signal in self.signals.arrived() {
            if signal == Signal::SIGCHLD {
                continue;
            }
            let send = |signal| {
                let there = self.members.iter().filter(|member| member.ended.is_none());
                there.for_each(|member| member.init.signal(signal));
            };
            send(signal);
            if signal == Signal::SIGTSTP {
                let _ = raise(Signal::SIGSTOP);
                send(Signal::SIGCONT);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_by_number() {
        let late = || RestoreFailure::Late(Duration::from_secs(3));
        let one = ClonesFailure { of: 1, failures: vec![(1, late())] };
        assert_eq!(one.to_string(), late().to_string());
        let two = ClonesFailure { of: 3, failures: vec![(2, late()), (3, RestoreFailure::MuteEnded)] };
        let text = two.to_string();
        assert!(text.starts_with("clone 2 of 3: the restored process was not ready within 3s"), "{text}");
        assert!(text.contains("; clone 3 of 3: readiness is unknown"), "{text}");
        assert!(text.ends_with("; none is left"), "{text}");
    }
}
