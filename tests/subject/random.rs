//! What no two restores may have in common.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use defrost::adapters::Rng;
use defrost::resource::HookError;
use defrost::{Resource, Wake};
use rand::TryRng;

use super::role::Role;
use super::stage::Stage;
use crate::support::until;

/// How many values two restores are compared by.
const VALUES: usize = 1000;

/// Values drawn by a thread that does not know of any cycle.
type Drawn = Arc<Mutex<Vec<u64>>>;

/// Stores what was drawn after a wake.
struct Records {
    role: Role,
    generator: Rng,
    drawn: Drawn,
}

pub(super) fn store(path: &Path, values: &[u64]) {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
    let unfinished = path.with_extension("part");
    fs::write(&unfinished, bytes).unwrap();
    fs::rename(unfinished, path).unwrap();
}

pub(super) fn load(path: &Path) -> Vec<u64> {
    until(&path.display().to_string(), || path.exists());
    fs::read(path).unwrap().chunks(8).map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap())).collect()
}

fn draw(generator: &mut Rng) -> u64 {
    generator.try_next_u64().unwrap_or_else(|never| match never {})
}

#[async_trait]
impl Resource for Records {
    async fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        let name =
            wake.restored().map_or_else(|| "resumed".to_owned(), |restored| restored.instance.to_string());
        let mut generator = self.generator.clone();
        let first: Vec<u64> = (0..VALUES).map(|_| draw(&mut generator)).collect();
        store(&self.role.path(&format!("first-{name}")), &first);
        let (drawn, path) = (Arc::clone(&self.drawn), self.role.path(&format!("drawn-{name}")));
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
        let generator = Rng::register(stand.subject.context(), "random").unwrap();
        let drawn = Drawn::default();
        stand.register("records", Records { role, generator: generator.clone(), drawn: Arc::clone(&drawn) });
        std::thread::spawn(move || {
            let mut generator = generator;
            loop {
                let value = draw(&mut generator);
                drawn.lock().unwrap().push(value);
                std::thread::sleep(Duration::from_micros(20));
            }
        });
        stand.serve().await;
    });
}

/// Case 14: the first thousand values of each restore, and of the original that goes on, are its own. Case 15: a
/// thread that draws through the whole cycle has only that in common which it had drawn before the dump.
pub fn no_value_comes_twice(stage: &Stage) {
    let actor = stage.start("random", &[]);
    let image = actor.checkpoint_running(stage, "img");
    let mut instances = vec!["resumed".to_owned()];
    load(&stage.host.path("drawn-resumed"));
    actor.stop();
    for number in 1..=2 {
        let (revived, facts) = stage.revive(&image, number);
        load(&stage.host.path(format!("drawn-{}", facts.instance)));
        revived.end();
        instances.push(facts.instance);
    }
    let of = |what: &str| -> Vec<Vec<u64>> {
        instances.iter().map(|instance| load(&stage.host.path(format!("{what}-{instance}")))).collect()
    };
    let first = of("first");
    let all: HashSet<u64> = first.iter().flatten().copied().collect();
    assert_eq!(all.len(), 3 * VALUES, "values that come twice among the first thousand");
    let drawn = of("drawn");
    let alike = |a: &[u64], b: &[u64]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let common = alike(&drawn[0], &drawn[1]);
    assert!(common > 0, "nothing was drawn before the dump");
    assert_eq!(common, alike(&drawn[0], &drawn[2]));
    assert_eq!(common, alike(&drawn[1], &drawn[2]));
    let after: HashSet<u64> = drawn.iter().flat_map(|values| &values[common..]).copied().collect();
    let count: usize = drawn.iter().map(|values| values.len() - common).sum();
    assert!(count >= 3 * VALUES, "{count}");
    assert_eq!(after.len(), count, "values drawn after the dump that come twice");
}
