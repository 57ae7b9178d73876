//! `defrost bench`: how fast a service starts, in every way to start it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::Options;
use super::failure::{FAILED, Failure, HOST, IMAGE, USAGE};
use super::restore::seconds;
use crate::bench::question::{Body, Http, Question, QuestionError};
use crate::bench::record::{FORMAT, Kind, Record, Service};
use crate::bench::run::{Outcome, Setup, run as run_rounds};
use crate::bench::ways::{Plan, Restorer, Restoring, typed};
use crate::bench::{caches, compare, host, kin, table};
use crate::image::Image;
use crate::report::Destination;

/// Measure how fast a service starts
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Startup(Box<Startup>),
}

/// Compare ways to start a service, in turns, to its first correct answer
///
/// Each way is started once in each round, in a session of its own, asked on a grid of 100 µs until it answers
/// correctly, ended, and its port seen free again. Figures are in milliseconds since before the command was spawned.
/// Exit status 1 if any start failed; the others are measured all the same.
#[derive(Debug, clap::Args)]
struct Startup {
    #[command(flatten)]
    asked: Asked,
    /// A command that starts it from nothing, and stays. A command is split into words, and given to the shell only if
    /// it has something for it to read. May be given several times; NAME=CMD gives it a name in the table, and the one
    /// named `empty` is taken for a start with nothing to warm
    #[arg(long, value_name = "[NAME=]CMD")]
    cold: Vec<String>,
    /// The same, for one that warms up when it is first asked
    #[arg(long, value_name = "[NAME=]CMD")]
    cold_lazy: Vec<String>,
    /// A client that tells a running warm parent to fork, and prints the pid of the forked process as its last line
    #[arg(long, value_name = "[NAME=]CMD")]
    fork: Vec<String>,
    /// The least that a start can take: a program that answers one request and ends
    #[arg(long, value_name = "[NAME=]CMD")]
    floor: Vec<String>,
    /// An image of it, restored in every way that there is
    #[arg(long, value_name = "DIR")]
    image: Option<PathBuf>,
    /// Only these ways of restoring; the last two take a working set that was recorded beside the image
    #[arg(long, value_enum, value_delimiter = ',', requires = "image")]
    ways: Vec<WayChoice>,
    /// Restore also with the image out of the page cache
    #[arg(long, requires = "image")]
    evict: bool,
    /// Restore also without CRIU's cache of what the kernel can do, which is removed and comes back by itself
    #[arg(long, requires = "image")]
    no_kerndat: bool,
    /// Restore also so many at once, each asked at its own port
    #[arg(long, value_name = "N,N", value_delimiter = ',', requires = "image", value_parser = clap::value_parser!(u32).range(1..=400))]
    clones: Vec<u32>,
    /// Only these ways of restoring for --clones, among those of --ways; all that can without it
    #[arg(long, value_enum, value_name = "WAYS", value_delimiter = ',', requires = "clones")]
    clone_ways: Vec<WayChoice>,
    /// How often each way is timed
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// How long a start may take, and all the requests after it
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds)]
    deadline: f64,
    /// How long all rounds may take: no other is begun then, and there are fewer samples
    #[arg(long, value_name = "SECONDS", default_value_t = 86_400.0, value_parser = seconds)]
    within: f64,
    /// A round in which others took more than this share of the processors is run again, and again up to as many
    /// rounds as were asked for
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, value_parser = share)]
    quiet: f64,
    /// Send so many requests after the first answer, each in its own connection, and time them
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=100_000))]
    requests: u32,
    /// In how many starts of each way requests are sent and memory is looked at
    #[arg(long, value_name = "N", default_value_t = 3)]
    followed: u32,
    /// What the service is called in the record
    #[arg(long, value_name = "NAME", default_value = "service")]
    name: String,
    /// The commit of what is measured, for the record; `-dirty` at its end for a tree with changes
    #[arg(long, value_name = "COMMIT")]
    commit: Option<String>,
    /// Write every sample there
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Show the figures of this earlier record beside the new ones
    #[arg(long, value_name = "OLD.json")]
    compare: Option<PathBuf>,
}

/// What is asked, and what a correct answer is
#[derive(Debug, clap::Args)]
struct Asked {
    /// Ask by HTTP: GET, or POST with --body
    #[arg(
        long,
        value_name = "http://HOST:PORT/PATH",
        required_unless_present = "connect",
        conflicts_with = "connect"
    )]
    url: Option<String>,
    /// The body of a POST
    #[arg(long, value_name = "FILE", requires = "url")]
    body: Option<PathBuf>,
    /// A header line of the request
    #[arg(long, value_name = "NAME: VALUE", requires = "url")]
    header: Vec<String>,
    /// The status of a correct answer
    #[arg(long, value_name = "STATUS", default_value_t = 200, requires = "url", value_parser = clap::value_parser!(u16).range(100..=599))]
    status: u16,
    /// Ask by a line protocol
    #[arg(long, value_name = "HOST:PORT", requires_all = ["send", "expect"])]
    connect: Option<String>,
    /// What is sent to it; \n, \r, \t and \\ stand for what they do in C
    #[arg(long, value_name = "TEXT", requires = "connect")]
    send: Option<String>,
    /// The correct answer: a text, @FILE for what is in a file, or sha256:HEX for a body with this sum
    #[arg(long, value_name = "TEXT|@FILE|sha256:HEX")]
    expect: Option<String>,
    /// After the first answer, ask this with --requests instead: any answer of status 200 is correct. The way named
    /// `empty` is not asked
    #[arg(long, value_name = "URL", requires = "requests")]
    then: Option<String>,
    /// The body of these, by POST
    #[arg(long, value_name = "FILE", requires = "then")]
    then_body: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum WayChoice {
    Criu,
    DefrostCriu,
    Map,
    Fault,
    Copy,
    MapRecorded,
    FaultRecorded,
}

