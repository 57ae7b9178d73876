//! `defrost restore`

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use super::Options;
use super::apart::{self, Apart, ApartArguments};
use super::clock::Clock;
use super::engines::EngineArguments;
use super::failure::{FAILED, Failure, HOST, IMAGE, criu_status};
use super::history;
use crate::engine::channel::Report;
use crate::image::Image;
use crate::image::manifest::Phase;
use crate::image::verify::{VerifyOptions, capabilities_of_child, verify};
use crate::supervise::addresses::given_addresses;
use crate::supervise::clones::{Order, Wait};
use crate::supervise::restore::{Restore, RestoreFailure};
use crate::supervise::run::{Launch, run as supervise};
use crate::wake::{Origin, Params};

/// Start the server in an image, warm. In the foreground it is supervised: signals are forwarded, and its exit
/// status is handed on
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The image folder, or a checkpoint of a history: DIR@3 by its number, DIR@-1 the last, DIR@-2 the one before
    dir: PathBuf,
    /// Return when the server runs, and leave it to itself
    #[arg(long)]
    detach: bool,
    /// Return only when the server says that it is ready; implies --detach
    #[arg(long)]
    wait_ready: bool,
    /// How long --wait-ready waits before it kills the server
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = seconds)]
    ready_timeout: f64,
    #[command(flatten)]
    how: EngineArguments,
    /// A setting for the server; NAME.listen=ADDR has the listener NAME bind ADDR
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
    /// A variable for the server: handed over as a value, never written into its environment
    #[arg(long, value_name = "K=V", value_parser = pair)]
    env: Vec<(String, String)>,
    /// Start this by `sh -c`, cold, if anything fails up to the moment when the server is ready
    #[arg(long, value_name = "CMD")]
    fallback: Option<OsString>,
    /// How much of the image is read before anything is started
    #[arg(long, value_enum, default_value_t = Verify::Default)]
    verify: Verify,
    /// Write into this file, as JSON, what the time of this restore went into: from the beginning of this command, in
    /// microseconds. What the server's own parts were is known where it is waited for
    #[arg(long, value_name = "FILE", conflicts_with = "clones")]
    timings: Option<PathBuf>,
    /// How long the restore may take until the server runs
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds)]
    timeout: f64,
    #[command(flatten)]
    apart: ApartArguments,
    /// Arguments for the server, handed over as values
    #[arg(last = true, value_name = "ARGS")]
    arguments: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Verify {
    /// Everything but the contents of memory pages, programs and libraries
    Default,
    /// Everything
    Full,
}

impl Arguments {
    /// Up to where a restore in a namespace of its own is waited for.
    fn wait(&self) -> Wait {
        match (self.wait_ready || self.apart.are_clones(), self.detach) {
            (true, _) => Wait::Ready(Duration::from_secs_f64(self.ready_timeout)),
            (false, true) => Wait::Runs,
            (false, false) => Wait::Report,
        }
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("not of the form NAME=VALUE".to_owned()),
    }
}

pub(super) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        // A day: longer is a slip, and a Duration must not overflow.
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(seconds),
        _ => Err("not a number of seconds above 0 and up to 86400".to_owned()),
    }
}

pub(super) fn run(options: &Options, arguments: Arguments) -> Result<ExitCode, Failure> {
    let fallback = arguments.fallback.clone();
    match restore(options, arguments) {
        Err(failure) if fallback.is_some() => {
            failure.warn();
            note!("defrost: starting cold instead");
            let command = fallback.unwrap_or_default();
            let launch =
                Launch { program: "/bin/sh".into(), arguments: vec!["-c".into(), command], name: None };
            let ending = supervise(&launch).map_err(|error| Failure::plain(FAILED, error))?;
            Ok(ExitCode::from(ending.status()))
        }
        done => done,
    }
}

fn restore(options: &Options, arguments: Arguments) -> Result<ExitCode, Failure> {
    let mut clock = Clock::new(options, arguments.timings.as_deref())?;
    clock.watch.lap("read the arguments");
    // Held, as nobody sees that it is needed before the process is there.
    let (image, _held) = match history::find(&arguments.dir)? {
        Some((history, number)) => {
            let kept = history.checked_out(number).map_err(|error| history::failed(&error))?;
            (kept.image, Some(kept.held))
        }
        None => (open(&arguments.dir)?, None),
    };
    clock.watch.lap("open the image");
    let apart = arguments.apart.decide(&image, arguments.how.is_criu());
    let params = Params {
        args: arguments.arguments.clone(),
        env: arguments.env.iter().cloned().collect(),
        settings: arguments.set.iter().cloned().collect(),
    };
    let each = match &apart {
        Some(apart) => arguments.apart.parameters(apart, &image, params)?,
        None => vec![params],
    };
    clock.watch.lap("look whether its pids are free");
    check(options, &image, &arguments, apart.as_ref(), &each)?;
    clock.watch.lap("verify it");
    let Some((engine, why)) = arguments.how.engine(options, &image)? else {
        say!("{} can be restored here; nothing was started", image.path().display());
        return Ok(ExitCode::SUCCESS);
    };
    clock.watch.lap("choose the engine");
    let deadline = Duration::from_secs_f64(arguments.timeout);
    let restore_apart = |apart: &Apart, each: &[Params], clock: &mut Clock| {
        let (namespaces, wait) = (apart.namespaces, arguments.wait());
        let order = Order { engine: &*engine, image: &image, deadline, why, namespaces, wait };
        let detach = arguments.detach || arguments.wait_ready;
        apart::restore(options, &order, apart, &arguments.apart, each, detach, clock)
    };
    if let Some(apart) = apart {
        return restore_apart(&apart, &each, &mut clock);
    }
    let params = each.into_iter().next().unwrap_or_default();
    let restore = Restore { engine: &*engine, image: &image, params: &params, deadline, why, cause: None };
    let failure = match restore_among_others(options, &arguments, &restore, &mut clock) {
        Ok(status) => return Ok(status),
        Err(failure) => failure,
    };
    // It was free when it was looked at.
    let Some(apart) = arguments.apart.decide_again(&failure, arguments.how.is_criu()) else {
        return Err(failed(&failure));
    };
    note!("defrost: {failure}; restoring in a pid namespace of its own instead");
    let each = arguments.apart.parameters(&apart, &image, params)?;
    clock.watch.lap("restore it among the others, in vain");
    restore_apart(&apart, &each, &mut clock)
}

