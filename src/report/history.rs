//! The medians of each service and way over several records. Runs of one host are joined by a line, different hosts
//! are not: between them a difference says nothing.

use std::time::{Duration, UNIX_EPOCH};

use maud::{Markup, html};

use super::axis::Axis;
use super::figure::{Row, Table, chart, percent};
use super::number::{as_f64, ms, of};
use super::runs::Run;
use super::way::{Summary, class, summary};
use crate::bench::record::{Host, Kind};

const HEIGHT: u32 = 70;

/// A median at a moment.
#[derive(Debug, Clone, Copy)]
struct Point {
    /// In seconds since the Unix epoch, or the number of the run.
    at: f64,
    /// Which of the hosts.
    host: usize,
    summary: Summary,
}

/// One way of one service.
#[derive(Debug)]
struct Series {
    service: String,
    way: String,
    kind: Kind,
    points: Vec<Point>,
}

/// What makes two hosts different ones.
fn host_name(host: &Host) -> String {
    // What the kernel calls all memory differs from one version to the next.
    let memory = (as_f64(host.memory_mib) / 1024.0).round();
    format!("{}, {}, {memory} GiB, {}", host.cpu, of(host.cores as usize, "core"), host.machine)
}

/// The figures, one for each service; the runs from the oldest.
pub(super) fn figures(runs: &[&Run]) -> Markup {
    let mut hosts: Vec<String> = Vec::new();
    for run in runs {
        let name = host_name(&run.record.host);
        if !hosts.contains(&name) {
            hosts.push(name);
        }
    }
    let dated: Option<Vec<f64>> = runs.iter().map(|run| seconds(&run.record.host.date)).collect();
    let numbers = || (1..=runs.len()).map(|number| as_f64(number as u64)).collect();
    let (moments, label) = match dated {
        Some(dates) => (dates, date as fn(f64) -> String),
        None => (numbers(), run_number as fn(f64) -> String),
    };
    let axis = Axis::between(
        moments.iter().copied().fold(f64::INFINITY, f64::min),
        moments.iter().copied().fold(0.0, f64::max),
        label,
    );
    let series = series(runs, &moments, &hosts);
    let mut services: Vec<&str> = series.iter().map(|series| series.service.as_str()).collect();
    services.dedup();
    html! {
        p.note {
            "Medians of the time to the first correct answer. Each row has its own scale, from zero. Runs of one host are"
            " joined by a line; different hosts are not, as a difference between them says nothing of the program."
        }
        (key(&hosts))
        @for service in services {
            h3 { (service) }
            @let of_it: Vec<&Series> = series.iter().filter(|series| series.service == service).collect();
            @let rows: Vec<Row> = of_it.iter().map(|series| row(series, &axis, hosts.len())).collect();
            (chart(&rows, &axis, "newest", &table(service, &of_it, runs, &moments, &hosts)))
        }
    }
}

/// Which mark is which host.
fn key(hosts: &[String]) -> Markup {
    html! {
        ul.key {
            @for (number, host) in hosts.iter().enumerate() {
                li {
                    svg.other.{ "host-" (number % 3) } width="44" height="16" aria-hidden="true" {
                        line.curve x1="0" x2="44" y1="8" y2="8" {}
                        (mark(number, "22", "8"))
                    }
                    span { "host " (letter(number)) ": " (host) }
                }
            }
        }
    }
}

fn letter(host: usize) -> String {
    let place = u8::try_from(host % 26).unwrap_or(0);
    let round = if host < 26 { String::new() } else { (host / 26).to_string() };
    format!("{}{round}", char::from(b'A' + place))
}

/// Hosts differ by shape, so that colour is not needed.
fn mark(host: usize, x: &str, y: &str) -> Markup {
    html! {
        svg x=(x) y=(y) width="1" height="1" {
            @match host % 3 {
                0 => circle.point r="4" {},
                1 => rect.point x="-4" y="-4" width="8" height="8" {},
                _ => path.point d="M0 -5L5 4L-5 4Z" {},
            }
        }
    }
}

