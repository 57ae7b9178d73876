//! Events of a program's own: a type with a name, a label and fields, registered once and recorded by the type.
//!
//! ```
//! use defrost::events::{Draft, Recorder, Typed};
//!
//! struct PageView {
//!     path: String,
//!     status: u16,
//! }
//!
//! impl Typed for PageView {
//!     const NAME: &'static str = "page.view";
//!     const LABEL: &'static str = "page view";
//!     const FIELDS: &'static [&'static str] = &["path", "status"];
//!
//!     fn fields(self, draft: Draft) -> Draft {
//!         draft.with("path", self.path).with("status", self.status)
//!     }
//! }
//!
//! let events = Recorder::default();
//! let views = events.register::<PageView>()?;
//! views.record(|| PageView { path: "/".into(), status: 200 });
//! assert_eq!(events.counts().kept, 1);
//! # Ok::<(), defrost::events::KindError>(())
//! ```
//!
//! It must not know where events go.

use std::fmt;
use std::marker::PhantomData;

use super::event::Draft;
use super::recorder::Recorder;

/// The longest name of an event, in bytes.
pub const EVENT_NAME_LIMIT: usize = 64;

/// What the names of defrost's own events begin with, up to the first dot.
pub const RESERVED: &[&str] = &["cycle", "restore", "request", "log", "events", "supervise", "history"];

/// A sort of event that a program defines.
pub trait Typed {
    /// The name: small letters, digits, `-` and `_`, with dots in between, at most [`EVENT_NAME_LIMIT`] bytes. Its
    /// first word is none of those that are [`RESERVED`].
    const NAME: &'static str;
    /// What people call it.
    const LABEL: &'static str;
    /// The names of its fields, for those who look for what there is. A name that ends in `_us` says that the field
    /// is a time in microseconds.
    const FIELDS: &'static [&'static str];

    /// Adds the fields.
    fn fields(self, draft: Draft) -> Draft;
}

/// What is known of a registered sort of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct About {
    /// Its name.
    pub name: &'static str,
    /// What people call it.
    pub label: &'static str,
    /// The names of its fields.
    pub fields: &'static [&'static str],
}

impl About {
    pub(super) fn of<T: Typed>() -> Result<Self, KindError> {
        let name = T::NAME;
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        let word = |word: &str| !word.is_empty() && word.chars().all(plain);
        if name.len() > EVENT_NAME_LIMIT || !name.split('.').all(word) {
            return Err(KindError::Name { name });
        }
        if name.split('.').next().is_some_and(|first| RESERVED.contains(&first)) {
            return Err(KindError::Reserved { name });
        }
        Ok(Self { name, label: T::LABEL, fields: T::FIELDS })
    }
}

/// A registered sort of event, to be recorded. Clones are the same; it costs as much as a [`Recorder`].
pub struct Kind<T> {
    recorder: Recorder,
    typed: PhantomData<fn(T)>,
}

impl<T: Typed> Kind<T> {
    pub(super) fn new(recorder: Recorder) -> Self {
        Self { recorder, typed: PhantomData }
    }

    /// Records one. `event` is not called when the recorder is off.
    #[inline]
    pub fn record(&self, event: impl FnOnce() -> T) {
        self.recorder.record(|| event().fields(Draft::new(T::NAME).label(T::LABEL)));
    }
}

impl<T> Clone for Kind<T> {
    fn clone(&self) -> Self {
        Self { recorder: self.recorder.clone(), typed: PhantomData }
    }
}

impl<T: Typed> fmt::Debug for Kind<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kind").field(&T::NAME).finish()
    }
}

/// Why a sort of event cannot be registered. What was registered before stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KindError {
    /// It can be no name.
    #[error("'{name}' is no name of an event")]
    Name {
        /// The name.
        name: &'static str,
    },
    /// Its first word is one of defrost's own.
    #[error("the event name {name} is defrost's own")]
    Reserved {
        /// The name.
        name: &'static str,
    },
    /// There is one of this name.
    #[error("the event {name} is registered already")]
    Taken {
        /// The name.
        name: &'static str,
    },
    /// There are too many.
    #[error("{limit} sorts of events are registered already")]
    TooMany {
        /// How many there may be.
        limit: usize,
    },
}

impl KindError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Name { .. } => {
                format!(
                    "use small letters, digits, - and _, with dots between words, at most {EVENT_NAME_LIMIT}"
                )
            }
            Self::Reserved { .. } => format!("begin it with another word than {}", RESERVED.join(", ")),
            Self::Taken { .. } => "register each type once, and keep what that gives".to_owned(),
            Self::TooMany { .. } => "tell events apart by a field instead of the name".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! kind {
        ($type:ident, $name:expr) => {
            struct $type;
            impl Typed for $type {
                const NAME: &'static str = $name;
                const LABEL: &'static str = "";
                const FIELDS: &'static [&'static str] = &[];
                fn fields(self, draft: Draft) -> Draft {
                    draft
                }
            }
        };
    }
    kind!(Good, "page.view-2");
    kind!(Blank, "page view");
    kind!(Dots, "page..view");
    kind!(Own, "cycle.mine");
    kind!(Supervisors, "supervise.crash");

    #[test]
    fn names_are_checked() {
        let events = Recorder::default();
        events.register::<Good>().unwrap().record(|| Good);
        assert_eq!(events.read(0, 9).events[0].name, "page.view-2");
        assert_eq!(events.register::<Good>().unwrap_err(), KindError::Taken { name: "page.view-2" });
        assert_eq!(events.register::<Blank>().unwrap_err(), KindError::Name { name: "page view" });
        assert_eq!(events.register::<Dots>().unwrap_err(), KindError::Name { name: "page..view" });
        assert_eq!(events.register::<Own>().unwrap_err(), KindError::Reserved { name: "cycle.mine" });
        let reserved = KindError::Reserved { name: "supervise.crash" };
        assert_eq!(events.register::<Supervisors>().unwrap_err(), reserved);
        assert_eq!(events.kinds().len(), 1);
    }
}
