//! What the tests with a real CRIU share: the host's turn, servers that never outlive their test, and clients.

#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "each test program uses a part of it, and says by a panic what is wrong"
)]

pub mod apart;
pub mod browser;
pub mod client;
pub mod host;
pub mod leftovers;
pub mod process;
pub mod restored;
pub mod server;
#[cfg(target_arch = "x86_64")]
pub mod steps;
pub mod terminal;

pub use host::Host;
pub use server::{Server, info};

use std::time::{Duration, Instant};

/// How long anything in a test may take before it counts as hanging.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `done` says so.
#[track_caller]
pub fn until(what: &str, done: impl FnMut() -> bool) {
    assert!(within(PATIENCE, done), "{what}: not within {PATIENCE:?}");
}

/// Whether `done` says so within this time.
pub fn within(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if done() {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
