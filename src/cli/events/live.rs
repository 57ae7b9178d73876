//! The events of a live server, over its control socket.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use super::super::ask::{connect, inquire, said};
use super::super::failure::{FAILED, Failure};
use super::output::Output;
use crate::control::{Answer, Client, ClientError};
use crate::events::json::from_json;
use crate::events::stored::Once;
use crate::events::{Event, Listing};

/// How long a server may take to answer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
/// How long to wait for the next event before looking again.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a server that lives may be out of reach: as long as a checkpoint of it may take, and some more.
const AWAY: Duration = Duration::from_secs(180);
/// How long to look for one that has ended: it may be restored.
const GONE: Duration = Duration::from_secs(2);
/// The pause before another attempt to reach it.
const PAUSE: Duration = Duration::from_millis(50);

/// Shows what the server has kept.
pub(super) fn list(target: &OsString, output: &mut Output) -> Result<u8, Failure> {
    let answer = inquire(target, "events json", ANSWERED_WITHIN)?;
    let listing: Listing = serde_json::from_str(&answer.text).map_err(|error| {
        Failure::plain(FAILED, format!("the server's answer is no list of events: {error}"))
    })?;
    for object in listing.events {
        if from_json(object).is_some_and(|event| output.show(&event).is_err()) {
            break;
        }
    }
    output.miss(listing.counts.dropped + listing.left_out);
    if listing.counts.unwritten > 0 {
        note!("defrost: {} events were not written to the server's file", listing.counts.unwritten);
    }
    Ok(0)
}

/// Shows what the server has kept, and what happens from now on, through checkpoints that it goes on after, and
/// restores, of an earlier state too.
pub(super) fn follow(target: &OsString, output: &mut Output) -> Result<u8, Failure> {
    let mut client = connect(target)?;
    let mut seen = Seen::default();
    loop {
        let pid = client.peer_pid();
        if let Ended::Reader = stream(&mut client, &mut seen, output)? {
            return Ok(0);
        }
        client = reach_again(target, pid)?;
    }
}

enum Ended {
    /// Nobody reads what is shown.
    Reader,
    /// The server has closed the connection: for a checkpoint, or because it has ended.
    Connection,
}

/// What has come so far, over all connections.
#[derive(Default)]
struct Seen {
    once: Once,
    /// The sequence number after the last event's.
    next: u64,
}

/// Asks for all that is kept each time, and leaves out what has been seen. A server that came back from an earlier
/// checkpoint counts on from there, so that its numbers alone do not tell what is new.
fn stream(client: &mut Client, seen: &mut Seen, output: &mut Output) -> Result<Ended, Failure> {
    let mut line = client.ask(b"events follow", LOOK_EVERY);
    // What this connection began after, and was gone before it.
    let mut before = Some(seen.next);
    loop {
        match line {
            Ok(line) => match understood(&line)? {
                Told::Event(event) => {
                    (seen.next, before) = (event.sequence + 1, None);
                    if !seen.once.is_new(&event) {
                        // Shown, or filtered, before.
                    } else if output.show(&event).and_then(|()| output.flush()).is_err() {
                        return Ok(Ended::Reader);
                    }
                }
                Told::Missed(count) => tell_missed(count.saturating_sub(before.take().unwrap_or(0))),
            },
            Err(ClientError::Late { .. }) => {}
            Err(ClientError::Closed { .. }) => return Ok(Ended::Connection),
            Err(error) => return Err(failed(&error)),
        }
        line = client.next_line(LOOK_EVERY);
    }
}

fn tell_missed(count: u64) {
    if count > 0 {
        note!("defrost: {count} events are missing: more came than were read or kept");
    }
}

enum Told {
    Event(Box<Event>),
    Missed(u64),
}

fn understood(line: &[u8]) -> Result<Told, Failure> {
    let object: Option<serde_json::Value> = serde_json::from_slice(line).ok();
    if let Some(count) = object.as_ref().and_then(|object| object["missed"].as_u64()) {
        return Ok(Told::Missed(count));
    }
    if let Some(event) = object.and_then(from_json) {
        return Ok(Told::Event(Box::new(event)));
    }
    if let Some(answer) = Answer::parse(line) {
        said(&answer)?;
    }
    Err(Failure::plain(FAILED, "the server's answer is no event"))
}

/// Connects again to a server that is being checkpointed.
fn reach_again(target: &OsString, pid: Option<i32>) -> Result<Client, Failure> {
    let (lost, mut seen) = (Instant::now(), Instant::now());
    loop {
        match connect(target) {
            Ok(client) => return Ok(client),
            Err(_) if pid.is_some_and(lives) && lost.elapsed() < AWAY => seen = Instant::now(),
            Err(_) if seen.elapsed() < GONE => {}
            Err(_) => {
                let text = format!("{} has ended", target.display());
                return Err(Failure::new(FAILED, text, Some("if it is an image now, restore it")));
            }
        }
        std::thread::sleep(PAUSE);
    }
}

fn lives(pid: i32) -> bool {
    let stat = procfs::process::Process::new(pid).and_then(|process| process.stat());
    stat.is_ok_and(|stat| !"ZX".contains(stat.state))
}

fn failed(error: &ClientError) -> Failure {
    Failure::new(FAILED, error, error.hint())
}
