//! The engine that dumps nothing: hooks and audit run as for a real one, on any host.

use std::path::Path;
use std::time::Instant;

use super::{
    Complete, Dump, DumpError, DumpOrder, Engine, EngineName, Original, Prepared, RestoreError, RestoreOrder,
    RestoredProcess,
};

/// Dumps nothing; the process goes on, also where a dump would have ended it.
#[derive(Debug, Default, Clone, Copy)]
pub struct SimulatedEngine;

impl Engine for SimulatedEngine {
    fn name(&self) -> EngineName {
        EngineName::Simulated
    }

    fn prepare(&self, _target: &Path) -> Result<Prepared, DumpError> {
        Ok(Prepared::Nothing)
    }

    fn dump(&self, _prepared: Prepared, order: DumpOrder) -> Dump {
        let started = Instant::now();
        let complete = move || {
            let took_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
            Ok(Complete { image: None, bytes: 0, frozen_us: 0, took_us })
        };
        Dump::Original(Original::new(true, order.kept, complete))
    }

    fn restore(&self, _order: &RestoreOrder<'_>) -> Result<RestoredProcess, RestoreError> {
        Err(RestoreError::NotRestoring(EngineName::Simulated))
    }
}
