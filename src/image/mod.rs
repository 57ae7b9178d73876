//! The image folder: CRIU's files, and a manifest that says what they are and where they fit.
//!
//! | module | what |
//! |---|---|
//! | [`folder`] | a new image beside its final name, complete or not there |
//! | [`manifest`] | what is stored about an image |
//! | [`mod@describe`] | finding it out about a fresh one |
//! | [`open`] | an existing image |
//! | [`contents`] | its mappings and descriptors |
//! | [`chain`] | images that depend on earlier ones, and who needs an image |
//! | `durable` | images left to the kernel to write, and what needs them |
//! | [`mod@flatten`] | a dependent image made whole |
//! | [`mod@remove`] | an image that nobody needs, removed |
//! | [`mod@verify`] | whether it is whole and fits this host |
//! | [`machine`] | the host as an image sees it |
//! | [`record`] | values as checksummed bytes; the one place that names bincode |
//! | [`digest`] | content hashes |
//! | [`working_set`] | which pages a restored process touched first |
//!
//! It must not know engines, the control socket or the running server: it gets values and paths.

pub mod chain;
pub mod contents;
mod cpu_features;
pub mod describe;
pub mod digest;
pub(crate) mod durable;
mod elf;
pub mod flatten;
pub mod folder;
mod living;
pub mod machine;
pub mod manifest;
pub mod open;
mod process;
pub mod record;
pub mod remove;
pub mod verify;
pub mod working_set;

pub use chain::Users;
pub use contents::Contents;
pub use describe::{DescribeError, describe};
pub use flatten::{FlattenError, flatten};
pub use folder::{FolderError, Partial};
pub use machine::Machine;
pub use manifest::{Manifest, SubjectRecord};
pub use open::{Image, ImageError};
pub use remove::{RemoveError, remove};
pub use verify::{Class, Finding, Host, VerifyOptions, verify};

/// The file that every CRIU image has.
const INVENTORY_NAME: &str = "inventory.img";
