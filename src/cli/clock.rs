//! Where the time of a restore went, for `-v` and `--timings`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::Options;
use super::failure::{Failure, USAGE};
use crate::engine::channel::Report;
use crate::image::manifest::Phase;
use crate::supervise::timings::Stopwatch;

/// Takes the time of a restore, and tells it.
#[derive(Debug)]
pub(super) struct Clock {
    pub(super) watch: Stopwatch,
    file: Option<(PathBuf, File)>,
    tells: bool,
}

impl Clock {
    /// The file is created before anything is started.
    pub(super) fn new(options: &Options, path: Option<&Path>) -> Result<Self, Failure> {
        let file = path.map(|path| match File::create(path) {
            Ok(file) => Ok((path.to_owned(), file)),
            Err(error) => {
                let text = format!("{}: {error}; nothing was started", path.display());
                Err(Failure::new(USAGE, text, Some("name a file in a folder that can be written to")))
            }
        });
        Ok(Self { watch: Stopwatch::new(options.began), file: file.transpose()?, tells: options.verbose })
    }

    /// The engine is done.
    pub(super) fn runs(&mut self, phases: &[Phase]) {
        self.watch.engine(phases);
        self.tell("it took", phases);
        self.write();
    }

    /// The process has reported.
    pub(super) fn ready(&mut self, report: &Report) {
        self.watch.report(report, Instant::now());
        self.tell("then it took", &report.phases);
        self.write();
    }

    fn tell(&self, began: &str, phases: &[Phase]) {
        if self.tells && !phases.is_empty() {
            let ms = |phase: &Phase| phase.micros as f64 / 1000.0;
            let all: Vec<String> =
                phases.iter().map(|phase| format!("{:.1} ms to {}", ms(phase), phase.name)).collect();
            note!("defrost: {began} {}", all.join(", "));
        }
    }

    /// A process that runs is worth more than these times.
    fn write(&mut self) {
        if let Some((path, file)) = &mut self.file
            && let Err(error) = self.watch.write(file)
        {
            note!("defrost: {}: {error}; the times are not written", path.display());
        }
    }
}
