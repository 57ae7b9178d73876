//! The comparison: the kinds of state, and what belongs to it by module.

pub mod areas;
pub mod explained;
pub mod fields;
pub mod halt;
pub mod kinds;
pub mod pages;
pub mod play;
pub mod portrait;
pub mod selftest;
pub mod state;
pub mod sys;
pub mod trial;

use play::Play;

/// A kind of state, and the program that gets into it.
#[derive(Debug)]
pub struct Kind {
    pub name: &'static str,
    program: fn(&mut Play),
    /// What the instant engine says against it; nothing if it supports it.
    refused: &'static [&'static str],
    /// Signals come in at any time, so that no two restores are in the same state: it is not compared, and has to see
    /// for itself.
    restless: bool,
}

macro_rules! kinds {
    ($($module:ident: $($program:ident $(refused $reason:literal)? $(is $restless:ident)?),+;)+) => {
        &[$($(Kind {
            name: concat!(stringify!($module), "::", stringify!($program)),
            program: kinds::$module::$program,
            refused: &[$($reason)?],
            restless: { const IS: &[&str] = &[$(stringify!($restless))?]; !IS.is_empty() },
        }),+),+]
    };
}

/// All kinds, by name. What the instant engine does not restore stands with the reason that it gives.
pub const KINDS: &[Kind] = kinds! {
    memory:
        heap,
        deep_stack,
        edge_of_the_stack,
        thousand_areas,
        advice,
        guards,
        private_file,
        code_made_at_run_time,
        moved_break,
        sparse,
        neighbours,
        growing,
        places,
        locked,
        droppable;
    registers:
        registers_while_running,
        registers_while_asleep,
        gs_base;
    threads:
        two_hundred,
        small_stacks,
        scheduling,
        restartable_sequences,
        inside_of_a_handler;
    signals:
        pending,
        dispositions;
    timers:
        interval_timers,
        expiring,
        storm is restless,
        expired,
        posix_timers,
        late_timer,
        clocks;
    files:
        events,
        pipes,
        unix_pairs,
        regular_files;
    waits:
        locks,
        owned_mutexes,
        sleeps,
        descriptors_and_signals;
    process:
        surroundings,
        attributes,
        not_dumpable,
        limits,
        memory_barriers,
        no_new_privileges,
        shared_memory;
    runtime:
        tasks;
};

/// Becomes the subject of this kind.
pub fn play(name: &str) {
    defrost::init().expect("the start-up rules");
    let kind = KINDS.iter().find(|kind| kind.name == name);
    let mut play = Play::begin();
    (kind.unwrap_or_else(|| panic!("no kind is called {name}")).program)(&mut play);
    play.say();
}
