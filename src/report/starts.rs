//! How long the starts of a service took, way by way: every start a point, the median a line.

use maud::{Markup, html};

use super::axis::Axis;
use super::figure::{Row, Table, chart, percent};
use super::number::{ms, ms_or_nothing, of};
use super::way::{Summary, circumstances, class, failed, summary};
use crate::bench::record::{Service, Way, quantile};

const HEIGHT: u32 = 30;

/// The figure.
pub(super) fn figure(service: &Service) -> Markup {
    let axis = Axis::over(service.ways.iter().flat_map(Way::answers), ms);
    let rows: Vec<Row> = service.ways.iter().map(|way| row(way, &axis)).collect();
    html! {
        h3 { "Time to the first correct answer" }
        p.note {
            "From the moment the command is spawned. A point is one start, the line is the median, the shade holds the"
            " middle half."
        }
        (chart(&rows, &axis, "median", &table(service)))
        (commands(service).folded("Commands"))
    }
}

fn commands(service: &Service) -> Table {
    let mut table = Table::new(format!("What was started of {}", service.name), &["way", "command"]);
    for way in service.ways.iter().filter(|way| !way.command.is_empty()) {
        table.line([way.name.clone(), way.command.join(" ")]);
    }
    table
}

fn row(way: &Way, axis: &Axis) -> Row {
    let summary = summary(way);
    Row {
        name: html! { (way.name) small { (circumstances(way)) } },
        value: value(way, summary),
        said: said(way, summary),
        height: HEIGHT,
        marks: html! { g.(class(way.kind)) { (marks(way, summary, axis)) } },
    }
}

fn value(way: &Way, summary: Option<Summary>) -> Markup {
    html! {
        @match summary {
            Some(summary) => {
                strong { (ms(summary.median)) }
                small { (ms(summary.least)) " to " (ms(summary.most)) ", n\u{a0}" (summary.answered) }
            }
            None => { "no answer" }
        }
        @if failed(way) > 0 { small.bad { (failed(way)) " of " (way.starts.len()) " failed" } }
    }
}

fn said(way: &Way, summary: Option<Summary>) -> String {
    let failures = match failed(way) {
        0 => String::new(),
        number => format!(", {number} failed"),
    };
    match summary {
        None => format!("{}: no start was answered{failures}", way.name),
        Some(Summary { answered, least, median, most, .. }) => format!(
            "{}: median {}, from {} to {}, {}{failures}",
            way.name,
            ms(median),
            ms(least),
            ms(most),
            of(answered, "start")
        ),
    }
}

fn marks(way: &Way, summary: Option<Summary>, axis: &Axis) -> Markup {
    let Some(summary) = summary else { return Markup::default() };
    let [lower, median, upper] = [summary.lower, summary.median, summary.upper].map(|time| axis.place(time));
    html! {
        rect.half x=(percent(lower)) width=(percent(upper - lower)) y="5" height=(HEIGHT - 10) {}
        @for (number, answer) in way.starts.iter().filter_map(|start| start.answer).enumerate() {
            circle.dot cx=(percent(axis.place(answer.whole))) cy=(lane(number)) r="3.5" {}
        }
        line.median x1=(percent(median)) x2=(percent(median)) y1="2" y2=(HEIGHT - 2) {}
    }
}

/// Points of one value lie beside each other.
fn lane(number: usize) -> &'static str {
    ["15", "10", "20"][number % 3]
}

fn table(service: &Service) -> Table {
    let head = [
        "way",
        "what",
        "starts",
        "failed",
        "least",
        "lower quarter",
        "median",
        "upper quarter",
        "95th percentile",
    ];
    let more = ["most", "connected (median)", "first byte (median)"];
    let mut table = Table::new(
        format!("Time to the first correct answer of {}", service.name),
        &[head.as_slice(), more.as_slice()].concat(),
    );
    for way in &service.ways {
        let summary = summary(way);
        let part = |of: fn(Summary) -> f64| ms_or_nothing(summary.map(of));
        let answers = || way.starts.iter().filter_map(|start| start.answer);
        table.line([
            way.name.clone(),
            circumstances(way),
            way.starts.len().to_string(),
            failed(way).to_string(),
            part(|summary| summary.least),
            part(|summary| summary.lower),
            part(|summary| summary.median),
            part(|summary| summary.upper),
            ms_or_nothing(quantile(&way.answers(), 0.95)),
            part(|summary| summary.most),
            ms_or_nothing(median(answers().map(|answer| answer.connect))),
            ms_or_nothing(median(answers().map(|answer| answer.first_byte))),
        ]);
    }
    table
}

/// The median of these values.
pub(super) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    quantile(&values, 0.5)
}
