//! What the starts of one way come to. It must not know how it is shown.

use crate::bench::record::{Kind, Start, Way, quantile};

/// The starts of one way, summed up. Times in milliseconds to the whole answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Summary {
    pub(super) answered: usize,
    pub(super) failed: usize,
    pub(super) least: f64,
    pub(super) lower: f64,
    pub(super) median: f64,
    pub(super) upper: f64,
    pub(super) most: f64,
}

/// Nothing where no start was answered.
pub(super) fn summary(way: &Way) -> Option<Summary> {
    let times = way.answers();
    Some(Summary {
        answered: times.len(),
        failed: failed(way),
        least: times.first().copied()?,
        lower: quantile(&times, 0.25)?,
        median: quantile(&times, 0.5)?,
        upper: quantile(&times, 0.75)?,
        most: times.last().copied()?,
    })
}

/// How many starts were not answered.
pub(super) fn failed(way: &Way) -> usize {
    way.starts.iter().filter(|start| start.answer.is_none()).count()
}

/// The start whose answer came after the median time.
pub(super) fn median_start(way: &Way) -> Option<&Start> {
    let median = summary(way)?.median;
    let is_it = |start: &&Start| start.answer.is_some_and(|answer| answer.whole.total_cmp(&median).is_eq());
    way.starts.iter().find(is_it)
}

/// The class of its marks in the style sheet.
pub(super) fn class(kind: Kind) -> &'static str {
    match kind {
        Kind::Cold => "cold",
        Kind::ColdLazy => "cold-lazy",
        Kind::Fork => "fork",
        Kind::Criu => "criu",
        Kind::Defrost => "defrost",
        Kind::Floor => "floor",
    }
}

/// What the kind is, in words.
pub(super) fn words(kind: Kind) -> &'static str {
    match kind {
        Kind::Cold => "cold start",
        Kind::ColdLazy => "cold start, warming up when asked",
        Kind::Fork => "forked from a warm parent",
        Kind::Criu => "restored by criu",
        Kind::Defrost => "restored by defrost",
        Kind::Floor => "the least that is possible",
    }
}

/// What else makes its starts differ from those of other ways.
pub(super) fn circumstances(way: &Way) -> String {
    let mut said = vec![words(way.kind).to_owned()];
    if way.clones > 1 {
        said.push(format!("{} at once", way.clones));
    }
    if way.evicted {
        said.push("image not in the page cache".to_owned());
    }
    if way.kerndat == Some(false) {
        said.push("without CRIU's kerndat cache".to_owned());
    }
    said.join(", ")
}
