//! What `defrost run` and `defrost serve` take for a server that is checkpointed as it goes, and the process that
//! does it beside the server.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Parser;
use command_fds::CommandFdExt;

use super::Options;
use super::engines::EngineArguments;
use super::failure::{FAILED, Failure};
use super::history::failed;
use super::run::ended;
use super::serve::subscribe;
use crate::events::{Journal, Recorder};
use crate::history::keep::Keep;
use crate::history::{History, HistoryError};
use crate::image::verify::{VerifyOptions, capabilities_of_child, verify};
use crate::supervise::lasting::{Brought, Lasting, Past, Unfit, run as supervise};
use crate::supervise::run::Launch;

/// Says to `defrost serve` that it has its supervisor.
const SUPERVISED: &str = "DEFROST_SUPERVISED";
/// The shortest and the longest interval: longer is a slip.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(31 * 86_400);

/// Checkpoints as it goes.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Checkpoints as it goes")]
pub(super) struct KeepArguments {
    /// Make a checkpoint so often, as 10s, 500ms or 5m; the server goes on. Each is begun so early that it is complete in
    /// time even if it takes twice as long as the slowest of the last eight, where that took no more than three tenths of
    /// this: no more than this is lost in a crash then. The first of a life is begun after half of it, and a failed one is
    /// tried again after a tenth of it. One that comes too late all the same is told
    #[arg(long, value_name = "TIME", value_parser = interval, requires = "history")]
    checkpoint_every: Option<Duration>,
    /// Where the checkpoints are stored; each costs what has changed since the one before. Begun if it is not there
    #[arg(long, value_name = "DIR", requires = "checkpoint_every")]
    history: Option<PathBuf>,
    /// How many checkpoints stay
    #[arg(long, value_name = "N", default_value_t = 5, requires = "checkpoint_every")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    keep: u32,
    /// What happens when the server dies by a signal or an error: the supervisor ends as well, or the last complete
    /// checkpoint of this run is restored, in a pid namespace of its own if others have its pids by then. `defrost events
    /// DIR` tells of each crash and what came back
    #[arg(long, value_enum, default_value_t = OnCrash::End, requires_if("restore", "history"))]
    on_crash: OnCrash,
    /// So many crashes in a row, with no new checkpoint in between, lead to a cold start, and so does one more failure
    /// of its own than this within a minute, as by then it may fail by what it remembers; SIGKILL is none. After as many
    /// cold starts it stays ended
    #[arg(long, value_name = "N", default_value_t = 8, requires = "checkpoint_every")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    crash_limit: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum OnCrash {
    End,
    Restore,
}

fn interval(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if (SHORTEST..=LONGEST).contains(&time) => Ok(time),
        Ok(_) => Err("not between 100ms and 31days".to_owned()),
        Err(error) => Err(format!("{error}; write it as 10s, 500ms or 5m")),
    }
}

/// The process beside the server that has checkpoints made
#[derive(Debug, clap::Args)]
pub(super) struct Beside {
    dir: PathBuf,
    #[arg(long)]
    pid: i32,
    #[arg(long)]
    parent: u32,
    #[arg(long, value_parser = interval)]
    every: Duration,
    #[arg(long)]
    keep: u32,
}

/// Engine options where none can be given.
#[derive(Debug, Parser)]
struct Usual {
    #[command(flatten)]
    how: EngineArguments,
}

