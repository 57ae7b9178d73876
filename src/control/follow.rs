//! Events as they happen, to a client who asked for them: a JSON object a line.
//!
//! The ring is the client's queue. One who is slower than events are recorded does not hold up anything: what leaves
//! the ring meanwhile is lost to that client, and a line `{"missed":N}` says so. It must not know who the client is.

use std::future::Future;
use std::pin::pin;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};

use super::answer::Answer;
use crate::events::Recorder;
use crate::events::json::to_json;

/// How many events are written at once.
const AT_ONCE: usize = 64;

/// The answer to one who wants to follow a server that records nothing.
pub(super) fn nothing_recorded() -> Answer {
    Answer::error("no events are recorded", &["start the server with events turned on".to_owned()])
}

/// Writes events from the sequence number `from` on, until the client ends the connection or `over` completes. What
/// the client says meanwhile is read and means nothing.
pub(super) async fn follow(
    events: &Recorder,
    from: u64,
    stream: impl AsyncRead + AsyncWrite,
    over: impl Future<Output = ()>,
) {
    let (mut input, mut output) = split(stream);
    let mut over = pin!(over);
    let mut ignored = [0; 256];
    let mut next = from;
    loop {
        let batch = events.read(next, AT_ONCE);
        next = batch.next;
        let mut lines = String::new();
        if batch.missed > 0 {
            lines.push_str(&format!("{{\"missed\":{}}}\n", batch.missed));
        }
        for event in &batch.events {
            lines.push_str(&to_json(event).to_string());
            lines.push('\n');
        }
        if lines.is_empty() {
            tokio::select! {
                biased;
                () = &mut over => return,
                () = events.reached(next) => {}
                read = input.read(&mut ignored) => if !matches!(read, Ok(1..)) { return },
            }
        } else {
            tokio::select! {
                biased;
                () = &mut over => return,
                sent = output.write_all(lines.as_bytes()) => if sent.is_err() { return },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncBufReadExt, BufReader, duplex};

    use super::*;
    use crate::events::{Draft, Limits};

    const AMPLE: Duration = Duration::from_secs(30);

    fn record(events: &Recorder, count: u64) {
        (0..count).for_each(|n| events.record(|| Draft::new("n").with("n", n)));
    }

    #[tokio::test]
    async fn a_slow_client_is_told_what_it_missed() {
        let events = Recorder::new(Limits { events: 10, ..Limits::default() });
        let (client, server) = duplex(100);
        let follower = events.clone();
        let task = tokio::spawn(async move { follow(&follower, 0, server, std::future::pending()).await });
        record(&events, 1);
        let mut lines = BufReader::new(client).lines();
        let mut next = async || {
            let line = tokio::time::timeout(AMPLE, lines.next_line()).await.unwrap().unwrap().unwrap();
            serde_json::from_str::<serde_json::Value>(&line).unwrap()
        };
        let mut told = next().await["sequence"].as_u64().unwrap() + 1;
        // It has read one, and has room for less than another.
        tokio::task::yield_now().await;
        record(&events, 200);
        let mut missed = 0;
        while told < 201 {
            let line = next().await;
            match line["missed"].as_u64() {
                Some(count) => missed += count,
                None => {
                    let sequence = line["sequence"].as_u64().unwrap();
                    assert!(sequence >= told);
                    told = sequence + 1;
                }
            }
        }
        assert!(missed > 100, "{missed}");
        drop(lines);
        tokio::time::timeout(AMPLE, task).await.unwrap().unwrap();
    }
}
