//! Requests that come while a cycle runs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use defrost::checkpoint::Phase;
use defrost::resource::HookError;
use defrost::{Cycle, Resource, Subject};

use crate::fixture::{Act, Bench, in_runtime};

pub fn one_cycle_at_a_time() {
    in_runtime(async {
        let mut bench = Bench::new();
        bench.add("slow", Act::Hang, Act::Work);
        let (subject, other) = (bench.subject.clone(), bench.subject.clone());
        let first = tokio::spawn(async move { subject.checkpoint_restore("unused").await });
        while !other.is_checkpointing() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let refused = other.checkpoint_restore("unused").await.unwrap_err();
        assert_eq!(refused.phase, Phase::Request);
        assert!(refused.to_string().contains("a checkpoint is already running"), "{refused}");
        assert!(first.await.unwrap().is_err());
        assert!(!other.is_checkpointing());
    });
}

struct Asks {
    subject: Subject,
    heard: Mutex<String>,
}

#[async_trait]
impl Resource for Asks {
    async fn before_checkpoint(&self, _: &Cycle) -> Result<(), HookError> {
        let refused = self.subject.checkpoint_restore("unused").await.unwrap_err();
        *self.heard.lock().unwrap() = refused.to_string();
        Ok(())
    }
}

pub fn a_request_from_within_a_hook_is_refused() {
    in_runtime(async {
        let bench = Bench::new();
        let asks = Arc::new(Asks { subject: bench.subject.clone(), heard: Mutex::default() });
        let held = bench.subject.context().register("asks", Arc::clone(&asks) as Arc<dyn Resource>);
        bench.works().await;
        assert!(asks.heard.lock().unwrap().contains("a checkpoint is already running"));
        drop(held);
    });
}
