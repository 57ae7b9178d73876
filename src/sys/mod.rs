//! Every unsafe line and raw system call of the crate, one file per family of calls.
//!
//! It must know nothing of what the calls are for: no resource, no image, no engine.

#![allow(unsafe_code, reason = "the one place for it; each operation says why it is sound")]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod areas;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod borrow;
pub mod cache;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod call;
pub mod cpu;
pub mod descriptors;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod discard;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod ledger;
pub mod limits;
pub mod memory;
pub mod message;
pub mod namespace;
pub mod process;
pub mod random;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod remap;
pub mod socket;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod userfault;
pub mod watch;

#[cfg(test)]
mod tests;
