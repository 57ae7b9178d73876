//! What the time of one start or one checkpoint went into: a bar for each part, over the time since the beginning.

use maud::{Markup, html};

use super::axis::Axis;
use super::figure::{Row, Table, bar, chart, percent};
use super::number::ms;
use super::way::{circumstances, class, median_start, summary};
use crate::bench::record::{Kind, Phase, SPAWN, Service, Start, Way};

const HEIGHT: u32 = 24;
/// How the phase is called that all hooks before a dump are part of, and how they are.
const WHOLE_OF_HOOKS: &str = "quiesce";
const HOOK: &str = "before_checkpoint of ";

/// The starts with the median time of the ways that tell their parts: the soonest restore open, the others folded.
pub(super) fn starts(service: &Service) -> Markup {
    let tells = |way: &&Way| median_start(way).is_some_and(|start| !start.phases.is_empty());
    let mut ways: Vec<&Way> = service.ways.iter().filter(tells).collect();
    let median = |way: &Way| summary(way).map_or(f64::INFINITY, |summary| summary.median);
    ways.sort_by(|one, other| {
        let kind = |way: &Way| way.kind != Kind::Defrost;
        kind(one).cmp(&kind(other)).then(median(one).total_cmp(&median(other)))
    });
    let Some((first, others)) = ways.split_first() else { return Markup::default() };
    html! {
        h3 { "Where the time of one start goes" }
        p.note {
            "The start whose answer came after the median time. Bars are the parts that the command and the restored"
            " process tell of, in the order of their beginning, from "
            @if begins_with_the_spawn(first) { "the spawn of the command" } @else { "where it begins to tell" }
            "; the dashed line is the moment when the answer was whole, from the spawn of the command."
        }
        h4 { (first.name) ", " (circumstances(first)) }
        (start(service, first))
        @for way in others {
            details { summary { "The same of " (way.name) } (start(service, way)) }
        }
    }
}

/// Records of earlier versions have the engine's parts only.
fn begins_with_the_spawn(way: &Way) -> bool {
    median_start(way).and_then(|start| start.phases.first()).is_some_and(|phase| phase.name == SPAWN)
}

fn start(service: &Service, way: &Way) -> Markup {
    let Some(start) = median_start(way) else { return Markup::default() };
    let title = format!("Parts of one start of {}, {}", service.name, way.name);
    let whole = start.answer.map(|answer| answer.whole);
    figure(&title, class(way.kind), &parts(start), whole)
}

/// The parts that the command told, and what the client saw.
fn parts(start: &Start) -> Vec<(Phase, bool)> {
    let mut parts: Vec<(Phase, bool)> = start.phases.iter().map(|phase| (phase.clone(), false)).collect();
    parts.sort_by(|one, other| one.0.began.total_cmp(&other.0.began));
    if let Some(answer) = start.answer {
        let seen = |name: &str, began: f64, ended: f64| {
            (Phase { name: name.to_owned(), began, took: (ended - began).max(0.0) }, true)
        };
        parts.push(seen("client: until connected", 0.0, answer.connect));
        parts.push(seen("client: until the first byte", answer.connect, answer.first_byte));
        parts.push(seen("client: until the answer is whole", answer.first_byte, answer.whole));
    }
    parts
}

/// The parts of a checkpoint. Nothing where there are none.
pub(super) fn checkpoint(name: &str, phases: &[Phase]) -> Markup {
    if phases.is_empty() {
        return Markup::default();
    }
    let parts: Vec<(Phase, bool)> = nested(phases).into_iter().map(|phase| (phase, false)).collect();
    html! {
        h3 { "Where the time of its checkpoint went" }
        p.note { "The parts that the manifest of the image tells of, in the order of their beginning." }
        (figure(&format!("Parts of the checkpoint of {name}"), "other", &parts, None))
    }
}

/// The phases in the order of their beginning, those that hold others before these. A manifest has no beginnings: the
/// hooks stand before the phase that they are a part of, and are not to be counted twice.
pub(super) fn nested(phases: &[Phase]) -> Vec<Phase> {
    let mut nested = phases.to_vec();
    if let Some(place) = nested.iter().position(|phase| phase.name == WHOLE_OF_HOOKS) {
        let hooks = nested.iter().take(place).filter(|phase| phase.name.starts_with(HOOK));
        let counted: f64 = hooks.map(|phase| phase.took).sum();
        // Otherwise whoever recorded it has seen to it.
        let shift = if nested.get(place).is_some_and(|phase| phase.began >= counted) { counted } else { 0.0 };
        nested.iter_mut().skip(place).for_each(|phase| phase.began -= shift);
    }
    nested.sort_by(|one, other| one.began.total_cmp(&other.began).then(other.took.total_cmp(&one.took)));
    nested
}

fn figure(title: &str, class: &str, parts: &[(Phase, bool)], whole: Option<f64>) -> Markup {
    let end = |phase: &Phase| phase.began.max(0.0) + phase.took.max(0.0);
    let last = parts.iter().map(|(phase, _)| end(phase)).chain(whole).fold(0.0, f64::max);
    let axis = Axis::from_zero(last, ms);
    let row = |(phase, seen): &(Phase, bool)| Row {
        name: html! { (phase.name) },
        value: html! { (ms(phase.took)) },
        said: format!("{}: {}, begun after {}", phase.name, ms(phase.took), ms(phase.began)),
        height: HEIGHT,
        marks: html! {
            (bar(if *seen { "answer" } else { class }, axis.place(phase.began), axis.place(end(phase)), HEIGHT))
            @if let Some(whole) = whole {
                line.whole x1=(percent(axis.place(whole))) x2=(percent(axis.place(whole))) y1="0" y2=(HEIGHT) {}
            }
        },
    };
    let rows: Vec<Row> = parts.iter().map(row).collect();
    let mut table = Table::new(title, &["part", "began after", "took"]);
    for (phase, _) in parts {
        table.line([phase.name.clone(), ms(phase.began), ms(phase.took)]);
    }
    chart(&rows, &axis, "took", &table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_are_parts_of_quiescing() {
        let phase = |name: &str, began, took| Phase { name: name.to_owned(), began, took };
        let told = [
            phase("before_checkpoint of echo", 0.0, 2.0),
            phase("before_checkpoint of log", 2.0, 1.0),
            phase("quiesce", 3.0, 3.5),
            phase("dump", 6.5, 40.0),
        ];
        let said: Vec<(String, f64)> =
            nested(&told).into_iter().map(|phase| (phase.name, phase.began)).collect();
        let names = ["quiesce", "before_checkpoint of echo", "before_checkpoint of log", "dump"];
        let wanted: Vec<(String, f64)> =
            names.map(str::to_owned).into_iter().zip([0.0, 0.0, 2.0, 3.5]).collect();
        assert_eq!(said, wanted);
    }
}
