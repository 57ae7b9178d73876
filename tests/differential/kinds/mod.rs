//! The programs, by what their state is about.

pub mod files;
pub mod memory;
pub mod process;
pub mod registers;
pub mod runtime;
pub mod signals;
pub mod threads;
pub mod timers;
pub mod waits;
