//! What time went into, phase by phase. It must not know what is timed.

use std::time::Instant;

use super::Phase;

/// Takes the time of phases that follow each other.
#[derive(Debug)]
pub struct Clock {
    phases: Vec<Phase>,
    since: Instant,
}

impl Clock {
    /// Begins the first phase.
    #[must_use]
    pub fn start() -> Self {
        Self { phases: Vec::new(), since: Instant::now() }
    }

    /// Ends a phase of this name, and begins the next.
    pub fn lap(&mut self, name: &str) {
        let micros = u64::try_from(self.since.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.phases.push(Phase { name: name.to_owned(), micros });
        self.since = Instant::now();
    }

    /// The phases that have ended, in order.
    #[must_use]
    pub fn into_phases(self) -> Vec<Phase> {
        self.phases
    }
}
