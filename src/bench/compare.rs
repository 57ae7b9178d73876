//! A service beside its figures in an earlier record.
//!
//! It must not know how either came about.

use std::fmt::{self, Write};

use super::record::{Record, Service, Way, quantile};

/// Of fewer starts the middle half says too little of the spread.
const LEAST: usize = 5;

/// A line for each way that both have, by the names of the service and the way, and what keeps the two from being
/// alike. The ratio counts as a change only where the middle halves of the samples do not overlap.
#[must_use]
pub fn render(old: &Record, new: &Service) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut text, old, new);
    text
}

fn write(out: &mut String, old: &Record, new: &Service) -> fmt::Result {
    let Some(before) = old.services.iter().find(|service| service.name == new.name) else {
        let names: Vec<_> = old.services.iter().map(|service| format!("'{}'", service.name)).collect();
        let names = if names.is_empty() { "no service".to_owned() } else { names.join(", ") };
        return writeln!(out, "nothing to compare: the earlier record has {names}, and not '{}'", new.name);
    };
    let commit = old.host.commit.as_deref().unwrap_or("an unknown commit");
    writeln!(out, "beside {} at {commit}:", old.host.date)?;
    if before.question != new.question {
        writeln!(out, "the question was another one then: {}", before.question)?;
    }
    let twins: Vec<_> = new.ways.iter().filter_map(|way| Some((named(before, &way.name)?, way))).collect();
    if twins.iter().any(|(then, now)| then.command != now.command) {
        writeln!(out, "some commands were others then; the records have them")?;
    }
    if !twins.is_empty() {
        writeln!(out, "\n| way | then ms | now ms | ratio | |\n|---|--:|--:|--:|---|")?;
    }
    for (then, now) in &twins {
        line(out, then, now)?;
    }
    only(out, "then", before, new)?;
    only(out, "now", new, before)
}

fn named<'a>(service: &'a Service, name: &str) -> Option<&'a Way> {
    service.ways.iter().find(|way| way.name == name)
}

fn line(out: &mut String, then: &Way, now: &Way) -> fmt::Result {
    let (name, then, now) = (&now.name, then.answers(), now.answers());
    let cell = |times: &[f64]| quantile(times, 0.5).map_or("–".to_owned(), |median| format!("{median:.1}"));
    let ratio = match (quantile(&then, 0.5), quantile(&now, 0.5)) {
        (Some(then), Some(now)) if then > 0.0 => format!("{:.2}", now / then),
        _ => String::new(),
    };
    writeln!(out, "| {name} | {} | {} | {ratio} | {} |", cell(&then), cell(&now), change(&then, &now))
}

/// The ways that one of the two has and the other has not.
fn only(out: &mut String, when: &str, one: &Service, other: &Service) -> fmt::Result {
    let own = one.ways.iter().map(|way| way.name.as_str()).filter(|name| named(other, name).is_none());
    let own: Vec<&str> = own.collect();
    if own.is_empty() { Ok(()) } else { writeln!(out, "only {when}: {}", own.join("; ")) }
}

fn change(then: &[f64], now: &[f64]) -> &'static str {
    if then.is_empty() || now.is_empty() {
        return "no answer";
    }
    if then.len().min(now.len()) < LEAST {
        return "too few starts to tell";
    }
    let half = |times: &[f64]| Some((quantile(times, 0.25)?, quantile(times, 0.75)?));
    match (half(then), half(now)) {
        (Some((_, high)), Some((low, _))) if low > high => "slower",
        (Some((low, _)), Some((_, high))) if high < low => "faster",
        _ => "the same, within the spread",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::{Answer, FORMAT, Host, Kind, Start};

    #[test]
    fn a_change_is_one_beyond_the_spread() {
        let (low, high) = ([1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0]);
        assert_eq!(change(&low, &high), "slower");
        assert_eq!(change(&high, &low), "faster");
        assert_eq!(change(&low, &[2.0, 3.0, 4.0, 5.0, 6.0]), "the same, within the spread");
        assert_eq!(change(&low, &high[..4]), "too few starts to tell");
        assert_eq!(change(&low, &[]), "no answer");
    }

    fn way(name: &str, whole: &[f64]) -> Way {
        let start = |&whole: &f64| {
            let answer = Some(Answer { connect: whole, first_byte: whole, whole });
            Start { answer, ..Start::default() }
        };
        Way {
            name: name.to_owned(),
            kind: Kind::Cold,
            command: vec![name.to_owned()],
            evicted: false,
            kerndat: None,
            clones: 1,
            starts: whole.iter().map(start).collect(),
            requests: Vec::new(),
            memory: Vec::new(),
        }
    }

    fn service(name: &str, question: &str, ways: Vec<Way>) -> Service {
        let (name, question) = (name.to_owned(), question.to_owned());
        Service { name, question, image: None, rounds: 5, repeated: 0, ways }
    }

    #[test]
    fn what_cannot_be_compared_is_said() {
        let ways = vec![way("cold", &[2.0; 5]), way("fork", &[1.0; 5]), way("criu", &[])];
        let services = vec![service("web", "ready?", ways)];
        let old = Record { format: FORMAT, host: Host::default(), services };
        let ways = vec![way("cold", &[4.0; 5]), way("criu", &[9.0; 5]), way("map", &[1.0; 5])];
        let text = render(&old, &service("web", "alive?", ways));
        for line in [
            "the question was another one then: ready?",
            "| cold | 2.0 | 4.0 | 2.00 | slower |",
            "| criu | – | 9.0 |  | no answer |",
            "only then: fork",
            "only now: map",
        ] {
            assert!(text.lines().any(|own| own == line), "no '{line}' in {text}");
        }
        let text = render(&old, &service("other", "ready?", Vec::new()));
        assert_eq!(text, "nothing to compare: the earlier record has 'web', and not 'other'\n");
    }
}
