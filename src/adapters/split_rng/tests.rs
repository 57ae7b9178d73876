use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use rand::Rng as _;

use super::*;
use crate::adapters::tests::{quiesce, restored, wake};

const SEED: Key = [7; 32];

fn draw(rng: &mut SplitRng, count: usize) -> Vec<u64> {
    (0..count).map(|_| rng.next_u64()).collect()
}

/// Goes back to what an image holds: streams with these keys, at their beginning.
fn as_in_the_image(streams: &[&SplitRng], keys: &[Key]) {
    for (stream, key) in streams.iter().zip(keys) {
        *locked(&stream.stream.state) = State { frozen: true, ..State::new(*key) };
    }
}

#[tokio::test]
async fn a_hundred_clones_and_their_streams_share_no_value() {
    const CLONES: usize = 100;
    const VALUES: usize = 1000;
    let context = Context::new();
    let mut root = SplitRng::register_seeded(&context, "split", SEED);
    let (mut first, mut second) = (root.split(), root.split());
    let keys = [&root, &first, &second].map(|stream| locked(&stream.stream.state).key);
    let cycle = quiesce(&context).await;
    let mut seen = HashSet::new();
    for _ in 0..CLONES {
        cycle.freeze_hooks().iter().for_each(|hook| hook.freeze());
        as_in_the_image(&[&root, &first, &second], &keys);
        let end = restored(&[]);
        cycle.freeze_hooks().iter().for_each(|hook| hook.thaw(&end));
        let mut late = root.split();
        for stream in [&mut root, &mut first, &mut second, &mut late] {
            for value in draw(stream, VALUES) {
                assert!(seen.insert(value), "drawn twice");
            }
        }
    }
    assert_eq!(seen.len(), 4 * CLONES * VALUES);
}

#[tokio::test]
async fn the_seed_and_the_instance_decide_everything() {
    let run = async |end: &Wake| {
        let context = Context::new();
        let mut root = SplitRng::register_seeded(&context, "split", SEED);
        let mut child = root.split();
        let mut values = [draw(&mut root, 3), draw(&mut child, 3)].concat();
        let cycle = quiesce(&context).await;
        cycle.freeze_hooks().iter().for_each(|hook| hook.freeze());
        cycle.freeze_hooks().iter().for_each(|hook| hook.thaw(end));
        wake(&context, end).await;
        values.extend(draw(&mut child, 3));
        values.extend(draw(&mut root.split(), 3));
        values
    };
    let (one, other) = (restored(&[]), restored(&[]));
    let values = run(&one).await;
    assert_eq!(values, run(&one).await);
    let others = run(&other).await;
    assert_eq!(values[..6], others[..6], "before the dump they are the same process");
    assert!(values[6..].iter().all(|value| !others.contains(value)));
    // A process that goes on goes on with its streams, and a failed cycle changes nothing.
    assert_eq!(run(&Wake::Resumed).await, run(&Wake::Aborted).await);
}

#[tokio::test]
async fn without_a_seed_the_kernel_has_its_share_too() {
    let context = Context::new();
    let (one, other) =
        (SplitRng::register(&context, "one").unwrap(), SplitRng::register(&context, "other").unwrap());
    for stream in [&one, &other] {
        *locked(&stream.stream.state) = State::new(SEED);
    }
    let cycle = quiesce(&context).await;
    let end = restored(&[]);
    cycle.freeze_hooks().iter().for_each(|hook| hook.thaw(&end));
    let (mut one, mut other) = (one, other);
    assert_ne!(draw(&mut one, 4), draw(&mut other, 4), "the same key and instance");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_that_draw_and_split_through_a_cycle_never_repeat() {
    let context = Context::new();
    let root = SplitRng::register(&context, "split").unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let drawn = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (mut rng, stop, drawn) = (root.split(), Arc::clone(&stop), Arc::clone(&drawn));
            thread::spawn(move || {
                let mut values = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    values.push(rng.next_u64());
                    values.push(rng.split().next_u64());
                    drawn.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(Duration::from_micros(20));
                }
                values
            })
        })
        .collect();
    let past = async |count: usize| {
        while drawn.load(Ordering::Relaxed) < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    past(300).await;
    let cycle = quiesce(&context).await;
    for _ in 0..3 {
        cycle.freeze_hooks().iter().for_each(|hook| hook.freeze());
        // Each thread finishes at most what it was in.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let before = drawn.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(drawn.load(Ordering::Relaxed), before, "drawn while frozen");
        let end = restored(&[]);
        cycle.freeze_hooks().iter().for_each(|hook| hook.thaw(&end));
        past(drawn.load(Ordering::Relaxed) + 300).await;
    }
    wake(&context, &Wake::Resumed).await;
    stop.store(true, Ordering::Relaxed);
    let mut seen = HashSet::new();
    for value in threads.into_iter().flat_map(|thread| thread.join().unwrap()) {
        assert!(seen.insert(value), "drawn twice");
    }
    // The streams that were split off and dropped are not kept.
    assert!(locked(&root.tree.streams).all.len() <= 2 * FEWEST);
}

#[tokio::test]
async fn it_is_registered_as_long_as_a_stream_lives() {
    let context = Context::new();
    let root = SplitRng::register(&context, "split").unwrap();
    let child = root.split();
    drop(root);
    assert_eq!(context.resources().len(), 1);
    drop(child);
    assert!(context.resources().is_empty());
}
