//! How a cycle ends in a restored process: everything is taken up again, whoever restored it is told, and the record of
//! events says what the time went into. It must not know how the process got here.

use std::time::{Duration, Instant};

use super::cycle::{Transaction, failures_of};
use super::{Outcome, recorded};
use crate::context::HookRun;
use crate::engine::channel::{PhasesReader, Report, ReportWriter};
use crate::events::event::micros;
use crate::image::manifest::Phase;
use crate::resource::locked;
use crate::wake::{Restored, Wake};

/// A process that has just been restored.
pub(super) struct Arrived {
    /// Who it is now.
    pub(super) restored: Restored,
    /// What has gone wrong on arrival already.
    pub(super) failures: Vec<String>,
    /// When it ran its first instruction.
    pub(super) woke: Instant,
    /// Whom to tell.
    pub(super) report: ReportWriter,
    /// What the engine's time went into, when somebody tells.
    pub(super) phases: Option<PhasesReader>,
}

impl Transaction {
    /// Comes to life in a new process.
    pub(super) async fn arrive(self, arrived: Arrived) -> Outcome {
        let Arrived { restored, mut failures, woke, report, phases } = arrived;
        let (waking, started) = (woke.elapsed(), Instant::now());
        let runs = self.wake(&Wake::Restored(restored.clone())).await;
        let mut own = phases_of(waking, &runs);
        let woken = Instant::now();
        failures.extend(failures_of(runs).iter().map(ToString::to_string));
        if failures.is_empty() {
            failures.extend(self.shared.probe().await.err().map(|error| format!("readiness: {error}")));
        }
        for failure in &failures {
            tracing::error!(instance = %restored.instance, "restore failed: {failure}");
        }
        own.push(phase("ask whether it is ready", woken.elapsed()));
        recorded::restore(&self.shared.events, &restored, started.elapsed(), &failures);
        let report_of_this = Report {
            instance: restored.instance,
            generation: restored.generation,
            socket: locked(&self.shared.socket).as_ref().map(|path| path.display().to_string()),
            addresses: self.shared.context.reached_at(),
            failures: failures.clone(),
            phases: own,
        };
        let reporting = self.shared.reporting.lock().await;
        self.shared.set_up(failures.is_empty());
        // Whoever reads of the readiness may ask for the next checkpoint at once. It waits for the report.
        drop(self.running);
        match tell(report, report_of_this, phases).await {
            Ok(phases) => recorded::engine(&self.shared.events, &phases),
            Err(error) => {
                tracing::error!(instance = %restored.instance, "whoever restored this process is gone: {error}");
                std::process::exit(1);
            }
        }
        drop(reporting);
        if !failures.is_empty() && !self.shared.stay {
            std::process::exit(1);
        }
        let by = restored.origin.as_deref().map(ToString::to_string);
        tracing::info!(instance = %restored.instance, generation = restored.generation, by, "restored");
        if restored.origin.is_none() {
            tokio::spawn(recorded::criu_statistics(self.shared, self.request.target, started));
        }
        Outcome::Restored { restored, failures }
    }
}

/// Reports, and gives what the engine's time went into: on a thread that ends with it, where that may last: one of the
/// runtime's would stay, and be in the next image.
async fn tell(
    writer: ReportWriter,
    report: Report,
    phases: Option<PhasesReader>,
) -> std::io::Result<Vec<Phase>> {
    let is_quick = !writer.is_awaited() && phases.is_none();
    let work = move || -> std::io::Result<Vec<Phase>> {
        writer.send(&report)?;
        Ok(phases.map(PhasesReader::read).unwrap_or_default())
    };
    if is_quick {
        return work();
    }
    let (told, outcome) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name("defrost-report".into());
    thread.spawn(move || drop(told.send(work())))?;
    outcome.await.map_err(std::io::Error::other)?
}

fn phases_of(waking: Duration, runs: &[HookRun]) -> Vec<Phase> {
    let hooks = runs.iter().map(|run| phase(&format!("run {} of {}", run.hook, run.resource), run.took));
    [phase("wake", waking)].into_iter().chain(hooks).collect()
}

fn phase(name: &str, took: Duration) -> Phase {
    Phase { name: name.to_owned(), micros: micros(took) }
}
