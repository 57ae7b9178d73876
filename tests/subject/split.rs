//! Streams of a generator that splits: no two restores, and no two streams of one, have a value in common.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use defrost::adapters::SplitRng;
use defrost::resource::HookError;
use defrost::{Resource, Wake};
use rand::Rng;

use super::random::{load, store};
use super::role::Role;
use super::stage::Stage;
use crate::support::until;

/// How many values of each stream are compared.
const VALUES: usize = 1000;
/// How many restores.
const RESTORES: usize = 10;

/// Stores what the streams give in a restored process.
struct Records {
    role: Role,
    /// One from before the dump; others are split off it.
    root: Mutex<SplitRng>,
    /// What a thread draws that does not know of any cycle.
    drawn: Arc<Mutex<Vec<u64>>>,
}

#[async_trait]
impl Resource for Records {
    async fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        let Some(restored) = wake.restored() else { return Ok(()) };
        let instance = restored.instance;
        let mut root = self.root.lock().unwrap();
        let mut task = root.split();
        let mut values: Vec<u64> = (0..VALUES).map(|_| root.next_u64()).collect();
        values.extend((0..VALUES).map(|_| task.next_u64()));
        store(&self.role.path(&format!("streams-{instance}")), &values);
        let (drawn, path) = (Arc::clone(&self.drawn), self.role.path(&format!("drawn-{instance}")));
        std::thread::spawn(move || {
            let so_far = drawn.lock().unwrap().len();
            until("more values", || drawn.lock().unwrap().len() >= so_far + VALUES);
            store(&path, &drawn.lock().unwrap());
        });
        Ok(())
    }
}

pub fn program(role: Role) {
    Role::run(async move {
        let stand = role.open();
        let root = SplitRng::register_seeded(stand.subject.context(), "split", [1; 32]);
        let drawn = Arc::default();
        let mut own = root.split();
        stand.register("records", Records { role, root: Mutex::new(root), drawn: Arc::clone(&drawn) });
        std::thread::spawn(move || {
            loop {
                let value = own.next_u64();
                let mut drawn: std::sync::MutexGuard<'_, Vec<u64>> = drawn.lock().unwrap();
                drawn.push(value);
                drop(drawn);
                std::thread::sleep(Duration::from_micros(20));
            }
        });
        stand.serve().await;
    });
}

/// Ten restores, by CRIU and by mapping in turns. The thread has only that in common which it had drawn before the dump.
pub fn ten_restores_and_their_streams_share_no_value(stage: &Stage) {
    let actor = stage.start("split", &[]);
    let image = actor.checkpoint(stage, "img");
    let mut seen = HashSet::new();
    let mut threads = Vec::new();
    for number in 1..=RESTORES {
        let (revived, facts) =
            if number % 2 == 1 { stage.revive(&image, number) } else { stage.restore(&image, &[], number) };
        let streams = load(&stage.host.path(format!("streams-{}", facts.instance)));
        assert_eq!(streams.len(), 2 * VALUES);
        for value in streams {
            assert!(seen.insert(value), "a value of restore {number} came twice");
        }
        threads.push(load(&stage.host.path(format!("drawn-{}", facts.instance))));
        revived.end();
    }
    let alike = |a: &[u64], b: &[u64]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let common = alike(&threads[0], &threads[1]);
    assert!(common > 0, "nothing was drawn before the dump");
    for (number, thread) in threads.iter().enumerate() {
        assert!(thread.len() >= common + VALUES, "restore {}: {} values", number + 1, thread.len());
        for value in &thread[common..] {
            assert!(seen.insert(*value), "a value that the thread drew in restore {} came twice", number + 1);
        }
    }
}
