//! One program for every allocator: started by itself it is the test runner, and started as a subject a server
//! whose threads use memory in every way, checking all contents, before and after it is restored by mapping.
//!
//! `DEFROST_STRESS_SECONDS` makes each restored process work for so long; else it is a few seconds.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "the stage is shared with other tests, which use the rest of it"
)]

#[path = "../../subject/diary.rs"]
pub mod diary;
#[path = "../../subject/role.rs"]
pub mod role;
#[path = "../../subject/stage.rs"]
pub mod stage;

mod block;
mod program;
mod region;
mod shown;
mod worker;

use std::process::Stdio;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use role::Role;
use stage::{Image, Revived, Stage};

use crate::support::process::Running;
use crate::support::{PATIENCE, until};

/// How often each worker has a turn in a restored process before the test goes on, at least.
const LAPS: usize = 3;
/// How often a restore is tried.
const ATTEMPTS: usize = 5;
/// Both allocators give back at once what is freed, so that little time shows much.
const EAGER: [(&str, &str); 2] =
    [("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0"), ("MIMALLOC_PURGE_DELAY", "0")];

/// A test's name, and what it does.
type Test = (&'static str, fn(&Stage));

const TESTS: [Test; 2] = [
    ("what_is_given_back_shows_zeros", what_is_given_back_shows_zeros),
    ("contents_stay_right_under_stress", contents_stay_right_under_stress),
];

/// The test program, or its subject. `trim` has the allocator give back what it can.
pub fn main(allocator: &'static str, trim: fn()) {
    if std::env::var_os(role::VARIABLE).is_some() {
        defrost::init().expect("the start-up rules");
        return program::program(Role::of_this_process(), trim);
    }
    nix::sys::prctl::set_child_subreaper(true).expect("a subreaper");
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials = TESTS.map(|(name, test)| {
        let name = format!("{allocator}::{name}");
        Trial::test(name.clone(), move || staged(&name, test))
    });
    libtest_mimic::run(&arguments, trials.into()).exit();
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

#[track_caller]
fn dumped(stage: &Stage) -> Image {
    let mut command = stage.command("allocator", &[]);
    stage.started(command.envs(EAGER)).checkpoint(stage, "img0")
}

/// Restores by the instant engine, which is to map by itself, and sees that it maps so many bytes at least.
#[track_caller]
fn mapped(stage: &Stage, image: &Image, number: usize, least: u64) -> Revived {
    let revived = restored(stage, image, number);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", revived.pid)).unwrap();
    // What did not change since an earlier image is still mapped from that one.
    let bytes: u64 = maps.lines().filter(|line| line.ends_with("/pages-1.img")).map(len_of).sum();
    assert!(bytes >= least, "{bytes} bytes are mapped:\n{maps}");
    revived
}

/// Restores, again if a pid was taken: this host may be busy with other programs.
#[track_caller]
fn restored(stage: &Stage, image: &Image, number: usize) -> Revived {
    for _ in 0..ATTEMPTS {
        let mut command = stage.restoring(image, &["--engine", "instant"]);
        let mut restorer = Running::start(command.stdout(Stdio::null()));
        let there = || stage.diary.texts("restored").len() >= number;
        let mut ended = false;
        until("the restore, or its failure", || {
            ended = restorer.has_ended().is_some();
            ended || there()
        });
        if there() && !ended {
            return Revived { pid: image.pid, restorer };
        }
        assert_eq!(stage.diary.texts("wrong"), [""; 0]);
    }
    panic!("{} could not be restored in {ATTEMPTS} attempts", image.path.display());
}

fn len_of(line: &str) -> u64 {
    let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
    u64::from_str_radix(end, 16).unwrap() - u64::from_str_radix(start, 16).unwrap()
}

/// Has the workers work, and sees that they find nothing wrong.
#[track_caller]
fn at_work(stage: &Stage, revived: &Revived, time: Duration) {
    let laps = || stage.diary.texts("lap").len();
    let wrong = || stage.diary.texts("wrong");
    let deadline = Instant::now() + time;
    let mut seen = laps();
    let mut count = 0;
    while count < LAPS * program::WORKERS || Instant::now() < deadline {
        until("another lap", || laps() > seen || !wrong().is_empty());
        assert_eq!(wrong(), [""; 0], "in process {}", revived.pid);
        count += laps() - seen;
        seen = laps();
    }
}

fn stress_time() -> Duration {
    let seconds = std::env::var("DEFROST_STRESS_SECONDS").ok();
    Duration::from_secs(seconds.map_or(0, |seconds| seconds.parse().expect("a number of seconds")))
}

/// The system call alone shows the file; the program's own function, zeros.
fn what_is_given_back_shows_zeros(stage: &Stage) {
    let image = dumped(stage);
    let revived = mapped(stage, &image, 1, 8 << 20);
    let shown: shown::Shown = serde_json::from_str(&stage.diary.read("shown", 1)).unwrap();
    assert_eq!(shown, shown::Shown::expected());
    revived.end();
}

/// Restored by mapping, dumped from there, restored by mapping again, dumped once more, made whole, and restored by
/// mapping and by CRIU.
fn contents_stay_right_under_stress(stage: &Stage) {
    let image = dumped(stage);
    let revived = mapped(stage, &image, 1, 8 << 20);
    stage.diary.read("shown", 1);
    at_work(stage, &revived, stress_time());
    let image = stage.again(revived, image.port, "img1");
    let revived = mapped(stage, &image, 2, 4096);
    at_work(stage, &revived, stress_time() / 4);
    let image = stage.again(revived, image.port, "img2");
    stage.host.run(["image", "flatten", "img2"]).worked();
    let revived = mapped(stage, &image, 3, 8192);
    at_work(stage, &revived, Duration::ZERO);
    revived.end();
    let (revived, _) = stage.revive(&image, 4);
    at_work(stage, &revived, Duration::ZERO);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(revived.pid), nix::sys::signal::Signal::SIGTERM)
        .unwrap();
    stage.diary.read("churned", 1);
    assert_eq!(stage.diary.texts("wrong"), [""; 0]);
    revived.end();
    until("the end of its last thread", || stage::alone_within(PATIENCE));
}
