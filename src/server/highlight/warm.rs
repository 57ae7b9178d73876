//! The grammars' warm-up.
//!
//! It compiles every pattern of the grammars that are asked for, and of the grammars embedded in them, on several
//! threads; then it highlights a sample in each of them, in both styles, so that the matchers' own caches have their
//! room. What is left to the first request: patterns that repeat what was matched before (here-documents, raw
//! strings), which are compiled anew for each text anyway, the states that its own text leads the matchers to, and
//! the themes other than the default. It must not know who waits for it.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use super::grammars::{DEFAULT_THEME, Grammars, UnknownLanguage};
use super::render::{Request, Style};
use super::samples::{SAMPLES, sample};
use super::walk;
use crate::resource::{Cycle, HookError, Resource};
use crate::server::warming::{LONGEST_WAIT, Unit, WarmError, Warming};

/// Which grammars are warm before the server is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warm {
    /// None: each is compiled, piece by piece, when it is first needed.
    Nothing,
    /// All of them.
    All,
    /// Those with a sample of their own.
    Common,
    /// These, by name or by the end of the names of their files.
    These(Vec<String>),
}

impl Warm {
    /// Whether there is nothing to warm.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::Nothing
    }
}

impl FromStr for Warm {
    type Err = String;

    /// `all`, `common`, or languages with commas between them.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            "common" => Ok(Self::Common),
            _ => {
                let names: Vec<_> = text.split(',').map(|name| name.trim().to_owned()).collect();
                if names.iter().any(String::is_empty) {
                    return Err("neither all, common, nor languages with commas between them".to_owned());
                }
                Ok(Self::These(names))
            }
        }
    }
}

/// The warm-up, under way or ended.
#[derive(Debug)]
pub(in crate::server) struct Warmup {
    grammars: Arc<Grammars>,
    /// By their place in the set.
    wanted: BTreeSet<usize>,
    threads: usize,
    warming: Arc<Warming>,
}

impl Warmup {
    /// One to start; none if there is nothing to warm.
    ///
    /// # Errors
    /// A language is not known.
    pub(super) fn new(
        warm: &Warm,
        grammars: &Arc<Grammars>,
        threads: usize,
    ) -> Result<Option<Arc<Self>>, UnknownLanguage> {
        let all = grammars.set.syntaxes();
        let place = |name: &str| {
            let found = grammars.named(name)?;
            all.iter()
                .position(|syntax| std::ptr::eq(syntax, found))
                .ok_or_else(|| UnknownLanguage(name.to_owned()))
        };
        let wanted = match warm {
            Warm::Nothing => return Ok(None),
            Warm::All => (0..all.len()).collect(),
            Warm::Common => SAMPLES.iter().map(|(name, _)| place(name)).collect::<Result<_, _>>()?,
            Warm::These(names) => names.iter().map(|name| place(name)).collect::<Result<_, _>>()?,
        };
        let warming = Warming::new(Unit::Patterns, 0);
        Ok(Some(Arc::new(Self { grammars: Arc::clone(grammars), wanted, threads, warming })))
    }

    /// Starts it, and has `warmed` called when it is done.
    pub(super) fn start(this: &Arc<Self>, warmed: impl FnOnce() + Send + 'static) {
        let working = Arc::clone(this);
        this.warming.run(move || working.work(), warmed);
    }

    /// Has all of it done before this returns; its threads have ended then.
    pub(super) fn now(&self) -> Result<(), WarmError> {
        self.work()?;
        self.warming.end(Ok(()));
        Ok(())
    }

    /// What it warms.
    pub(super) fn grammars(&self) -> &Arc<Grammars> {
        &self.grammars
    }

    /// Its course.
    pub(in crate::server) fn warming(&self) -> &Arc<Warming> {
        &self.warming
    }

    fn work(&self) -> Result<(), WarmError> {
        let contexts = walk::contexts(&self.grammars.set, &self.wanted);
        let total: usize = contexts.iter().map(|context| walk::patterns(context).count()).sum();
        self.warming.set_total(total as u64);
        self.share(&contexts, |context| {
            for pattern in walk::patterns(context) {
                walk::compile(pattern);
                self.warming.advance(1);
            }
        })?;
        // On other threads: a pattern keeps its first thread's room to itself, which would be lost with it.
        let wanted: Vec<_> = self.wanted.iter().copied().collect();
        self.share(&wanted, |place| self.highlight_sample(*place))
    }

    /// Has each of these worked on by one of the threads.
    fn share<T: Sync>(&self, parts: &[T], work: impl Fn(&T) + Sync) -> Result<(), WarmError> {
        let next = AtomicUsize::new(0);
        let take = || {
            while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
                if self.warming.is_stopped() {
                    return;
                }
                work(part);
            }
        };
        let ended = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads.max(1))
                .map(|_| std::thread::Builder::new().name("warm-up".into()).spawn_scoped(scope, take))
                .collect();
            threads.into_iter().try_for_each(|thread| match thread {
                Ok(thread) => thread.join().map_err(|_| "it panicked; the log says why".to_owned()),
                Err(error) => Err(error.to_string()),
            })
        });
        ended.map_err(|cause| WarmError::Thread { cause })?;
        if self.warming.is_stopped() { Err(WarmError::Stopped) } else { Ok(()) }
    }

    fn highlight_sample(&self, place: usize) {
        let Some(syntax) = self.grammars.set.syntaxes().get(place) else { return };
        for style in [Style::Classes, Style::Inline] {
            let text = sample(&syntax.name).to_owned();
            let request = Request { language: syntax.name.clone(), theme: DEFAULT_THEME, style, text };
            // A sample that cannot be highlighted says nothing against the server, and is stopped with it.
            if let Err(error) = request.render(&self.grammars, &|| self.warming.is_stopped()) {
                tracing::debug!("the sample of {}: {error:?}", syntax.name);
            }
        }
    }
}

#[async_trait]
impl Resource for Warmup {
    /// A half-warm server is worth no image: the checkpoint waits for the rest.
    async fn before_checkpoint(&self, _cycle: &Cycle) -> Result<(), HookError> {
        Ok(self.warming.ended().await?)
    }

    fn deadline(&self) -> Duration {
        LONGEST_WAIT
    }

    fn describe(&self) -> String {
        let state = if self.warming.is_warm() { "warmed" } else { "to warm" };
        format!("{} grammars {state}, {}", self.wanted.len(), self.warming.progress())
    }
}