fn series(runs: &[&Run], moments: &[f64], hosts: &[String]) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for (run, at) in runs.iter().zip(moments) {
        let name = host_name(&run.record.host);
        let host = hosts.iter().position(|host| *host == name).unwrap_or(0);
        for service in &run.record.services {
            for way in &service.ways {
                let Some(summary) = summary(way) else { continue };
                let point = Point { at: *at, host, summary };
                let same = |series: &&mut Series| series.service == service.name && series.way == way.name;
                if let Some(series) = all.iter_mut().find(same) {
                    series.points.push(point);
                } else {
                    let (service, way, kind) = (service.name.clone(), way.name.clone(), way.kind);
                    all.push(Series { service, way, kind, points: vec![point] });
                }
            }
        }
    }
    // As in the newest record, then those that it has no more. Stable: so do the ways of a service.
    let newest = runs.last().map(|run| run.record.services.as_slice()).unwrap_or_default();
    let place = |series: &Series| newest.iter().position(|service| service.name == series.service);
    all.sort_by_key(|series| (place(series).unwrap_or(usize::MAX), series.service.clone()));
    all
}

fn row(series: &Series, axis: &Axis, hosts: usize) -> Row {
    let medians = || series.points.iter().map(|point| point.summary.median);
    let own = Axis::from_zero(medians().fold(0.0, f64::max), ms);
    let (least, most) = (medians().fold(f64::INFINITY, f64::min), medians().fold(0.0, f64::max));
    let newest = medians().next_back().unwrap_or(0.0);
    // Above the upper line is its name.
    let height = |place: f64| format!("{:.1}", 64.0 - place * 0.46);
    let y = |point: &Point| height(own.place(point.summary.median));
    let x = |point: &Point| percent(axis.place(point.at));
    let number = of(series.points.len(), "run");
    let range = (series.points.len() > 1).then(|| format!("{} to {}, ", ms(least), ms(most)));
    Row {
        name: html! { (series.way) },
        value: html! { strong { (ms(newest)) } small { (range.as_deref().unwrap_or_default()) (number) } },
        said: format!(
            "{}: newest median {}, {}{number}",
            series.way,
            ms(newest),
            range.as_deref().unwrap_or_default()
        ),
        height: HEIGHT,
        marks: html! {
            @for (place, label) in own.ticks().into_iter().filter(|(place, _)| *place < 0.1 || *place > 99.9) {
                line.grid x1="0" x2="100%" y1=(height(place)) y2=(height(place)) {}
                @if place > 99.9 { text.within x="0" y=(height(place)) dy="-6" { (label.replace(".0 ", " ")) } }
            }
            g.(class(series.kind)) {
                @for host in 0..hosts {
                    @let points: Vec<&Point> = series.points.iter().filter(|point| point.host == host).collect();
                    g.{ "host-" (host % 3) } {
                        @for pair in points.windows(2) {
                            line.curve x1=(x(pair[0])) y1=(y(pair[0])) x2=(x(pair[1])) y2=(y(pair[1])) {}
                        }
                        @for point in points { (mark(host, &x(point), &y(point))) }
                    }
                }
            }
        },
    }
}

fn table(service: &str, all: &[&Series], runs: &[&Run], moments: &[f64], hosts: &[String]) -> Table {
    let mut table = Table::new(
        format!("Medians of {service}"),
        &["way", "date", "host", "kernel", "median", "starts", "record"],
    );
    for series in all {
        for point in &series.points {
            let is_it = |(run, at): &(&&Run, &f64)| {
                at.total_cmp(&point.at).is_eq() && hosts.get(point.host) == Some(&host_name(&run.record.host))
            };
            let Some((run, _)) = runs.iter().zip(moments).find(is_it) else { continue };
            table.line([
                series.way.clone(),
                run.record.host.date.clone(),
                letter(point.host),
                run.record.host.kernel.clone(),
                ms(point.summary.median),
                point.summary.answered.to_string(),
                run.name.clone(),
            ]);
        }
    }
    table
}

fn seconds(date: &str) -> Option<f64> {
    let moment = humantime::parse_rfc3339_weak(date).ok()?;
    Some(moment.duration_since(UNIX_EPOCH).ok()?.as_secs_f64())
}

/// The day of a moment.
fn date(seconds: f64) -> String {
    let moment = Duration::try_from_secs_f64(seconds).ok().and_then(|since| UNIX_EPOCH.checked_add(since));
    let text = moment.map(|moment| humantime::format_rfc3339_seconds(moment).to_string()).unwrap_or_default();
    text.get(..10).unwrap_or_default().to_owned()
}

fn run_number(number: f64) -> String {
    format!("run {number:.0}")
}
