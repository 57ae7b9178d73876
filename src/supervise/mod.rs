//! The parent's side: starting or restoring a process, forwarding signals, reaping, handing its exit status on.
//!
//! A restore goes among the other processes ([`restore`]), or into pid namespaces of its own, one or many ([`clones`]):
//! there process 1 is a supervisor, too, and has one outside.
//!
//! It runs in a process with one thread and without an async runtime, since it must be small and quick to
//! start. It must not know what the supervised server does, nor how commands are typed.

pub mod addresses;
pub mod attend;
pub mod clones;
pub mod companion;
mod contained;
mod course;
pub mod fork;
pub mod guard;
mod inner;
pub mod lasting;
mod leash;
mod link;
mod member;
pub mod namespace;
pub mod restore;
pub mod run;
mod server;
pub mod signals;
pub mod subject;
pub mod timings;
mod told;

pub use attend::Ending;
