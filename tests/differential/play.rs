//! The subject's side: a program that dumps itself once, and afterwards says what it misses.

use std::fmt::{Debug, Display};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use defrost::Subject;
use defrost::checkpoint::Outcome;

/// The variable that makes this program a subject, and says of which kind.
pub const VARIABLE: &str = "DEFROST_TEST_SUBJECT";
/// Files in the folder that a subject is started in: its image, and what it says.
pub const IMAGE: &str = "img";
pub const VERDICT: &str = "verdict";
/// The verdict of a subject that misses nothing.
pub const WHOLE: &str = "whole";

/// How long anything in a subject may take.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A program in its play.
#[derive(Debug)]
pub struct Play {
    pub folder: PathBuf,
    pub subject: Subject,
    missing: Vec<String>,
}

impl Play {
    pub fn begin() -> Self {
        let folder = std::env::current_dir().unwrap();
        Self { folder, subject: Subject::new("differential").unwrap(), missing: Vec::new() }
    }

    /// Dumps this process, which ends it: this returns in restored ones only.
    pub fn dump(&mut self) {
        let outcome = self.subject.checkpoint_restore_blocking(IMAGE);
        self.arrived(outcome.map_err(|error| error.to_string()));
    }

    /// What a cycle came to.
    pub fn arrived(&mut self, outcome: Result<Outcome, String>) {
        match outcome {
            Ok(Outcome::Restored { failures, .. }) => self.same("failures", &failures, &Vec::<String>::new()),
            other => {
                self.missing.push(format!("this is no restored process: {other:?}"));
                self.say();
                std::process::exit(1);
            }
        }
    }

    pub fn expect(&mut self, holds: bool, what: impl Display) {
        if !holds {
            self.missing.push(what.to_string());
        }
    }

    pub fn same<T: PartialEq + Debug>(&mut self, what: impl Display, found: T, expected: T) {
        let equal = found == expected;
        self.expect(equal, format!("{what}: {found:?} instead of {expected:?}"));
    }

    /// Says what was missed, to be read once this process has ended.
    pub fn say(&self) {
        let text = if self.missing.is_empty() { WHOLE.to_owned() } else { self.missing.join("\n") };
        fs::write(self.folder.join(VERDICT), text).unwrap();
    }
}

/// Waits until `done` says so.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until a thread of this process sleeps in a system call.
pub fn until_in_call(tid: i32, number: libc::c_long) {
    until(&format!("thread {tid} in system call {number}"), || {
        let call = fs::read_to_string(format!("/proc/self/task/{tid}/syscall")).unwrap_or_default();
        call.split_whitespace().next().is_some_and(|first| first == number.to_string())
    });
}
