//! Tier 1: whole cycles in a process that has gone through the start-up rules, with the engine that dumps
//! nothing. The hooks, the audit and the rollback are real.
//!
//! The audit looks at the whole process, so these tests have their own `main` and run one after the other.

#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test says by a panic what is wrong")]

mod descriptors;
mod fixture;
mod hooks;
mod registry;
mod requests;
mod variants;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() {
    defrost::init().expect("the start-up rules");
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let tests: Vec<(&'static str, fn())> = vec![
        ("hooks_run_in_reverse_order_and_back", hooks::hooks_run_in_reverse_order_and_back),
        (
            "every_failure_is_kept_and_everything_is_woken",
            hooks::every_failure_is_kept_and_everything_is_woken,
        ),
        ("a_late_hook_is_stopped_and_named", hooks::a_late_hook_is_stopped_and_named),
        ("a_hook_that_blocks_its_thread_is_late_too", hooks::a_hook_that_blocks_its_thread_is_late_too),
        ("a_hook_that_panics_fails", hooks::a_hook_that_panics_fails),
        ("a_failing_rollback_is_told_beside_the_cause", hooks::a_failing_rollback_is_told_beside_the_cause),
        ("contexts_nest", registry::contexts_nest),
        (
            "what_a_hook_registers_takes_part_from_the_next_cycle_on",
            registry::what_a_hook_registers_takes_part_next,
        ),
        ("a_dropped_registration_takes_no_part", registry::a_dropped_registration_takes_no_part),
        ("one_cycle_at_a_time", requests::one_cycle_at_a_time),
        ("a_request_from_within_a_hook_is_refused", requests::a_request_from_within_a_hook_is_refused),
        ("kept_descriptors_come_back_with_what_was_queued", descriptors::kept_descriptors_come_back),
        ("the_moment_of_the_dump_is_announced", descriptors::the_moment_of_the_dump_is_announced),
        ("an_unregistered_descriptor_blocks_by_name", descriptors::an_unregistered_descriptor_blocks_by_name),
        (
            "a_forgotten_listener_blocks_with_its_address",
            descriptors::a_forgotten_listener_blocks_with_its_address,
        ),
        ("blocking_resources_take_part", variants::blocking_resources_take_part),
        (
            "the_blocking_variant_works_without_a_runtime",
            variants::the_blocking_variant_works_without_a_runtime,
        ),
        (
            "the_blocking_variant_is_refused_within_a_runtime",
            variants::the_blocking_variant_is_refused_within_a_runtime,
        ),
        ("the_answer_comes_back_to_a_process_that_goes_on", variants::the_answer_comes_back),
        ("a_dropped_request_does_not_stop_the_cycle", variants::a_dropped_request_does_not_stop_the_cycle),
    ];
    let trials = tests.into_iter().map(|(name, test)| Trial::test(name, move || caught(test))).collect();
    libtest_mimic::run(&arguments, trials).exit();
}

fn caught(test: fn()) -> Result<(), Failed> {
    std::panic::catch_unwind(test).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_default()
            .into()
    })
}
