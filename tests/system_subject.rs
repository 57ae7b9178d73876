//! Tier 2: the library, with the real CRIU, in servers of the tests' own.
//!
//! Started by itself this program is the test runner. Started with `DEFROST_TEST_SUBJECT=NAME` it is the server of
//! that name, which a test starts, checkpoints and restores: it uses the library as any server would, being its own
//! helper too.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "all of it is test code")]
#![allow(unreachable_pub, reason = "a program has no outside, and its modules still tell what they offer")]

mod subject;
mod support;

use libtest_mimic::{Arguments, Failed, Trial};
use subject::stage::Stage;

fn main() {
    if let Some(name) = std::env::var_os(subject::role::VARIABLE) {
        return subject::play(&name.to_string_lossy());
    }
    // What a test's processes leave behind falls to this one, which ends it.
    nix::sys::prctl::set_child_subreaper(true).expect("a subreaper");
    let mut arguments = Arguments::from_args();
    // A restore needs the very pids and ports of its dump.
    arguments.test_threads = Some(1);
    let trials =
        subject::TESTS.iter().map(|(name, test)| Trial::test(*name, move || staged(name, *test))).collect();
    libtest_mimic::run(&arguments, trials).exit();
}

fn staged(name: &str, test: fn(&Stage)) -> Result<(), Failed> {
    let run = || {
        if let Some(stage) = Stage::for_test(name) {
            test(&stage);
        }
    };
    std::panic::catch_unwind(run).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_default()
            .into()
    })
}
