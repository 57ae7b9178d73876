//! `defrost check`: is this host able to checkpoint and restore?

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use criu_driver::{Criu, Rpc, self_test};
use serde::Serialize;

use super::Options;
use super::doctor::ALIKE;
use super::failure::{FAILED, Failure, HOST, criu_status};
use crate::image::machine::Machine;
use crate::sys;

/// How long CRIU may take over each of its own checks.
const CHECK: Duration = Duration::from_secs(20);
/// How long the self-test may take.
const SELF_TEST: Duration = Duration::from_secs(30);
/// The type of a tmpfs in statfs(2).
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;
/// Where CRIU keeps what it found out about the kernel (criu/kerndat.c).
const KERNDAT: &str = "/run/criu.kdat";

/// Find out whether this host is able to checkpoint and restore: dumps and restores a small server for real
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Findings {
    able: bool,
    kernel: String,
    criu: Option<CriuFinding>,
    kerndat_cache: KerndatCache,
    problems: Vec<Problem>,
    advice: Vec<String>,
}

#[derive(Debug, Serialize)]
struct CriuFinding {
    path: String,
    version: String,
    check: bool,
    self_test: Option<Times>,
}

#[derive(Debug, Serialize)]
struct Times {
    dump_ms: f64,
    restore_ms: f64,
}

#[derive(Debug, Serialize)]
struct Problem {
    what: String,
    hint: Option<String>,
}

/// Whether each start of CRIU is spared about 15 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum KerndatCache {
    InPlace,
    /// It will be written by the next start of CRIU.
    Absent,
    /// /run is not a tmpfs, and CRIU writes its cache only to one.
    Impossible,
    /// A file that an earlier CRIU left behind keeps the cache from ever being written.
    Obstructed,
}

pub(super) fn run(options: &Options, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let findings = find(options);
    if arguments.json {
        let json = serde_json::to_string_pretty(&findings).map_err(|error| Failure::plain(FAILED, error))?;
        say!("{json}");
    } else {
        print(&findings);
    }
    Ok(if findings.able { ExitCode::SUCCESS } else { ExitCode::from(HOST) })
}

fn find(options: &Options) -> Findings {
    let kernel = Machine::here().map(|machine| machine.kernel).unwrap_or_default();
    let mut findings = Findings {
        able: false,
        kernel,
        criu: None,
        kerndat_cache: kerndat_cache(),
        problems: Vec::new(),
        advice: Vec::new(),
    };
    match Criu::find(options.criu.as_deref()) {
        Ok(criu) => try_out(&criu, &mut findings),
        Err(error) => findings.problem(&error),
    }
    findings.able = findings.problems.is_empty();
    match findings.kerndat_cache {
        KerndatCache::InPlace | KerndatCache::Absent => {}
        KerndatCache::Impossible => findings.advice.push(format!(
            "mount a tmpfs on /run: without {KERNDAT}, which criu writes only there, each of its starts costs about 15 ms more"
        )),
        KerndatCache::Obstructed => findings.advice.push(format!(
            "remove {KERNDAT}.tmp: as long as it is there, criu never writes its cache, and each start costs about 15 ms more"
        )),
    }
    findings.advice.push(ALIKE.to_owned());
    findings
}

impl Findings {
    fn problem(&mut self, error: &criu_driver::Error) {
        debug_assert!(matches!(criu_status(error), HOST | FAILED));
        self.problems.push(Problem { what: error.to_string(), hint: error.hint().map(str::to_owned) });
    }
}

fn try_out(criu: &Criu, findings: &mut Findings) {
    let check = Rpc::new(criu.clone()).check(CHECK);
    let passed = matches!(check, Ok(true));
    match check {
        Ok(true) => {}
        Ok(false) => findings.problems.push(Problem {
            what: "criu check says that the kernel lacks something".to_owned(),
            hint: Some(format!("run `{} check` as root and read what it names", criu.path.display())),
        }),
        Err(error) => findings.problem(&error),
    }
    let mut subject = std::process::Command::new("/proc/self/exe");
    subject.arg("self-test-subject");
    let tested = self_test(criu, subject, SELF_TEST);
    let milliseconds = |time: Duration| time.as_secs_f64() * 1000.0;
    let times = match tested {
        Ok(times) => {
            Some(Times { dump_ms: milliseconds(times.dump), restore_ms: milliseconds(times.restore) })
        }
        Err(error) => {
            findings.problem(&error);
            None
        }
    };
    findings.criu = Some(CriuFinding {
        path: criu.path.display().to_string(),
        version: criu.version.to_string(),
        check: passed,
        self_test: times,
    });
}

fn kerndat_cache() -> KerndatCache {
    if Path::new(KERNDAT).exists() {
        KerndatCache::InPlace
    } else if rustix::fs::statfs("/run").is_ok_and(|run| run.f_type != TMPFS_MAGIC) {
        KerndatCache::Impossible
    } else if Path::new(&format!("{KERNDAT}.tmp")).exists() {
        KerndatCache::Obstructed
    } else {
        KerndatCache::Absent
    }
}

fn print(findings: &Findings) {
    say!("kernel         {}", findings.kernel);
    if let Some(criu) = &findings.criu {
        say!("criu           {} at {}", criu.version, criu.path);
        say!("criu check     {}", if criu.check { "passed" } else { "failed" });
        match &criu.self_test {
            Some(times) => say!(
                "self-test      a tcp server was dumped in {:.1} ms and restored in {:.1} ms",
                times.dump_ms,
                times.restore_ms
            ),
            None => say!("self-test      failed"),
        }
    }
    let cache = match findings.kerndat_cache {
        KerndatCache::InPlace => "in place",
        KerndatCache::Absent => "absent",
        KerndatCache::Impossible => "impossible: /run is not a tmpfs",
        KerndatCache::Obstructed => "obstructed",
    };
    say!("kerndat cache  {cache}");
    for problem in &findings.problems {
        say!("problem: {}", problem.what);
        if let Some(hint) = &problem.hint {
            say!("hint: {hint}");
        }
    }
    for advice in &findings.advice {
        say!("advice: {advice}");
    }
    say!("{}", if findings.able { "this host can checkpoint and restore" } else { "this host cannot" });
}

/// The life of the process that the self-test dumps: one listener, and nothing else to carry.
pub(super) fn subject() -> Result<ExitCode, Failure> {
    let failed = |error: std::io::Error| Failure::plain(FAILED, format!("self-test subject: {error}"));
    crate::startup::Init::new().run().map_err(|error| Failure::plain(FAILED, error))?;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    say!("listening on port {}", listener.local_addr().map_err(failed)?.port());
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null").map_err(failed)?;
    sys::descriptors::replace_standard(1, &null).map_err(failed)?;
    drop(null);
    // The test kills it; if the test dies, it must not stay for ever.
    let end = std::time::Instant::now() + 2 * SELF_TEST;
    listener.set_nonblocking(true).map_err(failed)?;
    while std::time::Instant::now() < end {
        let _ = listener.accept();
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(ExitCode::from(FAILED))
}
