use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use crate::adapters::tests::{failure, quiesce, restored, wake};
use crate::resource::Cycle;
use crate::wake::Wake;

const AMPLE: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(50);
const HOST: &str = "127.0.0.1:0";

/// Greets every connection with one byte, and closes it at its end.
fn serve(listener: &Arc<TcpListener>) -> JoinHandle<()> {
    let listener = Arc::clone(listener);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let _ = stream.write_all(b"!").await;
                let _ = stream.read(&mut [0]).await;
            });
        }
    })
}

async fn greeted(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    matches!(timeout(AMPLE, stream.read_exact(&mut byte)).await, Ok(Ok(_)))
}

#[tokio::test]
async fn clients_of_the_gap_are_served_when_the_process_goes_on() {
    for end in [Wake::Resumed, Wake::Aborted] {
        let context = Context::new();
        let listener = Arc::new(TcpListener::bind(&context, "http", HOST).unwrap());
        let server = serve(&listener);
        let mut before = TcpStream::connect(listener.local_addr()).await.unwrap();
        assert!(greeted(&mut before).await);
        for _ in 0..2 {
            quiesce(&context).await;
            assert_eq!(listener.connections().active(), 0);
            let mut meanwhile = TcpStream::connect(listener.local_addr()).await.unwrap();
            assert!(timeout(SHORT, meanwhile.read(&mut [0])).await.is_err(), "accepted while quiesced");
            wake(&context, &end).await;
            assert!(greeted(&mut meanwhile).await);
        }
        assert_eq!(before.read(&mut [0]).await.unwrap(), 0);
        server.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_connection_is_lost_or_refused_over_many_cycles() {
    let context = Context::new();
    let listener = Arc::new(TcpListener::bind(&context, "http", HOST).unwrap());
    let servers = [serve(&listener), serve(&listener), serve(&listener)];
    let address = listener.local_addr();
    let client = tokio::spawn(async move {
        for _ in 0..500 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            assert!(greeted(&mut stream).await);
        }
    });
    while !client.is_finished() {
        quiesce(&context).await;
        assert_eq!(listener.connections().active(), 0);
        wake(&context, &Wake::Resumed).await;
    }
    client.await.unwrap();
    let counts = listener.connections().counts();
    assert_eq!((counts.accepted, counts.forced), (500, 0));
    servers.iter().for_each(JoinHandle::abort);
}

#[tokio::test]
async fn each_of_several_waiting_tasks_gets_a_connection() {
    let context = Context::new();
    let listener = Arc::new(TcpListener::bind(&context, "http", HOST).unwrap());
    let once = |listener: Arc<TcpListener>| tokio::spawn(async move { listener.accept().await.map(drop) });
    let waiting: Vec<_> = (0..4).map(|_| once(Arc::clone(&listener))).collect();
    tokio::task::yield_now().await;
    quiesce(&context).await;
    wake(&context, &restored(&[])).await;
    for task in waiting {
        TcpStream::connect(listener.local_addr()).await.unwrap();
        timeout(AMPLE, task).await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_restored_process_keeps_its_port() {
    let context = Context::new();
    let listener = Arc::new(TcpListener::bind(&context, "http", HOST).unwrap());
    let server = serve(&listener);
    let address = listener.local_addr();
    for _ in 0..2 {
        quiesce(&context).await;
        wake(&context, &restored(&[])).await;
        assert_eq!(listener.local_addr(), address);
        assert!(greeted(&mut TcpStream::connect(address).await.unwrap()).await);
    }
    server.abort();
}

#[tokio::test]
async fn a_restored_process_binds_the_address_it_is_given() {
    let context = Context::new();
    let listener = Arc::new(TcpListener::bind(&context, "http", HOST).unwrap());
    let server = serve(&listener);
    for given in ["127.0.0.2:0", ":0", "[::1]:0"] {
        let old = listener.local_addr();
        quiesce(&context).await;
        wake(&context, &restored(&[("http.listen", given), ("admin.listen", "nonsense")])).await;
        let new = listener.local_addr();
        assert_ne!(new.port(), 0);
        assert_ne!(new, old);
        assert!(greeted(&mut TcpStream::connect(new).await.unwrap()).await);
    }
    assert!(listener.local_addr().is_ipv6());
    server.abort();
}

#[tokio::test]
async fn an_address_in_use_is_named_and_the_next_cycle_tries_again() {
    let context = Context::new();
    let listener = Arc::new(TcpListener::bind(&context, "http", HOST).unwrap());
    let address = listener.local_addr();
    // The keeper dies.
    quiesce(&context).await.kept().iter().for_each(|slot| drop(slot.take()));
    let other = std::net::TcpListener::bind(address).unwrap();
    let text = failure(&context, &restored(&[])).await;
    assert!(text.contains(&format!("tcp {address} is in use")), "{text}");
    let text = failure_of_given(&context, "here").await;
    assert!(text.contains("http.listen=here is not an address"), "{text}");

    drop(other);
    let server = serve(&listener);
    quiesce(&context).await;
    wake(&context, &Wake::Aborted).await;
    assert!(greeted(&mut TcpStream::connect(address).await.unwrap()).await);
    server.abort();
}

async fn failure_of_given(context: &Context, given: &str) -> String {
    quiesce(context).await;
    failure(context, &restored(&[("http.listen", given)])).await
}

#[tokio::test]
async fn a_stuck_connection_fails_the_checkpoint_and_the_listener_lives() {
    let context = Context::new();
    let options = TcpOptions::new().drain_limit(SHORT);
    let listener = Arc::new(options.bind(&context, "http", HOST).unwrap());
    let client = TcpStream::connect(listener.local_addr()).await.unwrap();
    let (stuck, _) = listener.accept().await.unwrap();
    assert_eq!(context.resources()[0].description, format!("tcp {}, 1 connection", listener.local_addr()));
    let runs = context.quiesce(&Cycle::new(true)).await;
    let text = runs.into_iter().find_map(crate::context::HookRun::failure).unwrap().to_string();
    assert!(text.contains(&client.local_addr().unwrap().to_string()), "{text}");
    wake(&context, &Wake::Aborted).await;
    drop(stuck);
    let server = serve(&listener);
    assert!(greeted(&mut TcpStream::connect(listener.local_addr()).await.unwrap()).await);
    server.abort();
}

#[tokio::test]
async fn one_dropped_within_a_cycle_stays_closed() {
    let context = Context::new();
    let listener = TcpListener::bind(&context, "http", HOST).unwrap();
    let address = listener.local_addr();
    quiesce(&context).await;
    drop(listener);
    wake(&context, &Wake::Resumed).await;
    assert!(TcpStream::connect(address).await.is_err());
    assert!(context.resources().is_empty());
}

#[test]
fn an_endless_accept_loop_yields() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // On the thread of block_on, where tokio's budget wakes at once instead of later.
    runtime.block_on(async {
        let context = Context::new();
        let listener = TcpListener::bind(&context, "http", HOST).unwrap();
        let address = listener.local_addr();
        // All are there before the first is accepted, so that no wait renews the budget.
        let _clients: Vec<_> = (0..500).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
        for _ in 0..500 {
            listener.accept().await.unwrap();
        }
    });
}

#[tokio::test]
async fn only_the_kept_descriptor_is_left_of_the_socket() {
    let context = Context::new();
    let listener = TcpListener::bind(&context, "http", HOST).unwrap();
    let cycle = quiesce(&context).await;
    let kept = cycle.kept()[0].number().unwrap();
    let target = |number: &std::path::Path| std::fs::read_link(number).ok();
    let socket = target(format!("/proc/self/fd/{kept}").as_ref()).unwrap();
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let same = all.filter(|entry| target(&entry.as_ref().unwrap().path()).as_ref() == Some(&socket));
    assert_eq!(same.count(), 1);
    wake(&context, &Wake::Resumed).await;
    drop(listener);
}
