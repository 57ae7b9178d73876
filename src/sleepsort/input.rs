//! Numbers from text: one a line, all of them looked at before anything is done.

use std::io::{self, BufRead, Read};

/// The largest number.
pub const LARGEST: u32 = 86_400;

/// How many there may be: each is a task.
pub const MOST: usize = 1_000_000;

/// The longest line, in bytes.
const LINE_LIMIT: u64 = 256;

/// How much of a line a message shows, in characters.
const SHOWN: usize = 40;

/// Why there are no numbers. Lines are counted from 1.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// Not a number at all.
    #[error("line {line}: `{text}` is not a whole number")]
    NotANumber {
        /// Where.
        line: usize,
        /// What stands there, or the beginning of it.
        text: String,
    },
    /// Too large, or negative.
    #[error("line {line}: {text} is not between 0 and {LARGEST}")]
    OutOfRange {
        /// Where.
        line: usize,
        /// What stands there.
        text: String,
    },
    /// There are more than [`MOST`].
    #[error("line {line}: there are more than {MOST} numbers")]
    TooMany {
        /// The first that is too much.
        line: usize,
    },
    /// It could not be read.
    #[error("line {line}: {source}")]
    Read {
        /// Where.
        line: usize,
        /// Why not.
        source: io::Error,
    },
}

/// Reads numbers to the end of the input. Empty lines do not count.
///
/// # Errors
/// [`InputError`], for the first line that is wrong.
pub fn read(mut input: impl BufRead) -> Result<Vec<u32>, InputError> {
    let mut numbers = Vec::new();
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        let count = input.by_ref().take(LINE_LIMIT).read_until(b'\n', &mut bytes);
        if count.map_err(|source| InputError::Read { line, source })? == 0 {
            break;
        }
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim();
        if text.is_empty() {
            continue;
        }
        if numbers.len() == MOST {
            return Err(InputError::TooMany { line });
        }
        numbers.push(number(line, text)?);
    }
    Ok(numbers)
}

fn number(line: usize, text: &str) -> Result<u32, InputError> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(InputError::NotANumber { line, text: text.escape_debug().take(SHOWN).collect() });
    }
    let number = text.parse().ok().filter(|number| *number <= LARGEST);
    number.ok_or_else(|| InputError::OutOfRange { line, text: text.chars().take(SHOWN).collect() })
}
