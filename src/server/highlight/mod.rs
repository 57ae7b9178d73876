//! The highlighting service: source text comes in, HTML in colour goes out, as the hosts of code do it.
//!
//! It is the workload that defrost is for. Its grammars compile their patterns when they first need them, which for
//! all of them takes seconds, and nothing but a checkpoint can keep what was compiled. It must not know listeners,
//! connections or the command line.

mod cache;
mod figures;
mod grammars;
mod guess;
mod jobs;
mod render;
pub(super) mod routes;
mod samples;
mod walk;
mod warm;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;

use super::warmed::WarmedError;
use crate::adapters::DEFAULT_DRAIN_LIMIT;
use crate::{Registration, Subject};
use cache::{Cache, Key};
pub use figures::Figures;
use figures::{Counters, Live};
use grammars::Grammars;
pub use grammars::UnknownLanguage;
use jobs::{Jobs, Refused};
use render::{Request, Stopped};
pub use warm::Warm;
pub(super) use warm::Warmup;

/// What to highlight with, and how much of it.
#[derive(Debug, Clone)]
pub struct HighlightOptions {
    /// What is ready before the server is.
    pub warm: Warm,
    /// The longest text, in bytes.
    pub text_limit: usize,
    /// How long one text may take.
    pub time_limit: Duration,
    /// How many texts are worked on at a time.
    pub jobs: usize,
    /// How many more may wait.
    pub queue: usize,
    /// How much is kept of what was highlighted, in bytes; 0 keeps nothing.
    pub cache: u64,
    /// Whether that goes into an image.
    pub keep_cache: bool,
    /// How long running jobs may take before a checkpoint.
    pub drain: Duration,
}

impl Default for HighlightOptions {
    /// Nothing warm, 512 KiB, 5 s, a job for each core, four times as many waiting, 64 MiB kept.
    fn default() -> Self {
        let jobs = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        Self {
            warm: Warm::Nothing,
            text_limit: 512 << 10,
            time_limit: Duration::from_secs(5),
            jobs,
            queue: 4 * jobs,
            cache: 64 << 20,
            keep_cache: true,
            drain: DEFAULT_DRAIN_LIMIT,
        }
    }
}

/// The service, registered under the names `highlighted`, its cache, and `highlighting`, its jobs.
#[derive(Debug)]
pub(super) struct Highlight {
    subject: Subject,
    options: HighlightOptions,
    grammars: Arc<Grammars>,
    warmup: Option<Arc<Warmup>>,
    cache: Arc<Cache>,
    jobs: Arc<Jobs>,
    counters: Counters,
    _registrations: [Registration; 2],
}

/// Warms up before there is a service; none if there is nothing to warm. It leaves no thread behind.
///
/// # Errors
/// See [`WarmedError`].
pub(super) fn warm_now(options: &HighlightOptions) -> Result<Option<Arc<Warmup>>, WarmedError> {
    let warmup = Warmup::new(&options.warm, &Arc::new(Grammars::load()), options.jobs)?;
    if let Some(warmup) = &warmup {
        warmup.now()?;
    }
    Ok(warmup)
}

/// Why a text is not highlighted.
#[derive(Debug)]
enum Failure {
    /// Too many wait already, or it waited for too long.
    Busy,
    /// It took longer than one may.
    Slow,
    /// Its HTML is too long.
    Large,
    /// The highlighter itself failed.
    Broken(String),
}

impl Highlight {
    /// `warmed` is its warm-up, if that has been done.
    ///
    /// # Errors
    /// A language to warm is not known; nothing is registered then.
    pub(super) fn register(
        subject: &Subject,
        options: HighlightOptions,
        warmed: Option<Arc<Warmup>>,
    ) -> Result<Arc<Self>, UnknownLanguage> {
        let grammars = warmed.as_ref().map(|warmup| Arc::clone(warmup.grammars()));
        let grammars = grammars.unwrap_or_else(|| Arc::new(Grammars::load()));
        let warmup = match warmed {
            Some(warmup) => Some(warmup),
            None => Warmup::new(&options.warm, &grammars, options.jobs)?,
        };
        let cache = Arc::new(Cache::new(options.cache, options.keep_cache));
        let jobs = Arc::new(Jobs::new(&options));
        let context = subject.context();
        let registrations = [
            context.register("highlighted", Arc::clone(&cache) as _),
            context.register("highlighting", Arc::clone(&jobs) as _),
        ];
        let counters = Counters::default();
        let subject = subject.clone();
        Ok(Arc::new(Self {
            subject,
            options,
            grammars,
            warmup,
            cache,
            jobs,
            counters,
            _registrations: registrations,
        }))
    }

    /// Starts the warm-up, if there is something to warm, and has `warmed` called when it is done, or has been.
    pub(super) fn warm(&self, warmed: impl FnOnce() + Send + 'static) -> Option<Arc<Warmup>> {
        let warmup = self.warmup.as_ref()?;
        if warmup.warming().is_warm() {
            warmed();
        } else {
            Warmup::start(warmup, warmed);
        }
        Some(Arc::clone(warmup))
    }

    /// What it has done so far.
    pub(super) fn count(&self) -> Figures {
        Figures::of(self)
    }

    /// The same, for Prometheus.
    pub(super) fn figures(self: &Arc<Self>) -> Box<dyn Collector> {
        Box::new(Live::new(Arc::clone(self)))
    }

    /// Highlights, unless that has been done before; and whether it had. Drop safe: work that nobody waits for ends.
    async fn highlight(&self, request: Request) -> Result<(Arc<str>, bool), Failure> {
        let key = Key::of(&request);
        self.counters.asked();
        if let Some(html) = self.cache.get(&key) {
            return Ok((html, true));
        }
        let (grammars, limit) = (Arc::clone(&self.grammars), self.options.time_limit);
        let work = move |abandoned: &dyn Fn() -> bool| {
            let deadline = Instant::now() + limit;
            request.render(&grammars, &|| abandoned() || Instant::now() >= deadline)
        };
        let outcome = match self.jobs.run(work).await {
            Ok(Ok(html)) => Ok(html),
            Ok(Err(Stopped::Asked)) | Err(Refused::Stuck) => Err(Failure::Slow),
            Ok(Err(Stopped::Large)) => Err(Failure::Large),
            Ok(Err(Stopped::Broken(cause))) | Err(Refused::Panicked(cause)) => Err(Failure::Broken(cause)),
            Err(Refused::Busy) => Err(Failure::Busy),
        };
        if let Err(failure) = &outcome {
            self.counters.failed(failure);
        }
        let html: Arc<str> = outcome?.into();
        self.cache.put(key, &html);
        Ok((html, false))
    }
}
