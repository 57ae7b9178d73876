//! Servers and what is tested with them: each file holds a server's program and its tests.

pub mod diary;
pub mod role;
pub mod stage;

mod brittle;
mod credentials;
mod files;
mod hello;
mod inside;
mod killed;
mod paged;
mod random;
mod refused;
mod split;
mod ticks;
mod values;
mod waiting;

use role::Role;
use stage::Stage;

/// A subject's name, and what it does.
type Program = (&'static str, fn(Role));
/// A test's name, and what it does.
pub type Test = (&'static str, fn(&Stage));

/// The subjects by name.
const PROGRAMS: &[Program] = &[
    ("hello", hello::program),
    ("inside", inside::program),
    ("refused", refused::program),
    ("large", killed::program),
    ("files", files::program),
    ("random", random::program),
    ("split", split::program),
    ("ticks", ticks::program),
    ("values", values::program),
    ("brittle", brittle::program),
    ("credentials", credentials::program),
    ("paged", paged::program),
];

/// Becomes the subject of this name.
pub fn play(name: &str) {
    defrost::init().expect("the start-up rules");
    let program = PROGRAMS.iter().find(|(known, _)| *known == name);
    program.unwrap_or_else(|| panic!("no subject is called {name}")).1(Role::of_this_process());
}

macro_rules! tests {
    ($($module:ident: $($test:ident),+;)+) => {
        &[$($((concat!(stringify!($module), "::", stringify!($test)), $module::$test as fn(&Stage))),+),+]
    };
}

/// All tests, by name.
pub const TESTS: &[Test] = tests! {
    hello: hello_there;
    inside:
        a_checkpoint_from_inside_ends_and_comes_back,
        a_checkpoint_from_inside_goes_on_and_comes_back,
        a_program_without_a_runtime_checkpoints_itself;
    refused:
        a_failing_hook,
        a_hanging_hook,
        a_panicking_hook,
        an_unregistered_file,
        a_connection_to_a_database,
        a_second_listener,
        a_pipe_to_a_child,
        a_living_child,
        a_unix_socket_of_another_process,
        a_terminal,
        a_file_lock,
        an_io_uring,
        a_traced_process,
        a_target_that_is_no_image;
    killed:
        criu_at_every_stage,
        the_helper_under_a_supervisor,
        the_helper_of_a_subject_on_its_own,
        the_subject,
        the_supervisor,
        the_restorer;
    files:
        a_data_file_goes_on_at_its_offset,
        a_log_may_grow_rotate_or_vanish,
        a_unix_listener_has_its_path_again,
        standard_streams_do_not_tie_it_down,
        a_port_taken_at_restore_time;
    random:
        no_value_comes_twice;
    split:
        ten_restores_and_their_streams_share_no_value;
    ticks:
        an_interval_does_not_burst_after_a_restore;
    values:
        parameters_arrive_as_values,
        each_restore_knows_what_it_is,
        a_sleep_goes_on_with_what_was_left;
    brittle:
        a_failing_hook_is_told_and_ends_it,
        a_failing_probe_is_told_and_ends_it,
        a_port_taken_after_verification_is_told,
        one_that_is_told_to_stays,
        one_that_hangs_is_killed,
        a_fallback_starts_cold;
    credentials:
        threads_with_credentials_of_their_own,
        a_process_of_another_user,
        a_parents_death_is_not_detached_from;
    paged:
        memory_changes_while_it_is_empty,
        memory_changes_while_it_is_filled;
    waiting:
        clients_that_come_during_a_dump_are_served;
};
