//! A folder's name with parts to be filled in: where a checkpoint goes that is asked for without words.

use std::fmt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// A path with `%p` (pid), `%t` (seconds since 1970), `%g` (generation) and `%%` (a percent sign) in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Pid,
    Time,
    Generation,
}

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// [`PatternError`], for a `%` with anything else behind it, and for an empty pattern.
    pub fn parse(pattern: &str) -> Result<Self, PatternError> {
        let fails = |sequence: String| PatternError { pattern: pattern.to_owned(), sequence };
        if pattern.is_empty() {
            return Err(fails(String::new()));
        }
        let mut parts = Vec::new();
        let mut text = String::new();
        let mut characters = pattern.chars();
        while let Some(character) = characters.next() {
            let part = match character {
                '%' => match characters.next() {
                    Some('%') => {
                        text.push('%');
                        continue;
                    }
                    Some('p') => Part::Pid,
                    Some('t') => Part::Time,
                    Some('g') => Part::Generation,
                    other => {
                        return Err(fails(
                            other.into_iter().fold("%".to_owned(), |text, other| text + &other.to_string()),
                        ));
                    }
                },
                other => {
                    text.push(other);
                    continue;
                }
            };
            parts.push(Part::Text(std::mem::take(&mut text)));
            parts.push(part);
        }
        parts.push(Part::Text(text));
        Ok(Self(parts))
    }

    /// The path, filled in for this process, this moment, and a generation.
    #[must_use]
    pub fn expand(&self, generation: u64) -> PathBuf {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.fill(std::process::id(), now.as_secs(), generation)
    }

    fn fill(&self, pid: u32, time: u64, generation: u64) -> PathBuf {
        let filled = self.0.iter().map(|part| match part {
            Part::Text(text) => text.clone(),
            Part::Pid => pid.to_string(),
            Part::Time => time.to_string(),
            Part::Generation => generation.to_string(),
        });
        filled.collect::<String>().into()
    }
}

/// A pattern that cannot be filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternError {
    pattern: String,
    /// What was not understood; empty when nothing was given.
    sequence: String,
}

impl PatternError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        "give a folder, with %p for the pid, %t for the time, %g for the generation and %% for a percent sign"
    }
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.sequence.is_empty() {
            return f.write_str("the folder for checkpoints is empty");
        }
        write!(
            f,
            "the folder for checkpoints, '{}', contains the unknown sequence '{}'",
            self.pattern, self.sequence
        )
    }
}

impl std::error::Error for PatternError {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filled(pattern: &str) -> String {
        Pattern::parse(pattern).unwrap().fill(12, 99, 3).display().to_string()
    }

    #[test]
    fn parts_are_filled_in() {
        assert_eq!(filled("./img"), "./img");
        assert_eq!(filled("/i/%p-%t.%g"), "/i/12-99.3");
        assert_eq!(filled("100%%p%%%p"), "100%p%12");
        let now = Pattern::parse("%p-%g").unwrap().expand(7);
        assert_eq!(now, PathBuf::from(format!("{}-7", std::process::id())));
    }

    #[test]
    fn unknown_sequences_are_refused() {
        let refused = |pattern| Pattern::parse(pattern).unwrap_err().to_string();
        assert!(refused("a%x").ends_with("contains the unknown sequence '%x'"));
        assert!(refused("a%").ends_with("contains the unknown sequence '%'"));
        assert!(refused("%ü").ends_with("'%ü'"));
        assert!(refused("").ends_with("is empty"));
    }

    proptest! {
        #[test]
        fn no_text_panics(pattern: String) {
            let _ = Pattern::parse(&pattern).map(|pattern| pattern.expand(0));
        }
    }
}
