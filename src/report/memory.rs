//! Memory: which mappings the pages of an image belong to, and how much memory the processes of each way have.

use maud::{Markup, html};

use super::axis::Axis;
use super::figure::{Row, Table, bar, chart};
use super::number::{as_f64, bytes, percent};
use super::way::class;
use crate::bench::record::Service;

const HEIGHT: u32 = 26;
/// So many mappings are shown by themselves.
const SHOWN: usize = 12;

/// How much memory a kind of mapping has.
#[derive(Debug, Clone)]
pub(super) struct Share {
    /// The kind, with the file's name where it is one.
    pub(super) name: String,
    /// Pages of it in the image, in bytes.
    pub(super) stored: u64,
    /// What else the table says of it.
    pub(super) more: Vec<String>,
}

/// Bars of the largest, all in the table, whose further columns `more` names. Nothing where there are none.
pub(super) fn mappings(image: &str, mut shares: Vec<Share>, more: &[&str]) -> Markup {
    shares.sort_by(|one, other| other.stored.cmp(&one.stored).then(one.name.cmp(&other.name)));
    let whole: u64 = shares.iter().fold(0, |sum, share| sum.saturating_add(share.stored));
    let Some(largest) = shares.first() else { return Markup::default() };
    let mut rows: Vec<(String, u64)> = shares
        .iter()
        .filter(|share| share.stored > 0)
        .map(|share| (share.name.clone(), share.stored))
        .collect();
    let mut axis = Axis::bytes(as_f64(largest.stored));
    if rows.len() > SHOWN + 1 {
        let rest = rows.split_off(SHOWN);
        let sum = rest.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        axis = Axis::bytes(as_f64(largest.stored.max(sum)));
        rows.push((format!("{} smaller ones", rest.len()), sum));
    }
    let part = |stored: u64| percent(if whole == 0 { 0.0 } else { as_f64(stored) / as_f64(whole) });
    let row = |(name, stored): &(String, u64)| Row {
        name: html! { (name) },
        value: html! { strong { (bytes(*stored)) } " " small { (part(*stored)) } },
        said: format!("{name}: {}, {} of the pages", bytes(*stored), part(*stored)),
        height: HEIGHT,
        marks: bar("defrost", 0.0, axis.place(as_f64(*stored)), HEIGHT),
    };
    let rows: Vec<Row> = rows.iter().map(row).collect();
    let mut table = Table::new(
        format!("Pages in the image of {image} by kind of mapping"),
        &[["mapping", "in the image", "share"].as_slice(), more].concat(),
    );
    for share in &shares {
        let cells = [share.name.clone(), bytes(share.stored), part(share.stored)];
        table.line(cells.into_iter().chain(share.more.iter().cloned()));
    }
    html! {
        h3 { "Which memory the image holds" }
        p.note { (bytes(whole)) " of pages, by the kind of mapping that they belong to, the largest first." }
        (chart(&rows, &axis, "in the image", &table))
    }
}

/// The image of a service.
pub(super) fn of_image(service: &Service) -> Markup {
    let Some(image) = &service.image else { return Markup::default() };
    let share =
        |(name, stored): (&String, &u64)| Share { name: name.clone(), stored: *stored, more: Vec::new() };
    mappings(&service.name, image.mappings.iter().map(share).collect(), &[])
}

/// Proportional memory of the processes of each way, at each moment that was measured.
pub(super) fn of_processes(service: &Service) -> Markup {
    let measured = || service.ways.iter().flat_map(|way| way.memory.iter().map(move |memory| (way, memory)));
    if measured().next().is_none() {
        return Markup::default();
    }
    let largest = measured().map(|(_, memory)| memory.pss).max().unwrap_or(0);
    let axis = Axis::bytes(as_f64(largest));
    let rows: Vec<Row> = measured()
        .map(|(way, memory)| Row {
            name: html! { (way.name) small { (memory.at) ", processes: " (memory.processes) } },
            value: html! { strong { (bytes(memory.pss)) } small { "resident " (bytes(memory.rss)) } },
            said: format!("{}, {}: {} proportional", way.name, memory.at, bytes(memory.pss)),
            height: HEIGHT,
            marks: bar(class(way.kind), 0.0, axis.place(as_f64(memory.pss)), HEIGHT),
        })
        .collect();
    let head = ["way", "moment", "processes", "proportional", "resident", "anonymous"];
    let mut table = Table::new(format!("Memory of the processes of {}", service.name), &head);
    for (way, memory) in measured() {
        let sizes = [memory.pss, memory.rss, memory.anonymous].map(bytes);
        let words = [way.name.clone(), memory.at.clone(), memory.processes.to_string()];
        table.line(words.into_iter().chain(sizes));
    }
    html! {
        h3 { "Memory of the running processes" }
        p.note {
            "Proportional: what several processes share counts once, in parts. Pages of an image that are mapped and"
            " not touched count for nobody."
        }
        (chart(&rows, &axis, "proportional", &table))
    }
}
