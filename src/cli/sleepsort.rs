//! `defrost sleepsort`: sort by sleeping, through a checkpoint if asked.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::OwnedMutexGuard;

use super::Options;
use super::failure::{FAILED, Failure, USAGE};
use super::restore::seconds;
use crate::adapters::Stdio;
use crate::checkpoint::Request;
use crate::control::{Control, ControlOptions};
use crate::engine::criu::CriuEngine;
use crate::resource::{Cycle, HookError, Resource, locked};
use crate::sleepsort::{LARGEST, SHORTEST_UNIT, Sleepers, Woken, read};
use crate::wake::Wake;
use crate::{Registration, Subject};

/// The longest unit.
const LONGEST_UNIT: Duration = Duration::from_secs(3600);

/// Sort the numbers on standard input by sleeping: a task for each, which sleeps that long and prints it
///
/// The test of timers: checkpointed in the middle and restored, each sleeper has the time left that it had. Standard input
/// has one whole number a line, from 0 to 86400.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// How long a sleeper sleeps for each 1 of its number: `1s`, `20ms`; from 1ms to 3600s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = unit)]
    unit: Duration,
    /// Print with each number when it woke, in milliseconds from the start: by the clock of the timers, which stands still
    /// in an image, and by the wall clock
    #[arg(long)]
    times: bool,
    /// After so many seconds checkpoint this process into DIR, and end it; a restore prints the rest. Standard output has
    /// to be a file then
    #[arg(long, num_args = 2, value_names = ["SECONDS", "DIR"])]
    checkpoint_at: Option<Vec<OsString>>,
    /// Go on after the checkpoint too
    #[arg(long, requires = "checkpoint_at")]
    leave_running: bool,
    /// The name that commands find it by
    #[arg(long, env = "DEFROST_NAME", default_value = "sleepsort")]
    name: String,
}

fn unit(text: &str) -> Result<Duration, String> {
    let (number, factor) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 0.001),
        (None, Some(number)) => (number, 1.0),
        (None, None) => (text, 1.0),
    };
    let unit = number.trim().parse::<f64>().ok().and_then(|number| {
        Duration::try_from_secs_f64(number * factor)
            .ok()
            .filter(|unit| (SHORTEST_UNIT..=LONGEST_UNIT).contains(unit))
    });
    unit.ok_or_else(|| format!("not a time from 1ms to {}s, such as 1s or 20ms", LONGEST_UNIT.as_secs()))
}

/// A checkpoint to be made.
#[derive(Debug)]
struct Plan {
    after: Duration,
    dir: PathBuf,
    leave_running: bool,
}

fn plan(arguments: &Arguments) -> Result<Option<Plan>, Failure> {
    let Some([after, dir]) = arguments.checkpoint_at.as_deref() else { return Ok(None) };
    let usage = |text: String, hint: &str| Failure::new(USAGE, text, Some(hint.to_owned()));
    let after = seconds(&after.to_string_lossy()).map_err(|error| {
        usage(format!("--checkpoint-at: {error}"), "give seconds and a folder: --checkpoint-at 5 ./img")
    })?;
    let file = rustix::fs::fstat(io::stdout())
        .is_ok_and(|found| rustix::fs::FileType::from_raw_mode(found.st_mode).is_file());
    if !file {
        return Err(usage(
            "--checkpoint-at: standard output is no file, and a restored process would print into nothing"
                .to_owned(),
            "redirect it: defrost sleepsort --checkpoint-at 5 ./img < numbers > sorted",
        ));
    }
    let dir = std::path::absolute(dir)
        .map_err(|error| Failure::plain(USAGE, format!("{}: {error}", dir.to_string_lossy())))?;
    Ok(Some(Plan { after: Duration::from_secs_f64(after), dir, leave_running: arguments.leave_running }))
}

pub(super) fn run(options: &Options, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let plan = plan(arguments)?;
    // All of it, and before anything is started.
    let numbers = read(io::stdin().lock()).map_err(|error| {
        let hint = format!("give one whole number from 0 to {LARGEST} a line");
        Failure::new(USAGE, format!("standard input: {error}; nothing was started"), Some(hint))
    })?;
    crate::init().map_err(|error| Failure::new(FAILED, &error, Some(error.hint())))?;
    // One thread: two would overtake each other.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed("the runtime did not start", &error))?;
    runtime.block_on(sort(options, arguments, plan, &numbers))
}

fn failed(what: &str, error: &io::Error) -> Failure {
    Failure::plain(FAILED, format!("{what}: {error}; nothing runs"))
}

