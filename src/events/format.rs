//! Events as lines of text, in a form that the reader chooses.
//!
//! | placeholder | stands for |
//! |---|---|
//! | `{time}` | the wall clock, in UTC: `2026-11-30T21:18:51.123456Z` |
//! | `{unix}` | the same in seconds since 1970, with six decimals |
//! | `{monotonic}` | the monotonic clock in seconds, with six decimals |
//! | `{name}` | the name: `cycle.hook` |
//! | `{label}` | what people call it: `a hook ran` |
//! | `{fields}` | all fields but the message: `resource=http took=1.2ms` |
//! | `{message}` | the field `message`, or nothing |
//! | `{origin}` | instance, generation and pid in short: `0a1b2c3d/1/4711` |
//! | `{instance}`, `{generation}`, `{pid}` | each of these in full |
//! | `{sequence}` | its number in its process and those that this was restored from |
//! | `{.NAME}` | the field of this name, or nothing |
//! | `{{`, `}}` | a brace |
//! | `\t`, `\n`, `\\` | a tab, a new line, a backslash |
//!
//! It must not know which events are shown, nor print them.

use std::fmt::Write;

use super::event::{Event, MESSAGE, Value, is_command};

/// The form of a line, read from a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Place(&'static str),
    Field(String),
}

/// The placeholders besides `{.NAME}`.
const PLACES: &[&str] = &[
    "time",
    "unix",
    "monotonic",
    "name",
    "label",
    "fields",
    "message",
    "origin",
    "instance",
    "generation",
    "pid",
    "sequence",
];

/// The form that is used where none is asked for.
pub const USUAL: &str = "{time} {origin} {name} {fields} {message}";

impl Format {
    /// Reads a pattern.
    ///
    /// # Errors
    /// [`FormatError`]
    pub fn parse(pattern: &str) -> Result<Self, FormatError> {
        let mut parts = Vec::new();
        let mut text = String::new();
        let mut rest = pattern.chars();
        while let Some(c) = rest.next() {
            let next = rest.clone().next();
            match (c, next) {
                ('{', Some('{')) | ('}', Some('}')) => {
                    text.push(c);
                    rest.next();
                }
                ('\\', Some(escaped @ ('t' | 'n' | '\\'))) => {
                    text.push(match escaped {
                        't' => '\t',
                        'n' => '\n',
                        other => other,
                    });
                    rest.next();
                }
                ('{', _) => {
                    let (inside, after) = rest.as_str().split_once('}').ok_or(FormatError::Open)?;
                    if !text.is_empty() {
                        parts.push(Part::Text(std::mem::take(&mut text)));
                    }
                    parts.push(placeholder(inside)?);
                    rest = after.chars();
                }
                ('}', _) => return Err(FormatError::Close),
                _ => text.push(c),
            }
        }
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        Ok(Self { parts })
    }

    /// The line of an event, without blanks at its end. Control characters in what the event says become escapes, so
    /// that one event is one line, and no terminal is told what to do.
    #[must_use]
    pub fn line(&self, event: &Event) -> String {
        let mut line = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => line.push_str(text),
                Part::Place(place) => write_place(&mut line, place, event),
                Part::Field(name) => {
                    if let Some(value) = event.field(name) {
                        write_value(&mut line, value);
                    }
                }
            }
        }
        line.truncate(line.trim_end_matches(' ').len());
        line
    }
}

fn placeholder(inside: &str) -> Result<Part, FormatError> {
    if let Some(name) = inside.strip_prefix('.').filter(|name| !name.is_empty()) {
        return Ok(Part::Field(name.to_owned()));
    }
    let known = PLACES.iter().find(|place| **place == inside);
    known.map(|place| Part::Place(place)).ok_or_else(|| FormatError::Unknown { name: inside.to_owned() })
}