impl From<WayChoice> for Restorer {
    fn from(choice: WayChoice) -> Self {
        match choice {
            WayChoice::Criu => Self::Criu,
            WayChoice::DefrostCriu => Self::DefrostCriu,
            WayChoice::Map => Self::Map,
            WayChoice::Fault => Self::Fault,
            WayChoice::Copy => Self::Copy,
            WayChoice::MapRecorded => Self::MapRecorded,
            WayChoice::FaultRecorded => Self::FaultRecorded,
        }
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("not a share from 0 to 1".to_owned()),
    }
}

pub(super) fn run(options: &Options, arguments: Arguments) -> Result<ExitCode, Failure> {
    let What::Startup(startup) = arguments.what;
    startup_latency(options, &startup)
}

fn startup_latency(options: &Options, asked: &Startup) -> Result<ExitCode, Failure> {
    let (question, then) = asked.asked.questions()?;
    let old = asked.compare.as_deref().map(Record::read).transpose();
    let old = old.map_err(|error| Failure::new(USAGE, error, Some("name a file that --json wrote")))?;
    let criu = criu_driver::Criu::find(options.criu.as_deref());
    let plans = plans(asked, criu.as_ref().ok().map(|criu| criu.path.as_path()))?;
    let image = asked.image.as_deref().map(|path| {
        host::image(path).map_err(|error| Failure::plain(IMAGE, format!("{}: {error}", path.display())))
    });
    let image = image.transpose()?;
    let file = asked.json.as_deref().map(Destination::new).transpose();
    let file = file.map_err(|error| Failure::plain(USAGE, format!("{error}; nothing was started")))?;
    let host = host::here(criu.ok().map(|criu| criu.version.to_string()), asked.commit.clone());
    let failed = |error: std::io::Error| Failure::plain(HOST, format!("{error}; nothing was started"));
    let folder = tempfile::Builder::new().prefix("defrost-bench-").tempdir().map_err(failed)?;
    kin::adopt_orphans().map_err(failed)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(failed)?;
    }
    let setup = Setup {
        question: &question,
        then: then.as_ref(),
        rounds: asked.rounds,
        deadline: Duration::from_secs_f64(asked.deadline),
        within: Duration::from_secs_f64(asked.within),
        requests: asked.requests,
        followed: asked.followed,
        quiet: asked.quiet,
        image: asked.image.as_deref(),
        folder: folder.path(),
        stop: &stop,
    };
    let note = &mut |text: &str| note!("defrost: {}: {text}", asked.name);
    let Outcome { ways, repeated, stopped, failed } = run_rounds(&setup, &plans, note);
    let (name, rounds) = (asked.name.clone(), asked.rounds);
    let service = Service { name, question: question.text, image, rounds, repeated, ways };
    put!("{}", table::render(&service));
    if let Some(old) = &old {
        put!("\n{}", compare::render(old, &service));
    }
    if let Some(file) = file {
        write(file, &Record { format: FORMAT, host, services: vec![service] })?;
    }
    if stopped {
        return Err(Failure::plain(FAILED, "the benchmark was stopped; all that was started has been ended"));
    }
    Ok(if failed { ExitCode::from(FAILED) } else { ExitCode::SUCCESS })
}

fn write(file: Destination, record: &Record) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(record).map_err(|error| Failure::plain(FAILED, error))?;
    let hint = Some("what was measured is in the tables above, and nowhere else");
    file.write(&(text + "\n")).map_err(|error| Failure::new(FAILED, error, hint))
}