async fn sort(
    options: &Options,
    arguments: &Arguments,
    plan: Option<Plan>,
    numbers: &[u32],
) -> Result<ExitCode, Failure> {
    let subject = Subject::builder(&arguments.name).engine(CriuEngine::new(options.criu.clone())).build();
    let subject = subject.map_err(|error| failed("the start failed", &error))?;
    let _stdio =
        Stdio::register(subject.context(), None).map_err(|error| failed("standard streams", &error))?;
    let output = Output::register(&subject);
    let control = Control::start(&subject, ControlOptions::default())
        .map_err(|error| Failure::new(FAILED, format!("{error}; nothing runs"), error.hint()))?;
    let mut sleepers = Sleepers::start(numbers, arguments.unit);
    let begun = Arc::new(AtomicBool::new(false));
    let checkpoint = plan.map(|plan| tokio::spawn(checkpoint(subject.clone(), plan, Arc::clone(&begun))));
    let stopped = loop {
        let woken = tokio::select! {
            woken = sleepers.next() => woken,
            _ = control.stopped() => break true,
        };
        let Some(woken) = woken else { break false };
        output.say(&woken, arguments.times, !sleepers.are_waiting()).await?;
    };
    let left = sleepers.left();
    match checkpoint {
        Some(asked) if !asked.is_finished() && stopped => asked.abort(),
        Some(_) if !begun.load(Ordering::Relaxed) => {
            let text = "--checkpoint-at: all numbers were sorted before it was due; there is no image, and nothing runs";
            return Err(Failure::new(FAILED, text, Some("name an earlier moment, or a longer --unit")));
        }
        Some(asked) => asked.await.unwrap_or_else(|error| Err(Failure::plain(FAILED, error)))?,
        None => {}
    }
    if sleepers.overran() {
        let text = "some numbers were due before all sleepers slept: the order may be wrong; nothing runs";
        return Err(Failure::new(FAILED, text, Some("give a longer --unit, or fewer numbers")));
    }
    if stopped && left > 0 {
        let text = format!("stopped: {left} of {} numbers had not woken; nothing runs", numbers.len());
        return Err(Failure::plain(FAILED, text));
    }
    Ok(ExitCode::SUCCESS)
}

/// Does what is planned; the failure says that the sleepers went on.
async fn checkpoint(subject: Subject, plan: Plan, begun: Arc<AtomicBool>) -> Result<(), Failure> {
    tokio::time::sleep(plan.after).await;
    begun.store(true, Ordering::Relaxed);
    let request = Request::new(&plan.dir);
    let request = if plan.leave_running { request.leave_running() } else { request };
    let finished = subject.checkpoint(request).await;
    finished.outcome.map(drop).map_err(|error| {
        let text = format!("--checkpoint-at: {error}; all numbers were sorted without it");
        Failure::new(FAILED, text, error.hints().first())
    })
}

/// Standard output, which is written to only while no cycle has it put away.
struct Output {
    gate: Arc<tokio::sync::Mutex<()>>,
    _registration: Registration,
}

impl Output {
    /// Registered after the streams, so put down before them.
    fn register(subject: &Subject) -> Self {
        let gate = Arc::default();
        let held = Held { gate: Arc::clone(&gate), guard: Mutex::default() };
        Self { gate, _registration: subject.context().register("output", Arc::new(held)) }
    }

    async fn say(&self, woken: &Woken, times: bool, flush: bool) -> Result<(), Failure> {
        let _open = self.gate.lock().await;
        let mut out = io::stdout().lock();
        let written = if times {
            let (slept, passed) = (woken.slept.as_millis(), woken.passed.as_millis());
            writeln!(out, "{} {slept} {passed}", woken.number)
        } else {
            writeln!(out, "{}", woken.number)
        };
        let written = if flush { written.and_then(|()| out.flush()) } else { written };
        written.map_err(|error| Failure::plain(FAILED, format!("standard output: {error}; nothing runs")))
    }
}

/// The output as its context sees it.
struct Held {
    gate: Arc<tokio::sync::Mutex<()>>,
    guard: Mutex<Option<OwnedMutexGuard<()>>>,
}

#[async_trait]
impl Resource for Held {
    async fn before_checkpoint(&self, _: &Cycle) -> Result<(), HookError> {
        let guard = Arc::clone(&self.gate).lock_owned().await;
        io::stdout().flush()?;
        *locked(&self.guard) = Some(guard);
        Ok(())
    }

    async fn after_restore(&self, _: &Wake) -> Result<(), HookError> {
        locked(&self.guard).take();
        Ok(())
    }

    fn describe(&self) -> String {
        "standard output, which waits through a cycle".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_seconds_or_milliseconds() {
        for (text, expected) in [("1s", 1000), ("20ms", 20), ("0.5s", 500), ("2", 2000), ("3600s", 3_600_000)]
        {
            assert_eq!(unit(text), Ok(Duration::from_millis(expected)), "{text}");
        }
        for text in ["", "s", "0s", "0.9ms", "-1s", "3601s", "1m", "x", "nan", "inf"] {
            assert!(unit(text).is_err(), "{text}");
        }
    }
}
