//! What a cycle leaves in the record of events. It must not know how a cycle goes on.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use criu_images::ImageDir;

use super::error::{Cause, CheckpointError};
use super::{Finished, Outcome, Shared};
use crate::context::HookRun;
use crate::engine::Complete;
use crate::events::event::{MICROSECONDS, micros};
use crate::events::{Draft, Recorder};
use crate::image::manifest::Phase;
use crate::wake::{Restored, Wake};

/// How long after a restore CRIU's figures are looked for: it writes them within milliseconds.
const STATISTICS_AFTER: Duration = Duration::from_secs(1);

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
        let draft = draft.with("frozen_us", complete.frozen_us).with("took_us", complete.took_us);
        match ImageDir::open(image).and_then(|folder| folder.stats_dump()) {
            Ok(Some(stats)) => draft
                .with("freezing_us", stats.freezing_time)
                .with("memdump_us", stats.memdump_time)
                .with("memwrite_us", stats.memwrite_time)
                .with("pages", stats.pages_written),
            _ => draft,
        }
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
                draft
                    .with_some("memory", memory)
                    .with_some("memory_reason", why)
                    .with_some("cause", origin.cause.clone())
            }
            None => draft.with("engine", "criu").with("reason", "a plain criu restore"),
        };
        draft.with_some("message", failures.first().cloned())
    });
}

/// What the engine's time went into, as whoever restored this process told it, if he did.
pub(super) fn engine(events: &Recorder, phases: &[Phase]) {
    if phases.is_empty() {
        return;
    }
    events.record(|| {
        let draft = Draft::new("restore.engine").label("what the engine's time went into");
        let whole = phases.iter().map(|phase| phase.micros).fold(0, u64::saturating_add);
        phases.iter().fold(draft.with("took_us", whole), |draft, phase| {
            draft.with(
                format!("{}{MICROSECONDS}", phase.name.replace(": ", " ").replace(' ', "_")),
                phase.micros,
            )
        })
    });
}

/// What CRIU tells of the restore of this process, which it writes when that is over: into the image, if a plain
/// `criu restore` did it and the image is still where it was made. Nothing is recorded otherwise.
pub(super) async fn criu_statistics(shared: Arc<Shared>, image: PathBuf, restored: Instant) {
    tokio::time::sleep(STATISTICS_AFTER).await;
    // No cycle goes on past its beginning as long as this is held, so that no dump meets the open file.
    let _no_cycle = shared.reporting.lock().await;
    if shared.running.load(Ordering::Acquire) {
        return;
    }
    let written = std::fs::metadata(image.join("stats-restore")).and_then(|file| file.modified());
    let age = written.ok().and_then(|written| SystemTime::now().duration_since(written).ok());
    // An older one is of another restore; CRIU writes it after this process has gone on.
    if age.is_none_or(|age| age > restored.elapsed() + STATISTICS_AFTER) {
        return;
    }
    let Ok(Some(stats)) = ImageDir::open(&image).and_then(|folder| folder.stats_restore()) else { return };
    shared.events.record(|| {
        let draft = Draft::new("restore.criu").label("CRIU's figures of the restore");
        let draft = draft.with("restore_us", stats.restore_time).with("forking_us", stats.forking_time);
        draft.with_some("pages", stats.pages_restored)
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
