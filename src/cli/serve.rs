//! `defrost serve`: the command line, the log and the signals of the server that ships with it.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::prelude::*;

use super::Options;
use super::failure::{FAILED, Failure, HOST, USAGE};
use super::keep::KeepArguments;
use super::restore::seconds;
use crate::Subject;
use crate::adapters::{LogFile, Stdio};
use crate::control::{Control, ControlError, ControlOptions};
use crate::engine::criu::CriuEngine;
use crate::engine::simulated::SimulatedEngine;
use crate::events::{EventFile, Limits, Recorder};
use crate::server::{
    CONNECTION_LIMIT, LogEvents, MotdOptions, Protocol, Server, ServerError, ServerOptions, Unit, WallClock,
    WarmError, WarmOptions,
};

#[cfg(feature = "highlight")]
mod highlight;

/// Most worker threads unless told otherwise: each is one more thread to restore, and one more thread id that has
/// to be free then.
const MOST_WORKERS: usize = 4;
/// How long the runtime may take to end what is left when all connections are gone.
const SHUTDOWN: Duration = Duration::from_secs(1);
/// How long a thread for blocking work stays when it has none: short, since it would be in the image.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// What lasts longer than this shows its progress.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the progress is drawn.
const DRAWN_EVERY: Duration = Duration::from_millis(100);

/// Start the server that ships with defrost: a line echo, HTTP, or both
///
/// It says on standard output where it listens, one line for each: `listening on port N`, `http on port N`. SIGTERM
/// and SIGINT stop it gracefully, SIGUSR2 checkpoints it to the folder that --checkpoint-to names.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("listen").args(["echo", "http"]).required(true).multiple(true)))]
pub(super) struct Arguments {
    /// Echo lines here; a PORT alone is one of 127.0.0.1, port 0 takes a free one
    #[arg(long, value_name = "ADDR", value_parser = address)]
    echo: Option<String>,
    /// Serve /healthz, /readyz, /info, /metrics, /random, /checksum and /motd here
    #[arg(long, value_name = "ADDR", value_parser = address)]
    http: Option<String>,
    /// Let other processes that say so too, such as clones, share the ports
    #[arg(long)]
    reuse_port: bool,
    /// Fill this much memory before being ready
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    warm_mib: Option<u32>,
    /// Chooses the pattern that the memory is filled with
    #[arg(long, value_name = "N", default_value_t = 1, requires = "warm_mib")]
    warm_seed: u64,
    /// Compute each byte of it so often: real warm-ups cost more than filling their memory does
    #[arg(long, value_name = "N", default_value_t = 1, requires = "warm_mib", value_parser = clap::value_parser!(u32).range(1..))]
    warm_rounds: u32,
    #[cfg(feature = "highlight")]
    #[command(flatten)]
    highlight: highlight::Highlighting,
    /// Serve the text of this file at /motd
    #[arg(long, value_name = "FILE")]
    motd: Option<PathBuf>,
    /// How old that text may be by wall time, which goes on while the server is an image
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds, requires = "motd")]
    motd_max_age: f64,
    /// Log to this file instead of standard error; the environment's DEFROST_LOG says what: `debug`,
    /// `warn,defrost::control=debug`
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Write events to this file too; `defrost events FILE` reads it. Clones may share it
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// How many events are kept in memory, for `defrost events NAME`; 0 turns them off
    #[arg(long, value_name = "N", default_value_t = Limits::default().events)]
    event_memory: usize,
    /// The name that commands find it by
    #[arg(long, env = "DEFROST_NAME", default_value = "serve")]
    name: String,
    /// How long connections may take to finish before a checkpoint and at a stop
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = seconds)]
    drain: f64,
    /// How many connections each listener serves at a time; further ones wait in its backlog. The soft limit on open
    /// files is raised where it is too low for that
    #[arg(long, value_name = "N", default_value_t = CONNECTION_LIMIT as u32, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Take requests such as `checkpoint DIR` from standard input, by the word `stdin`, or from a FIFO, which is
    /// made if it is missing. The control socket is there anyway. May be given once for each
    #[arg(long, value_name = "stdin|FIFO")]
    control: Vec<PathBuf>,
    /// Where SIGUSR2 checkpoints to; %p is the pid, %t the time, %g the generation
    #[arg(long, value_name = "PATTERN")]
    checkpoint_to: Option<String>,
    /// What dumps; `simulated` goes through all of a checkpoint but the dump
    #[arg(long, value_enum, default_value_t = EngineChoice::Criu)]
    engine: EngineChoice,
    /// How many threads serve; each costs time at restore [default: one for each core, at most 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: Option<u16>,
    /// The exit status after a graceful stop: for testing supervisors
    #[arg(long, value_name = "STATUS", default_value_t = 0)]
    exit_with: u8,
    #[command(flatten)]
    keep: KeepArguments,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum EngineChoice {
    Criu,
    Simulated,
}

