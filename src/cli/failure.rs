//! How a command fails: one line that says what, why and who is alive, then `hint:`.

use std::fmt::{self, Display};
use std::process::ExitCode;

/// It failed, and the text says who is still alive.
pub(super) const FAILED: u8 = 1;
/// It was used wrongly; clap exits with the same.
pub(super) const USAGE: u8 = 2;
/// This host cannot do it.
pub(super) const HOST: u8 = 3;
/// The image is damaged, or does not fit here.
pub(super) const IMAGE: u8 = 4;

/// A failed command.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) status: u8,
    lines: Vec<String>,
}

impl Failure {
    pub(super) fn new(status: u8, text: impl Display, hint: Option<impl Display>) -> Self {
        let mut failure = Self { status, lines: Vec::new() };
        failure.add(text, hint);
        failure
    }

    /// Without anything that could be done about it beyond what the text says.
    pub(super) fn plain(status: u8, text: impl Display) -> Self {
        Self::new(status, text, None::<&str>)
    }

    /// One more thing that is wrong.
    pub(super) fn add(&mut self, text: impl Display, hint: Option<impl Display>) {
        self.lines.push(format!("defrost: {text}"));
        self.lines.extend(hint.map(|hint| format!("hint: {hint}")));
    }

    /// Prints it, and gives the exit status.
    pub(super) fn report(&self) -> ExitCode {
        for line in &self.lines {
            note!("{line}");
        }
        ExitCode::from(self.status)
    }

    /// Prints it, and goes on: something else will be tried.
    pub(super) fn warn(&self) {
        let _ = self.report();
    }
}

/// In one line.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("; "))
    }
}

/// The status of a failure of CRIU: what is missing or unsuitable here is the host's.
pub(super) fn criu_status(error: &criu_driver::Error) -> u8 {
    use criu_driver::Error;
    match error {
        Error::NotFound { .. } | Error::TooOld { .. } | Error::Unusable { .. } | Error::Spawn { .. } => HOST,
        _ => FAILED,
    }
}
