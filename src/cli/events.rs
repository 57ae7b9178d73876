//! `defrost events`: what happened in a server.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use super::ask::{connect, said};
use super::failure::{FAILED, Failure};
use crate::events::json::from_json;
use crate::events::{Event, Listing};

/// How long a server may take to list its events.
const LISTED_WITHIN: Duration = Duration::from_secs(10);

/// List what happened in a server: checkpoints with each hook, restores, requests, log lines, events of its own
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The server: its name, its pid, or the path of its control socket
    target: OsString,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut client = connect(&arguments.target)?;
    let answer = client.request(b"events json", LISTED_WITHIN);
    let answer = answer.map_err(|error| Failure::new(FAILED, &error, error.hint()))?;
    said(&answer)?;
    let listing: Listing = serde_json::from_str(&answer.text).map_err(|error| {
        Failure::plain(FAILED, format!("the server's answer is no list of events: {error}"))
    })?;
    let mut out = io::stdout().lock();
    for object in listing.events {
        let written = match from_json(object.clone()) {
            Some(event) if !arguments.json => writeln!(out, "{}", line(&event)),
            _ => writeln!(out, "{object}"),
        };
        // Whoever reads has seen enough.
        if written.is_err() {
            break;
        }
    }
    let dropped = listing.counts.dropped + listing.left_out;
    if dropped > 0 {
        eprintln!("defrost: {dropped} older events were dropped");
    }
    Ok(ExitCode::SUCCESS)
}

fn line(event: &Event) -> String {
    let time = humantime::format_rfc3339_micros(event.time());
    let fields: Vec<String> = event.fields.iter().map(ToString::to_string).collect();
    format!("{time} {} {} {}", event.origin, event.name, fields.join(" "))
}