/// Takes `PORT` and `:PORT` for one of this host's own; leaves the rest to the resolver.
fn address(text: &str) -> Result<String, String> {
    let port = text.strip_prefix(':').unwrap_or(text);
    if port.parse::<u16>().is_ok() {
        return Ok(format!("127.0.0.1:{port}"));
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(text.to_owned()),
        _ => Err("not of the form HOST:PORT or PORT".to_owned()),
    }
}

pub(super) fn run(options: &Options, arguments: Arguments) -> Result<ExitCode, Failure> {
    if let Some(done) = arguments.keep.run_self(options) {
        return done;
    }
    let control = control_options(&arguments)?;
    crate::init().map_err(|error| Failure::new(FAILED, &error, Some(error.hint())))?;
    let runtime = runtime(&arguments)?;
    let exit_with = arguments.exit_with;
    let served = runtime.block_on(serve(options, arguments, control));
    runtime.shutdown_timeout(SHUTDOWN);
    served.map(|()| ExitCode::from(exit_with))
}

fn runtime(arguments: &Arguments) -> Result<tokio::runtime::Runtime, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let workers = arguments.workers.map_or(cores.min(MOST_WORKERS), usize::from);
    let built = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .thread_keep_alive(KEEP_ALIVE)
        .enable_all()
        .build();
    built.map_err(|error| {
        let text = format!("the runtime did not start: {error}; nothing runs");
        Failure::new(FAILED, text, Some("look at the limits on threads and descriptors"))
    })
}

fn control_options(arguments: &Arguments) -> Result<ControlOptions, Failure> {
    let mut options = ControlOptions::default();
    options.checkpoint_to.clone_from(&arguments.checkpoint_to);
    for way in &arguments.control {
        if way == Path::new("stdin") {
            options.stdin = true;
        } else if options.fifo.replace(way.clone()).is_some() {
            return Err(Failure::new(
                USAGE,
                "--control: there can be one fifo",
                Some("let all writers use the same one; for a file named stdin give ./stdin"),
            ));
        }
    }
    Ok(options)
}

async fn serve(options: &Options, arguments: Arguments, control: ControlOptions) -> Result<(), Failure> {
    let failed =
        |what: &str, error: io::Error| Failure::plain(FAILED, format!("{what}: {error}; nothing runs"));
    let limits = Limits { events: arguments.event_memory, ..Limits::default() };
    let builder = Subject::builder(&arguments.name).events(Recorder::new(limits));
    let builder = match arguments.engine {
        EngineChoice::Criu => builder.engine(CriuEngine::new(options.criu.clone())),
        EngineChoice::Simulated => builder.engine(SimulatedEngine),
    };
    let subject = builder.build().map_err(|error| failed("the start failed", error))?;
    // First of all, so that it is put down last.
    let _stdio =
        Stdio::register(subject.context(), None).map_err(|error| failed("standard streams", error))?;
    let log = arguments.log.as_ref().map(|path| {
        let opened = LogFile::open(subject.context(), "log", path);
        opened.map_err(|error| failed(&format!("--log {}", path.display()), error))
    });
    let _events = arguments.events.as_ref().map(|path| write_events(&subject, path)).transpose()?;
    start_log(options, log.transpose()?, subject.events());

    if must_warm(&arguments) {
        // Before anyone can ask.
        subject.set_ready(false);
    }
    let control = Control::start(&subject, control).map_err(|error| not_controlled(&error))?;
    let server = Server::start(server_options(&arguments), &subject).map_err(|error| not_started(&error))?;
    announce(&server);
    let warmed = tokio::select! {
        warmed = warm(&server) => warmed,
        _ = control.stopped() => Ok(()),
    };
    if warmed.is_ok() {
        let origin = control.stopped().await;
        tracing::info!("stopping: {origin}");
    }
    for stuck in server.stop().await {
        tracing::warn!("{stuck}");
    }
    warmed.map_err(|error| Failure::new(FAILED, format!("{error}; the server has ended"), error.hint()))
}

fn write_events(subject: &Subject, path: &Path) -> Result<EventFile, Failure> {
    if !subject.events().is_on() {
        let hint = Some("leave out one of the two");
        return Err(Failure::new(USAGE, "--events: --event-memory 0 turns events off", hint));
    }
    let opened = EventFile::open(subject.context(), subject.events(), path);
    opened.map_err(|error| Failure::new(FAILED, format!("--events {error}; nothing runs"), error.hint()))
}

/// Whether it is ready later than it starts.
fn must_warm(arguments: &Arguments) -> bool {
    #[cfg(feature = "highlight")]
    if arguments.highlight.must_warm() {
        return true;
    }
    arguments.warm_mib.is_some()
}

