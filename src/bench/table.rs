//! A service's samples as tables in Markdown, which a terminal shows well too.
//!
//! Everything is computed from the record; it must not know how it came about.

use std::fmt::{self, Write};

use super::record::{Kind, Service, Way, quantile};
use super::ways::EMPTY;

/// After how many requests their mean is shown.
const FIRST: [usize; 4] = [1, 10, 100, 1000];

/// The median time to the whole answer, in milliseconds.
#[must_use]
pub fn median(way: &Way) -> Option<f64> {
    quantile(&way.answers(), 0.5)
}

/// All tables of a service.
#[must_use]
pub fn render(service: &Service) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = starts(&mut text, service)
        .and_then(|()| requests(&mut text, service))
        .and_then(|()| memory(&mut text, service))
        .and_then(|()| break_even(&mut text, service))
        .and_then(|()| trust(&mut text, service))
        .and_then(|()| failures(&mut text, service));
    text
}

fn starts(out: &mut String, service: &Service) -> fmt::Result {
    writeln!(out, "{}: to the first correct answer of {}", service.name, service.question)?;
    if let Some(image) = &service.image {
        writeln!(out, "image of {:.1} MiB", image.bytes as f64 / 1_048_576.0)?;
    }
    let width = service.ways.iter().map(|way| way.name.chars().count()).max().unwrap_or(0).max(4);
    writeln!(out)?;
    writeln!(out, "| {:width$} | min ms | median ms |  p90 ms |  p99 ms |   n | of cold | of criu |", "way")?;
    writeln!(
        out,
        "|{:-<w$}|-------:|----------:|--------:|--------:|----:|--------:|--------:|",
        "",
        w = width + 2
    )?;
    let of = |kind| service.ways.iter().find(|way| way.kind == kind && !way.evicted).and_then(median);
    let cold = service.ways.iter().find(|way| way.name == "cold").and_then(median).or(of(Kind::Cold));
    let criu = of(Kind::Criu);
    for way in &service.ways {
        let times = way.answers();
        let cell = |part| quantile(&times, part).map_or("–".to_owned(), |ms| format!("{ms:.1}"));
        let ratio = |base: Option<f64>| match (quantile(&times, 0.5), base) {
            (Some(own), Some(base)) if base > 0.0 => format!("{:.3}", own / base),
            _ => String::new(),
        };
        let (name, n) = (&way.name, times.len());
        let least = times.first().map_or("–".to_owned(), |ms| format!("{ms:.1}"));
        let (median, p90, p99) = (cell(0.5), cell(0.9), cell(0.99));
        let (of_cold, of_criu) = (ratio(cold), ratio(criu));
        writeln!(
            out,
            "| {name:width$} | {least:>6} | {median:>9} | {p90:>7} | {p99:>7} | {n:>3} | {of_cold:>7} | {of_criu:>7} |"
        )?;
    }
    Ok(())
}

/// The mean of the first so many requests after a start: of each list, then the median of these.
fn mean_of_first(way: &Way, count: usize) -> Option<f64> {
    let mean = |times: &Vec<f64>| times.get(..count).map(|first| first.iter().sum::<f64>() / count as f64);
    let mut means: Vec<f64> = way.requests.iter().filter_map(mean).collect();
    means.sort_by(f64::total_cmp);
    quantile(&means, 0.5)
}

fn requests(out: &mut String, service: &Service) -> fmt::Result {
    let longest = service.ways.iter().flat_map(|way| way.requests.iter().map(Vec::len)).max().unwrap_or(0);
    let counts: Vec<usize> = FIRST.into_iter().filter(|count| *count <= longest).collect();
    if counts.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n| mean latency after the start, ms | {} |",
        join(counts.iter().map(|n| format!("first {n}")))
    )?;
    writeln!(out, "|---|{}", "--:|".repeat(counts.len()))?;
    for way in service.ways.iter().filter(|way| !way.requests.is_empty()) {
        let cell =
            |count: &usize| mean_of_first(way, *count).map_or("–".to_owned(), |ms| format!("{ms:.3}"));
        writeln!(out, "| {} | {} |", way.name, join(counts.iter().map(cell)))?;
    }
    Ok(())
}

