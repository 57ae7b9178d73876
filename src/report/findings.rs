//! What a record says, in sentences. Every number in them is computed here, and a difference that the starts do not
//! show is not claimed. It must not know how they are shown.

use super::number::{self, bytes, ms, of, percent};
use super::way::{Summary, failed, summary};
use crate::bench::record::{Kind, Record, Service, Start, Way};

/// How many starts a median should be of.
const FEW: usize = 5;
/// From which share of others a reader should know of it.
const LOUD: f64 = 0.05;

/// A sentence, and whether it tells of something that went wrong.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Finding {
    pub(super) text: String,
    pub(super) bad: bool,
}

impl Finding {
    pub(super) fn good(text: String) -> Self {
        Self { text, bad: false }
    }

    pub(super) fn bad(text: String) -> Self {
        Self { text, bad: true }
    }
}

/// All that there is to say of a record, the most important first.
pub(super) fn findings(record: &Record) -> Vec<Finding> {
    if record.services.is_empty() {
        return vec![Finding::bad("The record is empty: no service was started.".to_owned())];
    }
    let mut all: Vec<Finding> = record.services.iter().flat_map(headline).collect();
    all.extend(super::cost::findings(record));
    all.extend(record.services.iter().filter_map(fork));
    all.extend(record.services.iter().flat_map(failures));
    all
}

/// How far the figures of each service can be trusted.
pub(super) fn trust(record: &Record) -> Vec<Finding> {
    record.services.iter().flat_map(noise).collect()
}

/// The way of this kind that came up soonest, among those whose starts are comparable with a cold one.
fn soonest(service: &Service, kind: Kind) -> Option<(&Way, Summary)> {
    let comparable = |way: &&Way| way.kind == kind && !way.evicted && way.clones <= 1;
    let ways = service.ways.iter().filter(comparable);
    let with = ways.filter_map(|way| Some((way, summary(way)?)));
    // CRIU is compared as it is used, which is with its cache.
    let unusual = |way: &Way| way.kerndat == Some(false);
    with.min_by(|one, other| {
        unusual(one.0).cmp(&unusual(other.0)).then(one.1.median.total_cmp(&other.1.median))
    })
}

fn headline(service: &Service) -> Vec<Finding> {
    let name = &service.name;
    if service.ways.iter().all(|way| way.starts.is_empty()) {
        return vec![Finding::bad(format!("{name}: it was never started, so there is nothing to compare."))];
    }
    if service.ways.iter().all(|way| summary(way).is_none()) {
        return vec![Finding::bad(format!("{name}: every start failed."))];
    }
    let Some((way, own)) = soonest(service, Kind::Defrost) else {
        return vec![Finding::good(format!(
            "{name}: no start by defrost was answered, so it is not compared."
        ))];
    };
    // All that is not restored, as they do different things; and CRIU's own command once.
    let started = |way: &&Way| {
        matches!(way.kind, Kind::Cold | Kind::ColdLazy | Kind::Fork) && !way.evicted && way.clones <= 1
    };
    let others = service.ways.iter().filter(started).filter_map(|way| Some((way, summary(way)?)));
    let compared = others.chain(soonest(service, Kind::Criu));
    let mut text =
        format!("{name}: {} answered in {} (median of {})", way_name(way), ms(own.median), own.answered);
    for (place, (other, its)) in compared.enumerate() {
        text += if place == 0 { "; " } else { ", " };
        text +=
            &format!("{} in {} (of {}): {}", way_name(other), ms(its.median), its.answered, ratio(own, its));
    }
    text.push('.');
    if own.answered < FEW {
        text += " These are few starts.";
    }
    vec![Finding::good(text)]
}

/// A fork from a warm parent beside a restore, which needs less: the two are no alternatives everywhere.
fn fork(service: &Service) -> Option<Finding> {
    let (way, its) = soonest(service, Kind::Fork)?;
    let (restored, own) = soonest(service, Kind::Defrost)?;
    let held = way.memory.first().map(|memory| format!(", that holds the {} too", bytes(memory.rss)));
    Some(Finding::good(format!(
        "{}: {} in {}, by {} in {}. A fork needs a warm parent of one thread, alive on the same host{}; a restore needs \
         the image.",
        service.name,
        way_name(way),
        ms(its.median),
        way_name(restored),
        ms(own.median),
        held.unwrap_or_default(),
    )))
}

fn way_name(way: &Way) -> String {
    match way.kind {
        Kind::Defrost if !way.name.contains("defrost") => format!("{} (defrost)", way.name),
        Kind::Criu if !way.name.contains("criu") => format!("{} (criu)", way.name),
        _ => way.name.clone(),
    }
}

/// How much sooner the first came up than the second.
fn ratio(own: Summary, other: Summary) -> String {
    if own.lower <= other.upper && other.lower <= own.upper {
        return "no clear difference, the middle halves of the starts overlap".to_owned();
    }
    let (sooner, ratio) = match (own.median, other.median) {
        (own, other) if own <= 0.0 || other <= 0.0 => return "too short for a ratio".to_owned(),
        (own, other) if own <= other => ("sooner", other / own),
        (own, other) => ("later", own / other),
    };
    format!("{} times {sooner}", number::times(ratio))
}

