//! A process beside the supervised one that works for it as long as it lives, such as one that asks for checkpoints.
//!
//! It must not know what that does.

use std::fmt;
use std::io;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::guard::ends_within;
use super::subject::Supervised;

/// How long it may take to end when it is asked to: it may be storing what there is of the server, which is worth
/// waiting for before that is restored. What it does is complete or absent at any moment.
const GRACE: Duration = Duration::from_secs(30);
/// When it is told that it is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often it is started again when it ends by itself,
const ATTEMPTS: u32 = 3;
/// counted anew when one has lived for so long.
const STEADY: Duration = Duration::from_secs(60);

/// One companion of one supervised process. Dropping it ends it.
pub struct Companion<'a> {
    /// Makes the command, for the pid of the supervised process.
    make: &'a dyn Fn(i32) -> Command,
    supervised: i32,
    pid: Option<Pid>,
    since: Instant,
    left: u32,
}

impl fmt::Debug for Companion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Companion").field("pid", &self.pid).finish_non_exhaustive()
    }
}

impl<'a> Companion<'a> {
    /// Starts the companion of the process of this pid. One that cannot be started is told of, and missing.
    pub(super) fn start(make: &'a dyn Fn(i32) -> Command, supervised: i32) -> Self {
        let mut companion = Self { make, supervised, pid: None, since: Instant::now(), left: ATTEMPTS };
        companion.spawn();
        companion
    }

    fn spawn(&mut self) {
        self.since = Instant::now();
        match (self.make)(self.supervised).spawn() {
            Ok(child) => self.pid = Some(Pid::from_raw(child.id().cast_signed())),
            Err(error) => tracing::error!("the server runs without its companion: {error}"),
        }
    }

    /// Its pid, while it lives.
    pub(super) fn pid(&self) -> Option<Pid> {
        self.pid
    }

    /// It has ended by itself, and was reaped.
    pub(super) fn ended(&mut self) {
        self.pid = None;
        if self.since.elapsed() >= STEADY {
            self.left = ATTEMPTS;
        }
        if self.left == 0 {
            tracing::error!(
                "the companion of the server has ended too often, and is not started again: no checkpoint follows"
            );
            return;
        }
        self.left -= 1;
        tracing::warn!("the companion of the server has ended, and is started again");
        self.spawn();
    }

    fn end(pid: Pid) -> io::Result<()> {
        // Not reaped yet, so it is still the same process.
        let held = Supervised::new(pid.as_raw())?;
        kill(pid, Signal::SIGTERM)?;
        if !ends_within(&held, PATIENCE) {
            tracing::warn!("waiting for process {pid}, which stores a checkpoint, for up to {GRACE:?}");
            if !ends_within(&held, GRACE) {
                tracing::error!("process {pid} does not end, and is killed: its checkpoint is lost");
                kill(pid, Signal::SIGKILL)?;
            }
        }
        waitpid(pid, None)?;
        Ok(())
    }
}

impl Drop for Companion<'_> {
    fn drop(&mut self) {
        if let Some(pid) = self.pid.take() {
            let _ = Self::end(pid);
        }
    }
}
