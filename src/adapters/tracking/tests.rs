use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinHandle;

use super::*;

/// A drain that has to end by itself, on a machine of any speed.
const AMPLE: Duration = Duration::from_secs(20);
/// A drain whose limit is meant to run out.
const SHORT: Duration = Duration::from_millis(50);

async fn pair(connections: &Connections) -> (TcpStream, Tracked<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (server, peer) = listener.accept().await.unwrap();
    (client, connections.track(server, peer))
}

/// Answers each byte with the same, and takes its time for an `s`.
fn echo(mut stream: Tracked<TcpStream>, answer_after: Duration) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut byte = [0];
        while stream.read_exact(&mut byte).await.is_ok() {
            if byte == *b"s" {
                tokio::time::sleep(answer_after).await;
            }
            if stream.write_all(&byte).await.is_err() {
                return;
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_go_at_once() {
    let connections = Connections::new();
    let mut clients = Vec::new();
    for _ in 0..100 {
        let (client, server) = pair(&connections).await;
        echo(server, Duration::ZERO);
        clients.push(client);
    }
    let started = Instant::now();
    connections.drain(AMPLE).await.unwrap();
    println!("100 idle connections drained in {:?}", started.elapsed());
    let counts = connections.counts();
    assert_eq!((counts.accepted, counts.active, counts.drained, counts.forced), (100, 0, 100, 0));
    for mut client in clients {
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn a_busy_one_answers_before_it_goes() {
    let connections = Connections::new();
    let (mut client, server) = pair(&connections).await;
    // The second request is queued behind the one being served, and is answered as well.
    client.write_all(b"s2").await.unwrap();
    let handler = echo(server, Duration::from_millis(100));
    tokio::time::sleep(Duration::from_millis(20)).await;
    connections.drain(AMPLE).await.unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, b"s2");
    handler.await.unwrap();
    assert_eq!(connections.counts().drained, 1);
}

#[tokio::test]
async fn a_handler_that_asks_finishes_by_itself() {
    let connections = Connections::new();
    let (mut client, mut server) = pair(&connections).await;
    let handler = tokio::spawn(async move {
        let quiescing = server.quiescing();
        let mut byte = [0];
        server.read_exact(&mut byte).await.unwrap();
        server.write_all(b"half").await.unwrap();
        quiescing.await;
        // Its reads were left alone: the rest of the message still comes in after the signal.
        server.read_exact(&mut byte).await.unwrap();
        server.write_all(b"+rest").await.unwrap();
    });
    // A future that was never polled asks for nothing, so the handler has to be there first.
    client.write_all(b"1").await.unwrap();
    let mut answer = [0; 4];
    client.read_exact(&mut answer).await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let draining = tokio::spawn({
        let connections = connections.clone();
        async move { connections.drain(AMPLE).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    client.write_all(b"2").await.unwrap();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"+rest");
    draining.await.unwrap().unwrap();
    handler.await.unwrap();
}

#[tokio::test]
async fn one_that_does_not_listen_is_forced() {
    let connections = Connections::new();
    let (_client, mut server) = pair(&connections).await;
    let quiescing = server.quiescing_handle();
    let handler = tokio::spawn(async move { server.read(&mut [0]).await });
    tokio::time::sleep(Duration::from_millis(10)).await;
    connections.drain(SHORT).await.unwrap();
    assert!(quiescing.is_quiescing());
    assert_eq!(handler.await.unwrap().unwrap(), 0);
    let counts = connections.counts();
    assert_eq!((counts.active, counts.drained, counts.forced), (0, 0, 1));
}

#[tokio::test]
async fn stuck_ones_are_named() {
    let connections = Connections::new();
    let (client, server) = pair(&connections).await;
    let error = connections.drain(SHORT).await.unwrap_err();
    let name = format!("{} to {}", client.local_addr().unwrap(), client.peer_addr().unwrap());
    assert_eq!(error.connections(), std::slice::from_ref(&name));
    assert!(error.to_string().contains(&format!("connection from {name} was not closed by its handler")));
    // It counts as forced once, however often it is tried.
    connections.reopen();
    connections.drain(SHORT).await.unwrap_err();
    drop(server);
    connections.drain(SHORT).await.unwrap();
    assert_eq!(connections.counts().forced, 1);
}

#[tokio::test]
async fn a_unix_peer_is_named_by_its_process() {
    let connections = Connections::new();
    let (_client, server) = UnixStream::pair().unwrap();
    let peer = Peer::Process(server.peer_cred().unwrap().pid());
    let _server = connections.track(server, peer);
    let error = connections.drain(SHORT).await.unwrap_err();
    assert!(error.connections()[0].starts_with(&format!("pid {}", std::process::id())), "{error}");
}

#[tokio::test]
async fn after_reopening_new_ones_are_normal() {
    let connections = Connections::new();
    connections.drain(AMPLE).await.unwrap();
    let (_client, late) = pair(&connections).await;
    assert!(late.quiescing_handle().is_quiescing());
    drop(late);
    connections.reopen();
    let (_client, normal) = pair(&connections).await;
    assert!(timeout(SHORT, normal.quiescing()).await.is_err());
}

#[tokio::test]
async fn a_descriptor_is_closed_before_the_drain_ends() {
    let connections = Connections::new();
    for _ in 0..200 {
        let (mut client, server) = pair(&connections).await;
        let handler = std::thread::spawn(move || drop(server));
        connections.drain(AMPLE).await.unwrap();
        assert_eq!(connections.active(), 0);
        // Nothing is left that could answer.
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        handler.join().unwrap();
        connections.reopen();
    }
}
