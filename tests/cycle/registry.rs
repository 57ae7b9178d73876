//! What is registered when, and in what.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use defrost::resource::HookError;
use defrost::{Context, Cycle, Registration, Resource};

use crate::fixture::{Act, Bench, Recorder, in_runtime};

pub fn contexts_nest() {
    in_runtime(async {
        let mut bench = Bench::new();
        bench.add("a", Act::Work, Act::Work);
        let inner = Context::new();
        let first = inner.register("x", bench.recorder("x", Act::Work, Act::Work));
        let second = inner.register("y", bench.recorder("y", Act::Fail("y is stuck"), Act::Work));
        let nested = bench.subject.context().register("inner", Arc::new(inner.clone()));
        let error = bench.fails().await;
        assert!(error.to_string().contains("inner/y: before_checkpoint failed: y is stuck"), "{error}");
        let expected = ["before y", "before x", "before a", "aborted a", "aborted x", "aborted y"];
        assert_eq!(bench.log(), expected);
        drop((first, second, nested));
    });
}

struct Registers {
    context: Context,
    inner: Arc<Recorder>,
    made: Mutex<Option<Registration>>,
}

#[async_trait]
impl Resource for Registers {
    async fn before_checkpoint(&self, _: &Cycle) -> Result<(), HookError> {
        let mut made = self.made.lock().unwrap();
        if made.is_none() {
            *made = Some(self.context.register("late", Arc::clone(&self.inner) as Arc<dyn Resource>));
        }
        Ok(())
    }
}

pub fn what_a_hook_registers_takes_part_next() {
    in_runtime(async {
        let bench = Bench::new();
        // Registered in the middle of a cycle, in a context whose own turn is still to come.
        let early = Context::new();
        let held = bench.subject.context().register("early", Arc::new(early.clone()));
        let inner = bench.recorder("late", Act::Work, Act::Work);
        let registers = Registers { context: early, inner, made: Mutex::new(None) };
        let also_held = bench.subject.context().register("registers", Arc::new(registers));
        bench.works().await;
        assert_eq!(bench.log(), [""; 0]);
        bench.works().await;
        assert_eq!(bench.log(), ["before late", "resumed late"]);
        drop((held, also_held));
    });
}

pub fn a_dropped_registration_takes_no_part() {
    in_runtime(async {
        let mut bench = Bench::new();
        bench.add("gone", Act::Work, Act::Work);
        bench.registrations.clear();
        bench.works().await;
        assert_eq!(bench.log(), [""; 0]);
    });
}
