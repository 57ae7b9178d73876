//! Lines, their limit, and where a conversation ends.

use super::*;
use crate::server::echo::LINE_LIMIT;

#[tokio::test(flavor = "multi_thread")]
async fn each_line_comes_back_and_what_has_no_newline_too() {
    let (server, _subject) = started(options());
    let mut client = connect(echo_of(&server)).await;
    assert_eq!(ask(&mut client, "one\n").await, "one\n");
    assert_eq!(ask(&mut client, "\n").await, "\n");
    client.write_all(b"two\nthree\nfour").await.unwrap();
    client.get_mut().shutdown().await.unwrap();
    assert_eq!(rest(&mut client).await.unwrap(), "two\nthree\nfour");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_is_too_long_ends_the_connection_and_no_other() {
    let (server, _subject) = started(options());
    let mut other = connect(echo_of(&server)).await;
    let mut client = connect(echo_of(&server)).await;
    let _ = client.write_all(&vec![b'x'; LINE_LIMIT + 16 * 1024]).await;
    // End of file, or a reset.
    let answer = rest(&mut client).await.unwrap_or_default();
    assert_eq!(answer, "");
    assert_eq!(ask(&mut other, "still\n").await, "still\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_lets_the_line_under_way_finish_and_is_at_once_otherwise() {
    let (server, _subject) = started(ServerOptions { drain: LIMIT, ..options() });
    let (mut idle, mut busy) = (connect(echo_of(&server)).await, connect(echo_of(&server)).await);
    assert_eq!(ask(&mut idle, "a\n").await, "a\n");
    assert_eq!(ask(&mut busy, "b\n").await, "b\n");
    busy.write_all(b"half").await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let stop = tokio::spawn(server.stop());
    assert_eq!(rest(&mut idle).await.unwrap(), "");
    assert!(!stop.is_finished());
    busy.write_all(b" and half\n").await.unwrap();
    assert_eq!(rest(&mut busy).await.unwrap(), "half and half\n");
    assert!(stop.await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_arrived_before_a_stop_is_answered() {
    let (server, _subject) = started(ServerOptions { drain: LIMIT, ..options() });
    let mut client = connect(echo_of(&server)).await;
    assert_eq!(ask(&mut client, "first\n").await, "first\n");
    let sent = "0123456\n".repeat(1_000);
    client.write_all(sent.as_bytes()).await.unwrap();
    assert!(server.stop().await.is_empty());
    assert_eq!(rest(&mut client).await.unwrap(), sent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_finishes_is_cut_off_after_the_drain() {
    let (server, _subject) = started(ServerOptions { drain: Duration::from_millis(100), ..options() });
    let mut client = connect(echo_of(&server)).await;
    assert_eq!(ask(&mut client, "a\n").await, "a\n");
    client.write_all(b"never ended").await.unwrap();
    assert!(timeout(LIMIT, server.stop()).await.unwrap().is_empty());
    // What was begun comes back: the server has read the end of the stream.
    let _ = rest(&mut client).await;
}
