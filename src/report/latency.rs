//! How long the first requests after a start took: request by request, the median of the starts as a curve, and all
//! starts within a band. Curves are drawn through at most [`POINTS`] points, which hold equal ratios of requests.

use std::fmt::Write;

use maud::{Markup, html};

use super::axis::Axis;
use super::figure::{Row, Table, chart, percent};
use super::number::{count, ms, ms_or_nothing, of};
use super::way::{circumstances, class};
use crate::bench::record::{Service, Way, quantile};

const HEIGHT: u32 = 64;
const POINTS: u32 = 120;

/// The requests from one number to the next, of all starts of a way.
#[derive(Debug, Clone, Copy)]
struct Group {
    /// Its first request, counted from 1.
    number: usize,
    least: f64,
    median: f64,
    most: f64,
}

/// The figure; nothing where no requests were measured.
pub(super) fn figure(service: &Service) -> Markup {
    let measured = |way: &&Way| way.requests.iter().any(|requests| !requests.is_empty());
    let ways: Vec<&Way> = service.ways.iter().filter(measured).collect();
    let all =
        || ways.iter().flat_map(|way| way.requests.iter().flatten().copied()).filter(|time| *time > 0.0);
    let last = ways.iter().flat_map(|way| way.requests.iter().map(Vec::len)).max().unwrap_or(0);
    if ways.is_empty() {
        return Markup::default();
    }
    let numbers = Axis::logarithmic(1.0, as_f64(last), count);
    let times = Axis::logarithmic(all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max), ms);
    let rows: Vec<Row> = ways.iter().map(|way| row(way, &numbers, &times)).collect();
    html! {
        h3 { "Latency of the first requests" }
        p.note {
            "By the number of the request after the start, both axes logarithmic and the same for all ways. The curve"
            " is the median of the starts, the band holds all of them."
        }
        (chart(&rows, &numbers, "first request", &table(service, &ways)))
    }
}

fn row(way: &Way, numbers: &Axis, times: &Axis) -> Row {
    let groups = groups(way);
    let first = groups.first().map(|group| group.median);
    let rest = median(way, 1);
    Row {
        name: html! { (way.name) small { (circumstances(way)) } },
        value: html! {
            strong { (ms_or_nothing(first)) }
            @if rest.is_some() { small { "later " (ms_or_nothing(rest)) " (median)" } }
            small { (of(way.requests.len(), "start")) }
        },
        said: format!(
            "{}: the first request took {}, the median of the later ones {}",
            way.name,
            ms_or_nothing(first),
            ms_or_nothing(rest)
        ),
        height: HEIGHT,
        marks: html! { g.(class(way.kind)) { (marks(&groups, numbers, times)) } },
    }
}

/// Paths know no percent: they are drawn in a square of 100 that is stretched.
fn marks(groups: &[Group], numbers: &Axis, times: &Axis) -> Markup {
    let x = |group: &Group| numbers.place(as_f64(group.number));
    let y = |time: f64| 96.0 - times.place(time) * 0.92;
    let mut curve = String::new();
    let mut band = String::new();
    let point = |path: &mut String, group: &Group, time: f64| {
        let letter = if path.is_empty() { 'M' } else { 'L' };
        let _ = write!(path, "{letter}{:.2} {:.2}", x(group), y(time));
    };
    for group in groups {
        point(&mut curve, group, group.median);
        point(&mut band, group, group.most);
    }
    for group in groups.iter().rev() {
        point(&mut band, group, group.least);
    }
    let within = times.ticks();
    html! {
        @for (place, _) in &within {
            line.grid x1="0" x2="100%" y1=(height(*place)) y2=(height(*place)) {}
        }
        svg viewBox="0 0 100 100" preserveAspectRatio="none" width="100%" height=(HEIGHT) {
            path.band d={ (band) "Z" } {}
            path.curve d=(curve) {}
        }
        @if let Some(group) = groups.first() {
            circle.dot cx=(percent(x(group))) cy=(height(times.place(group.median))) r="4" {}
        }
        // Curves begin high and end low: the names stand in the other corners.
        @if let Some((place, label)) = within.first() {
            text.within x="0" dx="3" y=(height(*place)) dy="-3" { (label.replace(".0 ", " ")) }
        }
        @if let Some((place, label)) = within.iter().skip(1).last() {
            text.within x="100%" dx="-3" y=(height(*place)) dy="10" text-anchor="end" { (label.replace(".0 ", " ")) }
        }
    }
}

/// A place of the axis of times, in pixels from the top.
fn height(place: f64) -> String {
    format!("{:.1}", (0.96 - place * 0.0092) * f64::from(HEIGHT))
}

fn groups(way: &Way) -> Vec<Group> {
    let last = way.requests.iter().map(Vec::len).max().unwrap_or(0);
    let mut groups = Vec::new();
    let mut next = 0;
    while next < last {
        // The next of equal ratios, and at least one further.
        let ratio = as_f64(last).powf(1.0 / f64::from(POINTS));
        let until = rounded((as_f64(next + 1) * ratio).floor()).clamp(next + 1, last);
        let slice =
            |requests: &Vec<f64>| requests.get(next..until.min(requests.len())).unwrap_or(&[]).to_vec();
        let mut times: Vec<f64> = way.requests.iter().flat_map(slice).collect();
        times.sort_by(f64::total_cmp);
        if let (Some(&least), Some(&most), Some(median)) =
            (times.first(), times.last(), quantile(&times, 0.5))
        {
            groups.push(Group { number: next + 1, least, median, most });
        }
        next = until;
    }
    groups
}

/// The median of all requests from this one on, of all starts.
fn median(way: &Way, from: usize) -> Option<f64> {
    quantile(&sorted(way, from), 0.5)
}

fn sorted(way: &Way, from: usize) -> Vec<f64> {
    let mut times: Vec<f64> =
        way.requests.iter().flat_map(|requests| requests.iter().skip(from)).copied().collect();
    times.sort_by(f64::total_cmp);
    times
}

fn table(service: &Service, ways: &[&Way]) -> Table {
    let head =
        ["way", "starts", "requests", "first (median)", "10th", "100th", "all: median", "95th percentile"];
    let mut table = Table::new(
        format!("Latency of the first requests to {}", service.name),
        &[head.as_slice(), &["99th percentile", "longest"]].concat(),
    );
    for way in ways {
        let all = sorted(way, 0);
        let at = |place: usize| {
            ms_or_nothing(super::starts::median(
                way.requests.iter().filter_map(|requests| requests.get(place)).copied(),
            ))
        };
        table.line([
            way.name.clone(),
            way.requests.len().to_string(),
            all.len().to_string(),
            at(0),
            at(9),
            at(99),
            ms_or_nothing(quantile(&all, 0.5)),
            ms_or_nothing(quantile(&all, 0.95)),
            ms_or_nothing(quantile(&all, 0.99)),
            ms_or_nothing(all.last().copied()),
        ]);
    }
    table
}

#[allow(clippy::cast_precision_loss, reason = "a number of requests")]
fn as_f64(number: usize) -> f64 {
    number as f64
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below a number of requests")]
fn rounded(number: f64) -> usize {
    number as usize
}
