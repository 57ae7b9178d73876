//! The page of one or more records: the findings first, then the newest record service by service.

use maud::{Markup, html};

use super::figure::Table;
use super::findings::{Finding, findings, trust};
use super::number::of;
use super::page::{Part, page};
use super::{history, latency, memory, starts, waterfall};
use crate::bench::record::{Host, Record, Service};

/// A record and the name of its file.
#[derive(Debug, Clone)]
pub struct Run {
    /// What a reader finds it by.
    pub name: String,
    /// What was measured.
    pub record: Record,
}

/// The page of these records, in any order; the newest is shown in full. Of none it says that there is none.
#[must_use]
pub fn runs(runs: &[Run]) -> String {
    let mut ordered: Vec<&Run> = runs.iter().collect();
    ordered.sort_by(|one, other| one.record.host.date.cmp(&other.record.host.date));
    let Some(newest) = ordered.last() else {
        return page("How long a start takes", &html! { p { "There is no record." } }, &[]);
    };
    let record = &newest.record;
    let trust = trust(record);
    let said = html! {
        (list(&findings(record)))
        @if !trust.is_empty() { h3 { "How far to trust the figures" } (list(&trust)) }
    };
    let mut parts = vec![part("findings", "Findings", said)];
    for (number, service) in record.services.iter().enumerate() {
        parts.push(part(&format!("service-{number}"), &service.name, self::service(service)));
    }
    if ordered.len() > 1 {
        parts.push(part("history", "History", history::figures(&ordered)));
    }
    parts.push(part("host", "Where this was measured", host(&record.host)));
    page("How long a start takes", &lead(newest, &ordered), &parts)
}

pub(super) fn part(id: &str, name: &str, body: Markup) -> Part {
    Part { id: id.to_owned(), name: name.to_owned(), body }
}

fn lead(newest: &Run, all: &[&Run]) -> Markup {
    let host = &newest.record.host;
    html! {
        p.lead {
            (newest.name) ", measured on " (host.date) " on " (of(host.cores as usize, "core")) " of " (host.cpu)
            ", Linux " (host.kernel) "."
            @if all.len() > 1 {
                " The newest of " (all.len()) " records is shown in full; the others are in the history."
            }
        }
    }
}

pub(super) fn list(findings: &[Finding]) -> Markup {
    html! {
        ul.findings {
            @for finding in findings {
                li { @if finding.bad { span.bad { "Attention: " } } (finding.text) }
            }
        }
    }
}

fn service(service: &Service) -> Markup {
    html! {
        p.note { "Asked: " (service.question) }
        @if service.ways.iter().any(|way| !way.starts.is_empty()) {
            (starts::figure(service))
            (waterfall::starts(service))
        } @else {
            p { "There are no starts of this service in the record." }
        }
        (latency::figure(service))
        (memory::of_processes(service))
        @if let Some(image) = &service.image {
            (memory::of_image(service))
            (waterfall::checkpoint(&service.name, &image.checkpoint))
        }
    }
}

/// The machine, as a table.
fn host(host: &Host) -> Markup {
    let mut table = Table::new("The host of the newest record", &["what", "value"]);
    let mut line = |name: &str, value: String| table.line([name.to_owned(), value]);
    line("date", host.date.clone());
    line("processor", format!("{} ({}), {}", host.cpu, host.machine, of(host.cores as usize, "core")));
    line("memory", format!("{} MiB", host.memory_mib));
    line("kernel", host.kernel.clone());
    line("load before the run", host.load.map(|load| format!("{load:.2}")).join(", "));
    line("CRIU", host.criu.clone().unwrap_or_else(|| "none".to_owned()));
    let changed = if host.dirty { ", with changes" } else { "" };
    let commit = host.commit.as_ref().map(|commit| format!(", commit {commit}{changed}"));
    line("defrost", format!("{}{}", host.defrost, commit.unwrap_or_default()));
    for (name, value) in &host.notes {
        line(name, value.clone());
    }
    table.open()
}
