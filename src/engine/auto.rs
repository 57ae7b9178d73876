//! The engine that restores by the first of two that can: by mapping, else by CRIU, which restores every image.
//!
//! It must not know why an image is not supported; it hands the reasons on.

use std::path::Path;
use std::time::Instant;

use super::{
    Dump, DumpError, DumpOrder, Engine, EngineName, Prepared, RestoreError, RestoreOrder, RestoredProcess,
};

/// Restores by one engine where that can, else by another.
#[derive(Debug)]
pub struct AutoEngine {
    first: Box<dyn Engine>,
    fallback: Box<dyn Engine>,
}

impl AutoEngine {
    /// Tries `first`, then `fallback`, which also does all dumps.
    #[must_use]
    pub fn new(first: Box<dyn Engine>, fallback: Box<dyn Engine>) -> Self {
        Self { first, fallback }
    }
}

impl Engine for AutoEngine {
    fn name(&self) -> EngineName {
        EngineName::Auto
    }

    fn prepare(&self, target: &Path) -> Result<Prepared, DumpError> {
        self.fallback.prepare(target)
    }

    fn dump(&self, prepared: Prepared, order: DumpOrder) -> Dump {
        self.fallback.dump(prepared, order)
    }

    /// A failure to start falls back too: nothing is left of it, and the other engine works in another way. One that
    /// used up its time does not.
    fn restore(&self, order: &RestoreOrder<'_>) -> Result<RestoredProcess, RestoreError> {
        let started = Instant::now();
        let reason = match self.first.restore(order) {
            Err(RestoreError::Unsupported(reasons)) => {
                format!("the {} engine cannot restore this image: {}", self.first.name(), reasons.join("; "))
            }
            Err(error @ RestoreError::Start { .. }) => {
                format!("the {} engine failed: {error}", self.first.name())
            }
            done => return done,
        };
        let deadline = order.deadline.saturating_sub(started.elapsed());
        tracing::info!(%reason, engine = %self.fallback.name(), "another engine restores");
        let order = RestoreOrder { deadline, why: &reason, ..*order };
        self.fallback
            .restore(&order)
            .map_err(|failure| RestoreError::Fallback { reason: reason.clone(), failure: Box::new(failure) })
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use super::*;
    use crate::image::Image;
    use crate::image::manifest::tests::manifest;
    use crate::wake::{Origin, Params};

    /// An engine that answers every restore in the same way.
    #[derive(Debug)]
    struct Scripted(EngineName, fn() -> Option<RestoreError>);

    impl Engine for Scripted {
        fn name(&self) -> EngineName {
            self.0
        }

        fn prepare(&self, _target: &Path) -> Result<Prepared, DumpError> {
            Ok(Prepared::Nothing)
        }

        fn dump(&self, _prepared: Prepared, _order: DumpOrder) -> Dump {
            unreachable!("nothing is dumped here")
        }

        fn restore(&self, order: &RestoreOrder<'_>) -> Result<RestoredProcess, RestoreError> {
            let origin =
                Origin { engine: self.0.to_string(), reason: order.why.to_owned(), ..Origin::default() };
            (self.1)().map_or(Ok(RestoredProcess { pid: 7, report: None, origin, phases: Vec::new() }), Err)
        }
    }

    fn restored(
        first: fn() -> Option<RestoreError>,
        second: fn() -> Option<RestoreError>,
    ) -> Result<Origin, RestoreError> {
        let scripted = |name, answer| Box::new(Scripted(name, answer));
        let engine =
            AutoEngine::new(scripted(EngineName::Instant, first), scripted(EngineName::Criu, second));
        let image = Image::pretend("/img".as_ref(), manifest());
        let order = RestoreOrder {
            image: &image,
            params: &Params::default(),
            awaited: false,
            stays: false,
            deadline: Duration::from_secs(1),
            why: "it can",
            cause: None,
        };
        engine.restore(&order).map(|process| process.origin)
    }

    #[test]
    fn the_first_that_can_restores() {
        let origin = restored(|| None, || unreachable!()).unwrap();
        assert_eq!((origin.engine.as_str(), origin.reason.as_str()), ("instant", "it can"));
    }

    #[test]
    fn the_other_one_restores_what_the_first_cannot_and_says_why() {
        let refused = || Some(RestoreError::Unsupported(vec!["it has wings".into(), "and a beak".into()]));
        let origin = restored(refused, || None).unwrap();
        assert_eq!(origin.engine, "criu");
        assert_eq!(origin.reason, "the instant engine cannot restore this image: it has wings; and a beak");
        let failed = || {
            Some(RestoreError::Start { step: "mapping memory (3)".into(), source: io::Error::other("no") })
        };
        let origin = restored(failed, || None).unwrap();
        assert!(origin.reason.starts_with("the instant engine failed: the process could not"), "{origin}");
    }

    #[test]
    fn both_failures_are_told() {
        let refused = || Some(RestoreError::Unsupported(vec!["it has wings".into()]));
        let error = restored(refused, || Some(RestoreError::NoParameters)).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("the image takes no parameters"), "{text}");
        assert!(text.ends_with("cannot restore this image: it has wings)"), "{text}");
        assert_eq!(error.hint(), RestoreError::NoParameters.hint());
    }

    #[test]
    fn a_restore_that_used_up_its_time_is_not_tried_again() {
        let late = || Some(RestoreError::Late(Duration::from_secs(1)));
        assert!(matches!(restored(late, || unreachable!()), Err(RestoreError::Late(_))));
    }
}
