//! Tier 2: memory under the instant engine's mapping, with the C library's malloc.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "all of it is test code")]

#[path = "suite/mod.rs"]
mod suite;
#[path = "../support/mod.rs"]
mod support;

fn main() {
    // SAFETY: malloc_trim may be called at any time from any thread.
    suite::main("glibc", || unsafe {
        libc::malloc_trim(0);
    });
}
