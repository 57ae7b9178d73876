//! `defrost restore` into pid namespaces of its own: for pids that are taken, for users without the right to choose
//! pids, and for clones.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;

use super::Options;
use super::clock::Clock;
use super::failure::{FAILED, Failure, HOST, USAGE};
use super::restore::tell_origin;
use crate::control::{Client, Name, socket_path};
use crate::image::Image;
use crate::image::verify::{Finding, may_choose_pids, taken_pids};
use crate::supervise::addresses::{Choice, PortRange, control_setting, name_sockets, parameters_of_each};
use crate::supervise::clones::{Clones, Order, Up};
use crate::supervise::namespace::Namespaces;
use crate::supervise::restore::RestoreFailure;
use crate::wake::Params;

/// How long a zombie may hold a pid before a restore goes elsewhere.
const PID_WAIT: Duration = Duration::from_secs(3);

/// How long to look for who holds the path of a control socket. The kernel answers for a server, unless it is busy.
const GLANCE: Duration = Duration::from_millis(200);

/// How many at once: each takes two descriptors of its supervisor's, who has 1,024 by default.
const MOST: i64 = 400;

/// How a restore is kept apart from what runs here.
#[derive(Debug, clap::Args)]
pub(super) struct ApartArguments {
    /// Whether the server gets a pid namespace of its own, in which every pid is free: auto for pids that are taken,
    /// and for a user who may not choose pids
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = When::Auto)]
    pid_namespace: When,
    /// Restore this many at once: each in its own pid namespace, with its own instance id, its own addresses and the
    /// control socket NAME-1, NAME-2, …; all become ready or none is left
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MOST))]
    clones: Option<u16>,
    /// The ports for the listeners of the clones, one after the other; otherwise the kernel chooses them. A range for
    /// one listener: --set NAME.listen=IP:FIRST-LAST
    #[arg(long, value_name = "FIRST[-LAST]", requires = "clones", conflicts_with = "share_address")]
    ports: Option<PortRange>,
    /// Have all clones listen at the addresses of the image (SO_REUSEPORT): the kernel spreads connections over them
    #[arg(long, requires = "clones")]
    share_address: bool,
    /// Print the clones as JSON
    #[arg(long, requires = "clones")]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum When {
    Auto,
    Always,
    Never,
}

/// A restore that goes into a pid namespace of its own.
#[derive(Debug)]
pub(super) struct Apart {
    pub(super) namespaces: Namespaces,
    /// What speaks against a restore among the others.
    pub(super) taken: Vec<Finding>,
    why: String,
}

impl ApartArguments {
    pub(super) fn are_clones(&self) -> bool {
        self.clones.is_some()
    }

    /// `None` for a restore among the other processes. CRIU, where it was asked for, restores in no user namespace:
    /// it needs capabilities over the host, such as for the buffers of sockets (SO_SNDBUFFORCE of socket(7)).
    pub(super) fn decide(&self, image: &Image, by_criu: bool) -> Option<Apart> {
        let namespaces = Namespaces::possible();
        let apart = |why: String, taken| Some(Apart { namespaces, taken, why });
        if self.are_clones() {
            return apart("there are several".to_owned(), Vec::new());
        }
        match self.pid_namespace {
            When::Never => None,
            When::Auto if by_criu && namespaces.with_user() => None,
            When::Always => apart("it was asked for".to_owned(), Vec::new()),
            When::Auto if !may_choose_pids() => apart("this user may not choose pids".to_owned(), Vec::new()),
            When::Auto => {
                let taken = taken_pids(image, PID_WAIT);
                let why = taken.first()?.what.clone();
                apart(why, taken)
            }
        }
    }

    /// Where to restore once more, as a pid was taken after [`decide`](Self::decide) had found them free; `None` if
    /// that is not allowed.
    pub(super) fn decide_again(&self, failure: &RestoreFailure, by_criu: bool) -> Option<Apart> {
        let taker = failure.taker()?.clone();
        let namespaces = Namespaces::possible();
        if self.pid_namespace != When::Auto || by_criu && namespaces.with_user() {
            return None;
        }
        Some(Apart { namespaces, why: taker.what.clone(), taken: vec![taker] })
    }

