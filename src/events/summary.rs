//! How many events there are of each name, and how many bytes they take. It must not know where they are from.

use std::collections::BTreeMap;

use serde::Serialize;

use super::event::Event;

/// Count and bytes by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    names: BTreeMap<String, Sum>,
}

/// What there is of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Sum {
    /// How many events.
    pub count: u64,
    /// The bytes of memory that these take, about.
    pub bytes: u64,
}

impl Summary {
    /// Counts one more.
    pub fn add(&mut self, event: &Event) {
        let sum = self.names.entry(event.name.to_string()).or_default();
        sum.count += 1;
        sum.bytes += event.bytes() as u64;
    }

    /// The sums, those with the most events first.
    #[must_use]
    pub fn sums(&self) -> Vec<(&str, &Sum)> {
        let mut sums: Vec<_> = self.names.iter().map(|(name, sum)| (name.as_str(), sum)).collect();
        sums.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.count));
        sums
    }
}
