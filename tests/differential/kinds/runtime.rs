//! A tokio runtime with work under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::differential::play::Play;

/// Tasks that sleep, wait for each other, and block a thread; timers go on with what was left.
pub fn tasks(play: &mut Play) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    runtime.block_on(async {
        let began = Instant::now();
        let nap = Duration::from_millis(1500);
        let naps: Vec<_> = (0..100)
            .map(|_| {
                tokio::spawn(async move {
                    tokio::time::sleep(nap).await;
                    began.elapsed()
                })
            })
            .collect();
        let (sender, mut receiver) = mpsc::channel::<u64>(4);
        let sum = Arc::new(AtomicU64::new(0));
        let total = Arc::clone(&sum);
        let adding = tokio::spawn(async move {
            while let Some(number) = receiver.recv().await {
                total.fetch_add(number, Ordering::SeqCst);
            }
        });
        let gate = Arc::new(Semaphore::new(0));
        let gated = Arc::clone(&gate);
        let passing = tokio::spawn(async move { gated.acquire().await.is_ok() });
        let (done, blocked) = oneshot::channel::<u64>();
        let blocking = tokio::task::spawn_blocking(move || blocked.blocking_recv());
        let mut ticks = tokio::time::interval(Duration::from_millis(10));
        ticks.tick().await;
        let subject = play.subject.clone();
        let outcome = subject.checkpoint_restore(crate::differential::play::IMAGE).await;
        play.arrived(outcome.map_err(|error| error.to_string()));
        ticks.tick().await;
        gate.add_permits(1);
        play.expect(passing.await.unwrap(), "a semaphore was closed");
        for number in 1..=100 {
            sender.send(number).await.unwrap();
        }
        drop(sender);
        adding.await.unwrap();
        play.same("the sum", sum.load(Ordering::SeqCst), 5050);
        done.send(9).unwrap();
        play.same("what a blocked thread got", blocking.await.unwrap(), Ok(9));
        for slept in naps {
            play.expect(slept.await.unwrap() >= nap, "a sleep was too short");
        }
    });
}
