//! The options of the highlighting service.

use std::time::Duration;

use crate::cli::restore::seconds;
use crate::server::highlight::{HighlightOptions, Warm};

#[derive(Debug, clap::Args)]
pub(super) struct Highlighting {
    /// Highlight source text: a page at /, and POST /highlight?lang=LANG, /languages, /themes
    #[arg(long, requires = "http")]
    highlight: bool,
    /// Compile the patterns of these grammars before being ready: `all`, `common`, or LANG,LANG
    #[arg(long, value_name = "WHICH", requires = "highlight")]
    warm: Option<Warm>,
    /// Keep this much of what was highlighted, least used first to go; 0 keeps nothing
    #[arg(long, value_name = "N", default_value_t = 64, requires = "highlight", value_parser = clap::value_parser!(u32).range(..=1 << 20))]
    cache_mib: u32,
    /// Whether that goes into an image
    #[arg(long, value_enum, default_value_t = Kept::Keep, requires = "highlight")]
    cache: Kept,
    /// The longest text, in KiB
    #[arg(long, value_name = "N", default_value_t = 512, requires = "highlight", value_parser = clap::value_parser!(u32).range(1..=65536))]
    text_limit: u32,
    /// How long one text may take
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, requires = "highlight", value_parser = seconds)]
    time_limit: f64,
    /// How many texts are worked on at a time [default: one for each core]
    #[arg(long, value_name = "N", requires = "highlight", value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: Option<u16>,
    /// How many more may wait [default: four for each job]
    #[arg(long, value_name = "N", requires = "highlight")]
    queue: Option<u16>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kept {
    Keep,
    Drop,
}

impl Highlighting {
    pub(super) fn must_warm(&self) -> bool {
        self.warm.is_some()
    }

    /// What to highlight with, if that is asked for.
    pub(super) fn options(&self, drain: f64) -> Option<HighlightOptions> {
        if !self.highlight {
            return None;
        }
        let usual = HighlightOptions::default();
        let jobs = self.jobs.map_or(usual.jobs, usize::from);
        Some(HighlightOptions {
            warm: self.warm.clone().unwrap_or(Warm::Nothing),
            text_limit: usize::try_from(self.text_limit).unwrap_or(usize::MAX).saturating_mul(1 << 10),
            time_limit: Duration::from_secs_f64(self.time_limit),
            jobs,
            queue: self.queue.map_or(4 * jobs, usize::from),
            cache: u64::from(self.cache_mib) << 20,
            keep_cache: self.cache == Kept::Keep,
            drain: Duration::from_secs_f64(drain),
        })
    }
}
