//! The program as a process: it follows plans that end in an exit, and refuses what is no plan. No privileges are
//! needed; the plan is its standard input and the report its standard output.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, reason = "a test says by a panic what is wrong")]

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use criu_restorer::PROGRAM;
use criu_restorer::plan::{
    ANYTHING, CODE_ROOM, Call, EXPECTED, Header, MOST_HELPERS, Part, Report, STACK, Step, Thread, Writer,
};

const HOME: u64 = 0x2000_0000_0000;
const PAGE: u64 = 4096;
const SYS_MMAP: u64 = 9;
const SYS_CLOSE: u64 = 3;
const SYS_MPROTECT: u64 = 10;
const SYS_GETTID: u64 = 186;
const SYS_EXIT_GROUP: u64 = 231;
const EBADF: i32 = 9;
const NOBODY: u32 = 65534;
/// When the program counts as hanging.
const PATIENCE: Duration = Duration::from_secs(20);
/// The program's own status after a failure.
const FAILED: i32 = 125;

/// A folder of the test's own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        // Everybody may go there, unlike to where this was built.
        let path = std::env::temp_dir().join(format!("restorer-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs the program with this plan.
fn run(name: &str, plan: &[u8]) -> Output {
    let folder = Folder::new(name);
    start(command(&folder, plan).stdout(Stdio::piped())).wait_with_output().unwrap()
}

/// Starts it. A test beside this one may have forked while the program was being written, and then holds it open for
/// writing, until its child becomes another program: execve(2), ETXTBSY.
fn start(command: &mut Command) -> Child {
    for _ in 0..1000 {
        match command.spawn() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                std::thread::sleep(Duration::from_millis(5));
            }
            started => return started.unwrap(),
        }
    }
    panic!("the program stayed busy");
}

fn command(folder: &Folder, plan: &[u8]) -> Command {
    let (program, written) = (folder.0.join("restorer"), folder.0.join("plan"));
    if !program.exists() {
        fs::write(&program, PROGRAM.unwrap()).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(&written, plan).unwrap();
    let mut command = Command::new(&program);
    command.arg("0").stdin(File::open(&written).unwrap());
    command
}

/// How the program has ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Status(i32),
    Signal(i32),
    /// Not by itself.
    Late,
}

/// Runs the program with this plan, which may be damaged: root does so as nobody, since it might make any call.
fn end_of(folder: &Folder, plan: &[u8]) -> End {
    let mut command = command(folder, plan);
    if fs::metadata("/proc/self").unwrap().uid() == 0 {
        command.uid(NOBODY).gid(NOBODY);
    }
    let mut child = start(command.stdout(Stdio::null()));
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code().map_or_else(|| End::Signal(status.signal().unwrap()), End::Status);
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            return End::Late;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn call(number: u64, arguments: &[u64]) -> Call {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    Call { step: Step::Process as u32, number, arguments: all, ..Call::default() }
}

/// A plan of these calls for a process of one thread.
fn plan(calls: &[Call], change: impl FnOnce(&mut Header)) -> Vec<u8> {
    plan_with(&[], calls, change)
}

/// The same, with jobs to do before, and room for as many helpers as there may be.
fn plan_with(jobs: &[Vec<Call>], calls: &[Call], change: impl FnOnce(&mut Header)) -> Vec<u8> {
    let mut writer = Writer::new(HOME);
    let jobs = writer.jobs(jobs);
    let calls = writer.calls(calls);
    let threads = writer.threads(&[Thread::default()]);
    let code = HOME + writer.len().next_multiple_of(PAGE);
    let end = code + CODE_ROOM + 2 * PAGE + STACK * u64::from(1 + MOST_HELPERS);
    let mut header = Header {
        report: 1,
        home_len: end - HOME,
        code,
        scratch: code + CODE_ROOM,
        park: code + CODE_ROOM + PAGE,
        stacks: end,
        space_end: 0x7fff_ffff_f000,
        jobs,
        calls,
        threads,
        spare: 3,
        ..Header::default()
    };
    change(&mut header);
    writer.finish(&header).unwrap()
}

fn report(output: &Output) -> Report {
    Report::from_bytes(output.stdout.as_slice().try_into().unwrap())
}

#[test]
fn it_makes_the_calls_of_a_plan() {
    let output = run("calls", &plan(&[call(SYS_GETTID, &[]), call(SYS_EXIT_GROUP, &[7])], |_| {}));
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(7), [].as_slice()));
}

#[test]
fn it_works_from_an_otherwise_empty_address_space() {
    // Where the kernel has put its own text, and just below the end: both are free again.
    let page = |at: u64| {
        let arguments = [at, PAGE, 3, 0x10_0022, u64::MAX, 0];
        Call { outcome: EXPECTED, expected: at, ..call(SYS_MMAP, &arguments) }
    };
    let calls = [page(0x1000_0000), page(0x7fff_ffff_e000), call(SYS_EXIT_GROUP, &[0])];
    let output = run("empty", &plan(&calls, |_| {}));
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), [].as_slice()));
}

#[test]
fn a_call_that_fails_is_reported_with_its_step() {
    let output = run("failing", &plan(&[call(SYS_GETTID, &[]), call(SYS_CLOSE, &[99])], |_| {}));
    assert_eq!(output.status.code(), Some(FAILED));
    assert_eq!(report(&output), Report { step: Step::Process as u32, index: 1, errno: EBADF });
}

