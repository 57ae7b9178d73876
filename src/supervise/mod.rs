//! The parent's side: starting or restoring a process, forwarding signals, reaping, handing its exit status on.
//!
//! It runs in a process with one thread and without an async runtime, since it must be small and quick to
//! start. It must not know what the supervised server does, nor how commands are typed.

pub mod attend;
pub mod fork;
pub mod guard;
pub mod restore;
pub mod run;
pub mod signals;
pub mod subject;

pub use attend::Ending;
