//! The comparison: kinds of state, and what is done with each.

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

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use explained::Values;
use fields::Fields;
use halt::Halted;
use play::Play;

use crate::support::Host;
use crate::support::process::{Running, gone};

/// The instant engine's ways to bring memory back.
const MODES: &[&str] = &["map", "copy"];

/// A kind of state, and the program that gets into it.
#[derive(Debug)]
pub struct Kind {
    pub name: &'static str,
    program: fn(&mut Play),
    /// What the instant engine says against it; nothing if it supports it.
    refused: &'static [&'static str],
}

macro_rules! kinds {
    ($($module:ident: $($program:ident $(refused $reason:literal)?),+;)+) => {
        &[$($(Kind {
            name: concat!(stringify!($module), "::", stringify!($program)),
            program: kinds::$module::$program,
            refused: &[$($reason)?],
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
        expired,
        posix_timers,
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
        no_new_privileges refused "its no_new_privs differs from ours",
        shared_memory refused "is a memory file";
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

/// A test: one image, restored in every way, compared.
pub fn compare_engines(kind: &Kind) {
    let Some(host) = Host::for_test(kind.name) else { return };
    let pid = dumped(&host, kind);
    let image = host.path(play::IMAGE);
    let halted = Halted::by_criu(&host, &image, pid);
    let mut criu = Fields::new();
    portrait::add(&mut criu, pid);
    halted.dump(&host, &host.path("criu"));
    halted.go_on();
    verdict(&host, "criu");
    for mode in MODES {
        match (Halted::by_instant(&host, &image, pid, mode), kind.refused) {
            (Ok(halted), []) => {
                let mut instant = Fields::new();
                portrait::add(&mut instant, pid);
                halted.dump(&host, &host.path(mode));
                halted.go_on();
                verdict(&host, mode);
                same(&host, mode, pid.unsigned_abs(), [&criu, &instant]);
            }
            (Ok(_), [reason, ..]) => panic!("{mode}: it was restored, and expected was `{reason}`"),
            (Err(said), reasons) => {
                let expected = !reasons.is_empty() && reasons.iter().all(|reason| said.contains(reason));
                assert!(expected, "{mode}: {said}");
            }
        }
    }
}

/// Compares the second dump of one way to restore with that of CRIU's, and what /proc told of both.
fn same(host: &Host, mode: &str, pid: u32, portraits: [&Fields; 2]) {
    let (criu, instant) = (host.path("criu"), host.path(mode));
    let dumped = state::read(&host.path(play::IMAGE), pid);
    let (mut expected, mut found) = (state::read(&criu, pid), state::read(&instant, pid));
    expected.extend(portraits[0].clone());
    found.extend(portraits[1].clone());
    let keys: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
    let mut differences = Vec::new();
    for key in keys {
        let values = Values { dumped: dumped.get(key), criu: expected.get(key), instant: found.get(key) };
        if values.criu != values.instant && explained::explanation(key, values).is_none() {
            differences.push(format!("{key}: {values:?}"));
        }
    }
    let dead = pages::dead_ranges(&criu, pid);
    let open = |folder| pages::Contents::open(folder, pid);
    let (memory, pages) = pages::compare(&mut open(&criu), &mut open(&instant), &dead);
    differences.extend(memory.into_iter().take(20));
    assert!(pages > 10, "only {pages} pages were compared");
    assert!(differences.is_empty(), "{mode}: {} fields\n{}", expected.len(), differences.join("\n"));
}

fn dumped(host: &Host, kind: &Kind) -> i32 {
    let mut command = host.at_home(Command::new(std::env::current_exe().unwrap()));
    command.env(play::VARIABLE, kind.name);
    let err = fs::File::create(host.path("subject.err")).unwrap();
    let mut original = Running::start(command.stdout(Stdio::null()).stderr(err));
    let pid = original.pid();
    let status = original.ended();
    let said = || fs::read_to_string(host.path(play::VERDICT)).unwrap_or_default();
    let err = || fs::read_to_string(host.path("subject.err")).unwrap_or_default();
    assert_eq!(status.signal(), Some(9), "{status}: {}{}", said(), err());
    gone(pid);
    pid
}

fn verdict(host: &Host, way: &str) {
    let path = host.path(play::VERDICT);
    let said = fs::read_to_string(&path).unwrap_or_default();
    let _ = fs::remove_file(&path);
    assert_eq!(said, play::WHOLE, "restored by {way}");
}
