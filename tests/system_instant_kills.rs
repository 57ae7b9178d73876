//! Tier 2: instant restores that are killed or hang at every stage, and many in a row: no half process stays,
//! nothing is left, and the next restore works.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test says by a panic what is wrong")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod support;

use std::fs::{self, File};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::client::{get, requests};
use support::leftovers::Leftovers;
use support::process::{Running, gone, state};
use support::server::Dumped;
use support::steps::{Ended, Next, SIGRETURN, Stop, follow};
use support::{Host, Server, until};

/// At how many points each process is killed.
const POINTS: usize = 24;
/// How often a restore is tried on a host where others take numbers of the image's.
const ATTEMPTS: usize = 20;
/// How many restores there are in a row, unless this variable says so.
const IN_A_ROW: (&str, usize) = ("DEFROST_TEST_RESTORES", 300);

/// `defrost restore` in the foreground, by the instant engine.
fn restore(host: &Host, more: &[&str]) -> Command {
    let always = ["restore", "img", "--engine", "instant"];
    host.defrost(always.iter().chain(more))
}

/// Whether a process has come back: its first thread returns to what it did.
fn is_back(stop: Stop, dumped: &Dumped) -> bool {
    stop.pid == dumped.pid && stop.call == SIGRETURN
}

/// Whether a stop counts: of the process that is restored, but not while it waits for its other threads, which takes
/// another number of calls each time.
fn is_own(stop: Stop, dumped: &Dumped) -> bool {
    let waiting = [libc::SYS_sched_yield, libc::SYS_futex].map(libc::c_long::cast_unsigned);
    stop.pid == dumped.pid && !waiting.contains(&stop.call)
}

/// Runs a restore that is disturbed at some stop: `at` says when. Again, if it never came so far: on a busy host another
/// process may have taken a number of the image's for a moment.
fn disturbed(
    host: &Host,
    more: &[&str],
    when: &str,
    mut at: impl FnMut(&mut Seen, Stop) -> Option<Next>,
) -> (Seen, Ended) {
    for _ in 0..ATTEMPTS {
        let mut seen = Seen::default();
        let ended = follow(host, &restore(host, more), |stop| {
            seen.all += 1;
            seen.first.get_or_insert(stop.pid);
            let next = at(&mut seen, stop);
            seen.done = next.is_some();
            next.unwrap_or(Next::Step)
        });
        if seen.done {
            return (seen, ended);
        }
        assert!(!ended.late, "{when}: something was hanging");
    }
    panic!("{when}: it never came so far, {ATTEMPTS} times");
}

/// What was seen of a restore until it was disturbed.
#[derive(Debug, Default)]
struct Seen {
    /// Stops of all processes, and of the one that is restored.
    all: usize,
    own: usize,
    /// The command's own pid.
    first: Option<i32>,
    done: bool,
}

/// How many stops there are up to the moment when the process is back: of all, and of its own.
fn stops(host: &Host, dumped: &Dumped) -> (usize, usize) {
    let (seen, ended) = disturbed(host, &[], "undisturbed", |seen, stop| {
        seen.own += usize::from(is_own(stop, dumped));
        is_back(stop, dumped).then_some(Next::Kill(dumped.pid))
    });
    assert_eq!(ended.status(), 128 + 9, "the status of the process that was killed");
    assert!(!ended.late);
    (seen.all, seen.own)
}

/// Points all over a stretch, its ends among them.
fn points(length: usize) -> impl Iterator<Item = usize> {
    (0..POINTS).map(move |number| 1 + number * (length - 1) / (POINTS - 1))
}

/// Sees that nothing of a restore is left, and that the next one works.
fn nothing_is_left(host: &Host, dumped: &Dumped, ended: &Ended, when: &str) {
    assert!(!ended.late, "{when}: something was hanging");
    assert_eq!(Leftovers::of(host.folder()).pids(), [0; 0], "{when}");
    assert_eq!(state(dumped.pid), None, "{when}");
    works(host, dumped);
}

fn works(host: &Host, dumped: &Dumped) {
    end(&mut restored(host, dumped, &[]), dumped);
}

/// A restored server that answers. Only a number that another process has taken for a moment is borne with.
fn restored(host: &Host, dumped: &Dumped, more: &[&str]) -> Running {
    let said = host.path("said");
    for _ in 0..ATTEMPTS {
        let mut command = restore(host, more);
        let mut supervisor = Running::start(command.stderr(File::create(&said).unwrap()));
        until("an answer, or an end", || {
            TcpStream::connect(("127.0.0.1", dumped.echo)).is_ok() || supervisor.has_ended().is_some()
        });
        if supervisor.has_ended().is_none() {
            requests(dumped.echo, 1);
            return supervisor;
        }
        let text = fs::read_to_string(&said).unwrap();
        assert!(is_taken(&text), "the restore failed: {text}");
    }
    panic!("numbers of the image were taken {ATTEMPTS} times");
}

