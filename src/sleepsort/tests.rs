//! By tokio's own clock, which stands still until a test moves it, and leaps as a clock does without a time namespace.

use tokio::time::{MissedTickBehavior, advance, interval};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

async fn all(mut sleepers: Sleepers) -> Vec<Woken> {
    let mut woken = Vec::new();
    while let Some(next) = sleepers.next().await {
        woken.push(next);
    }
    assert_eq!(sleepers.left(), 0);
    woken
}

fn in_order(woken: &[Woken]) -> bool {
    woken.is_sorted_by_key(|woken| woken.number)
}

#[tokio::test(start_paused = true)]
async fn each_sleeps_as_long_as_its_number() {
    let numbers: Vec<u32> = (0..5_000).map(|index| index * 7919 % 1000).collect();
    let woken = all(Sleepers::start(&numbers, SECOND)).await;
    assert_eq!(woken.len(), numbers.len());
    assert!(in_order(&woken));
    for woken in woken {
        let due = SECOND * woken.number;
        // Timers are exact to a millisecond.
        assert!(woken.slept >= due && woken.slept <= due + Duration::from_millis(2), "{woken:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_due_in_a_leap_wakes_at_once_and_in_order() {
    let numbers: Vec<u32> = (0..20_000).map(|index| index * 7919 % 200).collect();
    let mut sleepers = Sleepers::start(&numbers, SECOND);
    let first = sleepers.next().await.unwrap();
    assert_eq!(first.number, 0);
    // All of them sleep by then: the clock moves by itself only when nobody has anything to do.
    tokio::time::sleep(SECOND / 2).await;
    advance(SECOND * 100).await;
    let woken = all(sleepers).await;
    assert_eq!(woken.len(), numbers.len() - 1);
    assert!(in_order(&woken));
    let leap = SECOND * 100 + SECOND / 2;
    for woken in woken {
        let expected =
            if SECOND * woken.number < leap && woken.number > 0 { leap } else { SECOND * woken.number };
        assert!(woken.slept >= expected.min(SECOND * woken.number), "{woken:?} is too early");
        assert!(woken.slept <= expected + Duration::from_millis(2), "{woken:?} is too late");
    }
}

/// How many ticks an interval of a second has at once after a gap of a thousand, and how long it waits for the next.
async fn after_a_gap(behaviour: MissedTickBehavior) -> (u32, Duration) {
    let start = Instant::now();
    let mut ticks = interval(SECOND);
    ticks.set_missed_tick_behavior(behaviour);
    ticks.tick().await;
    // Half a period more, to tell the two that do not burst apart.
    advance(SECOND * 1000 + SECOND / 2).await;
    let after = Instant::now();
    let mut at_once = 0;
    loop {
        ticks.tick().await;
        let waited = after.elapsed();
        if waited >= Duration::from_millis(10) {
            assert!(start.elapsed() > SECOND * 1000);
            return (at_once, waited);
        }
        at_once += 1;
    }
}

fn about(found: Duration, expected: Duration) -> bool {
    found.abs_diff(expected) <= Duration::from_millis(2)
}

#[tokio::test(start_paused = true)]
async fn an_interval_bursts_after_a_gap_only_where_it_is_told_to() {
    let (at_once, next) = after_a_gap(MissedTickBehavior::Burst).await;
    assert_eq!(at_once, 1000);
    assert!(about(next, SECOND / 2), "{next:?}");
    let (at_once, next) = after_a_gap(MissedTickBehavior::Delay).await;
    assert_eq!(at_once, 1);
    assert!(about(next, SECOND), "{next:?}");
    let (at_once, next) = after_a_gap(MissedTickBehavior::Skip).await;
    assert_eq!(at_once, 1);
    assert!(about(next, SECOND / 2), "{next:?}");
}

#[test]
fn bad_lines_are_named() {
    let said = |text: &str| read(text.as_bytes()).map_err(|error| error.to_string());
    assert_eq!(said("3\n1\n\n 2 \n"), Ok(vec![3, 1, 2]));
    assert_eq!(said(""), Ok(vec![]));
    assert_eq!(said("0\n86400"), Ok(vec![0, 86_400]));
    for (text, expected) in [
        ("1\nx\n", "line 2: `x` is not a whole number"),
        ("1\n\n2.5\n", "line 3: `2.5` is not a whole number"),
        ("-1\n", "line 1: -1 is not between 0 and 86400"),
        ("86401\n", "line 1: 86401 is not between 0 and 86400"),
        ("99999999999999999999\n", "line 1: 99999999999999999999 is not between 0 and 86400"),
        ("-\n", "line 1: `-` is not a whole number"),
    ] {
        assert_eq!(said(text), Err(expected.to_owned()), "{text:?}");
    }
    let long = format!("1\n{}\n", "x".repeat(10_000));
    assert!(said(&long).unwrap_err().len() < 100);
    assert!(read(&b"\xff\n"[..]).is_err());
    let many = "1\n".repeat(MOST + 1);
    assert_eq!(said(&many), Err(format!("line {}: there are more than {MOST} numbers", MOST + 1)));
}

#[tokio::test]
async fn none_is_due_before_all_of_them_sleep() {
    // Far more numbers than can be put to sleep within the shortest unit.
    let numbers: Vec<u32> = (0..20_000).map(|index| index * 7919 % 50).collect();
    let mut sleepers = Sleepers::start(&numbers, SHORTEST_UNIT);
    let mut woken = Vec::new();
    while let Some(next) = sleepers.next().await {
        woken.push(next);
    }
    assert_eq!(woken.len(), numbers.len());
    // A host that stands still in the wrong moment is told, and not taken for order.
    assert!(in_order(&woken) || sleepers.overran());
}

#[tokio::test(start_paused = true)]
async fn a_sleeper_that_is_late_to_begin_is_told() {
    let mut sleepers = Sleepers::start(&[3, 1, 2], SECOND);
    // Each is polled once, and waits for the common moment or sleeps already.
    tokio::task::yield_now().await;
    assert!(!sleepers.overran());
    while sleepers.next().await.is_some() {}
    assert!(!sleepers.overran());
    let common = Common {
        unit: SECOND,
        first: SECOND,
        called: Instant::now(),
        missing: std::sync::atomic::AtomicUsize::new(2),
        begin: watch::Sender::new(None),
        overran: AtomicBool::new(false),
    };
    let mut early = pin!(common.sleep(1));
    assert!(poll_fn(|context| Poll::Ready(early.as_mut().poll(context).is_pending())).await);
    let mut late = pin!(common.sleep(2));
    // The last one: from here on the common moment is known, and only this one begins in time.
    assert!(poll_fn(|context| Poll::Ready(late.as_mut().poll(context).is_pending())).await);
    advance(SECOND * 5).await;
    assert_eq!(early.await.number, 1);
    assert!(common.overran.load(Ordering::Relaxed));
}
