//! Startup latency: how long it takes from a command to the first correct answer, in every way to start a service.
//!
//! `ways` says what there is to start and `run` starts it, in rounds: each way once, by `start`, which has the state
//! prepared (`caches`), spawns the command (`started`, `kin`), has the `probe` ask its `question`, and ends it. The
//! samples are a `record`, which `table` and `compare` show.

pub mod caches;
pub mod clones;
pub mod compare;
pub mod host;
pub mod kin;
pub mod memory;
pub mod probe;
pub mod question;
pub mod record;
pub mod run;
mod start;
pub mod started;
pub mod table;
pub mod usage;
pub mod ways;
