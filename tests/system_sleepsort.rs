//! Tier 2: sleepers, through a checkpoint and a pause. Each has the time left that it had.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test says by a panic what is wrong")]

mod support;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::host::Done;
use support::process::{Running, gone};
use support::{Host, PATIENCE, until};

/// How often a restore is tried on a host where others take pids.
const ATTEMPTS: usize = 20;

/// How long an image lies there before it is restored: longer than what the sleepers have left.
const PAUSE: Duration = Duration::from_secs(7);

/// Numbers and how long a 1 of them sleeps: the last wakes after six seconds.
const NUMBERS: u32 = 2_000;
const LARGEST: u32 = 60;
const UNIT: Duration = Duration::from_millis(100);

/// One line of `--times`, in milliseconds.
#[derive(Debug, Clone, Copy)]
struct Line {
    number: u32,
    slept: u64,
    passed: u64,
}

fn lines(path: &Path) -> Vec<Line> {
    let text = std::fs::read_to_string(path).unwrap();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let fields = |line: &str| line.split(' ').map(|field| field.parse().unwrap()).collect::<Vec<u64>>();
    let line = |line: &str| match fields(line)[..] {
        [number, slept, passed] => Line { number: u32::try_from(number).unwrap(), slept, passed },
        _ => panic!("not a line of three numbers: {line}"),
    };
    whole.lines().map(line).collect()
}

/// A sort that has been dumped about half-way.
struct Dumped {
    pid: i32,
    /// What had been said by then.
    before: usize,
    /// Until the dump, in milliseconds of the sleepers' clock, at the least.
    asleep: u64,
}

/// Starts the sort with a checkpoint half-way, waits until the image is complete, and lets it lie for a while.
#[track_caller]
fn dumped(host: &Host) -> Dumped {
    dumped_by(host, Command::new(support::host::DEFROST))
}

/// The same by a copy of the command.
#[track_caller]
fn dumped_by(host: &Host, mut command: Command) -> Dumped {
    let input: String = (0..NUMBERS).map(|index| format!("{}\n", 1 + index * 7919 % LARGEST)).collect();
    std::fs::write(host.path("numbers"), input).unwrap();
    command.args(["sleepsort", "--unit", "100ms", "--times", "--checkpoint-at", "3", "img"]);
    let mut command = host.at_home(command);
    command.stdin(File::open(host.path("numbers")).unwrap());
    command.stdout(File::create(host.path("sorted")).unwrap()).stderr(Stdio::null());
    let mut sort = Running::start(&mut command);
    let pid = pid_of(host);
    sort.ended();
    gone(pid);
    assert!(host.path("img/defrost.manifest").exists(), "the image is complete when its end is told");
    let said = lines(&host.path("sorted"));
    assert!(!said.is_empty() && said.len() < NUMBERS as usize, "{} lines by the checkpoint", said.len());
    std::thread::sleep(PAUSE);
    Dumped { pid, before: said.len(), asleep: said.last().unwrap().slept }
}

#[track_caller]
fn pid_of(host: &Host) -> i32 {
    let mut pid = None;
    until("the sort", || {
        let told = host.run(["status", "sleepsort", "--json"]);
        let status: Option<serde_json::Value> = serde_json::from_str(&told.out).ok();
        pid = status.and_then(|status| i32::try_from(status["pid"].as_i64()?).ok());
        pid.is_some()
    });
    pid.unwrap()
}

/// Waits for the rest of the output, and for the end of the process.
#[track_caller]
fn rest(host: &Host, dumped: &Dumped, restorer: &mut Running) -> Vec<Line> {
    assert_eq!(restorer.ended().code(), Some(0), "{}", host.said_by_criu());
    gone(dumped.pid);
    let all = lines(&host.path("sorted"));
    assert_eq!(all.len(), NUMBERS as usize, "complete");
    assert!(all.is_sorted_by_key(|line| line.number), "in order");
    let mut expected: Vec<u32> = (0..NUMBERS).map(|index| 1 + index * 7919 % LARGEST).collect();
    expected.sort_unstable();
    assert!(all.iter().map(|line| line.number).eq(expected), "the numbers that were given");
    // Those that woke while the process was quiesced are said after the restore; by the wall clock it was before.
    let pause = u64::try_from(PAUSE.as_millis()).unwrap();
    let after: Vec<Line> =
        all[dumped.before..].iter().skip_while(|line| line.passed < dumped.asleep + pause).copied().collect();
    assert!(!after.is_empty(), "nothing was left to sleep");
    after
}

