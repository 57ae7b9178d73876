//! Against listeners of the tests' own, honest and otherwise.

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::*;

fn options(port: u16) -> LoadOptions {
    LoadOptions {
        host: "127.0.0.1".to_owned(),
        port,
        clients: 20,
        messages: 5,
        pace: Pace::FullSpeed,
        seed: 1,
        limit: Duration::from_secs(30),
        through_checkpoint: false,
        server: None,
    }
}

async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Answers each line by what `answer` makes of it; `None` closes the connection.
async fn serve(listener: TcpListener, answer: fn(u32, &str) -> Option<String>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(converse(stream, answer));
    }
}

async fn converse(stream: TcpStream, answer: fn(u32, &str) -> Option<String>) {
    let mut stream = BufReader::new(stream);
    for number in 0.. {
        let mut line = String::new();
        if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
            return;
        }
        let Some(answer) = answer(number, &line) else { return };
        if stream.get_mut().write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn loaded(
    answer: fn(u32, &str) -> Option<String>,
    change: impl FnOnce(LoadOptions) -> LoadOptions,
) -> Outcome {
    let (listener, port) = listener().await;
    let server = tokio::spawn(serve(listener, answer));
    let outcome = run(change(options(port)), &Progress::new()).await.unwrap();
    server.abort();
    outcome
}

fn echo(_: u32, line: &str) -> Option<String> {
    Some(line.to_owned())
}

#[tokio::test]
async fn an_echo_answers_everything() {
    let outcome = loaded(echo, |options| options).await;
    assert!(outcome.is_whole(), "{outcome:?}");
    assert_eq!((outcome.answered, outcome.lost, outcome.reconnects), (100, 0, 0));
    let latency = outcome.latency_us.unwrap();
    assert!(latency.min <= latency.p50 && latency.p50 <= latency.p99 && latency.p99 <= latency.max);
}

#[tokio::test]
async fn an_ipv6_address_may_have_brackets() {
    let Ok(listener) = TcpListener::bind("[::1]:0").await else {
        println!("skipped: an_ipv6_address_may_have_brackets: there is no ::1 here");
        return;
    };
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(serve(listener, echo));
    for host in ["::1", "[::1]"] {
        let options = LoadOptions { host: host.to_owned(), ..options(port) };
        let outcome = run(options, &Progress::new()).await.unwrap();
        assert!(outcome.is_whole(), "{host}: {outcome:?}");
    }
    server.abort();
}

#[tokio::test]
async fn a_rate_is_a_schedule() {
    let outcome = loaded(echo, |options| LoadOptions { pace: Pace::Rate(200.0), ..options }).await;
    assert!(outcome.is_whole(), "{outcome:?}");
    // The last of 100 messages is due after 0.495 s.
    assert!(outcome.seconds >= 0.49, "{}", outcome.seconds);
}

#[test]
fn the_same_seed_gives_the_same_waits_and_each_is_within_its_bounds() {
    for (client, message) in [(0, 0), (1, 0), (1, 7), (9_999, 9)] {
        let longest = if message == 0 { pace::FIRST_WAIT } else { pace::NEXT_WAIT };
        let wait = pace::wait(1, client, message);
        assert!(wait <= longest);
        assert_eq!(wait, pace::wait(1, client, message));
        assert_ne!(wait, pace::wait(2, client, message));
        assert_ne!(wait, pace::wait(1, client + 1, message));
    }
}

#[tokio::test]
async fn wrong_answers_are_counted_and_the_others_go_on() {
    let spoilt = |number: u32, line: &str| {
        Some(if number == 2 { line.replace("message", "massage") } else { line.to_owned() })
    };
    let outcome = loaded(spoilt, |options| options).await;
    assert_eq!((outcome.answered, outcome.wrong, outcome.lost), (80, 20, 0), "{outcome:?}");
    assert!(!outcome.is_whole());
    let swapped = |_: u32, line: &str| Some(format!("{line}{line}"));
    let outcome = loaded(swapped, |options| LoadOptions { messages: 1, ..options }).await;
    assert_eq!(outcome.wrong, 20, "an answer that comes twice: {outcome:?}");
}

#[tokio::test]
async fn a_connection_that_ends_loses_messages_only_where_nothing_is_sent_again() {
    let closes = |number: u32, line: &str| (number < 2).then(|| line.to_owned());
    let outcome = loaded(closes, |options| options).await;
    assert_eq!((outcome.answered, outcome.lost), (40, 60), "{outcome:?}");
    let ended = [Trouble::Closed, Trouble::Reset];
    assert_eq!(ended.iter().filter_map(|kind| outcome.errors.get(kind)).sum::<u64>(), 20);

    let outcome = loaded(closes, |options| LoadOptions { through_checkpoint: true, ..options }).await;
    assert!(outcome.is_whole(), "{outcome:?}");
    // Five messages take three connections of two answers each.
    assert_eq!((outcome.reconnects, outcome.resent), (40, 40), "{outcome:?}");
    assert!(outcome.errors.is_empty(), "{outcome:?}");
}

#[tokio::test]
async fn a_silent_server_is_given_up() {
    let (listener, port) = listener().await;
    let options =
        LoadOptions { limit: Duration::from_millis(200), through_checkpoint: true, ..options(port) };
    let outcome = run(options, &Progress::new()).await.unwrap();
    assert_eq!((outcome.answered, outcome.lost), (0, 100));
    assert_eq!(outcome.errors.get(&Trouble::Late), Some(&20), "{outcome:?}");
    drop(listener);
}

#[tokio::test]
async fn without_a_server_or_descriptors_nothing_is_sent() {
    let (listener, port) = listener().await;
    drop(listener);
    let error = run(options(port), &Progress::new()).await.unwrap_err();
    assert!(matches!(error, LoadError::Unreachable { .. }), "{error}");
    let many = LoadOptions { clients: u32::MAX, ..options(port) };
    let error = run(many, &Progress::new()).await.unwrap_err();
    assert!(matches!(error, LoadError::Descriptors { clients: u32::MAX, .. }), "{error}");
    let nowhere = LoadOptions { host: "no such host".to_owned(), ..options(port) };
    let error = run(nowhere, &Progress::new()).await.unwrap_err();
    assert!(matches!(error, LoadError::Resolve { .. }), "{error}");
}
