use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use rand::{Rng as _, RngExt as _};

use super::*;
use crate::adapters::tests::{quiesce, restored, wake};

fn draw(rng: &mut Rng, count: usize) -> Vec<u64> {
    (0..count).map(|_| rng.next_u64()).collect()
}

/// The generator that the memory of an image holds, as it were: every restore begins with it.
fn image() -> StdRng {
    StdRng::from_seed([7; 32])
}

#[tokio::test]
async fn two_restores_of_one_image_share_no_value() {
    let context = Context::new();
    let mut rng = Rng::register(&context, "rng").unwrap();
    let cycle = quiesce(&context).await;
    let frozen = cycle.freeze_hooks();
    frozen.iter().for_each(|hook| hook.freeze());
    let mut image = image();
    let known: HashSet<u64> = (0..2000).map(|_| image.next_u64()).collect();
    let mut seen = HashSet::new();
    for _ in 0..2 {
        locked(&rng.source.state).generator = self::image();
        let wake = restored(&[]);
        frozen.iter().for_each(|hook| hook.thaw(&wake));
        for value in draw(&mut rng, 1000) {
            assert!(seen.insert(value) && !known.contains(&value), "drawn twice");
        }
    }
    assert_eq!(seen.len(), 2000);
}

#[tokio::test]
async fn the_process_that_goes_on_has_one_sequence() {
    let context = Context::new();
    let mut rng = Rng::register(&context, "rng").unwrap();
    locked(&rng.source.state).generator = image();
    let mut same = image();
    for end in [Wake::Resumed, Wake::Aborted] {
        let cycle = quiesce(&context).await;
        cycle.freeze_hooks().iter().for_each(|hook| hook.freeze());
        cycle.freeze_hooks().iter().for_each(|hook| hook.thaw(&end));
        wake(&context, &end).await;
        assert_eq!(rng.next_u64(), same.next_u64());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_that_draw_stand_still_at_the_dump_and_never_repeat() {
    let context = Context::new();
    let rng = Rng::register(&context, "rng").unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let drawn = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (mut rng, stop, drawn) = (rng.clone(), Arc::clone(&stop), Arc::clone(&drawn));
            thread::spawn(move || {
                let mut values = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    values.push(rng.next_u64());
                    drawn.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(Duration::from_micros(20));
                }
                values
            })
        })
        .collect();
    let past = |count: u64| {
        let drawn = Arc::clone(&drawn);
        async move {
            while drawn.load(Ordering::Relaxed) < count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    };
    past(300).await;
    let cycle = quiesce(&context).await;
    cycle.freeze_hooks().iter().for_each(|hook| hook.freeze());
    // Each thread finishes at most the draw that it was in.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let before = drawn.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(drawn.load(Ordering::Relaxed), before, "drawn while frozen");
    let mut restores = Vec::new();
    for _ in 0..2 {
        cycle.freeze_hooks().iter().for_each(|hook| hook.freeze());
        locked(&rng.source.state).generator = image();
        let end = restored(&[]);
        cycle.freeze_hooks().iter().for_each(|hook| hook.thaw(&end));
        past(drawn.load(Ordering::Relaxed) + 300).await;
        restores.push(end);
    }
    wake(&context, &restores[1]).await;
    stop.store(true, Ordering::Relaxed);
    let mut seen = HashSet::new();
    for value in threads.into_iter().flat_map(|thread| thread.join().unwrap()) {
        assert!(seen.insert(value), "drawn twice");
    }
}

#[tokio::test]
async fn the_hook_makes_up_for_a_thaw_that_never_came() {
    let context = Context::new();
    let rng = Rng::register(&context, "rng").unwrap();
    let cycle = quiesce(&context).await;
    cycle.freeze_hooks().iter().for_each(|hook| hook.freeze());
    let mut waiting = rng.clone();
    let thread = thread::spawn(move || waiting.random_range(0..10));
    wake(&context, &Wake::Aborted).await;
    assert!((0..10).contains(&thread.join().unwrap()));
}

#[tokio::test]
async fn large_requests_are_filled() {
    let context = Context::new();
    let mut rng = Rng::register(&context, "rng").unwrap();
    let mut buffer = vec![0; 3 * CHUNK + 1];
    rng.fill_bytes(&mut buffer);
    assert!(
        buffer.chunks(64).filter(|chunk| chunk.len() == 64).all(|chunk| chunk.iter().any(|byte| *byte != 0))
    );
}

#[tokio::test]
async fn foreign_generators_get_a_seed_for_each_restore() {
    let context = Context::new();
    let seeds = Arc::new(Mutex::new(Vec::new()));
    let registration = reseed_with(&context, "theirs", {
        let seeds = Arc::clone(&seeds);
        move |seed| locked(&seeds).push(seed)
    });
    for (end, expected) in [(Wake::Resumed, 0), (restored(&[]), 1), (Wake::Aborted, 1), (restored(&[]), 2)] {
        let cycle = quiesce(&context).await;
        cycle.freeze_hooks().iter().for_each(|hook| hook.thaw(&end));
        assert_eq!(locked(&seeds).len(), expected, "not seeded before the hooks");
        wake(&context, &end).await;
        assert_eq!(locked(&seeds).len(), expected);
    }
    let seeds = locked(&seeds).clone();
    assert_ne!(seeds[0], seeds[1]);
    drop(registration);
    assert!(context.resources().is_empty());
}
