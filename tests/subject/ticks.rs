//! Intervals over a long gap in an image.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use defrost::resource::HookError;
use defrost::{Resource, Wake};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::role::Role;
use super::stage::Stage;

const PERIOD: Duration = Duration::from_millis(20);
/// How long the image lies there: 400 periods.
const GAP: Duration = Duration::from_secs(8);
/// How long the restored process ticks until it tells.
const AFTER: Duration = Duration::from_secs(1);

const BEHAVIOURS: [MissedTickBehavior; 3] =
    [MissedTickBehavior::Burst, MissedTickBehavior::Delay, MissedTickBehavior::Skip];

/// Tells how often each interval has ticked, a while after a restore.
struct Tells {
    role: Role,
    counts: Arc<[AtomicU64; 3]>,
    start: Instant,
    wall: SystemTime,
}

#[async_trait]
impl Resource for Tells {
    async fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        if wake.restored().is_some() {
            let (role, counts, start, wall) =
                (self.role.clone(), Arc::clone(&self.counts), self.start, self.wall);
            tokio::spawn(async move {
                tokio::time::sleep(AFTER).await;
                let counts: Vec<u64> = counts.iter().map(|count| count.load(Ordering::SeqCst)).collect();
                // After the counts: what has ticked, has ticked within this time.
                let (own, wall) = (start.elapsed().as_millis(), wall.elapsed().unwrap().as_millis());
                role.diary.note("ticks", format!("{} {} {} {own} {wall}", counts[0], counts[1], counts[2]));
            });
        }
        Ok(())
    }
}

pub fn program(role: Role) {
    Role::run(async move {
        let stand = role.open();
        let counts: Arc<[AtomicU64; 3]> = Arc::default();
        let (start, wall) = (Instant::now(), SystemTime::now());
        for (index, behaviour) in BEHAVIOURS.into_iter().enumerate() {
            let counts = Arc::clone(&counts);
            tokio::spawn(async move {
                let mut ticks = interval_at(start + PERIOD, PERIOD);
                ticks.set_missed_tick_behavior(behaviour);
                loop {
                    ticks.tick().await;
                    counts[index].fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        stand.register("ticks", Tells { role, counts, start, wall });
        stand.serve().await;
    });
}

/// The gap is in the wall clock and in no interval: none has ticked more often than its process had time for.
pub fn an_interval_does_not_burst_after_a_restore(stage: &Stage) {
    let actor = stage.start("ticks", &[]);
    let image = actor.checkpoint(stage, "img");
    std::thread::sleep(GAP);
    for number in 1..=2 {
        let (revived, _) =
            if number == 1 { stage.revive(&image, number) } else { stage.restore(&image, &[], number) };
        let told = stage.diary.read("ticks", number);
        let told: Vec<u64> = told.split(' ').map(|field| field.parse().unwrap()).collect();
        let (own, wall) = (told[3], told[4]);
        let gap = u64::try_from(GAP.as_millis()).unwrap();
        assert!(wall >= own + gap, "the gap is in the wall clock only: {told:?}");
        let most = own / u64::try_from(PERIOD.as_millis()).unwrap();
        for (behaviour, count) in BEHAVIOURS.iter().zip(&told) {
            assert!(*count <= most, "{behaviour:?}: {count} ticks where there was time for {most}");
            assert!(*count > 0, "{behaviour:?} does not tick");
        }
        revived.end();
    }
}
