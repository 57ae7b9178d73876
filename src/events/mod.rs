//! What happened, for people and programs: one record of cycles, hooks, audits and restores, of requests and log
//! lines, and of whatever a server defines itself.
//!
//! [`Recorder`] keeps the last of them in a ring in memory. `defrost events TARGET` lists it. The ring is in an image
//! and goes on after a restore; the [`Origin`] of each event tells which process recorded it.
//!
//! | name | what, and its fields |
//! |---|---|
//! | `cycle.begin` | a checkpoint was asked for: `image`, `leave_running` |
//! | `cycle.hook` | a hook ran: `resource`, `hook`, `took_us`, `ok`, and a `message` when it failed |
//! | `cycle.quiesce` | all was put down: `resources`, `took_us` |
//! | `cycle.audit` | the process was looked over: `blockers`, `took_us`, and a `message` with the first of them |
//! | `cycle.dump` | the engine is done, in the process that was dumped: `engine`, `dumped`, `took_us` |
//! | `cycle.wake` | all was taken up again: `wake` (`restored`, `resumed`, `aborted`), `failures`, `took_us` |
//! | `cycle.image` | the image is complete: `image`, `bytes`, `frozen_us` (by CRIU's statistics), `took_us` |
//! | `cycle.end` | the checkpoint has ended: `outcome` (`restored`, `resumed`, `failed`), `phase`, `took_us`, `message` |
//! | `restore` | this process was restored: `engine`, `reason`, `memory`, `memory_reason`, `suspended_us`, `hooks_us`, `failures` |
//!
//! It must not know who asks for a checkpoint, which engine dumps, or what a server serves.

pub mod custom;
pub mod event;
pub mod json;
pub mod recorder;

pub use custom::{About, Kind, KindError, Typed};
pub use event::{Draft, Event, Field, Origin, Text, Value};
pub use json::Listing;
pub use recorder::{Batch, Counts, Limits, Recorder};
