//! Standard output, for what commands print: with `say!` a line, with `put!` as it is; and standard error, for what they
//! tell beside it: with `note!` a line.
//!
//! A pipe whose reader has gone is no failure of the command, and what is printed then is for nobody; anything else that
//! keeps it from being printed, such as a full disk, is told at the end, once. Nobody can be told that standard error
//! takes no more, and no server is to end for that.

use std::fmt;
use std::io::{self, Write};
use std::sync::Mutex;

use super::failure::{FAILED, Failure};
use crate::resource::locked;

/// Why something was not printed.
static TROUBLE: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints a line.
macro_rules! say {
    ($($words:tt)*) => { $crate::cli::out::write(format_args!("{}\n", format_args!($($words)*))) };
}

/// Prints a text that has its line ends.
macro_rules! put {
    ($($words:tt)*) => { $crate::cli::out::write(format_args!($($words)*)) };
}

/// Tells a line on standard error.
macro_rules! note {
    ($($words:tt)*) => { $crate::cli::out::tell(format_args!("{}\n", format_args!($($words)*))) };
}

pub(super) fn tell(text: fmt::Arguments<'_>) {
    // As one piece: other processes may write there too.
    let _ = io::stderr().write_all(text.to_string().as_bytes());
}

pub(super) fn write(text: fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) {
        missed(error);
    }
}

/// Something was not printed, for this reason.
pub(super) fn missed(error: io::Error) {
    if error.kind() != io::ErrorKind::BrokenPipe {
        locked(&TROUBLE).get_or_insert(error);
    }
}

/// What could not be printed. What the command did is done all the same.
pub(super) fn failure() -> Option<Failure> {
    let error = locked(&TROUBLE).take()?;
    let hint = "what was to be printed is lost; what the command did is not undone";
    Some(Failure::new(FAILED, format!("standard output: {error}"), Some(hint)))
}