fn server_options(arguments: &Arguments) -> ServerOptions {
    ServerOptions {
        echo: arguments.echo.clone(),
        http: arguments.http.clone(),
        warm: arguments.warm_mib.map(|mib| WarmOptions {
            mib,
            seed: arguments.warm_seed,
            rounds: arguments.warm_rounds,
        }),
        #[cfg(feature = "highlight")]
        highlight: arguments.highlight.options(arguments.drain),
        motd: arguments
            .motd
            .clone()
            .map(|file| MotdOptions { file, max_age: Duration::from_secs_f64(arguments.motd_max_age) }),
        drain: Duration::from_secs_f64(arguments.drain),
        connections: arguments.connections as usize,
        reuse_port: arguments.reuse_port,
        clock: WallClock::default(),
    }
}

fn not_controlled(error: &ControlError) -> Failure {
    let status = match error {
        ControlError::Name(_) | ControlError::Pattern(_) => USAGE,
        _ => FAILED,
    };
    Failure::new(status, format!("{error}; nothing runs"), error.hint())
}

fn not_started(error: &ServerError) -> Failure {
    let text = match error {
        ServerError::Listen { .. } | ServerError::Motd { .. } => format!("--{error}"),
        #[cfg(feature = "highlight")]
        ServerError::Language(_) => format!("--{error}"),
        ServerError::Descriptors { .. } => format!("--connections: {error}"),
        ServerError::Random(_) | ServerError::Events(_) => error.to_string(),
    };
    let status = match error {
        #[cfg(feature = "highlight")]
        ServerError::Language(_) => USAGE,
        ServerError::Descriptors { .. } => HOST,
        _ => FAILED,
    };
    Failure::new(status, format!("{text}; nothing runs"), error.hint())
}

/// Says where it listens. Whoever started it may have closed standard output, which is no reason to end.
fn announce(server: &Server) {
    let mut out = io::stdout().lock();
    for (protocol, said) in [(Protocol::Echo, "listening"), (Protocol::Http, "http")] {
        if let Some(address) = server.address(protocol) {
            let _ = writeln!(out, "{said} on port {}", address.port()).and_then(|()| out.flush());
            tracing::info!("{protocol} on {address}");
        }
    }
}

/// Waits for the warm-up, and draws its progress on a terminal when it lasts.
async fn warm(server: &Server) -> Result<(), WarmError> {
    let Some(start) = server.warming() else { return server.warmed().await };
    let bar = ProgressBar::with_draw_target(Some(start.total), ProgressDrawTarget::hidden());
    set_unit(&bar, start.unit);
    let mut ticks = interval_at(Instant::now() + PATIENCE, DRAWN_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let draw = async {
        loop {
            ticks.tick().await;
            if bar.is_hidden() && io::stderr().is_terminal() {
                bar.set_draw_target(ProgressDrawTarget::stderr());
            }
            if let Some(progress) = server.warming() {
                set_unit(&bar, progress.unit);
                bar.set_length(progress.total);
                bar.set_position(progress.done);
            }
        }
    };
    let warmed = tokio::select! {
        warmed = server.warmed() => warmed,
        () = draw => Ok(()),
    };
    bar.finish_and_clear();
    warmed
}

fn set_unit(bar: &ProgressBar, unit: Unit) {
    let template = match unit {
        Unit::Bytes => "warming up {wide_bar} {bytes} of {total_bytes}, {eta} left",
        Unit::Patterns => "warming up {wide_bar} {pos} of {len} patterns, {eta} left",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
}

/// Logs to the file, or to standard error, in colour where that is a terminal.
fn start_log(options: &Options, log: Option<LogFile>, events: &Recorder) {
    match log {
        Some(log) => subscribe(options, log.make_writer(), false, events),
        None => subscribe(options, io::stderr, io::stderr().is_terminal(), events),
    }
    // What a panic says by itself goes to standard error, which leads nowhere in a restored process.
    let said = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tracing::error!("{panic}");
        said(panic);
    }));
}

pub(super) fn subscribe<W>(options: &Options, writer: W, colour: bool, events: &Recorder)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let usual = if options.verbose { LevelFilter::DEBUG } else { LevelFilter::INFO };
    let wanted = std::env::var("DEFROST_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    let wanted = wanted.unwrap_or_else(|| Targets::new().with_default(usual));
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(colour);
    // It is refused when the program has one already, which then has the say.
    let events = LogEvents::to(events.clone()).with_filter(wanted.clone());
    let _ = tracing_subscriber::registry().with(lines.with_filter(wanted)).with(events).try_init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_one_of_this_host() {
        for (given, expected) in [
            ("7", Ok("127.0.0.1:7")),
            (":0", Ok("127.0.0.1:0")),
            ("0.0.0.0:80", Ok("0.0.0.0:80")),
            ("[::1]:80", Ok("[::1]:80")),
            ("localhost:80", Ok("localhost:80")),
            ("70000", Err(())),
            ("localhost", Err(())),
            ("localhost:", Err(())),
            ("", Err(())),
        ] {
            assert_eq!(address(given).as_deref().map_err(|_| ()), expected, "{given}");
        }
    }
}
