//! Tier 2: memory under the instant engine's mapping, with mimalloc, which resets and decommits pages.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "all of it is test code")]

#[path = "suite/mod.rs"]
mod suite;
#[path = "../support/mod.rs"]
mod support;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    // It purges by itself, at once, as the suite's environment tells it.
    suite::main("mimalloc", || {});
}
