//! `defrost load`: many clients for a line echo.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nix::sys::signal::Signal;

use super::failure::{FAILED, Failure, HOST};
use super::restore::seconds;
use crate::load::{LoadError, LoadOptions, Outcome, Pace, Progress, Trouble, run as make_load};

/// How often the progress is drawn.
const DRAWN_EVERY: Duration = Duration::from_millis(200);

/// How soon a signal is heard of.
const LOOK: Duration = Duration::from_millis(20);

/// Load a line echo with many clients, each of which checks every answer
///
/// Each client waits up to one second before its first message, and up to two before each other, and sends a line with a
/// timestamp, its number and the message's. The exit status is 1 if any answer was wrong or missing.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The server
    host: String,
    /// Its port
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// How many clients, each with a connection of its own
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    clients: u32,
    /// How many messages each of them sends
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    messages: u32,
    /// Send each message as soon as the last one is answered
    #[arg(long, conflicts_with = "rate")]
    no_wait: bool,
    /// Send so many messages a second, of all clients together, whether or not earlier ones are answered in time; the
    /// latency is from when a message was due
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
    /// Make a connection that ends anew, and send again what was not answered
    #[arg(long)]
    through_checkpoint: bool,
    /// How long a message may take to be answered, all attempts together
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = seconds)]
    timeout: f64,
    /// Chooses the waits
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The server's process, to tell what a connection costs there too
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
    /// With each latency in it, and how often it was
    #[arg(long, requires = "json")]
    latencies: bool,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (0.001..=1e9).contains(&rate) => Ok(rate),
        _ => Err("not a number of messages a second from 0.001 on".to_owned()),
    }
}

pub(super) fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let (json, through, latencies) = (arguments.json, arguments.through_checkpoint, arguments.latencies);
    let total = u64::from(arguments.clients) * u64::from(arguments.messages);
    let options = LoadOptions {
        host: arguments.host,
        port: arguments.port,
        clients: arguments.clients,
        messages: arguments.messages,
        pace: match arguments.rate {
            Some(rate) => Pace::Rate(rate),
            None if arguments.no_wait => Pace::FullSpeed,
            None => Pace::Waits,
        },
        seed: arguments.seed,
        limit: Duration::from_secs_f64(arguments.timeout),
        through_checkpoint: through,
        server: arguments.pid,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| {
        let hint = Some("look at the limits on threads and descriptors");
        Failure::new(FAILED, format!("the runtime did not start: {error}; nothing was sent"), hint)
    })?;
    let made = runtime.block_on(async {
        let progress = Progress::new();
        tokio::select! {
            outcome = make_load(options, &progress) => outcome.map_err(|error| not_made(&error)).map(|it| (it, None)),
            never = draw(&progress, total) => match never {},
            signal = asked_to_end() => signal.map(|signal| (progress.so_far(total), Some(signal))),
        }
    });
    // A name that is being looked up is not waited for.
    runtime.shutdown_background();
    let (mut outcome, signal) = made?;
    if !latencies {
        outcome.latencies_us.clear();
    }
    if json {
        let text = serde_json::to_string_pretty(&outcome).map_err(|error| Failure::plain(FAILED, error))?;
        say!("{text}");
    } else {
        put!("{}", told(&outcome));
    }
    if let Some(signal) = signal {
        note!("defrost: {} ended it before its end; what listens there goes on", signal.as_str());
        return Ok(ExitCode::from(128 + u8::try_from(signal as i32).unwrap_or_default()));
    }
    if outcome.is_whole() {
        return Ok(ExitCode::SUCCESS);
    }
    let text = format!(
        "{} of {} messages got no answer, and {} a wrong one; what listens there may still be alive",
        outcome.lost, outcome.messages, outcome.wrong
    );
    let known = outcome.errors.keys().filter(|trouble| !through || **trouble == Trouble::Late);
    Err(Failure::new(FAILED, text, known.filter_map(|trouble| trouble.hint()).next()))
}

/// The signal that asked for an end. All clients end with it. Tokio's own signals would put a socket of its into each
/// server of this crate.
async fn asked_to_end() -> Result<Signal, Failure> {
    let asked = Arc::new(AtomicUsize::new(0));
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let number = usize::try_from(signal as i32).unwrap_or_default();
        signal_hook::flag::register_usize(signal as i32, Arc::clone(&asked), number)
            .map_err(|error| Failure::plain(FAILED, format!("signals: {error}; nothing was sent")))?;
    }
    loop {
        let number = i32::try_from(asked.load(Ordering::Relaxed)).unwrap_or_default();
        if let Ok(signal) = Signal::try_from(number) {
            return Ok(signal);
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn not_made(error: &LoadError) -> Failure {
    let status = if matches!(error, LoadError::Descriptors { .. }) { HOST } else { FAILED };
    Failure::new(status, format!("{error}; nothing was sent"), Some(error.hint()))
}

/// Shows how far it is, on a terminal.
async fn draw(progress: &Progress, total: u64) -> std::convert::Infallible {
    if !std::io::stderr().is_terminal() {
        return std::future::pending().await;
    }
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos} of {len} answered, {msg} connections") {
        bar.set_style(style);
    }
    // Cleared when this future is dropped.
    let bar = Cleared(bar);
    loop {
        tokio::time::sleep(DRAWN_EVERY).await;
        bar.0.set_message(progress.connections().to_string());
        bar.0.set_position(progress.answered());
    }
}

struct Cleared(ProgressBar);

impl Drop for Cleared {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn told(outcome: &Outcome) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "{}{} of {} messages answered in {:.2} s, {:.0} a second; {} wrong, {} lost; the longest waits were {:.2} s",
        if outcome.interrupted { "interrupted: " } else { "" },
        outcome.answered,
        outcome.messages,
        outcome.seconds,
        outcome.per_second,
        outcome.wrong,
        outcome.lost,
        outcome.longest_wait
    );
    if let Some(latency) = &outcome.latency_us {
        let ms = |micros: u64| micros as f64 / 1000.0;
        let _ = writeln!(
            text,
            "latency in ms: min {:.3}, median {:.3}, 90 % {:.3}, 99 % {:.3}, 99.9 % {:.3}, max {:.3}",
            ms(latency.min),
            ms(latency.p50),
            ms(latency.p90),
            ms(latency.p99),
            ms(latency.p999),
            ms(latency.max)
        );
    }
    for (what, counts) in [("errors", &outcome.errors), ("made good", &outcome.interruptions)] {
        let each: Vec<String> =
            counts.iter().map(|(trouble, count)| format!("{count} {}", trouble.text())).collect();
        if !each.is_empty() {
            let _ = writeln!(text, "{what}: {}", each.join(", "));
        }
    }
    if outcome.reconnects > 0 {
        let _ = writeln!(text, "{} reconnects, {} messages sent again", outcome.reconnects, outcome.resent);
    }
    if let Some(memory) = &outcome.memory {
        let kib = |bytes: u64| bytes as f64 / 1024.0;
        let _ = write!(
            text,
            "resident memory for each of {} connections: {:.1} KiB of the clients",
            memory.connections,
            kib(memory.client_bytes)
        );
        let _ = match memory.server_bytes {
            Some(server) => writeln!(text, ", {:.1} KiB of the server", kib(server)),
            None => writeln!(text),
        };
    }
    text
}
