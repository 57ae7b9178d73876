//! Events on standard output. It must not know where they are from.

use std::io::{self, BufWriter, Stdout, Write};

use crate::cli::out;
use crate::events::{Event, Filter, Format, Summary, json};

/// How events are shown.
pub(super) enum Form {
    Json,
    Line(Format),
}

/// Shows events, or counts them.
pub(super) struct Output {
    filter: Filter,
    form: Form,
    summary: Option<Summary>,
    out: BufWriter<Stdout>,
    missing: u64,
}

/// Nobody reads any more, or it cannot be written.
pub(super) struct Closed;

impl Closed {
    fn by(error: io::Error) -> Self {
        out::missed(error);
        Self
    }
}

impl Output {
    pub(super) fn new(filter: Filter, form: Form, summary: bool) -> Self {
        let summary = summary.then(Summary::default);
        Self { filter, form, summary, out: BufWriter::new(io::stdout()), missing: 0 }
    }

    pub(super) fn show(&mut self, event: &Event) -> Result<(), Closed> {
        if !self.filter.lets_through(event) {
            return Ok(());
        }
        if let Some(summary) = &mut self.summary {
            summary.add(event);
            return Ok(());
        }
        let written = match &self.form {
            Form::Json => writeln!(self.out, "{}", json::line(event)),
            Form::Line(format) => writeln!(self.out, "{}", format.line(event)),
        };
        written.map_err(Closed::by)
    }

    /// Counts events that are not there any more.
    pub(super) fn miss(&mut self, count: u64) {
        self.missing += count;
    }

    /// Has all that was shown so far seen.
    pub(super) fn flush(&mut self) -> Result<(), Closed> {
        self.out.flush().map_err(Closed::by)
    }

    /// The summary, and what is missing. Whoever has stopped reading has seen enough.
    pub(super) fn end(mut self) {
        if let Err(error) = self.summarise().and_then(|()| self.out.flush()) {
            out::missed(error);
        }
        if self.missing > 0 {
            note!("defrost: {} events are missing: they came before those that were kept", self.missing);
        }
    }

    fn summarise(&mut self) -> io::Result<()> {
        let Some(summary) = &self.summary else { return Ok(()) };
        let sums = summary.sums();
        if matches!(self.form, Form::Json) {
            for (name, sum) in sums {
                let object = serde_json::json!({ "name": name, "count": sum.count, "bytes": sum.bytes });
                writeln!(self.out, "{object}")?;
            }
            return Ok(());
        }
        let width = sums.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max("name".len());
        writeln!(self.out, "{:width$} {:>10} {:>12}", "name", "count", "bytes")?;
        for (name, sum) in sums {
            // Names are only checked where they are recorded.
            let name = name.escape_debug().to_string();
            writeln!(self.out, "{name:width$} {:>10} {:>12}", sum.count, sum.bytes)?;
        }
        Ok(())
    }
}
