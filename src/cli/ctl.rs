//! `defrost ctl`: lines on standard input, an answer for each.

use std::ffi::OsString;
use std::io::{BufRead, Read};
use std::process::ExitCode;
use std::time::Duration;

use super::ask::connect;
use super::failure::{FAILED, Failure};
use crate::control::{LINE_LIMIT, Request};

/// How long a request may take; a checkpoint of a big server on a slow disk takes minutes.
const REQUEST: Duration = Duration::from_secs(900);

/// Send the lines on standard input to a running server and print an answer for each:
/// `echo checkpoint ./img | defrost ctl NAME`
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The server: its name, its pid, or the path of its control socket
    target: OsString,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut client = connect(&arguments.target)?;
    let mut input = std::io::stdin().lock();
    let mut all_done = true;
    loop {
        let mut line = Vec::new();
        // One byte more than is allowed, so that a line that is too long is seen to be.
        let limit = LINE_LIMIT as u64 + 1;
        let read = input.by_ref().take(limit).read_until(b'\n', &mut line);
        read.map_err(|error| Failure::plain(FAILED, format!("standard input: {error}")))?;
        if line.is_empty() {
            break;
        }
        if line.len() > LINE_LIMIT && line.last() != Some(&b'\n') {
            return Err(Failure::plain(FAILED, format!("a line is longer than {LINE_LIMIT} bytes")));
        }
        let line = line.strip_suffix(b"\n").unwrap_or(&line);
        if line.trim_ascii().is_empty() {
            continue;
        }
        let answer = client.request(&meant_from_here(line), REQUEST);
        let answer = answer.map_err(|error| Failure::new(FAILED, &error, error.hint()))?;
        if answer.ok {
            say!("{}", answer.text);
        } else {
            all_done = false;
            Failure::new(FAILED, &answer.text, answer.hint).warn();
        }
    }
    Ok(if all_done { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// The line with a relative folder made absolute: it is taken from where it was typed. What is no proper
/// request goes through as it is, for the server to say so.
fn meant_from_here(line: &[u8]) -> Vec<u8> {
    match Request::parse(line) {
        Ok(Request::Checkpoint { dir, leave_running, durable }) => match std::path::absolute(&dir) {
            Ok(dir) => Request::Checkpoint { dir, leave_running, durable }.to_line(),
            Err(_) => line.to_vec(),
        },
        _ => line.to_vec(),
    }
}