fn plans(asked: &Startup, criu: Option<&Path>) -> Result<Vec<Plan>, Failure> {
    let usage = |text: String, hint: &str| Failure::new(USAGE, text, Some(hint));
    let mut plans = Vec::new();
    let typed_ones = [
        (&asked.floor, Kind::Floor, "floor"),
        (&asked.cold, Kind::Cold, "cold"),
        (&asked.cold_lazy, Kind::ColdLazy, "cold-lazy"),
        (&asked.fork, Kind::Fork, "fork"),
    ];
    for (commands, kind, default) in typed_ones {
        for command in commands {
            plans
                .push(typed(command, kind, default).map_err(|error| usage(error, "quote it for the shell"))?);
        }
    }
    if let Some(image) = &asked.image {
        let defrost = std::env::current_exe()
            .map_err(|error| Failure::plain(HOST, format!("where this command is: {error}")))?;
        let image = std::path::absolute(image).unwrap_or_else(|_| image.clone());
        let without_kerndat = asked.no_kerndat && criu.is_some_and(caches::make_kerndat);
        if asked.no_kerndat && !without_kerndat {
            let why = "criu keeps no cache of what the kernel can do here: all its starts are without";
            note!("defrost: {why}");
        }
        let restoring = Restoring {
            image: &image,
            defrost: &defrost,
            criu,
            evict: asked.evict,
            without_kerndat,
            reports: Image::open(&image).is_ok_and(|image| image.manifest().subject.report_pipe.is_some()),
            clones: &asked.clones,
            clone_ways: &clone_ways(asked)?,
        };
        let chosen = |by: &Restorer| {
            let recorded = || !by.is_recorded() || image.join("working-set.bin").exists();
            if asked.ways.is_empty() {
                recorded()
            } else {
                asked.ways.iter().any(|way| Restorer::from(*way) == *by)
            }
        };
        plans.extend(Restorer::ALL.iter().filter(|by| chosen(by)).flat_map(|by| restoring.plans(*by)));
    }
    if plans.is_empty() {
        return Err(usage("there is nothing to start".to_owned(), "give --cold 'CMD', --image DIR, or both"));
    }
    for (index, plan) in plans.iter().enumerate() {
        if plans[..index].iter().any(|other| other.name == plan.name) {
            let text = format!("two ways are called '{}'", plan.name);
            return Err(usage(text, "give each a name: --cold 'small=CMD'"));
        }
    }
    Ok(plans)
}

fn clone_ways(asked: &Startup) -> Result<Vec<Restorer>, Failure> {
    let restored = |way: &WayChoice| asked.ways.is_empty() || asked.ways.contains(way);
    let wrong = asked.clone_ways.iter().find(|way| !Restorer::from(**way).can_clone() || !restored(way));
    if let Some(way) = wrong {
        let text = format!("--clone-ways: no clones by {}", Restorer::from(*way).name());
        let hint = "give some of defrost-criu, map, fault and copy, which --ways has too where it is given";
        return Err(Failure::new(USAGE, text, Some(hint)));
    }
    Ok(asked.clone_ways.iter().map(|way| Restorer::from(*way)).collect())
}

impl Asked {
    /// What is asked first, and what then.
    fn questions(&self) -> Result<(Question, Option<Question>), Failure> {
        let wrong = |error: QuestionError| Failure::plain(USAGE, error);
        let then_body = self.then_body.as_deref().map(read_file).transpose()?;
        let then = self.then.as_deref().map(|url| {
            Question::http(Http {
                url,
                body: then_body.as_deref(),
                headers: &[],
                status: 200,
                expect: Body::Any,
            })
        });
        let then = then.transpose().map_err(wrong)?;
        let question = if let Some(address) = &self.connect {
            let send = unescape(self.send.as_deref().unwrap_or_default());
            let expect = match self.expect.as_deref().unwrap_or_default() {
                text if text.starts_with('@') => read(text)?,
                text => unescape(text),
            };
            Question::bytes(address, &send, &expect).map_err(wrong)?
        } else {
            let body = self.body.as_deref().map(read_file).transpose()?;
            let expect = self.expect.as_deref().map_or(Ok(Body::Any), body_of)?;
            let url = self.url.as_deref().unwrap_or_default();
            let headers = &self.header;
            Question::http(Http { url, body: body.as_deref(), headers, status: self.status, expect })
                .map_err(wrong)?
        };
        Ok((question, then))
    }
}

fn body_of(text: &str) -> Result<Body, Failure> {
    if let Some(hex) = text.strip_prefix("sha256:") {
        let digit = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..64).step_by(2).map(digit).collect();
        let sum = bytes.filter(|_| hex.len() == 64).and_then(|bytes| bytes.try_into().ok());
        return sum.map(Body::Sha256).ok_or_else(|| {
            Failure::new(
                USAGE,
                format!("'{hex}' is no SHA-256"),
                Some("64 hexadecimal digits, as sha256sum prints"),
            )
        });
    }
    if text.starts_with('@') { read(text).map(Body::Is) } else { Ok(Body::Is(unescape(text))) }
}

fn read(text: &str) -> Result<Vec<u8>, Failure> {
    read_file(Path::new(&text[1..]))
}

fn read_file(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| Failure::plain(USAGE, format!("{}: {error}", path.display())))
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        let (plain, mut buffer) = (character, [0; 4]);
        let meant = if plain != '\\' {
            plain
        } else {
            match characters.next() {
                Some('n') => '\n',
                Some('r') => '\r',
                Some('t') => '\t',
                Some(other) => other,
                None => '\\',
            }
        };
        bytes.extend(meant.encode_utf8(&mut buffer).as_bytes());
    }
    bytes
}
