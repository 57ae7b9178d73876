//! One cycle as a transaction: quiesce, audit, dump, wake. Whatever fails on the way, everything that was put
//! down is taken up again.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::error::{Cause, CheckpointError, Phase};
use super::job::{Job, Stage};
use super::{Finished, Outcome, Request, Running, Shared, recorded};
use crate::context::{HookFailure, HookRun};
use crate::engine::{Complete, DumpOrder, Original, Prepared};
use crate::events::event::micros;
use crate::image::manifest::{self, Listen, ResourceRecord, SubjectRecord};
use crate::resource::{Cycle, Keep, locked};
use crate::wake::Wake;

/// Runs a cycle to its end. Must not be cancelled: its caller runs it on a task of its own.
pub(super) async fn run(shared: Arc<Shared>, mut request: Request) -> Finished {
    let (started, events) = (Instant::now(), shared.events.clone());
    recorded::begin(&events, &request.target, request.leave_running);
    let answer = request.answer.take();
    let finished = run_one(shared, request, answer, started).await;
    recorded::end(&events, &finished, started.elapsed());
    finished
}

async fn run_one(
    shared: Arc<Shared>,
    request: Request,
    answer: Option<OwnedFd>,
    started: Instant,
) -> Finished {
    let Some(running) = shared.begin() else {
        let refused = CheckpointError::new(Phase::Request, vec![Cause::AlreadyRunning]);
        return Finished { outcome: Err(refused), answer };
    };
    let prepared = match prepare(&shared, &request.target).await {
        Ok(prepared) => prepared,
        Err(cause) => {
            let refused = CheckpointError::new(Phase::Request, vec![cause]);
            return Finished { outcome: Err(refused), answer };
        }
    };
    let cycle = Cycle::new(request.leave_running);
    // Kept first, so that its place among the kept ones is known.
    let answer = answer.map(|answer| cycle.keep(answer));
    let transaction = Transaction { shared, cycle, request, started, running };
    let outcome = transaction.run(prepared, answer.is_some()).await;
    Finished { outcome, answer: answer.and_then(Keep::take) }
}

/// Prepares away from the runtime's threads, which serve meanwhile: it reads from the disk. The thread has ended when
/// this returns: it must not be in the image.
async fn prepare(shared: &Arc<Shared>, target: &Path) -> Result<Prepared, Cause> {
    let what = "preparing the image";
    let (told, outcome) = tokio::sync::oneshot::channel();
    let (shared, target) = (Arc::clone(shared), target.to_owned());
    let thread = std::thread::Builder::new().name("defrost-prepare".into());
    let thread = thread
        .spawn(move || drop(told.send(shared.engine.prepare(&target))))
        .map_err(|source| Cause::Internal { what, source })?;
    let prepared = outcome.await;
    // It panicked, or has nothing left to do.
    let _ = thread.join();
    prepared
        .map_err(|error| Cause::Internal { what, source: std::io::Error::other(error) })?
        .map_err(Cause::from)
}

pub(super) struct Transaction {
    pub(super) shared: Arc<Shared>,
    cycle: Cycle,
    pub(super) request: Request,
    started: Instant,
    /// Keeps others out.
    pub(super) running: Running,
}

impl Transaction {
    async fn run(self, prepared: Prepared, has_answer: bool) -> Result<Outcome, CheckpointError> {
        // At most as long as the report may take to be read.
        drop(self.shared.reporting.lock().await);
        self.shared.set_up(false);
        let runs = self.shared.context.quiesce(&self.cycle).await;
        let quiesced = self.started.elapsed();
        tracing::debug!(?quiesced, resources = runs.len(), "quiesced");
        recorded::hooks(&self.shared.events, &runs, quiesced, None);
        let phases = phases_of(&runs, quiesced);
        let failures = failures_of(runs);
        if !failures.is_empty() {
            prepared.discard();
            return Err(self.abort(Phase::Quiesce, failures.into_iter().map(Cause::Hook).collect()).await);
        }
        let subject = self.subject_record(phases);
        let (stage, receiver) = tokio::sync::oneshot::channel();
        let job = Job {
            shared: Arc::clone(&self.shared),
            cycle: self.cycle.clone(),
            order: DumpOrder {
                leave_running: self.request.leave_running,
                durable: self.request.durable,
                subject,
                kept: Vec::new(),
                answer: has_answer.then_some(0),
                deadline: self.request.deadline,
            },
        };
        let thread = std::thread::Builder::new().name("defrost-dump".into());
        if let Err(source) = thread.spawn(move || drop(stage.send(job.run(prepared)))) {
            let cause = Cause::Internal { what: "the dumping thread did not start", source };
            return Err(self.abort(Phase::Dump, vec![cause]).await);
        }
        match receiver.await {
            Ok(Stage::Restored(arrived)) => Ok(self.arrive(arrived).await),
            Ok(Stage::Dumped(original)) => self.resume(original).await,
            Ok(Stage::NotDumped(original)) => self.go_on(original).await,
            Ok(Stage::Refused(causes)) => Err(self.abort(Phase::Audit, causes).await),
            Err(_) => {
                let source = std::io::Error::other("it panicked");
                let cause = Cause::Internal { what: "the dumping thread failed", source };
                Err(self.abort(Phase::Dump, vec![cause]).await)
            }
        }
    }

