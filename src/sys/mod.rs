//! Every unsafe line and raw system call of the crate, one file per family of calls.
//!
//! It must know nothing of what the calls are for: no resource, no image, no engine.

#![allow(unsafe_code, reason = "the one place for it; each operation says why it is sound")]

pub mod cpu;
pub mod descriptors;
pub mod memory;
pub mod message;
pub mod process;
pub mod random;
