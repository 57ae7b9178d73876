//! Log lines as events, so that logs and events are in one place. It must not know where either of them goes.

use std::fmt;

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::events::{Draft, Recorder};

/// A layer of a tracing subscriber that records each log line as an event `log`, with the fields `level`, `target`,
/// those of the line, and `message`.
#[derive(Clone, Debug)]
pub struct LogEvents {
    recorder: Recorder,
}

impl LogEvents {
    /// Records log lines here.
    #[must_use]
    pub fn to(recorder: Recorder) -> Self {
        Self { recorder }
    }
}

impl<S: Subscriber> Layer<S> for LogEvents {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        self.recorder.record(|| {
            let about = event.metadata();
            let draft = Draft::new("log").label("a log line").with("level", about.level().as_str());
            let mut fields = Fields { draft: Some(draft.with("target", about.target())) };
            event.record(&mut fields);
            fields.draft.unwrap_or_else(|| Draft::new("log"))
        });
    }
}

/// The fields of a line on their way into an event.
struct Fields {
    /// Always there; an option, so that it can be taken and put back.
    draft: Option<Draft>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: impl Into<crate::events::Value>) {
        self.draft = self.draft.take().map(|draft| draft.with(field.name(), value));
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::prelude::*;

    use super::*;

    #[test]
    fn a_line_has_its_fields_and_its_message() {
        let events = Recorder::default();
        let subscriber = tracing_subscriber::registry().with(LogEvents::to(events.clone()));
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(target: "here", count = 3, name = "x", "it is {}", "late");
        });
        let event = &events.read(0, 1).events[0];
        let fields: Vec<String> = event.fields.iter().map(ToString::to_string).collect();
        assert_eq!(event.name, "log");
        assert_eq!(fields[..2], ["level=WARN", "target=here"]);
        assert!(fields.contains(&"count=3".to_owned()) && fields.contains(&"name=x".to_owned()));
        assert!(fields.contains(&"message=\"it is late\"".to_owned()), "{fields:?}");
    }
}
