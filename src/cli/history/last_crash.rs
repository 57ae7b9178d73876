//! The last crash of the server that a history is of, as its record of events tells it, in a line.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use nix::libc::O_NONBLOCK;

use crate::events::event::MESSAGE;
use crate::events::stored::{Item, Reader};
use crate::events::{Event, Value, older};
use crate::history::History;

/// A line about the last crash and what followed upon it; none if there was none, or nothing can be read of it.
pub(super) fn describe(history: &History) -> Option<String> {
    let path = history.events_path();
    let (crash, outcome) = last(&path).or_else(|| last(&older(&path)))?;
    let text = |event: &Event, name: &str| event.field(name).map(Value::to_string).unwrap_or_default();
    let number = |event: &Event, name: &str| match event.field(name) {
        Some(Value::U64(number)) => *number,
        _ => 0,
    };
    let seconds = |event: &Event, name| Duration::from_micros(number(event, name)).as_secs_f64();
    let when = humantime::format_rfc3339_millis(crash.time());
    let ran = seconds(&crash, "ran_us");
    let then = match &outcome {
        None => "nothing has come back".to_owned(),
        Some(event) => match event.name.as_ref() {
            "supervise.restored" => {
                format!(
                    "checkpoint {} came back, {:.1} s old",
                    text(event, "number"),
                    seconds(event, "lost_us")
                )
            }
            "supervise.gave_up" => "it stays ended".to_owned(),
            _ if event.field(MESSAGE).is_some() => "it could not be started cold".to_owned(),
            _ => "it was started cold".to_owned(),
        },
    };
    Some(format!("last crash: {when}, {} after {ran:.1} s; {then}\n", text(&crash, "ending")))
}

/// The last crash in a file, and what the supervisor did last upon it.
fn last(path: &Path) -> Option<(Event, Option<Event>)> {
    // O_NONBLOCK: a FIFO of that name must not hold us.
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut reader = Reader::new(file);
    let mut found = None;
    while let Some(item) = reader.next_item().ok()? {
        let Item::Event(event) = item else { continue };
        match event.name.as_ref() {
            "supervise.crash" => found = Some((event, None)),
            "supervise.restored" | "supervise.cold" | "supervise.gave_up" => {
                if let Some((_, outcome)) = &mut found {
                    *outcome = Some(event);
                }
            }
            _ => {}
        }
    }
    found
}
