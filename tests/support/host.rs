//! Whether this host can run the tests with a real CRIU, and whose turn it is.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use criu_driver::Criu;
use tempfile::TempDir;

use super::leftovers::Leftovers;
use super::process::Running;
use super::within;

/// The command under test.
pub const DEFROST: &str = env!("CARGO_BIN_EXE_defrost");

/// A restore needs the very pids and ports of its dump, so these tests run one after the other.
static TURN: Mutex<()> = Mutex::new(());

/// Where a plain restore says what is wrong.
const PLAIN_LOG: &str = "plain-restore.log";

/// The host, for one test: its CRIU, and a folder of the test's own.
pub struct Host {
    pub criu: PathBuf,
    // Dropped in this order: first the processes, then their folder, then the turn.
    leftovers: Leftovers,
    folder: TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Host {
    /// The host, if it can run such tests. Otherwise the test is skipped with its reason, which fails it where
    /// `DEFROST_REQUIRE_SYSTEM=1` says that it must not be.
    pub fn for_test(name: &str) -> Option<Self> {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let criu = match usable() {
            Ok(criu) => criu,
            Err(reason) => {
                skip(name, &reason);
                return None;
            }
        };
        let folder = tempfile::Builder::new().prefix("defrost-test-").tempdir().unwrap();
        let leftovers = Leftovers::of(folder.path());
        Some(Self { criu, leftovers, folder, _turn: turn })
    }

    /// The test's own folder. It is removed with everything in it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The processes of this test that live, however they were started.
    pub fn processes(&self) -> Vec<i32> {
        self.leftovers.pids()
    }

    /// A path in it.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder().join(name)
    }

    /// The `defrost` command, with control sockets in the test's folder, started there, without any input.
    pub fn defrost<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(DEFROST);
        command.args(arguments);
        self.at_home(command)
    }

    /// The same, started by another program: this one's arguments, then the command.
    pub fn defrost_by<A: AsRef<OsStr>>(
        &self,
        starter: &[&str],
        arguments: impl IntoIterator<Item = A>,
    ) -> Command {
        let mut command = Command::new(starter[0]);
        command.args(&starter[1..]).arg(DEFROST).args(arguments);
        self.at_home(command)
    }

    /// A program with the surroundings of this test.
    pub fn at_home(&self, mut command: Command) -> Command {
        command.stdin(Stdio::null()).current_dir(self.folder());
        command.env("XDG_RUNTIME_DIR", self.folder()).env("TMPDIR", self.folder());
        command.env("DEFROST_CRIU", &self.criu);
        command.env_remove("DEFROST_NAME");
        command
    }

    /// A copy of the command in the test's folder, small where `strip` is installed.
    #[track_caller]
    pub fn deploy(&self, name: &str) -> PathBuf {
        let copy = self.path(name);
        let stripped = Command::new("strip").arg("-o").arg(&copy).arg(DEFROST).status();
        if !stripped.is_ok_and(|status| status.success()) {
            std::fs::copy(DEFROST, &copy).unwrap();
        }
        copy
    }

    /// Runs the `defrost` command to its end.
    #[track_caller]
    pub fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Done {
        Done::of(&mut self.defrost(arguments))
    }

    /// `criu restore -D IMAGE` with no other flag, started from another folder.
    pub fn plain_restore(&self, image: &Path) -> Running {
        let elsewhere = self.path("elsewhere");
        let _ = std::fs::create_dir(&elsewhere);
        let mut command = Command::new(&self.criu);
        command.arg("restore").arg("-D").arg(image).current_dir(elsewhere).stdin(Stdio::null());
        command.env("XDG_RUNTIME_DIR", self.folder());
        let log = std::fs::File::create(self.path(PLAIN_LOG)).unwrap();
        Running::start(command.stdout(Stdio::null()).stderr(log))
    }

    /// What the last plain restore said of its failure.
    pub fn said_by_criu(&self) -> String {
        std::fs::read_to_string(self.path(PLAIN_LOG)).unwrap_or_default()
    }
}

fn usable() -> Result<PathBuf, String> {
    if !nix::unistd::geteuid().is_root() {
        return Err("dumping with CRIU needs root here".to_owned());
    }
    Criu::find(None).map(|criu| criu.path).map_err(|error| error.to_string())
}

pub fn skip(name: &str, reason: &str) {
    assert!(std::env::var_os("DEFROST_REQUIRE_SYSTEM").is_none_or(|value| value != "1"), "{name}: {reason}");
    let line = format!("skipped: {name}: {reason}\n");
    eprint!("{line}");
    if let Some(log) = std::env::var_os("DEFROST_SKIP_LOG") {
        let mut log = std::fs::OpenOptions::new().append(true).create(true).open(log).unwrap();
        log.write_all(line.as_bytes()).unwrap();
    }
}

/// How long a command may take that is to end by itself.
const LONGEST: Duration = Duration::from_secs(120);

/// What comes out of this, to the end.
fn read_all(pipe: Option<impl std::io::Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.unwrap().read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// A command that has ended.
#[derive(Debug)]
pub struct Done {
    pub status: i32,
    pub out: String,
    pub err: String,
}

impl Done {
    /// Of a command that ends by itself, within [`LONGEST`].
    #[track_caller]
    pub fn of(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (out, err) = (read_all(child.stdout.take()), read_all(child.stderr.take()));
        let mut status = None;
        if !within(LONGEST, || {
            status = child.try_wait().unwrap();
            status.is_some()
        }) {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let status = status.unwrap_or_else(|| panic!("{command:?} did not end within {LONGEST:?}"));
        let code = status.code().unwrap_or_else(|| panic!("{command:?} ended with {status}"));
        Self { status: code, out: out.join().unwrap(), err: err.join().unwrap() }
    }

    /// It worked; its output, without the last newline.
    #[track_caller]
    pub fn worked(self) -> String {
        assert_eq!(self.status, 0, "{}{}", self.out, self.err);
        self.out.trim_end().to_owned()
    }

    /// It failed with this status; its error text.
    #[track_caller]
    pub fn failed(self, status: i32) -> String {
        assert_eq!(self.status, status, "{}{}", self.out, self.err);
        assert!(self.err.contains("defrost: "), "no error text: {}{}", self.out, self.err);
        self.err
    }
}