#[test]
fn a_result_that_was_not_expected_is_a_failure() {
    let wrong = Call { outcome: EXPECTED, expected: 0, ..call(SYS_GETTID, &[]) };
    let output = run("unexpected", &plan(&[wrong], |_| {}));
    assert_eq!(output.status.code(), Some(FAILED));
    assert_eq!(report(&output), Report { step: Step::Process as u32, index: 0, errno: 0 });
}

/// A call that makes a page, and one that there must be a page for.
fn page(number: u64) -> [Call; 2] {
    let at = 0x1000_0000 + number * PAGE;
    let made =
        Call { outcome: EXPECTED, expected: at, ..call(SYS_MMAP, &[at, PAGE, 3, 0x10_0022, u64::MAX, 0]) };
    [made, call(SYS_MPROTECT, &[at, PAGE, 1])]
}

#[test]
fn every_job_is_done_once_whoever_does_it() {
    // What is made twice is an error, and so is what is not there later.
    for count in [0, 1, 1000] {
        let jobs: Vec<Vec<Call>> = (0..count).map(|number| page(number).to_vec()).collect();
        let mut calls: Vec<Call> = (0..count).map(|number| page(number)[1]).collect();
        calls.push(call(SYS_EXIT_GROUP, &[7]));
        for helpers in [0, 1, MOST_HELPERS] {
            let output = run("jobs", &plan_with(&jobs, &calls, |header| header.helpers = helpers));
            assert_eq!(output.status.code(), Some(7), "{count} jobs, {helpers} helpers: {output:?}");
        }
    }
}

#[test]
fn a_job_that_fails_ends_all_and_is_reported() {
    let mut jobs: Vec<Vec<Call>> = (0..100).map(|number| page(number).to_vec()).collect();
    jobs[70].push(call(SYS_CLOSE, &[99]));
    for helpers in [0, MOST_HELPERS] {
        let plan = plan_with(&jobs, &[call(SYS_EXIT_GROUP, &[7])], |header| header.helpers = helpers);
        let output = run("failing-job", &plan);
        assert_eq!(output.status.code(), Some(FAILED));
        assert_eq!(report(&output), Report { step: Step::Process as u32, index: 70, errno: EBADF });
    }
}

#[test]
fn a_call_that_may_fail_does_no_harm() {
    let attempt = Call { outcome: ANYTHING, expected: 5, ..call(SYS_CLOSE, &[99]) };
    let output = run("attempt", &plan(&[attempt, call(SYS_EXIT_GROUP, &[7])], |_| {}));
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn what_is_no_plan_is_refused() {
    let good = plan(&[call(SYS_EXIT_GROUP, &[7])], |_| {});
    let mut magic = good.clone();
    magic[0] ^= 1;
    let mut version = good.clone();
    version[8] ^= 1;
    let outside = plan(&[], |header| header.calls = Part { offset: 1 << 30, count: 1 });
    let stacks = plan(&[], |header| header.stacks = HOME - PAGE);
    let nobody = plan(&[], |header| header.threads = Part::default());
    let hole = plan(&[], |header| header.space_end = HOME);
    let crowd = plan(&[], |header| header.helpers = MOST_HELPERS + 1);
    let cases: [(&str, &[u8]); 9] = [
        ("nothing", &[]),
        ("cut", &good[..100]),
        ("magic", &magic),
        ("version", &version),
        ("outside", &outside),
        ("stacks", &stacks),
        ("nobody", &nobody),
        ("hole", &hole),
        ("crowd", &crowd),
    ];
    for (name, plan) in cases {
        assert_eq!(run(name, plan).status.code(), Some(FAILED), "{name}");
    }
}

#[test]
fn a_plan_that_is_cut_anywhere_is_refused_before_anything_is_done() {
    let good = plan(&[call(SYS_EXIT_GROUP, &[7])], |_| {});
    let folder = Folder::new("cut-anywhere");
    for len in 0..good.len() {
        assert_eq!(end_of(&folder, &good[..len]), End::Status(FAILED), "{len} bytes");
    }
    assert_eq!(end_of(&folder, &good), End::Status(7));
}

/// Whatever a damaged plan says, it is the program that fails, and soon. What it can check, it refuses.
#[test]
fn a_plan_with_any_bit_flipped_comes_to_an_end() {
    let good = plan(&[call(SYS_EXIT_GROUP, &[7])], |_| {});
    let folder = Folder::new("flipped");
    // Magic, version; size; the hole and what lies in it. Report and the rest may be anything.
    let head = std::mem::offset_of!(Header, size)..std::mem::offset_of!(Header, gadget);
    let checked = |byte: usize| byte < 12 || head.contains(&byte);
    let mut refused = 0;
    // Every byte, and over eight of them every bit.
    for bit in (0..good.len() * 8).step_by(3) {
        let mut flipped = good.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let end = end_of(&folder, &flipped);
        assert_ne!(end, End::Late, "bit {} of byte {}", bit % 8, bit / 8);
        refused += usize::from(checked(bit / 8) && end == End::Status(FAILED));
    }
    // A hole elsewhere is as good, where there is one, and low bits of lengths do not matter.
    assert!(refused > 70, "{refused} flips of the head were refused");
}

#[test]
fn a_thread_that_cannot_be_is_a_failure() {
    let many = plan(&[], |header| header.threads.count = u32::MAX);
    let folder = Folder::new("threads");
    assert_eq!(end_of(&folder, &many), End::Status(FAILED));
    let far = plan(&[], |header| header.threads.offset = u32::MAX);
    assert_eq!(end_of(&folder, &far), End::Status(FAILED));
}
