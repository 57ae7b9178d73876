//! Tier 2: memory under the instant engine's mapping, with jemalloc, which counts on zeros in what it has purged.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "all of it is test code")]

#[path = "suite/mod.rs"]
mod suite;
#[path = "../support/mod.rs"]
mod support;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() {
    // It purges by itself, at once, as the suite's environment tells it.
    suite::main("jemalloc", || {});
}
