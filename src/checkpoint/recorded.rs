//! What a cycle leaves in the record of events. It must not know how a cycle goes on.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use super::error::{Cause, CheckpointError};
use super::{Finished, Outcome};
use crate::context::HookRun;
use crate::engine::Complete;
use crate::events::event::micros;
use crate::events::{Draft, Recorder};
use crate::wake::{Restored, Wake};

pub(super) fn begin(events: &Recorder, image: &Path, leave_running: bool) {
    let draft = Draft::new("cycle.begin").label("a checkpoint was asked for");
    events.record(|| draft.with("image", image.display().to_string()).with("leave_running", leave_running));
}

/// Each hook, and the whole of them: `cycle.quiesce` without a wake.
pub(super) fn hooks(events: &Recorder, runs: &[HookRun], took: Duration, wake: Option<&Wake>) {
    for run in runs {
        events.record(|| {
            let draft = Draft::new("cycle.hook").label("a hook ran").with("resource", run.resource.clone());
            let draft =
                draft.with("hook", run.hook.to_string()).took(run.took).with("ok", run.outcome.is_ok());
            draft.with_some("message", run.outcome.as_ref().err().map(ToString::to_string))
        });
    }
    events.record(|| match wake {
        None => {
            let draft = Draft::new("cycle.quiesce").label("all was put down");
            draft.with("resources", runs.len()).took(took)
        }
        Some(wake) => {
            let failures = runs.iter().filter(|run| run.outcome.is_err()).count();
            let draft = Draft::new("cycle.wake").label("all was taken up again");
            draft.with("wake", wake.to_string()).with("failures", failures).took(took)
        }
    });
}

pub(super) fn audit(events: &Recorder, causes: &[Cause], took: Duration) {
    events.record(|| {
        let draft = Draft::new("cycle.audit").label("the process was looked over");
        let draft = draft.with("blockers", causes.len()).took(took);
        draft.with_some("message", causes.first().map(ToString::to_string))
    });
}

/// In the process that was dumped; what is restored has its own [`restore`].
pub(super) fn dump(events: &Recorder, engine: impl Display, dumped: bool, took: Duration) {
    events.record(|| {
        let draft = Draft::new("cycle.dump").label("the engine is done").with("engine", engine.to_string());
        draft.with("dumped", dumped).took(took)
    });
}

pub(super) fn image(events: &Recorder, complete: &Complete) {
    let Some(image) = &complete.image else { return };
    events.record(|| {
        let draft = Draft::new("cycle.image").label("the image is complete");
        let draft = draft.with("image", image.display().to_string()).with("bytes", complete.bytes);
        draft.with("frozen_us", complete.frozen_us).with("took_us", complete.took_us)
    });
}

pub(super) fn restore(events: &Recorder, restored: &Restored, hooks: Duration, failures: &[String]) {
    events.record(|| {
        let draft = Draft::new("restore").label("this process was restored");
        let draft =
            draft.with("suspended_us", micros(restored.suspended_for)).with("hooks_us", micros(hooks));
        let draft = draft.with("failures", failures.len());
        let draft = match restored.origin.as_deref() {
            Some(origin) => {
                let draft = draft.with("engine", origin.engine.clone()).with("reason", origin.reason.clone());
                let memory = origin.memory.clone();
                let why = memory.is_some().then(|| origin.memory_reason.clone());
                draft.with_some("memory", memory).with_some("memory_reason", why)
            }
            None => draft.with("engine", "criu").with("reason", "a plain criu restore"),
        };
        draft.with_some("message", failures.first().cloned())
    });
}

pub(super) fn end(events: &Recorder, finished: &Finished, took: Duration) {
    events.record(|| {
        let draft = Draft::new("cycle.end").label("the checkpoint has ended");
        let ended = |outcome: &'static str| draft.with("outcome", outcome).took(took);
        match &finished.outcome {
            Ok(Outcome::Resumed { .. }) => ended("resumed"),
            Ok(Outcome::Restored { .. }) => ended("restored"),
            Err(error) => failed(ended("failed"), error),
        }
    });
}

fn failed(draft: Draft, error: &CheckpointError) -> Draft {
    draft.with("phase", error.phase.to_string()).message(error.to_string())
}