fn write_place(line: &mut String, place: &str, event: &Event) {
    let seconds = |ns: u64| format!("{}.{:06}", ns / 1_000_000_000, ns % 1_000_000_000 / 1000);
    // Writing to a string does not fail.
    let _ = match place {
        "time" => write!(line, "{}", humantime::format_rfc3339_micros(event.time())),
        "unix" => write!(line, "{}", seconds(event.unix_ns)),
        "monotonic" => write!(line, "{}", seconds(event.monotonic_ns)),
        "name" => write!(line, "{}", Plain(&event.name)),
        "label" => write!(line, "{}", Plain(&event.label)),
        "fields" => write_fields(line, event),
        "message" => {
            if let Some(message) = event.field(MESSAGE) {
                write_value(line, message);
            }
            Ok(())
        }
        "origin" => write!(line, "{}", event.origin),
        "instance" => write!(line, "{}", event.origin.instance),
        "generation" => write!(line, "{}", event.origin.generation),
        "pid" => write!(line, "{}", event.origin.pid),
        _ => write!(line, "{}", event.sequence),
    };
}

fn write_fields(line: &mut String, event: &Event) -> std::fmt::Result {
    let mut between = "";
    for field in event.fields.iter().filter(|field| field.name != MESSAGE) {
        write!(line, "{between}{}", Plain(&field.to_string()))?;
        between = " ";
    }
    Ok(())
}

fn write_value(line: &mut String, value: &Value) {
    // Writing to a string does not fail.
    let _ = match value {
        Value::Text(text) => write!(line, "{}", Plain(text)),
        other => write!(line, "{other}"),
    };
}

/// A text with its control characters as escapes.
struct Plain<'a>(&'a str);

impl std::fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.chars().try_for_each(|c| match is_command(c) {
            true => write!(f, "{}", c.escape_default()),
            false => f.write_char(c),
        })
    }
}

/// Why a pattern is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// There is no such placeholder.
    #[error("unknown placeholder '{{{name}}}'")]
    Unknown {
        /// What is between the braces.
        name: String,
    },
    /// A brace is not closed.
    #[error("a '{{' without '}}'")]
    Open,
    /// A brace was not opened.
    #[error("a '}}' without '{{'")]
    Close,
}

impl FormatError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Unknown { .. } => {
                format!("there are {{{}}}, and {{.NAME}} for a field", PLACES.join("}, {"))
            }
            Self::Open | Self::Close => "write {{ or }} for a brace".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::events::event::Origin;
    use crate::events::{Draft, Recorder};
    use crate::wake::InstanceId;

    fn event() -> Event {
        let events = Recorder::default();
        let draft = Draft::new("cycle.hook").label("a hook ran").with("resource", "a\x1bb");
        events.record(|| draft.with("took_us", 1500_u64).message("two words"));
        let origin = Origin { instance: InstanceId::from_bytes([10; 16]), generation: 2, pid: 7 };
        let event = events.read(0, 1).events[0].as_ref().clone();
        Event { unix_ns: 1_700_000_000_123_456_789, monotonic_ns: 5_000_001_000, origin, ..event }
    }

    fn told(pattern: &str) -> String {
        Format::parse(pattern).unwrap().line(&event())
    }

    #[test]
    fn every_placeholder_is_filled_in() {
        assert_eq!(
            told(USUAL),
            "2023-11-14T22:13:20.123456Z 0a0a0a0a/2/7 cycle.hook resource=\"a\\u{1b}b\" took=1.5ms two words"
        );
        assert_eq!(told("{unix} {monotonic}"), "1700000000.123456 5.000001");
        assert_eq!(told("{label}: {.resource} {.took_us} {.none}|"), "a hook ran: a\\u{1b}b 1500 |");
        assert_eq!(told(r"{{{name}}}\t{pid}\\{sequence}"), "{cycle.hook}\t7\\0");
        assert_eq!(told("{generation} {instance}"), format!("2 {}", "0a".repeat(16)));
        for place in PLACES {
            assert!(!told(&format!("{{{place}}}")).is_empty(), "{place}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = Format::parse("{name} {nme}").unwrap_err();
        assert_eq!(error.to_string(), "unknown placeholder '{nme}'");
        assert!(error.hint().starts_with("there are {time}, {unix}"), "{}", error.hint());
        assert_eq!(Format::parse("{name").unwrap_err(), FormatError::Open);
        assert_eq!(Format::parse("name}").unwrap_err(), FormatError::Close);
        assert!(Format::parse("{.}").is_err() && Format::parse("{}").is_err());
    }

    proptest! {
        #[test]
        fn no_pattern_panics(pattern in "[{}.\\\\a-ü]{0,20}") {
            if let Ok(format) = Format::parse(&pattern) {
                let _ = format.line(&event());
            }
        }
    }
}