/// The sleepers of a restored process had the time left that they had, whatever the pause was.
#[track_caller]
fn had_their_time(rest: &[Line], lasted: Duration) {
    let pause = u64::try_from(PAUSE.as_millis()).unwrap();
    let unit = u64::try_from(UNIT.as_millis()).unwrap();
    for line in rest {
        assert!(line.slept >= u64::from(line.number) * unit, "{line:?} woke too early");
        assert!(line.passed >= line.slept + pause, "{line:?}: the pause is in the wall clock only");
    }
    // The same by the test's own clock: what the last one had left when the first of the restored process woke, or more,
    // has passed since the restore was begun.
    let left = rest.last().unwrap().slept - rest[0].slept;
    assert!(
        lasted >= Duration::from_millis(left),
        "{lasted:?} since the restore, {left} ms were left at least"
    );
}

#[test]
fn a_restore_by_criu_leaves_the_sleepers_their_time() {
    let Some(host) = Host::for_test("a_restore_by_criu_leaves_the_sleepers_their_time") else { return };
    let dumped = dumped(&host);
    for _ in 0..ATTEMPTS {
        let began = Instant::now();
        let mut criu = host.plain_restore(&host.path("img"));
        let mut status = None;
        until("the end of the restore", || {
            status = criu.has_ended();
            status.is_some()
        });
        if status.unwrap().success() {
            let lasted = began.elapsed();
            had_their_time(&rest(&host, &dumped, &mut criu), lasted);
            return;
        }
        assert!(host.said_by_criu().contains("File exists"), "the restore failed: {}", host.said_by_criu());
    }
    panic!("pids of the image were taken {ATTEMPTS} times");
}

#[test]
fn a_restore_by_mapping_leaves_the_sleepers_their_time() {
    let Some(host) = Host::for_test("a_restore_by_mapping_leaves_the_sleepers_their_time") else { return };
    let dumped = dumped(&host);
    let began = Instant::now();
    let mut restored = Running::start(host.defrost(["restore", "img"]).stderr(Stdio::null()));
    let rest = rest(&host, &dumped, &mut restored);
    had_their_time(&rest, began.elapsed());
}

/// What a kernel without time namespaces writes has no clocks in it, and a restore has those of the host: all that was
/// due in the pause wakes at once. It is in order, and nothing is lost.
#[test]
fn without_a_time_namespace_what_is_overdue_wakes_at_once_and_in_order() {
    let name = "without_a_time_namespace_what_is_overdue_wakes_at_once_and_in_order";
    let Some(host) = Host::for_test(name) else { return };
    let dumped = dumped(&host);
    std::fs::remove_file(host.path("img/timens-0.img")).unwrap();
    for _ in 0..ATTEMPTS {
        let mut criu = host.plain_restore(&host.path("img"));
        let mut status = None;
        until("the end of the restore", || {
            status = criu.has_ended();
            status.is_some()
        });
        if status.unwrap().success() {
            let rest = rest(&host, &dumped, &mut criu);
            let pause = u64::try_from(PAUSE.as_millis()).unwrap();
            assert!(rest[0].slept >= dumped.asleep + pause, "the pause is in their clock: {:?}", rest[0]);
            assert!(rest.iter().all(|line| line.slept.abs_diff(line.passed) < 1_000), "both clocks went on");
            return;
        }
        assert!(host.said_by_criu().contains("File exists"), "the restore failed: {}", host.said_by_criu());
    }
    panic!("pids of the image were taken {ATTEMPTS} times");
}

/// An ordinary user, who has nothing here.
const USER: u32 = 65534;