fn memory(out: &mut String, service: &Service) -> fmt::Result {
    if service.ways.iter().all(|way| way.memory.is_empty()) {
        return Ok(());
    }
    writeln!(out, "\n| memory, MiB | when | processes | resident | proportional |")?;
    writeln!(out, "|---|---|--:|--:|--:|")?;
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / 1_048_576.0);
    for way in &service.ways {
        for memory in &way.memory {
            let (rss, pss) = (mib(memory.rss), mib(memory.pss));
            writeln!(out, "| {} | {} | {} | {rss} | {pss} |", way.name, memory.at, memory.processes)?;
        }
    }
    Ok(())
}

/// From which warm-up on each way of restoring gains: below it a cold start is as fast.
fn break_even(out: &mut String, service: &Service) -> fmt::Result {
    let empty = service.ways.iter().find(|way| way.name == EMPTY).and_then(median);
    // Variants, such as with the image out of the page cache, have a comma in their names.
    let plain = |way: &&Way| matches!(way.kind, Kind::Criu | Kind::Defrost) && !way.name.contains(',');
    let restores = service.ways.iter().filter(plain);
    let gains: Vec<String> = restores
        .filter_map(|way| {
            let least = (median(way)? - empty.unwrap_or(0.0)).max(0.0);
            Some(format!("{least:.0} ms by {}", way.name))
        })
        .collect();
    if gains.is_empty() {
        return Ok(());
    }
    let beside = if empty.is_some() { "beyond an empty start" } else { "in all" };
    writeln!(
        out,
        "\nBreak-even: a restore is worth it for a service that takes longer to start, {beside}, than: {}.",
        gains.join(", ")
    )?;
    let fork = service.ways.iter().find(|way| way.kind == Kind::Fork);
    if let Some((way, median)) = fork.and_then(|way| Some((way, median(way)?))) {
        let needs = "needs a warm parent that lives on the same host";
        writeln!(out, "The way '{}' takes {median:.1} ms, and {needs}.", way.name)?;
    }
    Ok(())
}

/// What the probe saw beside the times.
fn trust(out: &mut String, service: &Service) -> fmt::Result {
    let starts: Vec<_> = service.ways.iter().flat_map(|way| &way.starts).collect();
    let mut gaps: Vec<f64> =
        starts.iter().filter(|start| start.answer.is_some()).map(|start| start.worst_gap).collect();
    gaps.sort_by(f64::total_cmp);
    let gap = |part| quantile(&gaps, part).unwrap_or(0.0);
    let (attempts, lost): (u64, u64) = starts.iter().fold((0, 0), |(attempts, lost), start| {
        (attempts + u64::from(start.attempts), lost + u64::from(start.lost_syns))
    });
    let kept = service.ways.iter().map(|way| way.starts.len()).max().unwrap_or(0);
    let asked = usize::try_from(service.rounds).unwrap_or(usize::MAX);
    let rounds = if kept < asked { format!("{kept} of {asked}") } else { asked.to_string() };
    writeln!(
        out,
        "\n{rounds} rounds, {} run again; {attempts} attempts, {lost} lost SYNs; worst gap between two attempts: median {:.2} ms, p90 {:.2} ms.",
        service.repeated,
        gap(0.5),
        gap(0.9)
    )?;
    let mut others: Vec<f64> =
        starts.iter().filter(|start| start.answer.is_some()).map(|start| start.others * 100.0).collect();
    others.sort_by(f64::total_cmp);
    let (Some(middle), Some(most)) = (quantile(&others, 0.5), others.last()) else { return Ok(()) };
    writeln!(
        out,
        "During these starts others took {middle:.0}% of the processors (median), {most:.0}% at most."
    )
}

/// Each way that failed: how often, and why the first time.
fn failures(out: &mut String, service: &Service) -> fmt::Result {
    for way in &service.ways {
        let mut failed = way.starts.iter().filter_map(|start| start.failure.as_ref());
        if let Some(why) = failed.next() {
            writeln!(out, "{} failed {} of {} times: {why}", way.name, failed.count() + 1, way.starts.len())?;
        }
    }
    Ok(())
}

fn join(cells: impl Iterator<Item = String>) -> String {
    cells.collect::<Vec<_>>().join(" | ")
}
