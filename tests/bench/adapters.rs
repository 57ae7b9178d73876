//! What the adapters cost beside plain tokio: accepting a connection, and moving bytes over it.
//!
//! The two of a comparison run in turns, in blocks of a few milliseconds, so that a machine that slows down does
//! so for both. Criterion reports the times of each; the ratio is that of neighbouring blocks, and is what to
//! compare between runs and hosts.
#![allow(missing_docs, reason = "criterion's macros make public functions")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot run has no better answer")]

use std::net::{SocketAddr, TcpStream as Client};
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use defrost::Context;
use defrost::adapters::{Connections, TcpListener, Tracked};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

/// Operations between two changes of turn.
const BLOCK: u64 = 128;
const HOST: &str = "127.0.0.1:0";

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Pairs of blocks that a ratio is taken from.
const PAIRS: usize = 500;

/// Two ways to do the same, each told how many operations to time.
fn compare(
    group: &mut BenchmarkGroup<'_, WallTime>,
    mut tokio: impl FnMut(u64) -> Duration,
    mut defrost: impl FnMut(u64) -> Duration,
) {
    for (index, name) in ["tokio", "defrost"].into_iter().enumerate() {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|operations| {
                let mut spent = [Duration::ZERO; 2];
                let mut left = operations;
                while left > 0 {
                    let block = left.min(BLOCK);
                    spent[0] += tokio(block);
                    spent[1] += defrost(block);
                    left -= block;
                }
                spent[index]
            });
        });
    }
    print_ratio(&mut tokio, &mut defrost);
}

/// The median of the ratios of neighbouring blocks, and their quartiles.
#[allow(clippy::print_stdout, reason = "the result of a benchmark is what it prints")]
fn print_ratio(tokio: &mut impl FnMut(u64) -> Duration, defrost: &mut impl FnMut(u64) -> Duration) {
    let mut ratios: Vec<f64> = (0..PAIRS)
        .map(|pair| {
            // Either goes first as often as the other: the second finds warmer caches.
            let (tokio, defrost) = if pair % 2 == 0 {
                let tokio = tokio(BLOCK);
                (tokio, defrost(BLOCK))
            } else {
                let defrost = defrost(BLOCK);
                (tokio(BLOCK), defrost)
            };
            defrost.as_secs_f64() / tokio.as_secs_f64()
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    let quartile = |part: usize| ratios[PAIRS * part / 4];
    println!("defrost / tokio: {:.3} (quartiles {:.3} to {:.3})\n", quartile(2), quartile(1), quartile(3));
}

fn clients(address: SocketAddr, count: u64) -> Vec<Client> {
    (0..count).map(|_| Client::connect(address).unwrap()).collect()
}

/// Connections are waiting; what is timed is to take and to drop them.
fn accept(criterion: &mut Criterion) {
    let (plain_runtime, runtime) = (runtime(), runtime());
    let plain = plain_runtime.block_on(tokio::net::TcpListener::bind(HOST)).unwrap();
    let context = Context::new();
    let tracking = runtime.block_on(async { TcpListener::bind(&context, "bench", HOST).unwrap() });
    let mut group = criterion.benchmark_group("accept and drop");
    compare(
        &mut group,
        |count| {
            let clients = clients(plain.local_addr().unwrap(), count);
            let spent = plain_runtime.block_on(async {
                let started = Instant::now();
                for _ in 0..count {
                    drop(plain.accept().await.unwrap());
                }
                started.elapsed()
            });
            drop(clients);
            spent
        },
        |count| {
            let clients = clients(tracking.local_addr(), count);
            let spent = runtime.block_on(async {
                let started = Instant::now();
                for _ in 0..count {
                    drop(tracking.accept().await.unwrap());
                }
                started.elapsed()
            });
            drop(clients);
            spent
        },
    );
}

/// A client with its server's side.
async fn pair() -> (TcpStream, TcpStream, SocketAddr) {
    let listener = tokio::net::TcpListener::bind(HOST).await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (server, peer) = listener.accept().await.unwrap();
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    (client, server, peer)
}

/// The server's side reads a message that has arrived, and answers it; both are timed, the client's part not.
async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    client: &mut TcpStream,
    server: &mut S,
    message: &mut [u8],
    count: u64,
) -> Duration {
    let mut spent = Duration::ZERO;
    for _ in 0..count {
        client.write_all(message).await.unwrap();
        let started = Instant::now();
        server.read_exact(message).await.unwrap();
        server.write_all(message).await.unwrap();
        spent += started.elapsed();
        client.read_exact(message).await.unwrap();
    }
    spent
}

fn read_and_write(criterion: &mut Criterion) {
    let runtime = runtime();
    let connections = Connections::new();
    for size in [64, 16 * 1024] {
        let (mut plain_client, mut plain, _) = runtime.block_on(pair());
        let (mut client, server, peer) = runtime.block_on(pair());
        let mut tracked: Tracked<TcpStream> = connections.track(server, peer);
        let (mut plain_message, mut message) = (vec![1; size], vec![1; size]);
        let mut group = criterion.benchmark_group(format!("read and write {size} bytes"));
        group.throughput(Throughput::Bytes(size as u64));
        compare(
            &mut group,
            |count| runtime.block_on(serve(&mut plain_client, &mut plain, &mut plain_message, count)),
            |count| runtime.block_on(serve(&mut client, &mut tracked, &mut message, count)),
        );
    }
}

criterion_group!(adapters, accept, read_and_write);
criterion_main!(adapters);
