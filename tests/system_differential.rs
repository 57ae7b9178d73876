//! Tier 2: the instant engine against CRIU, one kind of state after another.
//!
//! For every kind a small program gets itself into that state and dumps itself. The one image is restored by
//! `criu restore` and by the instant engine in each of its ways to bring memory back. Each time the process is halted
//! before its first instruction, and dumped again by CRIU. These images must be equal: field by field, descriptor by
//! descriptor, page by page. What may differ is in a table with its reason (`differential::explained`), and so is what
//! the engine refuses (`differential::KINDS`). Then the process goes on, and says itself what it misses.
//!
//! Started with `DEFROST_TEST_SUBJECT=KIND` this program is the subject of that kind.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test says by a panic what is wrong")]
#![allow(unreachable_pub, reason = "a program has no outside, and its modules still tell what they offer")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod differential;
mod support;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() {
    if let Some(name) = std::env::var_os(differential::play::VARIABLE) {
        return differential::play(&name.to_string_lossy());
    }
    // A restored process falls to this one when what restored it has ended, and is reaped here.
    nix::sys::prctl::set_child_subreaper(true).expect("a subreaper");
    let mut arguments = Arguments::from_args();
    // A restore needs the very pids of its dump, and ptrace(2) the same thread throughout.
    arguments.test_threads = Some(1);
    let kinds = differential::KINDS.iter();
    let kinds = kinds
        .map(|kind| Trial::test(kind.name, move || tried(|| differential::trial::compare_engines(kind))));
    let own = differential::selftest::TESTS.iter();
    let own = own.map(|(name, test)| Trial::test(*name, move || tried(test)));
    libtest_mimic::run(&arguments, kinds.chain(own).collect()).exit();
}

fn tried(test: impl FnOnce() + std::panic::UnwindSafe) -> Result<(), Failed> {
    std::panic::catch_unwind(test).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_default()
            .into()
    })
}
