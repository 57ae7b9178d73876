//! One thing that happened, as plain values. It must not know who records it or where it is kept.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::wake::InstanceId;

/// The longest text in an event, in bytes; the rest of a longer one is cut off.
pub const TEXT_LIMIT: usize = 4096;

/// The most fields of an event; further ones are left out.
pub const FIELD_LIMIT: usize = 32;

/// The field that people read as the event's sentence: what was logged, or why something failed.
pub const MESSAGE: &str = "message";

/// What is at the end of the name of a field that is a time in microseconds.
pub const MICROSECONDS: &str = "_us";

/// A text that costs nothing where it is part of the program.
pub type Text = Cow<'static, str>;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Event {
    /// Counts what this process, and the ones that it was restored from, have recorded: 0, 1, 2 and so on.
    pub sequence: u64,
    /// The wall clock, in nanoseconds since 1970.
    pub unix_ns: u64,
    /// The monotonic clock, in nanoseconds since a moment that no other host shares. It goes on in a restored
    /// process where it stood at the dump.
    pub monotonic_ns: u64,
    /// Which process recorded it.
    pub origin: Origin,
    /// What sort of event: words with dots between them, the general one first, such as `cycle.hook`.
    pub name: Text,
    /// The same for people; may be empty.
    pub label: Text,
    /// The particulars, in the order in which they were given.
    pub fields: Vec<Field>,
}

/// Which process an event is from. Clones of one image differ in the instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The running instance.
    pub instance: InstanceId,
    /// How often its state had been restored.
    pub generation: u64,
    /// Its pid, as it saw itself.
    pub pid: u32,
}

/// One particular of an event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Field {
    /// Its name. One that ends in `_us` is a time in microseconds.
    pub name: Text,
    /// What it is.
    pub value: Value,
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Value {
    /// A count, or a time in microseconds.
    U64(u64),
    /// A number below zero.
    I64(i64),
    /// A number with a fraction.
    F64(f64),
    /// Yes or no.
    Bool(bool),
    /// Everything else.
    Text(Text),
}

/// An event in the making: what the one who records it knows. The rest is added as it is recorded.
#[derive(Clone, Debug)]
#[must_use = "it happened, and is not recorded yet"]
pub struct Draft {
    pub(super) name: Text,
    pub(super) label: Text,
    pub(super) fields: Vec<Field>,
    /// When it happened; none for the moment when it is recorded.
    pub(super) at: Option<SystemTime>,
}

impl Draft {
    /// An event of this name, without particulars.
    pub fn new(name: impl Into<Text>) -> Self {
        Self { name: name.into(), label: Text::Borrowed(""), fields: Vec::new(), at: None }
    }

    /// The same, of something that had happened at this time, and is recorded later.
    pub fn at(mut self, time: SystemTime) -> Self {
        self.at = Some(time);
        self
    }

    /// The same, with what people call it.
    pub fn label(mut self, label: impl Into<Text>) -> Self {
        self.label = label.into();
        self
    }

    /// The same, with one more particular. From [`FIELD_LIMIT`] on it is left out, a text is cut at [`TEXT_LIMIT`].
    pub fn with(mut self, name: impl Into<Text>, value: impl Into<Value>) -> Self {
        if self.fields.len() < FIELD_LIMIT {
            self.fields.push(Field { name: cut(name.into()), value: value.into().cut() });
        }
        self
    }

    /// The same, with one more particular if there is one.
    pub fn with_some(self, name: impl Into<Text>, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// The same, with how long it took, as the field `took_us`.
    pub fn took(self, time: Duration) -> Self {
        self.with("took_us", micros(time))
    }

    /// The same, with a sentence about it.
    pub fn message(self, text: impl Into<Text>) -> Self {
        self.with(MESSAGE, text.into())
    }
}

/// Whole microseconds.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Event {
    /// When it happened by the wall clock.
    #[must_use]
    pub fn time(&self) -> SystemTime {
        // What is past the clock's range is the work of a damaged record, and shown as the beginning of time.
        SystemTime::UNIX_EPOCH
            .checked_add(Duration::from_nanos(self.unix_ns))
            .unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// The value of a field, if there is one of that name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Value> {
        self.fields.iter().find(|field| field.name == name).map(|field| &field.value)
    }

    /// About how many bytes of memory it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let texts = |field: &Field| match &field.value {
            Value::Text(Cow::Owned(text)) => text.capacity(),
            _ => 0,
        };
        let fields: usize = self.fields.iter().map(texts).sum();
        size_of::<Self>() + self.fields.capacity() * size_of::<Field>() + fields
    }
}

impl Value {
    fn cut(self) -> Self {
        match self {
            Self::Text(text) => Self::Text(cut(text)),
            other => other,
        }
    }
}

fn cut(text: Text) -> Text {
    if text.len() <= TEXT_LIMIT {
        return text;
    }
    let room = TEXT_LIMIT - '…'.len_utf8();
    let end = (0..=room).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    Text::Owned(format!("{}…", &text[..end]))
}

/// Whether this character tells a terminal what to do, or turns the order of what it shows around.
pub(super) fn is_command(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

macro_rules! value_from {
    ($($from:ty => $as:ident($to:ty)),*) => {
        $(impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Self::$as(<$to>::from(value))
            }
        })*
    };
}

value_from!(u64 => U64(u64), u32 => U64(u64), u16 => U64(u64), f64 => F64(f64), bool => Bool(bool),
    String => Text(Text), &'static str => Text(Text), Text => Text(Text));

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::U64(value as u64)
    }
}

impl From<i64> for Value {
    /// What is not below zero becomes a count, so that each number has one form.
    fn from(value: i64) -> Self {
        u64::try_from(value).map_or(Self::I64(value), Self::U64)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U64(value) => value.fmt(f),
            Self::I64(value) => value.fmt(f),
            Self::F64(value) => value.fmt(f),
            Self::Bool(value) => value.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

/// As people read it: `path=/a took=1.2ms message="two words"`.
impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.value, self.name.strip_suffix(MICROSECONDS)) {
            (Value::U64(time), Some(name)) => write!(f, "{name}={:?}", Duration::from_micros(*time)),
            (Value::Text(text), _) if needs_quotes(text) => write!(f, "{}={text:?}", self.name),
            (value, _) => write!(f, "{}={value}", self.name),
        }
    }
}

fn needs_quotes(text: &str) -> bool {
    text.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control() || c == '"' || c == '=')
}

impl fmt::Display for Origin {
    /// Short: the first digits of the instance, the generation and the pid.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instance = self.instance.to_string();
        write!(f, "{}/{}/{}", &instance[..8], self.generation, self.pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_by_people() {
        let told = |name: &'static str, value: Value| Field { name: name.into(), value }.to_string();
        assert_eq!(told("took_us", 1234_u64.into()), "took=1.234ms");
        assert_eq!(told("path", "/a".into()), "path=/a");
        assert_eq!(told("message", "two \"words\"\n".into()), r#"message="two \"words\"\n""#);
        assert_eq!(told("n", (-3_i64).into()), "n=-3");
        assert_eq!(told("ok", true.into()), "ok=true");
    }

    #[test]
    fn nothing_is_longer_than_its_limit() {
        let draft = Draft::new("x").message("ü".repeat(TEXT_LIMIT));
        let Value::Text(text) = &draft.fields[0].value else { panic!() };
        assert!(text.len() <= TEXT_LIMIT && text.ends_with('…'));
        let draft = (0..100_u64).fold(draft, |draft, n| draft.with("n", n));
        assert_eq!(draft.fields.len(), FIELD_LIMIT);
    }
}
