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
//! | `cycle.image` | the image is complete: `image`, `bytes`, `took_us`; by CRIU's statistics `frozen_us`, `freezing_us`, `memdump_us`, `memwrite_us`, `pages` |
//! | `cycle.end` | the checkpoint has ended: `outcome` (`restored`, `resumed`, `failed`), `phase`, `took_us`, `message` |
//! | `restore` | this process was restored: `engine`, `reason`, `memory`, `memory_reason`, `cause` (which crash it came back from), `suspended_us`, `hooks_us`, `failures` |
//! | `restore.engine` | what the engine's time went into, where `defrost` restored: `took_us`, and `PART_us` for each part, as `restore -v` names them |
//! | `restore.criu` | after a plain `criu restore`, by CRIU's statistics, if they are in the image: `restore_us`, `forking_us`, `pages` |
//! | `request` | the server that ships with defrost answered by HTTP: `method`, `path`, `status`, `took_us`, `bytes` |
//! | `page.view` | the same of a page, as a custom event: `path`, `referrer` |
//! | `log` | a log line: `level`, `target`, its fields, `message` |
//! | `supervise.start` | a supervisor started the server: `pid` |
//! | `supervise.crash` | the server ended by what nobody wanted: `ending`, `signal` or `status`, `pid`, `ran_us`, `row` (crashes, and restores that failed, since the last new checkpoint) |
//! | `supervise.restored` | a checkpoint is back: `number`, `pid`, `lost_us` (its age at the crash), `pause_us` (before the attempt), `took_us`, `engine`, `reason`, `memory`, `generation` |
//! | `supervise.unfit` | a checkpoint does not come back: `number`, `may_pass` (it will be tried again), `took_us`, `message` |
//! | `supervise.cold` | the server was started cold: `pid`, `pause_us`, or a `message` when that failed |
//! | `supervise.gave_up` | it has crashed too often and stays ended: `row` |
//! | `supervise.end` | the supervisor ends: `ending` |
//! | `history.checkpoint` | a checkpoint as it goes: `ok`, `took_us`; `number`, `pause_us`, `memory_bytes`, `image_bytes`, `written_bytes`, `late_us` if it came too late, or `row` (failures in a row) and a `message` |
//! | `history.prune` | old checkpoints left: `removed`, `packs`, or a `message` when they could not |
//! | `events.lost` | in a file: events before this one could not be written: `count` |
//!
//! [`EventFile`] writes all of them to a file too, which several processes may share. `defrost events FILE` reads it.
//! [`Journal`] does so in a process without an async runtime; the two of `defrost run --history DIR`, which supervise the
//! server and have checkpoints made, keep one in the file `events` of the history.
//!
//! It must not know who asks for a checkpoint, which engine dumps, or what a server serves.

mod append;
pub mod custom;
pub mod event;
pub mod file;
#[cfg(feature = "cli")]
pub mod filter;
pub mod format;
pub mod journal;
pub mod json;
pub mod recorder;
pub mod stored;
pub mod summary;

#[cfg(test)]
mod tests;

pub use append::{EventFileError, older};
pub use custom::{About, Kind, KindError, Typed};
pub use event::{Draft, Event, Field, Origin, Text, Value};
pub use file::EventFile;
#[cfg(feature = "cli")]
pub use filter::{Filter, FilterError};
pub use format::{Format, FormatError};
pub use journal::Journal;
pub use json::Listing;
pub use recorder::{Batch, Counts, Limits, Recorder};
pub use summary::Summary;