fn restore_among_others(
    options: &Options,
    arguments: &Arguments,
    restore: &Restore<'_>,
    clock: &mut Clock,
) -> Result<ExitCode, RestoreFailure> {
    if !arguments.detach && !arguments.wait_ready {
        return attend(options, restore, clock);
    }
    let limit = arguments.wait_ready.then(|| Duration::from_secs_f64(arguments.ready_timeout));
    let detached = restore.detach(limit)?;
    say!("{}", detached.pid);
    if options.verbose {
        tell_origin(detached.pid, &detached.origin);
    }
    clock.runs(&detached.phases);
    if let Some(report) = &detached.report {
        clock.ready(report);
    }
    if let (true, Some(report)) = (options.verbose, &detached.report) {
        note!("defrost: ready, instance {}, generation {}", report.instance, report.generation);
    }
    Ok(ExitCode::SUCCESS)
}

fn attend(options: &Options, restore: &Restore<'_>, clock: &mut Clock) -> Result<ExitCode, RestoreFailure> {
    let clock = std::cell::RefCell::new(clock);
    let runs = &mut |pid, origin: &Origin, phases: &[Phase]| {
        if options.verbose {
            tell_origin(pid, origin);
        }
        clock.borrow_mut().runs(phases);
    };
    let ready = &mut |pid, report: &Report| {
        clock.borrow_mut().ready(report);
        if options.verbose {
            note!("defrost: process {pid} is ready, instance {}", report.instance);
        }
    };
    let ending = restore.attend(runs, ready);
    Ok(ExitCode::from(ending?.status()))
}

pub(super) fn tell_origin(pid: i32, origin: &Origin) {
    note!("defrost: process {pid} was restored by {origin}");
}

pub(super) fn open(dir: &std::path::Path) -> Result<Image, Failure> {
    Image::open(dir).map_err(|error| Failure::new(IMAGE, &error, error.hint()))
}

/// Everything that speaks against the restore, at once.
fn check(
    options: &Options,
    image: &Image,
    arguments: &Arguments,
    apart: Option<&Apart>,
    each: &[Params],
) -> Result<(), Failure> {
    let how = &arguments.how;
    let mut failure: Option<Failure> = None;
    let mut add = |status: u8, text: String, hint: Option<String>| match &mut failure {
        None => failure = Some(Failure::new(status, text, hint)),
        Some(failure) => {
            failure.status = failure.status.max(status);
            failure.add(text, hint);
        }
    };
    let criu = how.is_criu().then(|| criu_driver::Criu::find(options.criu.as_deref()));
    let criu_version = match &criu {
        None => None,
        Some(Ok(criu)) => Some((criu.version.major, criu.version.minor, criu.version.sublevel)),
        Some(Err(error)) => {
            add(criu_status(error), error.to_string(), error.hint().map(str::to_owned));
            None
        }
    };
    let all = apart.is_some_and(|apart| apart.namespaces.with_user());
    let wanted = VerifyOptions {
        full: arguments.verify == Verify::Full,
        criu_version,
        // Root of a user namespace of its own has all of them.
        capabilities: if how.starts_nothing() || all { None } else { capabilities_of_child() },
        rebound: given_addresses(&image.manifest().subject.listens, each),
        pids: apart.is_none(),
        copies: if how.shares_memory() { 1 } else { copies(each) },
        ..VerifyOptions::default()
    };
    for finding in verify(image, &wanted) {
        let status = if finding.class.is_of_the_image() { IMAGE } else { HOST };
        add(status, finding.what, Some(finding.remedy));
    }
    let Some(mut failure) = failure else { return Ok(()) };
    // Alone they are no obstacle, and beside others they may explain these: who holds the pids holds ports, too.
    for finding in apart.iter().flat_map(|apart| &apart.taken) {
        failure.add(&finding.what, Some(&finding.remedy));
    }
    Err(failure)
}

fn copies(each: &[Params]) -> u32 {
    u32::try_from(each.len()).unwrap_or(u32::MAX)
}

fn failed(error: &RestoreFailure) -> Failure {
    Failure::new(if error.is_of_the_host() { HOST } else { FAILED }, error, error.hint())
}