fn failures(service: &Service) -> Vec<Finding> {
    let told = |way: &Way| {
        let number = failed(way);
        (number > 0).then(|| {
            let reason = way.starts.iter().find_map(|start| start.failure.as_deref());
            let reason = reason.and_then(|text| text.lines().find(|line| !line.trim().is_empty()));
            let all = way.starts.len();
            let reason = reason.unwrap_or("the record does not say why").trim();
            Finding::bad(format!(
                "{}, {}: {number} of {} failed: {reason}",
                service.name,
                way.name,
                of(all, "start")
            ))
        })
    };
    service.ways.iter().filter_map(told).collect()
}

fn noise(service: &Service) -> Vec<Finding> {
    let starts: Vec<&Start> = service.ways.iter().flat_map(|way| &way.starts).collect();
    if starts.is_empty() {
        return Vec::new();
    }
    let name = &service.name;
    let most = |of: fn(&Start) -> f64| starts.iter().map(|start| of(start)).fold(0.0, f64::max);
    let mut others: Vec<f64> = starts.iter().map(|start| start.others).collect();
    others.sort_by(f64::total_cmp);
    // The kernel counts in ticks, which are longer than many a start: the most that one shows says little.
    let usual = others.get(others.len() / 2).copied().unwrap_or_default();
    let again = match service.repeated {
        0 => "none was run again".to_owned(),
        1 => "1 was run again because others took too much of the processors".to_owned(),
        number => format!("{number} were run again because others took too much of the processors"),
    };
    let mut text = format!(
        "{name}: of {}, {again}; during half of the starts that were kept, others took at most {} of the processors. At \
         most {} passed between two attempts to connect: a figure is too long by up to that.",
        of(service.rounds as usize, "round"),
        percent(usual),
        ms(most(|start| start.worst_gap)),
    );
    let lost: u64 = starts.iter().map(|start| u64::from(start.lost_syns)).sum();
    if lost > 0 {
        text += &format!(" {lost} connection attempts got no answer within 3 ms and were given up.");
    }
    vec![Finding { text, bad: usual > LOUD }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::{Answer, FORMAT, Host};

    fn way(name: &str, kind: Kind, times: &[f64]) -> Way {
        let start = |&whole: &f64| Start {
            answer: Some(Answer { connect: whole, first_byte: whole, whole }),
            ..Start::default()
        };
        let starts = times.iter().map(start).collect();
        let (command, requests, memory) = Default::default();
        Way {
            name: name.to_owned(),
            kind,
            command,
            evicted: false,
            kerndat: None,
            clones: 1,
            starts,
            requests,
            memory,
        }
    }

    fn said(ways: Vec<Way>) -> Vec<String> {
        let (name, question, rounds) = ("echo".to_owned(), String::new(), 7);
        let service = Service { name, question, image: None, rounds, repeated: 1, ways };
        let record = Record { format: FORMAT, host: Host::default(), services: vec![service] };
        findings(&record).into_iter().chain(trust(&record)).map(|finding| finding.text).collect()
    }

    #[test]
    fn medians_are_compared_where_the_starts_differ() {
        let defrost = way("defrost restore", Kind::Defrost, &[4.8; 7]);
        let cold = way("cold", Kind::Cold, &[882.0; 7]);
        let all = said(vec![cold, defrost.clone()]);
        assert_eq!(
            all[0],
            "echo: defrost restore answered in 4.8 ms (median of 7); cold in 882 ms (of 7): 184 times sooner."
        );
        assert!(all[1].starts_with("echo: of 7 rounds, 1 was run again because others"), "{}", all[1]);
        let near = way("cold", Kind::Cold, &[4.0, 4.7, 4.8, 4.9, 6.0]);
        assert!(said(vec![defrost.clone(), near])[0].contains("no clear difference"));
        let (fast, slow) = (way("empty", Kind::Cold, &[2.4; 7]), way("cold", Kind::Cold, &[48.0; 7]));
        let all = said(vec![slow, defrost, fast]);
        assert!(
            all[0].ends_with(
                "cold in 48.0 ms (of 7): 10 times sooner, empty in 2.4 ms (of 7): 2.0 times later."
            )
        );
    }

    #[test]
    fn a_fork_is_told_with_what_it_needs() {
        let (fork, own) = (way("fork", Kind::Fork, &[12.0; 7]), way("map", Kind::Defrost, &[4.8; 7]));
        let all = said(vec![fork.clone(), own]);
        let told = all.iter().find(|text| text.contains("warm parent")).unwrap();
        assert!(
            told.starts_with("echo: fork in 12.0 ms, by map (defrost) in 4.8 ms. A fork needs"),
            "{told}"
        );
        assert!(!said(vec![fork]).iter().any(|text| text.contains("warm parent")));
    }

    #[test]
    fn failures_are_told_with_their_first_reason() {
        let mut criu = way("criu", Kind::Criu, &[10.0; 3]);
        criu.starts[1] =
            Start { failure: Some("\npid 7 is taken\nhint: end it".to_owned()), ..Start::default() };
        let all = said(vec![criu]);
        assert_eq!(all[0], "echo: no start by defrost was answered, so it is not compared.");
        assert_eq!(all[1], "echo, criu: 1 of 3 starts failed: pid 7 is taken");
    }
}
