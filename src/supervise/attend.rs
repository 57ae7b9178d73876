//! The supervisor's loop: signals forwarded, zombies reaped, until the supervised process has ended and
//! nothing of it is left.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, raise};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::companion::Companion;
use super::guard::Guard;
use super::leash::Leash;
use super::signals::Signals;
use super::subject::Supervised;
use crate::engine::channel::{Report, ReportReader};
use crate::engine::{helper, keeper};

/// How long a checkpoint may take to finish after it has ended the process.
const FINISH: Duration = Duration::from_secs(30);
/// How long what the process left behind has to stop by itself.
const GRACE: Duration = Duration::from_secs(2);

/// How the supervised process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It exited with this status.
    Exited(i32),
    /// This signal ended it.
    Signaled(Signal),
    /// A checkpoint ended it by intent, and the image is complete.
    Checkpointed,
    /// Its keeper ended it by SIGKILL: its memory could not be filled any more.
    Unfilled,
}

impl Ending {
    /// The exit status to hand on: the process's own, 128 + the signal's number, or 0 after a checkpoint.
    #[must_use]
    pub fn status(self) -> u8 {
        match self {
            Self::Exited(status) => u8::try_from(status & 0xff).unwrap_or(u8::MAX),
            Self::Signaled(signal) => 128 + u8::try_from(signal as i32).unwrap_or(0),
            Self::Checkpointed => 0,
            Self::Unfilled => Self::Signaled(Signal::SIGKILL).status(),
        }
    }
}

/// Makes this process the one that orphans of its tree fall to, so that they can be reaped: among them the
/// process that finishes a checkpoint.
///
/// # Errors
/// The kernel's own.
pub fn become_subreaper() -> io::Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(io::Error::from)
}

/// Attends `supervised` until it has ended and been reaped, with everything that it left behind.
///
/// # Errors
/// The kernel's own, from waiting; the process may live then.
pub fn attend(signals: &mut Signals, supervised: &Supervised, guard: Option<Guard>) -> io::Result<Ending> {
    let guard = guard.as_ref().map(Guard::pid);
    attend_until_ended(signals, House::new(supervised, guard, None), None)
}

/// As [`attend`], with a companion, which is left alone when all else is cleared away.
///
/// # Errors
/// As [`attend`].
pub(super) fn attend_with(
    signals: &mut Signals,
    supervised: &Supervised,
    guard: Option<Guard>,
    companion: &mut Companion<'_>,
) -> io::Result<Ending> {
    let guard = guard.as_ref().map(Guard::pid);
    attend_until_ended(signals, House::new(supervised, guard, Some(companion)), None)
}

/// As [`attend`], in process 1 of a pid namespace, which ends the process when its own supervisor is killed.
///
/// # Errors
/// As [`attend`].
pub(super) fn attend_leashed(
    signals: &mut Signals,
    supervised: &Supervised,
    leash: Leash<'_>,
) -> io::Result<Ending> {
    attend_until_ended(signals, House::new(supervised, None, None), Some(leash))
}

fn attend_until_ended(
    signals: &mut Signals,
    mut house: House<'_, '_>,
    mut leash: Option<Leash<'_>>,
) -> io::Result<Ending> {
    let supervised = house.supervised;
    loop {
        house.reap()?;
        if let Some(ending) = house.ending {
            let ending = house.settle(ending)?;
            house.clear()?;
            return Ok(ending);
        }
        match &leash {
            None => wait_for(&[signals.as_fd()], None)?,
            Some(leash) => match leash.link() {
                Some(link) => wait_for(&[signals.as_fd(), link], None)?,
                None => wait_for(&[signals.as_fd()], leash.left())?,
            },
        }
        leash = leash.and_then(|leash| leash.look(supervised));
        for signal in signals.arrived() {
            forward(supervised, signal);
        }
    }
}

/// Waits for the report of a restored process, forwarding signals meanwhile. `None` when it ends, or lets go of
/// the pipe, without one. Without a `deadline`, those of the hooks that it waits for count.
///
/// # Errors
/// `TimedOut` at the deadline, or the kernel's own; the process may live then.
pub fn report_while_attending(
    signals: &mut Signals,
    supervised: &Supervised,
    report: ReportReader,
    deadline: Option<Instant>,
) -> io::Result<Option<Report>> {
    loop {
        let limit = deadline.map(|deadline| timespec(deadline.saturating_duration_since(Instant::now())));
        let (forwarded, written, ended) = (signals.as_fd(), report.as_fd(), supervised.as_fd());
        let mut waiting =
            [&forwarded, &written, &ended].map(|descriptor| PollFd::new(descriptor, PollFlags::IN));
        match rustix::event::poll(&mut waiting, limit.as_ref()) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [has_signals, has_report, has_ended] = waiting.map(|waiting| !waiting.revents().is_empty());
        if has_report {
            // It is written in one piece and the pipe closed: a moment is enough.
            return report.wait(Instant::now() + GRACE);
        }
        if has_ended {
            return Ok(None);
        }
        if has_signals {
            signals.arrived().into_iter().for_each(|signal| forward(supervised, signal));
        }
    }
}