    /// What each restore is given: `base`, and for clones addresses and sockets of their own. A user who is not the
    /// image's has a folder of his own for the control socket.
    pub(super) fn parameters(
        &self,
        apart: &Apart,
        image: &Image,
        base: Params,
    ) -> Result<Vec<Params>, Failure> {
        let subject = &image.manifest().subject;
        let socket = || {
            let name = Name::new(&subject.name).ok()?;
            Some(socket_path(&name).map_err(|error| Failure::new(HOST, &error, Some(error.hint()))))
        };
        let Some(count) = self.clones else {
            let mut params = base;
            if apart.namespaces.with_user()
                && !params.settings.contains_key(&control_setting())
                && let Some(socket) = socket().filter(|_| takes_parameters(image))
            {
                params.settings.insert(control_setting(), socket?.display().to_string());
            }
            return Ok(vec![params]);
        };
        let choice = match (self.share_address, self.ports) {
            (true, _) => Choice::Shared,
            (false, Some(range)) => Choice::Ports(range),
            (false, None) => Choice::Free,
        };
        let mut each = parameters_of_each(&subject.listens, &base, usize::from(count), choice)
            .map_err(|error| Failure::new(USAGE, &error, Some(error.hint())))?;
        if let Some(socket) = socket().filter(|_| takes_parameters(image)) {
            name_sockets(&mut each, &socket?, |path| Client::connect(path, GLANCE).is_err());
        }
        Ok(each)
    }
}

/// Whether there is a way to hand parameters in.
fn takes_parameters(image: &Image) -> bool {
    image.manifest().subject.parameter_pipe.is_some()
}

/// Restores in the way that was decided on, and attends what runs, unless it shall `detach`.
pub(super) fn restore(
    options: &Options,
    order: &Order<'_>,
    apart: &Apart,
    arguments: &ApartArguments,
    each: &[Params],
    detach: bool,
    clock: &mut Clock,
) -> Result<ExitCode, Failure> {
    if options.verbose {
        let user = if apart.namespaces.with_user() { " and a user namespace" } else { "" };
        note!("defrost: restoring in a pid namespace{user} of its own: {}", apart.why);
    }
    let clones = Clones::start(order, each).map_err(|error| {
        Failure::new(if error.is_of_the_host() { HOST } else { FAILED }, &error, error.hint())
    })?;
    clock.watch.lap("restore it in a namespace of its own");
    match clones.up().find_map(|up| up.report.as_ref()) {
        Some(report) => clock.ready(report),
        None => clock.runs(&[]),
    }
    tell(options, &clones, arguments, detach).map_err(|error| Failure::plain(FAILED, error))?;
    if detach {
        clones.release();
        return Ok(ExitCode::SUCCESS);
    }
    let status = clones.attend().map_err(|error: RestoreFailure| {
        Failure::new(if error.is_of_the_host() { HOST } else { FAILED }, &error, error.hint())
    })?;
    Ok(ExitCode::from(status))
}

/// Clones have a line each; one alone has its pid, as by any other restore.
fn tell(
    options: &Options,
    clones: &Clones,
    arguments: &ApartArguments,
    detach: bool,
) -> serde_json::Result<()> {
    if options.verbose {
        for up in clones.up() {
            tell_origin(up.pid, &up.origin);
        }
    }
    if arguments.json {
        let clones: Vec<_> = clones.up().map(Clone::of).collect();
        say!("{}", serde_json::to_string(&Listed { clones })?);
    } else if arguments.are_clones() {
        clones.up().for_each(|up| say!("{}", line(up, options.verbose)));
    } else if detach {
        clones.up().for_each(|up| say!("{}", up.pid));
    }
    Ok(())
}

#[derive(Debug, Serialize)]
struct Listed<'a> {
    clones: Vec<Clone<'a>>,
}

/// One of them, as `--json` has it.
#[derive(Debug, Serialize)]
struct Clone<'a> {
    number: usize,
    pid: i32,
    instance: Option<String>,
    generation: Option<u64>,
    socket: Option<&'a str>,
    addresses: std::collections::BTreeMap<&'a str, String>,
    /// `null` where the kernel does not tell.
    pss_kib: Option<u64>,
}

impl<'a> Clone<'a> {
    fn of(up: &'a Up) -> Self {
        let report = up.report.as_ref();
        let addresses = report.iter().flat_map(|report| &report.addresses);
        Self {
            number: up.number,
            pid: up.pid,
            instance: report.map(|report| report.instance.to_string()),
            generation: report.map(|report| report.generation),
            socket: report.and_then(|report| report.socket.as_deref()),
            addresses: addresses.map(|(name, address)| (name.as_str(), address.to_string())).collect(),
            pss_kib: up.proportional_kib(),
        }
    }
}

fn line(up: &Up, verbose: bool) -> String {
    let mut line = format!("clone {}: pid {}", up.number, up.pid);
    // Writing to a string cannot fail.
    if let Some(report) = &up.report {
        let _ = write!(line, ", instance {}", report.instance);
        if let Some(socket) = &report.socket {
            let _ = write!(line, ", socket {socket}");
        }
        for (name, address) in &report.addresses {
            let _ = write!(line, ", {name} {address}");
        }
    }
    if verbose && let Some(kib) = up.proportional_kib() {
        let _ = write!(line, ", {:.1} MiB of memory", kib as f64 / 1024.0);
    }
    line
}
