//! What the checkpoints so far have come to, and what the last restore brought along.
//!
//! It must not know who asks for it.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use crate::context::{Context, Registration};
use crate::resource::{HookError, Resource, locked};
use crate::wake::{Restored, Wake};

/// The record, registered under the name `cycles`.
#[derive(Debug)]
pub(super) struct Cycles {
    record: Arc<Record>,
    _registration: Registration,
}

#[derive(Debug, Default)]
struct Record(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    counts: Counts,
    last_restore: Option<Restored>,
}

/// How the cycles ended, in this process and those that it was restored from.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) restored: u64,
    pub(super) resumed: u64,
    pub(super) aborted: u64,
}

impl Cycles {
    pub(super) fn register(context: &Context) -> Self {
        let record = Arc::new(Record::default());
        let registration = context.register("cycles", Arc::clone(&record) as _);
        Self { record, _registration: registration }
    }

    pub(super) fn counts(&self) -> Counts {
        locked(&self.record.0).counts
    }

    pub(super) fn last_restore(&self) -> Option<Restored> {
        locked(&self.record.0).last_restore.clone()
    }
}

#[async_trait]
impl Resource for Record {
    async fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        let mut state = locked(&self.0);
        match wake {
            Wake::Restored(restored) => {
                state.counts.restored += 1;
                state.last_restore = Some(restored.clone());
            }
            Wake::Resumed => state.counts.resumed += 1,
            Wake::Aborted => state.counts.aborted += 1,
        }
        Ok(())
    }

    fn describe(&self) -> String {
        let Counts { restored, resumed, aborted } = locked(&self.0).counts;
        format!("record of {restored} restored, {resumed} resumed, {aborted} aborted cycles")
    }
}
