//! Which events somebody wants to see: by name, and by age.
//!
//! It must not know where the events are from.

use std::time::{Duration, SystemTime};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use super::event::Event;

/// Lets through events by their names and ages.
#[derive(Clone, Debug)]
pub struct Filter {
    /// `None` lets all names through.
    names: Option<GlobSet>,
    since: Option<SystemTime>,
}

impl Filter {
    /// Those whose name fits one of these patterns, or all if there is none, and which are not older than `age`.
    ///
    /// In a pattern `*` stands for any characters, dots too, `?` for one, `[ab]` for one of these, and `{a,b}` for
    /// either.
    ///
    /// # Errors
    /// [`FilterError`]: a pattern is none.
    pub fn new(names: &[String], age: Option<Duration>) -> Result<Self, FilterError> {
        let mut set = GlobSetBuilder::new();
        for pattern in names {
            let glob = GlobBuilder::new(pattern).build();
            set.add(glob.map_err(|error| refused(pattern, &error))?);
        }
        let set = set.build().map_err(|error| refused(&names.join(" "), &error))?;
        let since = age.map(|age| SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH));
        Ok(Self { names: (!names.is_empty()).then_some(set), since })
    }

    /// Whether it lets this one through.
    #[must_use]
    pub fn lets_through(&self, event: &Event) -> bool {
        self.names.as_ref().is_none_or(|names| names.is_match(event.name.as_ref()))
            && self.since.is_none_or(|since| event.time() >= since)
    }
}

fn refused(pattern: &str, error: &globset::Error) -> FilterError {
    FilterError { pattern: pattern.to_owned(), reason: error.kind().to_string() }
}

/// A pattern that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{pattern}' is no pattern of names: {reason}")]
#[non_exhaustive]
pub struct FilterError {
    /// The pattern.
    pub pattern: String,
    /// What is wrong with it.
    pub reason: String,
}

impl FilterError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        "give a name such as restore, or a pattern such as 'cycle.*' or '{request,log}'"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{Draft, Recorder};

    fn event(name: &'static str) -> Event {
        let events = Recorder::default();
        events.record(|| Draft::new(name));
        events.read(0, 1).events[0].as_ref().clone()
    }

    fn shows(patterns: &[&str], name: &'static str) -> bool {
        let patterns: Vec<String> = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
        Filter::new(&patterns, None).unwrap().lets_through(&event(name))
    }

    #[test]
    fn names_are_matched_whole() {
        assert!(shows(&[], "cycle.end"));
        assert!(shows(&["cycle.*"], "cycle.end") && shows(&["*"], "cycle.end"));
        assert!(!shows(&["cycle"], "cycle.end") && !shows(&["*.en"], "cycle.end"));
        assert!(shows(&["log", "{a,cycle}.end"], "cycle.end"));
        let error = Filter::new(&["a[".to_owned()], None).unwrap_err().to_string();
        assert!(error.starts_with("'a[' is no pattern of names: "), "{error}");
    }

    #[test]
    fn what_is_old_is_not_shown() {
        let recent = Filter::new(&[], Some(Duration::from_secs(600))).unwrap();
        let mut event = event("x");
        assert!(recent.lets_through(&event));
        event.unix_ns -= 601_000_000_000;
        assert!(!recent.lets_through(&event));
        assert!(Filter::new(&[], Some(Duration::MAX)).unwrap().lets_through(&event));
    }
}