impl KeepArguments {
    /// Starts the server under a supervisor that has checkpoints made. None if there are to be none.
    pub(super) fn run(
        &self,
        options: &Options,
        how: &EngineArguments,
        launch: &Launch,
    ) -> Option<Result<ExitCode, Failure>> {
        let (every, dir) = (self.checkpoint_every?, self.history.as_ref()?);
        Some(History::create(dir).map_err(|error| unstarted(&error)).and_then(|history| {
            subscribe(options, io::stderr, io::stderr().is_terminal(), &Recorder::off());
            let claim = history.claim().map_err(|error| unstarted(&error))?;
            let program = std::env::current_exe()
                .map_err(|error| Failure::plain(FAILED, format!("{error}; nothing runs")))?;
            let beside = |pid: i32| {
                let mut command = Command::new(&program);
                command.args(["history", "beside"]).arg(history.path());
                command.args(["--pid", &pid.to_string(), "--parent", &std::process::id().to_string()]);
                command.args(["--every", &humantime::format_duration(every).to_string().replace(' ', "")]);
                command.args(["--keep", &self.keep.to_string()]);
                if options.verbose {
                    command.arg("--verbose");
                }
                // In a group of its own, so that Ctrl-C does not reach it before the server.
                command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null());
                match claim.share() {
                    // If this supervisor is killed, no other run begins before what is being stored is stored.
                    Ok(claim) => drop(command.preserved_fds(vec![claim])),
                    Err(error) => tracing::warn!("{}: {error}", history.path().display()),
                }
                command
            };
            let stored = Stored { history: &history, options, how };
            let past = (self.on_crash == OnCrash::Restore).then_some(&stored as &dyn Past);
            let journal = RefCell::new(Journal::at(history.events_path()));
            let tell = |draft| journal.borrow_mut().tell(draft);
            let lasting = Lasting { beside: &beside, past, limit: self.crash_limit, tell: &tell };
            ended(supervise(launch, &lasting))
        }))
    }

    /// Has this very command run under a supervisor. None if it is to run by itself.
    pub(super) fn run_self(&self, options: &Options) -> Option<Result<ExitCode, Failure>> {
        if self.checkpoint_every.is_none() || std::env::var_os(SUPERVISED).is_some() {
            return None;
        }
        let program = match std::env::current_exe() {
            Ok(program) => program,
            Err(error) => return Some(Err(Failure::plain(FAILED, format!("{error}; nothing runs")))),
        };
        // env(1) would take a program whose path has a `=` for another assignment.
        let script = OsString::from(format!("{SUPERVISED}=1 exec \"$0\" \"$@\""));
        let arguments = ["-c".into(), script, program.into()].into_iter().chain(std::env::args_os().skip(1));
        let launch = Launch { program: "/bin/sh".into(), arguments: arguments.collect(), name: None };
        self.run(options, &Usual::parse_from(["defrost"]).how, &launch)
    }
}

fn unstarted(error: &HistoryError) -> Failure {
    let mut failure = failed(error);
    failure.add("nothing was started", None::<&str>);
    failure
}

/// The process beside the server. It ends with its parent, and by SIGTERM, when nothing is being stored.
pub(super) fn beside(options: &Options, arguments: &Beside) -> Result<ExitCode, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(nix::libc::SIGTERM, Arc::clone(&stop))
        .map_err(|error| Failure::plain(FAILED, error))?;
    let dies = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
    dies.map_err(|error| Failure::plain(FAILED, error))?;
    if std::os::unix::process::parent_id() != arguments.parent {
        return Ok(ExitCode::SUCCESS);
    }
    subscribe(options, io::stderr, io::stderr().is_terminal(), &Recorder::off());
    let history = History::open(&arguments.dir).map_err(|error| failed(&error))?;
    let mut journal = Journal::at(history.events_path());
    let (pid, every, keep) = (arguments.pid, arguments.every, arguments.keep as usize);
    Keep { history, pid, every, keep }.run(&stop, &mut |draft| journal.tell(draft));
    Ok(ExitCode::SUCCESS)
}

/// The checkpoints of a history, and how they are restored.
struct Stored<'a> {
    history: &'a History,
    options: &'a Options,
    how: &'a EngineArguments,
}

impl Past for Stored<'_> {
    /// What of these is lost is told when it should come back; its image may still be there.
    fn numbers(&self) -> Vec<u64> {
        self.history.numbers()
    }

    fn bring(&self, number: u64) -> Result<Brought, Unfit> {
        // Nothing is pruned between two lives of the server.
        let image = self
            .history
            .checked_out(number)
            .map_err(|error| Unfit { text: error.to_string(), may_pass: !error.is_of_the_image() })?
            .image;
        // Taken pids lead to a namespace.
        let capabilities = capabilities_of_child();
        let wanted = VerifyOptions { capabilities, pids: false, ..VerifyOptions::default() };
        let findings = verify(&image, &wanted);
        if !findings.is_empty() {
            let may_pass = !findings.iter().any(|finding| finding.class.is_of_the_image());
            let text: Vec<_> = findings.iter().map(ToString::to_string).collect();
            return Err(Unfit { text: text.join("; "), may_pass });
        }
        match self.how.engine(self.options, &image) {
            Ok(Some((engine, why))) => Ok(Brought { image, engine, why: why.to_owned() }),
            Ok(None) => Err(Unfit { text: "this engine restores nothing".to_owned(), may_pass: true }),
            Err(failure) => Err(Unfit { text: failure.to_string(), may_pass: true }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_a_unit_and_bounds() {
        assert_eq!(interval("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(interval("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(interval("500ms"), Ok(Duration::from_millis(500)));
        for wrong in ["", "10", "s", "-1s", "1fortnight", "0s", "99ms", "2months", "999999999999999999999s"] {
            interval(wrong).unwrap_err();
        }
    }
}
