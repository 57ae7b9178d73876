//! Events as JSON objects, and back: what the control socket sends and `defrost events --json` prints.
//!
//! ```json
//! {"sequence":7,"time":"2026-11-30T21:18:51.123456Z","unix_ns":0,"monotonic_ns":0,"instance":"…","generation":0,
//!  "pid":12,"name":"cycle.hook","label":"a hook ran","fields":{"resource":"http","took_us":120}}
//! ```
//!
//! It must not know who asks.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::event::{Event, Field, Origin, Value, is_command};
use super::recorder::{Counts, Recorder};
use crate::wake::InstanceId;

#[derive(Debug, Serialize, Deserialize)]
struct EventObject {
    sequence: u64,
    time: String,
    unix_ns: u64,
    monotonic_ns: u64,
    instance: String,
    generation: u64,
    pid: u32,
    name: String,
    #[serde(default)]
    label: String,
    fields: Map<String, Json>,
}

/// All that is kept, as the answer to `events json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Listing {
    /// How many there are, and were.
    pub counts: Counts,
    /// The events, oldest first.
    pub events: Vec<Json>,
    /// How many of those that are kept would have made the answer too long.
    pub left_out: u64,
}

impl Listing {
    /// All that is kept, as far as it fits into `limit` bytes; the oldest are left out.
    #[must_use]
    pub fn of(events: &Recorder, limit: usize) -> Self {
        let (counts, batch) = (events.counts(), events.read(0, usize::MAX));
        let mut listed = Vec::new();
        let mut length = 0;
        for event in batch.events.iter().rev() {
            let object = to_json(event);
            length += object.to_string().len() + 1;
            if length > limit {
                break;
            }
            listed.push(object);
        }
        listed.reverse();
        let left_out = (batch.events.len() - listed.len()) as u64;
        Self { counts, events: listed, left_out }
    }
}

/// The object of one event.
#[must_use]
pub fn to_json(event: &Event) -> Json {
    let fields = event.fields.iter().map(|field| (field.name.to_string(), value_to_json(&field.value)));
    let object = EventObject {
        sequence: event.sequence,
        time: humantime::format_rfc3339_micros(event.time()).to_string(),
        unix_ns: event.unix_ns,
        monotonic_ns: event.monotonic_ns,
        instance: event.origin.instance.to_string(),
        generation: event.origin.generation,
        pid: event.origin.pid,
        name: event.name.to_string(),
        label: event.label.to_string(),
        fields: fields.collect(),
    };
    serde_json::to_value(object).unwrap_or(Json::Null)
}

/// The object of one event as a line. It has no character that tells a terminal what to do: JSON itself asks for the
/// escape of those below the blank only.
#[must_use]
pub fn line(event: &Event) -> String {
    let text = to_json(event).to_string();
    if !text.contains(is_command) {
        return text;
    }
    let escaped = |c: char| if is_command(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    text.chars().map(escaped).collect()
}

/// The event of an object; `None` when it is the object of none.
#[must_use]
pub fn from_json(object: Json) -> Option<Event> {
    let object: EventObject = serde_json::from_value(object).ok()?;
    let fields = object.fields.into_iter();
    Some(Event {
        sequence: object.sequence,
        unix_ns: object.unix_ns,
        monotonic_ns: object.monotonic_ns,
        origin: Origin {
            instance: instance_of(&object.instance)?,
            generation: object.generation,
            pid: object.pid,
        },
        name: object.name.into(),
        label: object.label.into(),
        fields: fields
            .map(|(name, value)| Field { name: name.into(), value: value_from_json(value) })
            .collect(),
    })
}

fn instance_of(text: &str) -> Option<InstanceId> {
    let bits =
        Some(text).filter(|text| text.len() == 32).and_then(|text| u128::from_str_radix(text, 16).ok())?;
    Some(InstanceId::from_bytes(bits.to_be_bytes()))
}

fn value_to_json(value: &Value) -> Json {
    match value {
        Value::U64(value) => (*value).into(),
        Value::I64(value) => (*value).into(),
        Value::F64(value) => (*value).into(),
        Value::Bool(value) => (*value).into(),
        Value::Text(text) => text.as_ref().into(),
    }
}

fn value_from_json(value: Json) -> Value {
    match value {
        Json::Bool(value) => value.into(),
        Json::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(value), ..) => value.into(),
            (_, Some(value), _) => value.into(),
            (.., value) => value.unwrap_or(f64::NAN).into(),
        },
        Json::String(text) => text.into(),
        // What is no number in JSON (NaN), or not from here.
        other => other.to_string().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{Draft, Recorder};

    #[test]
    fn a_listing_has_the_last_that_fit() {
        let events = Recorder::default();
        (0..9_u64).for_each(|n| events.record(|| Draft::new("n").with("n", n)));
        let whole = Listing::of(&events, usize::MAX);
        assert_eq!((whole.events.len(), whole.left_out, whole.counts.kept), (9, 0, 9));
        let length = whole.events[0].to_string().len();
        let cut = Listing::of(&events, 3 * length);
        assert_eq!(cut.events.len() as u64 + cut.left_out, 9);
        assert!((1..4).contains(&cut.events.len()));
        assert_eq!(cut.events.last(), whole.events.last());
    }

    #[test]
    fn an_event_comes_back() {
        let events = Recorder::default();
        events.set_origin(InstanceId::from_bytes(*b"0123456789abcdef"), 3);
        let draft = || Draft::new("a.b").label("a and b").with("n", 7_u64).with("i", -7_i64).with("f", 1.5);
        events.record(|| draft().with("yes", true).message("x\ny"));
        let event = events.read(0, 1).events[0].as_ref().clone();
        let back = from_json(to_json(&event)).unwrap();
        let sorted = |event: &Event| {
            let mut fields: Vec<String> = event.fields.iter().map(ToString::to_string).collect();
            fields.sort();
            fields
        };
        assert_eq!(sorted(&back), sorted(&event));
        assert_eq!(Event { fields: Vec::new(), ..back }, Event { fields: Vec::new(), ..event });
        assert!(from_json(serde_json::json!({"name": "x"})).is_none());
    }
    #[test]
    fn no_terminal_is_told_what_to_do() {
        let events = Recorder::default();
        let sly = "\u{1b}[2J \u{9b}31m \u{7f} \u{202e}txt.exe ü";
        events.record(|| Draft::new("a").message(sly));
        let line = line(&events.read(0, 1).events[0]);
        assert!(line.contains(r"\u001b[2J \u009b31m \u007f \u202etxt.exe ü"), "{line}");
        assert_eq!(serde_json::from_str::<Json>(&line).unwrap()["fields"]["message"], sly);
        let shown = crate::events::Format::parse("{message}{fields}").unwrap();
        assert_eq!(shown.line(&events.read(0, 1).events[0]), r"\u{1b}[2J \u{9b}31m \u{7f} \u{202e}txt.exe ü");
    }
}