/// Waits until one of the descriptors is readable, at most this long. A signal may end the wait early.
pub(super) fn wait_for(descriptors: &[BorrowedFd<'_>], limit: Option<Duration>) -> io::Result<()> {
    let mut waiting: Vec<_> =
        descriptors.iter().map(|descriptor| PollFd::new(descriptor, PollFlags::IN)).collect();
    match rustix::event::poll(&mut waiting, limit.map(timespec).as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() }
}

/// Hands a signal on; one that stops stops this process too.
pub(super) fn forward(supervised: &Supervised, signal: Signal) {
    match signal {
        Signal::SIGCHLD => {}
        // The process is alone in its session, where the kernel ignores SIGTSTP: stop both by SIGSTOP.
        Signal::SIGTSTP => {
            supervised.signal(Signal::SIGSTOP);
            // Process 1 is not stopped by its own signals: pid_namespaces(7). Whoever stopped it sends SIGCONT.
            if std::process::id() != 1 {
                let _ = raise(Signal::SIGSTOP);
                supervised.signal(Signal::SIGCONT);
            }
        }
        other => supervised.signal(other),
    }
}

/// The children of this process, by their part.
struct House<'a, 'b> {
    supervised: &'a Supervised,
    guard: Option<Pid>,
    companion: Option<&'a mut Companion<'b>>,
    ending: Option<Ending>,
    /// The exit status of the last helper that finished a checkpoint.
    finished: Option<i32>,
    /// A helper was killed: CRIU, which it leaves behind, may yet stop the process.
    abandoned: bool,
    /// A keeper has ended the process, or was killed before its time.
    unfilled: bool,
}

impl<'a, 'b> House<'a, 'b> {
    fn new(supervised: &'a Supervised, guard: Option<Pid>, companion: Option<&'a mut Companion<'b>>) -> Self {
        let (ending, finished) = (None, None);
        Self { supervised, guard, companion, ending, finished, abandoned: false, unfilled: false }
    }

    /// Reaps every child that has ended.
    fn reap(&mut self) -> io::Result<()> {
        let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        loop {
            let pid = match waitid(Id::All, look) {
                Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..)) => pid,
                Ok(_) | Err(nix::errno::Errno::ECHILD) => return Ok(()),
                Err(nix::errno::Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            };
            // Its name can be read only until it is reaped.
            let name = name_of(pid);
            let is_companion = self.companion_pid() == Some(pid);
            match waitpid(pid, None)? {
                _ if is_companion => {
                    if let Some(companion) = self.companion.as_deref_mut() {
                        companion.ended();
                    }
                }
                WaitStatus::Exited(pid, status) if pid.as_raw() == self.supervised.pid() => {
                    self.ending = Some(Ending::Exited(status));
                }
                WaitStatus::Signaled(pid, signal, _) if pid.as_raw() == self.supervised.pid() => {
                    self.ending = Some(Ending::Signaled(signal));
                }
                status if name == helper::PROCESS_NAME => self.helper_ended(status),
                // One that was killed leaves it to the pager to end the process.
                WaitStatus::Exited(_, keeper::LOST) | WaitStatus::Signaled(..)
                    if name == keeper::PROCESS_NAME =>
                {
                    self.unfilled = true;
                }
                _ if self.abandoned => self.supervised.signal(Signal::SIGCONT),
                _ => {}
            }
        }
    }

    /// A helper that fails lets the process go on by itself; one that was killed could not.
    fn helper_ended(&mut self, status: WaitStatus) {
        if let WaitStatus::Exited(_, status) = status {
            self.finished = Some(status);
        } else {
            self.abandoned = true;
            self.supervised.signal(Signal::SIGCONT);
        }
    }

    /// Tells a kill from a checkpoint: a helper ends the process only after the image is complete, and says so
    /// by its exit status right afterwards. So does a keeper.
    fn settle(&mut self, ending: Ending) -> io::Result<Ending> {
        if ending != Ending::Signaled(Signal::SIGKILL) {
            return Ok(ending);
        }
        let deadline = Instant::now() + FINISH;
        let tells = |pid| [helper::PROCESS_NAME, keeper::PROCESS_NAME].contains(&name_of(pid).as_str());
        while Instant::now() < deadline && children()?.into_iter().any(tells) {
            std::thread::sleep(Duration::from_millis(1));
            self.reap()?;
        }
        Ok(match self.finished {
            Some(helper::ENDED_THE_SUBJECT) => Ending::Checkpointed,
            _ if self.unfilled => Ending::Unfilled,
            _ => ending,
        })
    }

    /// Ends what the process left behind: asks, waits, kills.
    fn clear(&mut self) -> io::Result<()> {
        for (signal, time) in [(Signal::SIGTERM, GRACE), (Signal::SIGKILL, GRACE)] {
            let left = self.left_behind()?;
            if left.is_empty() {
                return Ok(());
            }
            for pid in left {
                let _ = kill(pid, signal);
                let _ = kill(pid, Signal::SIGCONT);
            }
            let deadline = Instant::now() + time;
            while Instant::now() < deadline && !self.left_behind()?.is_empty() {
                std::thread::sleep(Duration::from_millis(5));
                self.reap()?;
            }
        }
        Ok(())
    }

    fn left_behind(&self) -> io::Result<Vec<Pid>> {
        let mut left = children()?;
        let own = [self.guard, self.companion_pid()];
        left.retain(|pid| !own.contains(&Some(*pid)) && pid.as_raw() != self.supervised.pid());
        Ok(left)
    }

    fn companion_pid(&self) -> Option<Pid> {
        self.companion.as_ref().and_then(|companion| companion.pid())
    }
}

/// The children of this process, which has one thread: proc_tid_children(5). A kernel without
/// CONFIG_PROC_CHILDREN shows none, and then nothing is cleared away.
fn children() -> io::Result<Vec<Pid>> {
    match std::fs::read_to_string("/proc/thread-self/children") {
        Ok(text) => {
            Ok(text.split_whitespace().filter_map(|pid| pid.parse().ok()).map(Pid::from_raw).collect())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn name_of(pid: Pid) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}
