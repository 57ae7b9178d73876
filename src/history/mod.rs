//! Checkpoints of one server, one after the other, of which each costs what has changed since the one before.
//!
//! The kernel need not track what a server writes: an image is written whole by CRIU, then its pages are stored by
//! their content, so that a page which any checkpoint of the history has already is not written again. Each
//! checkpoint is complete or absent, whatever is killed, and can be had as a plain image at any time.
//!
//! | module | what |
//! |---|---|
//! | [`folder`] | the files of a history, and who may write to it |
//! | [`index`] | what is stored about one checkpoint |
//! | `pack` | pages in files, with their hashes |
//! | [`store`] | an image becomes a checkpoint |
//! | [`checkout`] | a checkpoint becomes an image; what of it is damaged |
//! | [`prune`] | old ones leave |
//! | [`keep`] | checkpoints of a running server, at intervals |
//! | [`spec`] | `DIR@N` |
//!
//! It must not know how servers are started, supervised or restored; `keep` alone knows that a server can be asked.

pub mod checkout;
pub mod error;
pub mod folder;
pub mod index;
pub mod keep;
mod pack;
pub mod prune;
mod schedule;
pub mod spec;
pub mod store;
#[cfg(test)]
mod tests;

pub use checkout::{CheckedOut, Held};
pub use error::HistoryError;
pub use folder::{Claim, History};
pub use index::Index;
pub use prune::Pruned;
pub use spec::{Spec, Which};
