//! Who this process is: which instance, and how often its state has been restored.

use std::io;
use std::time::{Duration, Instant, SystemTime};

use crate::wake::{InstanceId, Origin, Params, Restored};

/// The identity of the running process.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Fresh from the kernel at the cold start and at each restore.
    pub instance: InstanceId,
    /// How often this state has been restored; 0 in an original.
    pub generation: u64,
    /// When the server was started cold, by the wall clock of that host.
    pub session_started: SystemTime,
    started: Instant,
    restored: Option<Instant>,
}

impl Identity {
    /// The identity of a process that starts cold.
    ///
    /// # Errors
    /// The kernel has no random numbers.
    pub fn original() -> io::Result<Self> {
        Ok(Self {
            instance: fresh()?,
            generation: 0,
            session_started: SystemTime::now(),
            started: Instant::now(),
            restored: None,
        })
    }

    /// Time since the cold start, by the monotonic clock: under an engine that restores it, without the time
    /// spent in images.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Time since the last restore, if there was one.
    #[must_use]
    pub fn since_restore(&self) -> Option<Duration> {
        self.restored.map(|at| at.elapsed())
    }

    /// Takes on a new identity, in a restored process.
    pub(super) fn renew(&mut self) -> io::Result<()> {
        self.generation += 1;
        self.restored = Some(Instant::now());
        self.instance = fresh()?;
        Ok(())
    }

    /// The facts of the restore of a dump that was begun at `dumped`.
    pub(super) fn restored(&self, dumped: SystemTime, params: Params, origin: Option<Origin>) -> Restored {
        let suspended = SystemTime::now().duration_since(dumped).unwrap_or_default();
        Restored::new(self.generation, suspended, self.instance, params).brought_by(origin)
    }
}

fn fresh() -> io::Result<InstanceId> {
    crate::sys::random::fresh().map(InstanceId::from_bytes)
}
