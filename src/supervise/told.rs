//! What a supervised run leaves in the record of events: starts, crashes, and what came back.
//!
//! It must not know where events are kept.

use std::time::{Duration, SystemTime};

use super::attend::Ending;
use super::run::RunError;
use crate::events::Draft;
use crate::events::event::micros;
use crate::wake::Origin;

/// How one server ended that was not to.
#[derive(Debug)]
pub(super) struct Crash {
    pub(super) ending: Ending,
    pub(super) pid: i32,
    pub(super) at: SystemTime,
    /// For how long it had run since it was started or restored.
    pub(super) ran: Duration,
}

impl Crash {
    /// How old something was then that was made at this time, in nanoseconds since 1970.
    pub(super) fn after(&self, made_unix_ns: u64) -> Duration {
        let made = SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(made_unix_ns));
        made.and_then(|made| self.at.duration_since(made).ok()).unwrap_or_default()
    }

    /// For the process that comes back of it.
    pub(super) fn cause(&self, number: u64, lost: Duration) -> String {
        let how = in_words(self.ending, &format!("process {}", self.pid));
        format!("{how}; checkpoint {number}, made {:.1} s before", lost.as_secs_f64())
    }
}

/// A checkpoint that is back.
#[derive(Debug)]
pub(super) struct Back<'a> {
    pub(super) number: u64,
    pub(super) pid: i32,
    pub(super) lost: Duration,
    pub(super) pause: Duration,
    pub(super) took: Duration,
    pub(super) generation: Option<u64>,
    pub(super) origin: &'a Origin,
}

pub(super) fn in_words(ending: Ending, who: &str) -> String {
    match ending {
        Ending::Exited(status) => format!("{who} exited with {status}"),
        Ending::Signaled(signal) => format!("{signal} ended {who}"),
        Ending::Checkpointed => format!("a checkpoint ended {who}"),
        Ending::Unfilled => format!("the memory of {who} could not be filled"),
    }
}

pub(super) fn start(pid: i32) -> Draft {
    Draft::new("supervise.start").label("a supervisor has started the server").with("pid", i64::from(pid))
}

/// `row` counts it, and those before it since the last new checkpoint.
pub(super) fn crash(crash: &Crash, row: u32) -> Draft {
    let draft = Draft::new("supervise.crash").label("the server has crashed").at(crash.at);
    let draft = draft.with("ending", in_words(crash.ending, "it"));
    let draft = match crash.ending {
        Ending::Signaled(signal) => draft.with("signal", signal.as_str()),
        Ending::Exited(status) => draft.with("status", i64::from(status)),
        Ending::Checkpointed | Ending::Unfilled => draft,
    };
    draft.with("pid", i64::from(crash.pid)).with("ran_us", micros(crash.ran)).with("row", row)
}

pub(super) fn restored(back: &Back<'_>) -> Draft {
    let Back { number, pid, lost, pause, took, generation, origin } = *back;
    let draft = Draft::new("supervise.restored").label("a checkpoint is back");
    let draft = draft.with("number", number).with("pid", i64::from(pid)).with("lost_us", micros(lost));
    let draft = draft.with("pause_us", micros(pause)).took(took);
    let draft = draft.with("engine", origin.engine.clone()).with("reason", origin.reason.clone());
    draft.with_some("memory", origin.memory.clone()).with_some("generation", generation)
}

pub(super) fn unfit(number: u64, may_pass: bool, took: Duration, why: &str) -> Draft {
    let draft = Draft::new("supervise.unfit").label("a checkpoint does not come back");
    draft.with("number", number).with("may_pass", may_pass).took(took).message(why.to_owned())
}

pub(super) fn cold(pause: Duration, started: Result<i32, &RunError>) -> Draft {
    let draft = Draft::new("supervise.cold").label("the server was started cold");
    let draft = draft.with("pause_us", micros(pause));
    match started {
        Ok(pid) => draft.with("pid", i64::from(pid)),
        Err(error) => draft.message(error.to_string()),
    }
}

pub(super) fn gave_up(row: u32) -> Draft {
    Draft::new("supervise.gave_up")
        .label("the server has crashed too often, and stays ended")
        .with("row", row)
}

pub(super) fn end(outcome: &Result<Ending, RunError>) -> Draft {
    let draft = Draft::new("supervise.end").label("the supervisor ends");
    match outcome {
        Ok(ending) => draft.with("ending", in_words(*ending, "the server")),
        Err(error) => draft.message(error.to_string()),
    }
}
