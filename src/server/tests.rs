//! The server in this process, on free ports. Cycles are run around the context as the cycle of a subject does,
//! without the audit, which would see the test program.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::*;
use crate::engine::simulated::SimulatedEngine;
use crate::resource::Cycle;
use crate::wake::{InstanceId, Params, Restored, Wake};

mod cycle;
mod echo;
mod http;

/// Nothing here may take this long; a test that hangs shall fail.
const LIMIT: Duration = Duration::from_secs(30);

fn subject() -> Subject {
    Subject::builder("test").engine(SimulatedEngine).build().unwrap()
}

/// Both protocols on free ports.
fn options() -> ServerOptions {
    let any = Some("127.0.0.1:0".to_owned());
    ServerOptions { echo: any.clone(), http: any, ..ServerOptions::default() }
}

fn started(options: ServerOptions) -> (Server, Subject) {
    let subject = subject();
    (Server::start(options, &subject).unwrap(), subject)
}

fn echo_of(server: &Server) -> SocketAddr {
    server.address(Protocol::Echo).unwrap()
}

fn http_of(server: &Server) -> SocketAddr {
    server.address(Protocol::Http).unwrap()
}

async fn connect(address: SocketAddr) -> BufReader<TcpStream> {
    BufReader::new(TcpStream::connect(address).await.unwrap())
}

async fn ask(stream: &mut BufReader<TcpStream>, line: &str) -> String {
    stream.write_all(line.as_bytes()).await.unwrap();
    read_line(stream).await
}

async fn read_line(stream: &mut BufReader<TcpStream>) -> String {
    let mut answer = String::new();
    timeout(LIMIT, stream.read_line(&mut answer)).await.unwrap().unwrap();
    answer
}

async fn rest(stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut rest = String::new();
    timeout(LIMIT, stream.read_to_string(&mut rest)).await.unwrap()?;
    Ok(rest)
}

/// Status and body of one request on a connection of its own.
async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = connect(address).await;
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let answer = rest(&mut stream).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

async fn quiesce(subject: &Subject) {
    for run in subject.context().quiesce(&Cycle::new(true)).await {
        run.outcome.unwrap();
    }
}

async fn wake(subject: &Subject, wake: &Wake) {
    for run in subject.context().wake(wake).await {
        run.outcome.unwrap();
    }
}

fn restored(params: Params) -> Wake {
    let id = InstanceId::from_bytes(*b"another instance");
    Wake::Restored(Restored::new(1, Duration::from_secs(7), id, params))
}

/// A wall clock that stands where it is put, in seconds.
fn clock(seconds: u64) -> (WallClock, Arc<AtomicU64>) {
    let hand = Arc::new(AtomicU64::new(seconds));
    let read = Arc::clone(&hand);
    let clock =
        WallClock::new(move || SystemTime::UNIX_EPOCH + Duration::from_secs(read.load(Ordering::Relaxed)));
    (clock, hand)
}