/// An ordinary user restores in namespaces of his own, one for time among them.
#[test]
fn a_restore_by_an_ordinary_user_leaves_the_sleepers_their_time() {
    let name = "a_restore_by_an_ordinary_user_leaves_the_sleepers_their_time";
    let Some(host) = Host::for_test(name) else { return };
    let id = USER.to_string();
    let as_user = ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"];
    let mut probe = Command::new(as_user[0]);
    probe.args(&as_user[1..]).args([
        "unshare",
        "--user",
        "--map-root-user",
        "--pid",
        "--mount",
        "--time",
        "--fork",
    ]);
    let probed = probe.arg("true").output();
    if !probed.as_ref().is_ok_and(|output| output.status.success()) {
        support::host::skip(name, &format!("an ordinary user makes no namespaces here: {probed:?}"));
        return;
    }
    // The program and the output have to be where this user can reach them.
    std::fs::set_permissions(host.folder(), Permissions::from_mode(0o755)).unwrap();
    let program = host.deploy("sorter");
    let dumped = dumped_by(&host, Command::new(&program));
    let run = host.path("run");
    std::fs::create_dir(&run).unwrap();
    let image = std::fs::read_dir(host.path("img")).unwrap().map(|entry| entry.unwrap().path());
    for path in image.chain([host.path("img"), host.path("sorted"), run.clone()]) {
        chown(path, Some(USER), Some(USER)).unwrap();
    }
    let mut command = host.at_home(Command::new(as_user[0]));
    command.args(&as_user[1..]).arg(&program).args(["restore", "img"]);
    command.env("XDG_RUNTIME_DIR", &run).env("TMPDIR", &run);
    command.stderr(File::create(host.path("said")).unwrap());
    let began = Instant::now();
    let mut restored = Running::start(&mut command);
    let status = restored.ended();
    assert!(status.success(), "{}", std::fs::read_to_string(host.path("said")).unwrap());
    let rest = rest(&host, &dumped, &mut restored);
    had_their_time(&rest, began.elapsed());
}

/// The command with this as its input.
fn sort(host: &Host, input: &str, more: &[&str]) -> Done {
    std::fs::write(host.path("numbers"), input).unwrap();
    let mut command: Command = host.defrost(["sleepsort"].iter().chain(more));
    command.stdin(File::open(host.path("numbers")).unwrap());
    Done::of(&mut command)
}

#[test]
fn numbers_come_out_in_order_and_bad_ones_start_nothing() {
    let Some(host) = Host::for_test("numbers_come_out_in_order_and_bad_ones_start_nothing") else { return };
    assert_eq!(sort(&host, "3\n1\n2\n0\n", &["--unit", "50ms"]).worked(), "0\n1\n2\n3");
    assert_eq!(sort(&host, "", &[]).worked(), "");
    for (input, line) in [("1\ntwo\n", "line 2"), ("1\n2\n-3\n", "line 3"), ("86401\n", "line 1")] {
        let said = sort(&host, input, &[]).failed(2);
        assert!(
            said.contains(line) && said.contains("nothing was started") && said.contains("hint: "),
            "{said}"
        );
    }
    let said = sort(&host, "1\n", &["--checkpoint-at", "1", "img"]).failed(2);
    assert!(said.contains("standard output is no file") && said.contains("hint: "), "{said}");
    assert_eq!(sort(&host, "1\n", &["--unit", "0s"]).status, 2);
    // All are sorted before the checkpoint is due.
    fs::write(host.path("few"), "2\n1\n").unwrap();
    let mut command = host.defrost(["sleepsort", "--unit", "10ms", "--checkpoint-at", "60", "img"]);
    let (input, output) = (host.path("few"), host.path("sorted"));
    command.stdin(File::open(input).unwrap()).stdout(File::create(&output).unwrap());
    let done = command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.code() == Some(1) && said.contains("there is no image"), "{said}");
    assert_eq!(fs::read_to_string(output).unwrap(), "1\n2\n");
    assert!(!host.path("img").exists());
    assert!(PATIENCE > UNIT * LARGEST + PAUSE, "the sorts of these tests end in time");
}
