//! Tier 2: the record of events that a history keeps: crashes, what came back of them, and checkpoints.

#![allow(clippy::unwrap_used, reason = "a test says by a panic what is wrong")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod support;

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;
use serde_json::Value;
use support::host::DEFROST;
use support::process::{Running, gone};
use support::server::NAME;
use support::{Host, Server, until};

/// A server under a supervisor that restores it.
#[track_caller]
fn start(host: &Host, every: &str) -> Server {
    let run = ["run", "--history", "history", "--on-crash", "restore", "--keep", "2", "--checkpoint-every"];
    let serve = ["--", DEFROST].into_iter().chain(Server::arguments(&["--warm-mib", "16"]));
    let mut command = host.defrost(run.into_iter().chain([every]).chain(serve));
    Server::started(command.stdout(Stdio::piped()).stderr(Stdio::null()))
}

/// Waits for an event of this name.
#[track_caller]
fn told(host: &Host, name: &str) {
    // There is no record before the supervisor has written to it.
    until(name, || host.path("history/events").exists() && !named(&recorded(host), name).is_empty());
}

/// What the history has recorded of the supervisor's.
#[track_caller]
fn recorded(host: &Host) -> Vec<Value> {
    let said = host.run(["events", "./history", "--json"]).worked();
    said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The fields of all events of this name.
fn named(events: &[Value], name: &str) -> Vec<Value> {
    events.iter().filter(|event| event["name"] == name).map(|event| event["fields"].clone()).collect()
}

#[test]
fn a_crash_and_what_came_back_are_recorded() {
    let Some(host) = Host::for_test("a_crash_and_what_came_back_are_recorded") else { return };
    let mut server = start(&host, "500ms");
    told(&host, "history.prune");
    let pid = server.pid;
    server.signal(Signal::SIGKILL);
    told(&host, "supervise.restored");
    let events = recorded(&host);
    let at = |name: &str| events.iter().find(|event| event["name"] == name).unwrap()["unix_ns"].as_u64();
    let down = at("supervise.restored").unwrap() - at("supervise.crash").unwrap();
    let took = named(&events, "supervise.restored")[0]["took_us"].as_u64().unwrap() * 1000;
    assert!(down >= took, "it crashed before it was restored: {down} {took}");
    assert_eq!(named(&events, "supervise.start")[0]["pid"], pid);
    let crash = &named(&events, "supervise.crash")[0];
    assert_eq!((&crash["signal"], &crash["pid"], &crash["row"]), (&"SIGKILL".into(), &pid.into(), &1.into()));
    assert!(crash["ran_us"].as_u64() > Some(1_000_000), "{crash}");
    let back = &named(&events, "supervise.restored")[0];
    assert_eq!((&back["pid"], &back["generation"]), (&pid.into(), &1.into()), "{back}");
    assert!(back["took_us"].as_u64() > Some(0) && back["lost_us"].as_u64() < Some(60_000_000), "{back}");
    assert!(back["engine"].is_string() && back["reason"].is_string(), "{back}");
    let made = named(&events, "history.checkpoint");
    let numbers: Vec<_> = made.iter().filter_map(|made| made["number"].as_u64()).collect();
    assert!(numbers.contains(&back["number"].as_u64().unwrap()), "{numbers:?} {back}");
    assert!(made.iter().any(|made| made["written_bytes"].as_u64() > Some(0) && made["took_us"].is_u64()));
    assert!(named(&events, "history.prune").iter().any(|prune| prune["removed"].as_u64() > Some(0)));

    // The restored server knows it, too.
    let told = host.run(["events", NAME, "--json", "--name", "restore"]).worked();
    let restore: Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
    let cause = restore["fields"]["cause"].as_str().unwrap_or_default();
    let expected = format!("SIGKILL ended process {pid}; checkpoint {}, made ", back["number"]);
    assert!(cause.starts_with(&expected), "{restore}");
    let said = host.run(["history", "history"]).worked();
    let last = format!("checkpoint {} came back", back["number"]);
    assert!(said.contains("last crash: ") && said.contains(&last), "{said}");

    let summary = host.run(["events", "history", "--summary", "--name", "supervise.*"]).worked();
    assert!(summary.contains("supervise.crash "), "{summary}");
    server.process.signal(Signal::SIGTERM);
    assert_eq!(server.process.ended().code(), Some(0));
    assert_eq!(named(&recorded(&host), "supervise.end").len(), 1);
    gone(pid);
}

#[test]
fn a_crash_loop_is_recorded_until_it_is_given_up() {
    let Some(host) = Host::for_test("a_crash_loop_is_recorded_until_it_is_given_up") else { return };
    let options = ["--history", "history", "--checkpoint-every", "1s", "--on-crash", "restore"];
    let run = |script: &str| {
        let more = ["--crash-limit", "2", "--", "sh", "-c", script];
        host.run(["run"].into_iter().chain(options).chain(more))
    };
    assert_eq!(run("exit 7").status, 7);
    let names: Vec<String> = recorded(&host)
        .iter()
        .map(|event| event["name"].as_str().unwrap().to_owned())
        .filter(|name| name.starts_with("supervise."))
        .collect();
    let crash = "supervise.crash";
    let expected = ["start", "crash", "cold", "crash", "cold", "crash", "gave_up", "end"]
        .map(|name| format!("supervise.{name}"));
    assert_eq!(names, expected);
    let events = recorded(&host);
    let rows: Vec<_> = named(&events, crash).iter().map(|crash| crash["row"].as_u64()).collect();
    assert_eq!(rows, [Some(1), Some(2), Some(3)]);
    assert_eq!(named(&events, "supervise.gave_up")[0]["row"], 3);
    assert_eq!(named(&events, crash)[0]["status"], 7);
    let said = host.run(["history", "history"]).worked();
    assert!(said.contains("it exited with 7") && said.contains("it stays ended"), "{said}");

    // Something else lies where the record should be: the server runs all the same, and that is left alone.
    fs::remove_file(host.path("history/events")).unwrap();
    fs::write(host.path("history/events"), "somebody's notes").unwrap();
    let done = run("exit 0");
    assert_eq!(done.status, 0, "{}", done.err);
    assert_eq!(done.err.matches("the record of events cannot be written").count(), 1, "{}", done.err);
    assert_eq!(fs::read_to_string(host.path("history/events")).unwrap(), "somebody's notes");
    fs::remove_file(host.path("history/events")).unwrap();
    fs::create_dir(host.path("history/events")).unwrap();
    assert_eq!(run("exit 7").status, 7);
    let error = host.run(["events", "./history"]).failed(1);
    assert!(error.contains("history/events"), "{error}");
    fs::remove_dir(host.path("history/events")).unwrap();
    let error = host.run(["events", "./history"]).failed(1);
    assert!(error.contains("has no record of events"), "{error}");
}

#[test]
fn a_checkpoint_that_does_not_come_back_is_recorded() {
    let Some(host) = Host::for_test("a_checkpoint_that_does_not_come_back_is_recorded") else { return };
    let mut server = start(&host, "6s");
    told(&host, "history.checkpoint");
    let stored =
        named(&recorded(&host), "history.checkpoint").iter().find_map(|made| made["number"].as_u64());
    assert_eq!(stored, Some(1));
    let pack = fs::File::options().write(true).open(host.path("history/00000001.pack")).unwrap();
    pack.write_all_at(b"damage", 100).unwrap();
    fs::remove_dir_all(host.path("history/.checkout-1")).unwrap();
    server.signal(Signal::SIGKILL);
    told(&host, "supervise.cold");
    let events = recorded(&host);
    let unfit = &named(&events, "supervise.unfit")[0];
    assert_eq!((&unfit["number"], &unfit["may_pass"]), (&1.into(), &false.into()), "{unfit}");
    assert!(unfit["message"].as_str().unwrap().contains("00000001.pack has other contents"), "{unfit}");
    assert!(named(&events, "supervise.restored").is_empty());
    let said = host.run(["history", "history"]).worked();
    assert!(said.contains("last crash: ") && said.contains("it was started cold"), "{said}");
    server.process.signal(Signal::SIGTERM);
    server.process.ended();
}

#[test]
fn what_is_damaged_in_the_history_comes_back_where_its_image_is_whole() {
    let name = "what_is_damaged_in_the_history_comes_back_where_its_image_is_whole";
    let Some(host) = Host::for_test(name) else { return };
    let mut server = start(&host, "6s");
    told(&host, "history.checkpoint");
    fs::File::options().write(true).open(host.path("history/00000001.pack")).unwrap().set_len(100).unwrap();
    server.signal(Signal::SIGKILL);
    told(&host, "supervise.restored");
    assert!(named(&recorded(&host), "supervise.cold").is_empty());
    server.process.signal(Signal::SIGTERM);
    assert_eq!(server.process.ended().code(), Some(0));
    gone(server.pid);
}

#[test]
fn a_run_begins_after_what_a_killed_one_stores() {
    let Some(host) = Host::for_test("a_run_begins_after_what_a_killed_one_stores") else { return };
    let mut first = start(&host, "2s");
    // Nothing can be stored until this is dropped.
    let file =
        fs::File::options().create(true).append(true).open(host.path("history/history.writing")).unwrap();
    let writing = Flock::lock(file, FlockArg::LockExclusive).unwrap();
    until("an image", || host.path("history/.incoming/defrost.manifest").exists());
    first.process.signal(Signal::SIGKILL);
    first.process.ended();
    gone(first.pid);
    let run = ["run", "--history", "history", "--checkpoint-every", "6s", "--", "touch", "started"];
    let mut second = Running::start(host.defrost(run).stderr(Stdio::null()));
    std::thread::sleep(Duration::from_millis(700));
    assert!(second.has_ended().is_none() && !host.path("started").exists(), "two runs have one history");
    drop(writing);
    assert_eq!(second.ended().code(), Some(0));
    assert!(host.path("started").exists());
    let listed = host.run(["history", "history", "--check"]).worked();
    assert!(listed.starts_with("     1 "), "what was begun is stored: {listed}");
}

#[test]
fn an_end_that_is_asked_for_while_nothing_runs_is_no_crash() {
    let name = "an_end_that_is_asked_for_while_nothing_runs_is_no_crash";
    let Some(host) = Host::for_test(name) else { return };
    let run = ["run", "--history", "history", "--checkpoint-every", "6s", "--on-crash", "restore", "--"];
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        let _ = fs::remove_file(host.path("tries"));
        let script = ["sh", "-c", "echo x >> tries; exit 7"];
        let mut loops = Running::start(host.defrost(run.into_iter().chain(script)).stderr(Stdio::null()));
        // The pause after the sixth is 3.2 s long.
        until("six crashes", || fs::read_to_string(host.path("tries")).is_ok_and(|tries| tries.len() >= 12));
        std::thread::sleep(Duration::from_millis(300));
        loops.signal(signal);
        assert_eq!(loops.ended().code(), Some(0), "{signal}");
        assert_eq!(fs::read_to_string(host.path("tries")).unwrap().len(), 12, "{signal}");
    }
}

#[test]
fn a_command_that_cannot_be_checkpointed_is_told_to_be_unprotected() {
    let name = "a_command_that_cannot_be_checkpointed_is_told_to_be_unprotected";
    let Some(host) = Host::for_test(name) else { return };
    let run = ["run", "--history", "history", "--checkpoint-every", "500ms", "--", "sleep", "1234"];
    let log = || fs::read_to_string(host.path("log")).unwrap();
    let mut run = Running::start(host.defrost(run).stderr(fs::File::create(host.path("log")).unwrap()));
    told(&host, "history.checkpoint");
    let events = recorded(&host);
    let none = &named(&events, "history.checkpoint")[0];
    assert_eq!(none["ok"], false, "{none}");
    assert!(none["message"].as_str().unwrap().contains("has no control socket"), "{none}");
    until("word of it", || log().contains("unprotected"));
    assert!(log().contains("hint: have it use the defrost library"), "{}", log());
    run.signal(Signal::SIGTERM);
    assert_eq!(run.ended().code(), Some(128 + 15));
}
