//! The part of a cycle that blocks, on a thread that no runtime needs: audit, freeze, dump, thaw.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::arrive::Arrived;
use super::error::Cause;
use super::{Shared, inherited, recorded};
use crate::audit::{Audit, Claims};
use crate::engine::{Dump, DumpOrder, Original, Prepared};
use crate::resource::{Cycle, locked};
use crate::sys;
use crate::wake::Wake;

/// How the job ended, and in which process.
pub(super) enum Stage {
    /// This is a restored process.
    Restored(Arrived),
    /// This is the original, and its state was written.
    Dumped(Original),
    /// This is the original, and its state was not written.
    NotDumped(Original),
    /// This is the original, which could not be dumped.
    Refused(Vec<Cause>),
}

/// What the thread needs.
pub(super) struct Job {
    pub(super) shared: Arc<Shared>,
    pub(super) cycle: Cycle,
    pub(super) order: DumpOrder,
}

impl Job {
    pub(super) fn run(self, prepared: Prepared) -> Stage {
        let started = Instant::now();
        let causes = self.audit();
        recorded::audit(&self.shared.events, &causes, started.elapsed());
        if causes.is_empty() {
            return self.dump(prepared);
        }
        prepared.discard();
        Stage::Refused(causes)
    }

    fn audit(&self) -> Vec<Cause> {
        let claims = Claims {
            by_resource: self.shared.context.claimed(),
            kept: self.cycle.kept().iter().filter_map(|slot| slot.number()).collect(),
            inherited: inherited::remembered(),
            service: Vec::new(),
        };
        match Audit::of_self(&claims) {
            Ok(report) => report.blockers.into_iter().map(Cause::Blocker).collect(),
            Err(error) => vec![error.into()],
        }
    }

    fn dump(mut self, prepared: Prepared) -> Stage {
        let hooks = self.cycle.freeze_hooks();
        hooks.iter().for_each(|hook| hook.freeze());
        sys::memory::trim();
        let slots = self.cycle.kept();
        let taken = slots.iter().filter_map(|slot| slot.take().map(|kept| (slot, kept)));
        let (slots, kept): (Vec<_>, Vec<OwnedFd>) = taken.unzip();
        self.order.kept = kept;
        let (dumped_at, started) = (SystemTime::now(), Instant::now());
        let (wake, stage) = match self.shared.engine.dump(prepared, self.order) {
            Dump::Restored(arrival) => {
                let mut failures: Vec<String> = arrival.failure.into_iter().collect();
                let mut identity = locked(&self.shared.identity);
                if let Err(error) = identity.renew() {
                    failures.push(format!("no random numbers for a new identity: {error}"));
                }
                self.shared.events.set_origin(identity.instance, identity.generation);
                let restored = identity.restored(dumped_at, arrival.params, arrival.origin);
                *locked(&self.shared.last_restore) = Some(restored.clone());
                let (report, phases, woke) = (arrival.report, arrival.phases, arrival.woke);
                let wake = Wake::Restored(restored.clone());
                (wake, Stage::Restored(Arrived { restored, failures, woke, report, phases }))
            }
            Dump::Original(mut original) => {
                recorded::dump(
                    &self.shared.events,
                    self.shared.engine.name(),
                    original.dumped,
                    started.elapsed(),
                );
                slots.iter().zip(original.kept.drain(..)).for_each(|(slot, kept)| slot.put(kept));
                match original.dumped {
                    true => (Wake::Resumed, Stage::Dumped(original)),
                    false => (Wake::Aborted, Stage::NotDumped(original)),
                }
            }
        };
        hooks.iter().for_each(|hook| hook.thaw(&wake));
        stage
    }
}