/// Whether a number was somebody else's, by what a restore said: not that of a server left over from before.
fn is_taken(said: &str) -> bool {
    let ours = said.contains("the original") || said.contains("the same program");
    !ours && (said.contains("held by") || said.contains("File exists"))
}

/// Kills the server, which its supervisor tells by its status.
fn end(supervisor: &mut Running, dumped: &Dumped) {
    kill(Pid::from_raw(dumped.pid), Signal::SIGKILL).unwrap();
    assert_eq!(supervisor.ended().code(), Some(128 + 9));
    gone(dumped.pid);
}

#[test]
fn the_process_is_killed_at_every_stage() {
    let Some(host) = Host::for_test("the_process_is_killed_at_every_stage") else { return };
    let dumped = Server::start(&host, &[]).checkpoint(&host, "img");
    let (_, own) = stops(&host, &dumped);
    for point in points(own) {
        let when = format!("killed at stop {point} of {own}");
        let mut back = false;
        let (_, ended) = disturbed(&host, &[], &when, |seen, stop| {
            seen.own += usize::from(is_own(stop, &dumped));
            back = is_back(stop, &dumped);
            ((seen.own == point && is_own(stop, &dumped)) || back).then_some(Next::Kill(dumped.pid))
        });
        // Until it is known to run, the restore has failed; afterwards its status is handed on.
        let expected: &[i32] = if back { &[128 + 9] } else { &[1, 128 + 9] };
        assert!(expected.contains(&ended.status()), "{when}: status {}", ended.status());
        nothing_is_left(&host, &dumped, &ended, &when);
    }
}

#[test]
fn the_supervisor_is_killed_at_every_stage() {
    let Some(host) = Host::for_test("the_supervisor_is_killed_at_every_stage") else { return };
    let dumped = Server::start(&host, &[]).checkpoint(&host, "img");
    let (all, _) = stops(&host, &dumped);
    for point in points(all) {
        let when = format!("supervisor killed at stop {point} of {all}");
        let (_, ended) = disturbed(&host, &[], &when, |seen, stop| {
            let now = seen.all == point || is_back(stop, &dumped);
            seen.first.filter(|_| now).map(Next::Kill)
        });
        assert_eq!(ended.status(), 128 + 9, "{when}");
        nothing_is_left(&host, &dumped, &ended, &when);
    }
}

#[test]
fn a_restore_that_hangs_is_ended_in_time() {
    let Some(host) = Host::for_test("a_restore_that_hangs_is_ended_in_time") else { return };
    let dumped = Server::start(&host, &[]).checkpoint(&host, "img");
    let (_, own) = stops(&host, &dumped);
    // Before it is the restorer, and at two points of that; not so late that its report is there.
    for point in [1, own / 2, own * 3 / 4] {
        let when = format!("held at stop {point} of {own}");
        let (_, ended) = disturbed(&host, &["--timeout", "0.5"], &when, |seen, stop| {
            seen.own += usize::from(is_own(stop, &dumped));
            (seen.own == point && is_own(stop, &dumped)).then_some(Next::Hold)
        });
        assert_eq!(ended.status(), 1, "{when}");
        nothing_is_left(&host, &dumped, &ended, &when);
    }
}

/// What could pile up: mounts, and files beside the image and in the test's folder.
fn inventory(host: &Host) -> Vec<String> {
    let names = |folder: &Path| -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().path().display().to_string()).collect()
    };
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mut all: Vec<String> = mounts.lines().map(str::to_owned).collect();
    all.extend(names(host.folder()));
    all.extend(names(&host.path("img")));
    all.sort();
    all
}

#[test]
fn restores_in_a_row_leave_nothing_behind() {
    let Some(host) = Host::for_test("restores_in_a_row_leave_nothing_behind") else { return };
    let dumped = Server::start(&host, &["--warm-mib", "4"]).checkpoint(&host, "img");
    works(&host, &dumped);
    let before = inventory(&host);
    let count = std::env::var(IN_A_ROW.0).map_or(IN_A_ROW.1, |count| count.parse().unwrap());
    for round in 0..count {
        let memory = ["map", "copy", "auto"][round % 3];
        let mut supervisor = restored(&host, &dumped, &["--memory", memory]);
        if round % 50 == 0 {
            assert_eq!(get(dumped.http, "/checksum").0, 200, "round {round}");
        }
        end(&mut supervisor, &dumped);
    }
    assert_eq!(Leftovers::of(host.folder()).pids(), [0; 0]);
    assert_eq!(inventory(&host), before);
}