    /// Takes everything up again after a failure whose causes are known.
    async fn abort(&self, phase: Phase, causes: Vec<Cause>) -> CheckpointError {
        let rollback = self.roll_back().await;
        CheckpointError { phase, causes, rollback }
    }

    pub(super) async fn wake(&self, wake: &Wake) -> Vec<HookRun> {
        let started = Instant::now();
        let runs = self.shared.context.wake(wake).await;
        recorded::hooks(&self.shared.events, &runs, started.elapsed(), Some(wake));
        runs
    }

    async fn roll_back(&self) -> Vec<HookFailure> {
        let rollback = failures_of(self.wake(&Wake::Aborted).await);
        self.shared.set_up(rollback.is_empty());
        rollback
    }

    /// Serves again after a failed dump, and only then asks why it failed.
    async fn go_on(&self, original: Original) -> Result<Outcome, CheckpointError> {
        let rollback = self.roll_back().await;
        match self.finish(original).await {
            // The answer was lost, and the image is complete all the same.
            Ok(image) => Ok(Outcome::Resumed { image, failures: rollback }),
            Err(cause) => Err(CheckpointError { phase: Phase::Dump, causes: vec![cause], rollback }),
        }
    }

    /// Goes on after a good dump, and only then waits for the image to be complete.
    async fn resume(self, original: Original) -> Result<Outcome, CheckpointError> {
        let failures = failures_of(self.wake(&Wake::Resumed).await);
        self.shared.set_up(failures.is_empty());
        for failure in &failures {
            tracing::error!("{failure}");
        }
        match self.finish(original).await {
            Ok(image) => Ok(Outcome::Resumed { image, failures }),
            Err(cause) => {
                Err(CheckpointError { phase: Phase::Dump, causes: vec![cause], rollback: failures })
            }
        }
    }

    /// Waits for the image away from the runtime's own threads.
    async fn finish(&self, original: Original) -> Result<Complete, Cause> {
        let events = self.shared.events.clone();
        let finish = move || original.finish().inspect(|complete| recorded::image(&events, complete));
        let finished = tokio::task::spawn_blocking(finish).await;
        let finished = finished.map_err(|error| Cause::Internal {
            what: "waiting for the image",
            source: std::io::Error::other(error),
        })?;
        finished.map_err(Cause::Dump)
    }

    fn subject_record(&self, phases: Vec<manifest::Phase>) -> SubjectRecord {
        let identity = *locked(&self.shared.identity);
        let started = identity.session_started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let shown = |path: std::io::Result<std::path::PathBuf>| {
            path.map(|path| path.display().to_string()).unwrap_or_default()
        };
        let listens = self.shared.context.listens();
        SubjectRecord {
            name: self.shared.name.clone(),
            pid: std::process::id(),
            argv: std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect(),
            exe: shown(std::env::current_exe()),
            cwd: shown(std::env::current_dir()),
            generation: identity.generation,
            instance: identity.instance.to_string(),
            session_started_unix_ns: u64::try_from(started.as_nanos()).unwrap_or(u64::MAX),
            resources: self
                .shared
                .context
                .resources()
                .into_iter()
                .map(|resource| ResourceRecord { name: resource.name, description: resource.description })
                .collect(),
            listens: listens
                .into_iter()
                .map(|(name, address)| Listen { name, address, reuse_port: false })
                .collect(),
            ledger: ledger(),
            leave_running: self.request.leave_running,
            phases,
            ..SubjectRecord::default()
        }
    }
}

/// Where this process can be told that a file stands in for its memory.
fn ledger() -> Option<manifest::LedgerRecord> {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    return crate::sys::ledger::place()
        .map(|place| manifest::LedgerRecord { count: place.count, anchors: place.anchors });
    #[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
    return None;
}

pub(super) fn failures_of(runs: Vec<HookRun>) -> Vec<HookFailure> {
    runs.into_iter().filter_map(HookRun::failure).collect()
}

fn phases_of(runs: &[HookRun], quiesced: Duration) -> Vec<manifest::Phase> {
    let hooks = runs.iter().map(|run| manifest::Phase {
        name: format!("before_checkpoint of {}", run.resource),
        micros: micros(run.took),
    });
    hooks.chain([manifest::Phase { name: "quiesce".to_owned(), micros: micros(quiesced) }]).collect()
}
