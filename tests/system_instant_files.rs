//! Tier 2: descriptors and shared memory of every kind, in programs that look at themselves after a restore by
//! either engine.
//!
//! Started by itself this program is the test runner. Started with `DEFROST_TEST_SUBJECT=NAME` it is the program of
//! that name, which sets a scene, checkpoints itself, and tells in each restored process what is not as it was.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "all of it is test code")]
#![allow(unreachable_pub, dead_code, reason = "shared with other tests, which use the rest")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[path = "subject/diary.rs"]
mod diary;
mod open;
#[path = "subject/role.rs"]
mod role;
#[path = "subject/stage.rs"]
mod stage;
mod support;

use std::panic::UnwindSafe;
use std::path::PathBuf;

use libtest_mimic::{Arguments, Failed, Trial};
use open::scene::IMAGES;
use stage::{Image, Stage};
use support::host::Done;
use support::process::Running;

/// How often a restore is tried whose pids are somebody else's.
const TRIES: usize = 20;

fn main() {
    if let Some(name) = std::env::var_os(role::VARIABLE) {
        return open::play(&name.to_string_lossy());
    }
    // What a test's processes leave behind falls to this one, which ends it.
    nix::sys::prctl::set_child_subreaper(true).expect("a subreaper");
    let mut arguments = Arguments::from_args();
    // A restore needs the very pids and ports of its dump.
    arguments.test_threads = Some(1);
    let carried = open::PROGRAMS.iter().map(|(name, _, engines)| {
        let way = format!("{name}_by_{}", engines.join("_and_"));
        Trial::test(way, move || staged(name, |stage, name| come_back(stage, name, engines)))
    });
    let both = open::PROGRAMS.iter().filter(|(_, _, engines)| engines.len() > 1);
    let again =
        both.map(|(name, ..)| Trial::test(format!("{name}_again"), move || staged(name, come_back_again)));
    let refused = Trial::test("what_is_not_carried_is_told", || staged("refused", are_refused));
    libtest_mimic::run(&arguments, carried.chain(again).chain([refused]).collect()).exit();
}

fn staged(name: &str, test: impl FnOnce(&Stage, &str) + UnwindSafe) -> Result<(), Failed> {
    let run = move || {
        if let Some(stage) = Stage::for_test(name) {
            let _memory = Removed(open::scene::memory_folder(stage.host.folder()));
            test(&stage, name);
        }
    };
    std::panic::catch_unwind(run).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_default()
            .into()
    })
}

/// A folder that does not outlive its test.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // Most programs make none.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Starts a program, which checkpoints itself.
fn dumped(stage: &Stage, name: &str, options: &[&str]) -> Image {
    let mut original = Running::start(&mut stage.command(name, options));
    let pid = original.pid();
    original.ended();
    stage::gone(pid);
    image(stage, IMAGES[0], pid)
}

fn image(stage: &Stage, name: &str, pid: i32) -> Image {
    let image = Image { path: stage.host.path(name), pid, port: 0 };
    let text = || std::fs::read_to_string(stage.host.path(role::DIARY)).unwrap_or_default();
    assert!(image.path.is_dir(), "there is no {name}: {}", text());
    image
}

/// The program finds all as it was, whoever restores it.
fn come_back(stage: &Stage, name: &str, engines: &[&str]) {
    let image = dumped(stage, name, &[]);
    let ways = [["criu", "auto"], ["instant", "map"], ["instant", "copy"]];
    let ways = ways.into_iter().filter(|[engine, _]| engines.contains(engine));
    for (number, way) in (1..).zip(ways) {
        finds_all(stage, &image, number, way);
    }
}

/// What the instant engine has restored can be dumped again, and be restored by either engine.
fn come_back_again(stage: &Stage, name: &str) {
    let first = dumped(stage, name, &["twice=yes"]);
    let ended = restored(stage, &first, &["--engine", "instant", "--memory", "copy"]);
    assert_eq!(ended.status, 0, "it ends itself by intent: {ended:?}");
    let second = image(stage, IMAGES[1], first.pid);
    for (number, way) in (1..).zip([["criu", "auto"], ["instant", "map"]]) {
        finds_all(stage, &second, number, way);
    }
}

/// The `number`th restored process finds everything.
fn finds_all(stage: &Stage, image: &Image, number: usize, [engine, memory]: [&str; 2]) {
    let restored = restored(stage, image, &["--engine", engine, "--memory", memory]);
    let found = stage.diary.texts("found");
    let found = found.get(number - 1).unwrap_or_else(|| panic!("{engine} {memory}: {restored:?}"));
    assert!(!found.contains("WRONG"), "by {engine}, memory {memory}:\n{}", found.replace("; ", "\n"));
    assert_eq!(restored.status, 0, "by {engine}, memory {memory}: {restored:?}");
}

/// Restores the program, which ends by itself. Its pids may be somebody else's for a while: these are tried again.
fn restored(stage: &Stage, image: &Image, more: &[&str]) -> Done {
    let mut done = Done::of(&mut stage.restoring(image, more));
    for _ in 0..TRIES {
        let taken = ["File exists", " held by "].iter().any(|text| done.err.contains(text));
        if done.status == 0 || !taken {
            break;
        }
        done = Done::of(&mut stage.restoring(image, more));
    }
    stage::gone(image.pid);
    done
}

/// Each is named with its reason, and nothing is started.
fn are_refused(stage: &Stage, name: &str) {
    let image = dumped(stage, name, &[]);
    let text = stage.restore_fails(&image, &["--engine", "instant", "--detach"]);
    for reason in open::REASONS {
        assert!(text.contains(reason), "{reason} is not told: {text}");
    }
    assert!(text.contains("--engine criu"), "{text}");
}
