//! Find, probe and drive CRIU.
//!
//! ```no_run
//! use criu_driver::{Criu, DumpOptions, DumpTarget, Error, RestoreOptions, Rpc, Transport};
//! use std::{path::Path, time::Duration};
//!
//! fn move_process(pid: i32, images: &Path) -> Result<i32, Error> {
//!     let limit = Duration::from_secs(10);
//!     let rpc = Rpc::new(Criu::find(None)?);
//!     rpc.dump(&DumpOptions::new(images, DumpTarget::Pid(pid)), limit)?;
//!     let restored = rpc.restore(&RestoreOptions::new(images), limit)?;
//!     Ok(restored.pid) // a child of this process: wait for it
//! }
//! ```
//!
//! # The modules
//! | | |
//! |---|---|
//! | [`find`] | where CRIU is, and whether it is new enough ([`version`]) |
//! | [`selftest`] | whether it works on this host |
//! | [`options`] | what it is told, for a dump and for a restore |
//! | [`transport`] | the trait for both ways to drive it; [`Rpc`], and [`cli`] for the command line |
//! | [`rpc`], [`message`] | the connection and its messages; the self-dump |
//! | [`swrk`] | the worker at the other end |
//! | [`log`] | the cause of a failure, from CRIU's log |
//! | [`error`] | what can go wrong, and what to do about it |
//!
//! Dependencies point from the operations (`selftest`, `cli`, `transport`) by way of `swrk` and `rpc` down to `options`
//! and `message`. Nothing here knows what the images hold, beyond the root's pid.
//!
//! # Why there is no service
//! `criu service` is never used. Until 4.2 its socket may be used by every user of the machine, it does not look who asks,
//! and its `exec_cmd` then is a shell as root. It ignores all configuration files while a worker honours them, allows
//! neither `rst_sibling` nor inherited descriptors, and leaves nobody to end a request that hangs. A worker (`criu swrk`)
//! has none of these faults and costs one exec.
//!
//! # Why CRIU's own error text is not shown
//! The `cr_errmsg` of an answer is the first error that was logged, and is set on success too. Without CAP_SYS_RESOURCE, so
//! in nearly every container, that is a complaint about RLIMIT_NOFILE. [`log::Diagnosis`] has the cause instead.
#![forbid(unsafe_code)]

mod cache;
mod capture;
mod child;
pub mod cli;
mod deadline;
pub mod error;
mod evidence;
mod files;
pub mod find;
mod folder;
mod lineage;
pub mod log;
pub mod message;
pub mod options;
pub mod rpc;
pub mod selftest;
pub mod swrk;
pub mod transport;
pub mod version;

pub use cli::Cli;
pub use error::{Error, Operation};
pub use find::Criu;
pub use log::{CauseKind, Diagnosis};
pub use options::{
    DumpOptions, DumpTarget, ImagesFolder, InheritFd, LogLevel, ManageCgroups, NetworkLock, RestoreOptions,
};
pub use rpc::{Connection, SelfDump};
pub use selftest::{SelfTest, self_test};
pub use swrk::{Swrk, serve_self_dump, swrk_command};
pub use transport::{Restored, Rpc, Transport};
pub use version::Version;
