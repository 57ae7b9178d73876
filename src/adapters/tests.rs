//! One cycle around a context, as the tests of every adapter go through it.

use std::time::Duration;

use crate::context::{Context, HookRun};
use crate::resource::Cycle;
use crate::wake::{InstanceId, Params, Restored, Wake};

/// A restore with an instance of its own, and these `--set NAME=VALUE`.
pub(super) fn restored(settings: &[(&str, &str)]) -> Wake {
    static INSTANCE: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let instance = u128::from(INSTANCE.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let mut params = Params::default();
    params.settings.extend(settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    Wake::Restored(Restored::new(1, Duration::ZERO, InstanceId::from_bytes(instance.to_ne_bytes()), params))
}

pub(super) async fn quiesce(context: &Context) -> Cycle {
    let cycle = Cycle::new(true);
    for run in context.quiesce(&cycle).await {
        run.outcome.unwrap();
    }
    cycle
}

pub(super) async fn wake(context: &Context, wake: &Wake) {
    for run in context.wake(wake).await {
        run.outcome.unwrap();
    }
}

/// What the first hook to fail says.
pub(super) async fn failure(context: &Context, wake: &Wake) -> String {
    let runs = context.wake(wake).await;
    runs.into_iter().find_map(HookRun::failure).unwrap().to_string()
}
