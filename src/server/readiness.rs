//! When the server is ready.
//!
//! It must not know what is warmed, or how.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::ServerOptions;
use crate::Subject;

/// What makes the subject ready when the last of its warm-ups is done.
pub(super) struct Warmers {
    subject: Subject,
    left: Arc<AtomicUsize>,
}

impl Warmers {
    /// With a warm-up to come, the subject is not ready from now on.
    pub(super) fn new(subject: &Subject, options: &ServerOptions) -> Self {
        let left = usize::from(options.warm.is_some());
        #[cfg(feature = "highlight")]
        let left = left
            + usize::from(options.highlight.as_ref().is_some_and(|highlight| !highlight.warm.is_nothing()));
        if left > 0 {
            subject.set_ready(false);
        }
        Self { subject: subject.clone(), left: Arc::new(AtomicUsize::new(left)) }
    }

    /// For one of them, to be called at its end.
    pub(super) fn one(&self) -> impl FnOnce() + Send + 'static {
        let (subject, left) = (self.subject.clone(), Arc::clone(&self.left));
        move || {
            if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                subject.set_ready(true);
            }
        }
    }
}
