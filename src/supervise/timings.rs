//! Where the time of one restore went, from the beginning of the command to the report of the restored process, as
//! `defrost restore --timings FILE` writes it and a benchmark reads it. It must not know how anything is restored.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::engine::channel::Report;
use crate::image::manifest::Phase;

/// The version of the form.
pub const FORM: u32 = 1;
/// The longest that is read, in bytes: a hook takes some 100.
const LONGEST: u64 = 1 << 20;

/// What the time went into.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timings {
    /// [`FORM`].
    pub form: u32,
    /// When the command ran its first instruction: `CLOCK_MONOTONIC` of this host, in nanoseconds.
    pub began_ns: u64,
    /// The parts, in the order of their beginning.
    pub parts: Vec<Part>,
}

/// One part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// What was done: `verify it`, `make its memory and threads`, `run after_restore of http`.
    pub name: String,
    /// Since the beginning of the command, in microseconds.
    pub began_us: u64,
    /// How long it took, in microseconds.
    pub took_us: u64,
}

impl Timings {
    /// Reads what a command wrote.
    ///
    /// # Errors
    /// `InvalidData` of another form, or of a file that is too long or none of these; else the kernel's own.
    pub fn read(path: &Path) -> io::Result<Self> {
        let mut text = String::new();
        File::open(path)?.take(LONGEST).read_to_string(&mut text)?;
        let read: Self = serde_json::from_str(&text)?;
        if read.form != FORM {
            let what = format!("timings in form {}, and form {FORM} is read", read.form);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(read)
    }
}

/// Takes the time of the parts as they go by.
#[derive(Clone, Debug)]
pub struct Stopwatch {
    began: Instant,
    /// Where the next part begins.
    last: Instant,
    parts: Vec<Part>,
}

impl Stopwatch {
    /// `began` is when the command ran its first instruction.
    #[must_use]
    pub fn new(began: Instant) -> Self {
        Self { began, last: began, parts: Vec::new() }
    }

    /// Ends a part of this name, and begins the next.
    pub fn lap(&mut self, name: &str) {
        let now = Instant::now();
        self.push(name, self.last, now.saturating_duration_since(self.last));
        self.last = now;
    }

    /// What an engine, which began where the last part ended, has told.
    pub fn engine(&mut self, phases: &[Phase]) {
        self.last = self.follow(self.last, phases);
    }

    /// What the restored process, whose report came at `arrived`, has told. Its own clock may have an offset, so its
    /// parts are counted back from there.
    pub fn report(&mut self, report: &Report, arrived: Instant) {
        let whole: Duration = report.phases.iter().map(took).sum();
        let woke = arrived.checked_sub(whole).unwrap_or(self.last);
        if woke > self.last {
            self.push("let it run", self.last, woke - self.last);
        }
        self.last = self.follow(woke, &report.phases);
    }

    /// The time so far.
    #[must_use]
    pub fn timings(&self) -> Timings {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
        let began = now.saturating_sub(self.began.elapsed());
        let began_ns = u64::try_from(began.as_nanos()).unwrap_or(u64::MAX);
        let mut parts = self.parts.clone();
        parts.sort_by_key(|part| part.began_us);
        Timings { form: FORM, began_ns, parts }
    }

    /// Writes the time so far into a file, in place of what is in it.
    ///
    /// # Errors
    /// The kernel's own.
    pub fn write(&self, file: &mut File) -> io::Result<()> {
        let mut text = serde_json::to_string(&self.timings())?;
        text.push('\n');
        file.rewind()?;
        file.set_len(0)?;
        file.write_all(text.as_bytes())
    }

    fn follow(&mut self, from: Instant, phases: &[Phase]) -> Instant {
        phases.iter().fold(from, |began, phase| {
            self.push(&phase.name, began, took(phase));
            began + took(phase)
        })
    }

    fn push(&mut self, name: &str, began: Instant, took: Duration) {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let began_us = micros(began.saturating_duration_since(self.began));
        self.parts.push(Part { name: name.to_owned(), began_us, took_us: micros(took) });
    }
}

fn took(phase: &Phase) -> Duration {
    // What a report says is not trusted to be small enough for an Instant.
    Duration::from_micros(phase.micros.min(u32::MAX.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wake::InstanceId;

    fn phase(name: &str, micros: u64) -> Phase {
        Phase { name: name.to_owned(), micros }
    }

    fn report(phases: Vec<Phase>) -> Report {
        let instance = InstanceId::from_bytes([1; 16]);
        Report { instance, generation: 1, socket: None, addresses: vec![], failures: vec![], phases }
    }

    #[test]
    fn parts_follow_each_other_and_those_of_the_process_end_with_its_report() {
        let began = Instant::now();
        let mut watch = Stopwatch { began, last: began + Duration::from_millis(2), parts: Vec::new() };
        watch.engine(&[phase("plan", 300), phase("make its memory", 700)]);
        watch.report(
            &report(vec![phase("wake", 400), phase("run after_restore of http", 100)]),
            began + Duration::from_millis(5),
        );
        let told: Vec<_> =
            watch.parts.iter().map(|part| (part.name.as_str(), part.began_us, part.took_us)).collect();
        assert_eq!(
            told,
            [
                ("plan", 2000, 300),
                ("make its memory", 2300, 700),
                ("let it run", 3000, 1500),
                ("wake", 4500, 400),
                ("run after_restore of http", 4900, 100),
            ]
        );
    }

    #[test]
    fn a_process_may_run_before_its_restorer_knows() {
        let began = Instant::now();
        let mut watch = Stopwatch { began, last: began + Duration::from_millis(2), parts: Vec::new() };
        watch.report(&report(vec![phase("wake", 500)]), began + Duration::from_micros(2200));
        assert_eq!(watch.parts, [Part { name: "wake".to_owned(), began_us: 1700, took_us: 500 }]);
        watch.report(&report(vec![phase("wake", u64::MAX)]), began);
        assert_eq!(watch.parts.len(), 2, "a time that cannot be is no reason to fail");
    }

    #[test]
    fn what_is_written_is_read_and_other_forms_are_not() {
        let mut watch = Stopwatch::new(Instant::now());
        watch.lap("open the image");
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[b'x'; 4096]).unwrap();
        watch.write(file.as_file_mut()).unwrap();
        let read = Timings::read(file.path()).unwrap();
        assert_eq!(read.parts, watch.parts);
        let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap()).as_nanos();
        assert!(u128::from(read.began_ns) < now && u128::from(read.began_ns) > now - 1_000_000_000);
        let text = std::fs::read_to_string(file.path()).unwrap().replace("\"form\":1", "\"form\":9");
        std::fs::write(file.path(), text).unwrap();
        assert_eq!(Timings::read(file.path()).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
