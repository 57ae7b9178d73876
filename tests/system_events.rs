//! Tier 2: what happened is told, by a live server and by one that was restored.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test says by a panic what is wrong")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};

use nix::sys::signal::Signal;
use serde_json::Value;
use support::client::get;
use support::process::Running;
use support::restored::Restored;
use support::server::NAME;
use support::{Host, PATIENCE, Server, until};

/// `defrost events` with these arguments and `--json`.
#[track_caller]
fn events(host: &Host, arguments: &[&str]) -> Vec<Value> {
    let said = host.run(["events", "--json"].iter().chain(arguments)).worked();
    said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The last one of this name.
#[track_caller]
fn last<'a>(events: &'a [Value], name: &str) -> &'a Value {
    let found = events.iter().rev().find(|event| event["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {events:#?}"))
}

#[test]
fn a_cycle_and_a_restore_are_told() {
    let Some(host) = Host::for_test("a_cycle_and_a_restore_are_told") else { return };
    let server = Server::start(&host, &[]);
    host.run(["checkpoint", NAME, "img0", "--leave-running"]).worked();
    let told = events(&host, &[NAME]);
    assert_eq!(last(&told, "cycle.begin")["fields"]["leave_running"], true);
    let hooks: Vec<_> = told.iter().filter(|event| event["name"] == "cycle.hook").collect();
    assert!(hooks.iter().any(|hook| hook["fields"]["resource"] == "http" && hook["fields"]["ok"] == true));
    assert_eq!(last(&told, "cycle.audit")["fields"]["blockers"], 0);
    assert_eq!(last(&told, "cycle.dump")["fields"]["engine"], "criu");
    let image = &last(&told, "cycle.image")["fields"];
    assert!(image["frozen_us"].as_u64() > Some(0) && image["pages"].as_u64() > Some(0), "{image}");
    assert_eq!(last(&told, "cycle.wake")["fields"]["wake"], "resumed");
    let end = last(&told, "cycle.end");
    assert_eq!((&end["fields"]["outcome"], &end["generation"]), (&"resumed".into(), &0.into()));

    let dumped = server.checkpoint(&host, "img");
    let restored = Restored::plain(&host, &dumped);
    let told = events(&host, &[NAME]);
    assert_eq!(told.iter().filter(|event| event["name"] == "cycle.begin").count(), 2, "the ring goes on");
    let restore = last(&told, "restore");
    assert_eq!((&restore["generation"], &restore["fields"]["engine"]), (&1.into(), &"criu".into()));
    assert_ne!(restore["instance"], end["instance"]);
    assert!(restore["fields"]["suspended_us"].as_u64().unwrap() > 0);
    assert_eq!(last(&told, "cycle.end")["fields"]["outcome"], "restored");
    until("CRIU's figures", || {
        let told = events(&host, &[NAME, "--name", "restore.criu"]);
        told.first().is_some_and(|event| event["fields"]["restore_us"].as_u64() > Some(0))
    });
    let sequences: Vec<u64> = told.iter().map(|event| event["sequence"].as_u64().unwrap()).collect();
    assert!(sequences.is_sorted(), "{sequences:?}");
    restored.stop();
    host.run(["events", NAME]).failed(1);
}

#[test]
fn a_file_goes_through_a_checkpoint_and_two_restores() {
    let Some(host) = Host::for_test("a_file_goes_through_a_checkpoint_and_two_restores") else { return };
    let server = Server::start(&host, &["--events", "told"]);
    assert_eq!(get(server.http, "/random").0, 200);
    let dumped = server.checkpoint(&host, "img");
    for _ in 0..2 {
        let restored = Restored::plain(&host, &dumped);
        assert_eq!(get(dumped.http, "/info").0, 200);
        restored.stop();
    }
    let told = events(&host, &["./told"]);
    let count = |name: &str, generation: u64| {
        told.iter().filter(|event| event["name"] == name && event["generation"] == generation).count()
    };
    assert_eq!((count("cycle.begin", 0), count("restore", 0)), (1, 0), "{told:#?}");
    assert_eq!((count("restore", 1), count("cycle.end", 1)), (2, 2), "each restore adds its own");
    let said = host.run(["events", "told", "--name", "log", "--format", "{.level} {message}"]).worked();
    assert!(said.lines().any(|line| line.starts_with("INFO stopping: ")), "{said}");
    let said = host.run(["events", "./told", "--summary", "--name", "{restore,request}"]).worked();
    let restores: Vec<&str> =
        said.lines().find(|line| line.starts_with("restore")).unwrap().split_whitespace().collect();
    assert_eq!(restores[1], "2", "{said}");
}

#[test]
fn page_views_are_counted() {
    let Some(host) = Host::for_test("page_views_are_counted") else { return };
    let server = Server::start(&host, &[]);
    let mut stream = TcpStream::connect(("127.0.0.1", server.http)).unwrap();
    stream.write_all(b"GET /random?x HTTP/1.0\r\nReferer: http://there/\r\n\r\n").unwrap();
    stream.read_to_string(&mut String::new()).unwrap();
    assert_eq!(get(server.http, "/healthz").0, 200);
    assert_eq!(get(server.http, "/nothing").0, 404);
    let views = ["events", NAME, "--name", "page.view", "--format", "{.path} from {.referrer}"];
    let said = host.run(views).worked();
    assert!(said.lines().any(|line| line == "/random from http://there/"), "{said}");
    assert!(!said.contains("healthz") && !said.contains("nothing"), "{said}");
    let told = events(&host, &[NAME, "--name", "request"]);
    let missing = told.iter().find(|event| event["fields"]["path"] == "/nothing").unwrap();
    assert_eq!((&missing["fields"]["status"], &missing["fields"]["method"]), (&404.into(), &"GET".into()));
    assert!(missing["fields"]["bytes"].as_u64() > Some(0) && missing["fields"]["took_us"].is_u64());
}

/// Follows in another process; each line as it comes.
fn followed(host: &Host, arguments: &[&str]) -> (Running, Receiver<String>) {
    let mut command = host.defrost(["events", "--follow"].iter().chain(arguments));
    let mut running = Running::start(command.stdout(Stdio::piped()).stderr(Stdio::null()));
    let lines = BufReader::new(running.child().stdout.take().unwrap()).lines();
    let (sender, receiver) = channel();
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
    (running, receiver)
}

#[track_caller]
fn heard(lines: &Receiver<String>, wanted: &str) {
    while let Ok(line) = lines.recv_timeout(PATIENCE) {
        if line.contains(wanted) {
            return;
        }
    }
    panic!("{wanted} was not heard");
}

#[test]
fn a_server_is_followed_through_a_checkpoint() {
    let Some(host) = Host::for_test("a_server_is_followed_through_a_checkpoint") else { return };
    let mut server = Server::start(&host, &["--events", "told"]);
    let (mut live, from_server) = followed(&host, &[NAME, "--format", "{name} {.path}{.outcome}"]);
    let (file, from_file) = followed(&host, &["./told", "--format", "{name} {.path}{.outcome}"]);
    get(server.http, "/random");
    heard(&from_server, "request /random");
    heard(&from_file, "request /random");
    host.run(["checkpoint", NAME, "img", "--leave-running"]).worked();
    get(server.http, "/info");
    for lines in [&from_server, &from_file] {
        heard(lines, "cycle.begin");
        heard(lines, "cycle.end resumed");
        heard(lines, "page.view /info");
    }
    server.signal(Signal::SIGTERM);
    server.process.ended();
    assert_eq!(live.ended().code(), Some(1), "its target is gone");
    drop(file);
}

#[test]
fn a_server_that_goes_back_in_time_is_followed() {
    let Some(host) = Host::for_test("a_server_that_goes_back_in_time_is_followed") else { return };
    let mut server = Server::start(&host, &[]);
    host.run(["checkpoint", NAME, "img", "--leave-running"]).worked();
    let (follower, lines) = followed(&host, &[NAME, "--format", "{name} {generation} {.path}"]);
    // Far more than the restored process records until it is found.
    (0..200).for_each(|_| assert_eq!(get(server.http, "/random").0, 200));
    server.signal(Signal::SIGKILL);
    server.process.ended();
    let mut restored = Running::start(host.defrost(["restore", "img"]).stdout(Stdio::null()));
    heard(&lines, "restore 1");
    heard(&lines, "cycle.end 1");
    get(server.http, "/info");
    heard(&lines, "page.view 1 /info");
    drop(follower);
    restored.signal(Signal::SIGTERM);
    restored.ended();
}

#[test]
fn a_file_is_followed_through_rotation() {
    let Some(host) = Host::for_test("a_file_is_followed_through_rotation") else { return };
    let mut server = Server::start(&host, &["--events", "told"]);
    let (follower, lines) = followed(&host, &["./told", "--format", "{name} {.path}", "--name", "page.view"]);
    let view = |path: &str| assert_eq!(get(server.http, path).0, 200);
    let (told, old) = (host.path("told"), host.path("told.1"));
    view("/random");
    heard(&lines, "page.view /random");
    // As logrotate does: renamed, with and without a new file in its place at once.
    for mode in [None, Some(0o644)] {
        std::fs::rename(&told, &old).unwrap();
        if let Some(mode) = mode {
            let mut options = std::fs::OpenOptions::new();
            options.write(true).create_new(true).mode(mode).open(&told).unwrap();
        }
        view("/info");
        heard(&lines, "page.view /info");
        until("a new file", || std::fs::metadata(&told).is_ok_and(|meta| meta.len() > 0));
        assert!(!events(&host, &["./told.1"]).is_empty());
        view("/random");
        heard(&lines, "page.view /random");
    }
    // As logrotate's copytruncate does.
    std::fs::OpenOptions::new().write(true).open(&told).unwrap().set_len(0).unwrap();
    // Until the truncation is seen.
    std::thread::sleep(std::time::Duration::from_secs(2));
    view("/info");
    heard(&lines, "page.view /info");
    host.run(["checkpoint", NAME, "img", "--leave-running"]).worked();
    std::fs::rename(&told, &old).unwrap();
    view("/random");
    heard(&lines, "page.view /random");
    drop(follower);
    server.signal(Signal::SIGTERM);
    server.process.ended();
}

#[test]
fn a_full_disk_costs_events_and_nothing_else() {
    let Some(host) = Host::for_test("a_full_disk_costs_events_and_nothing_else") else { return };
    std::fs::create_dir(host.path("small")).unwrap();
    let script = r#"mount -t tmpfs -o size=16k none small && exec "$@""#;
    let starter = ["unshare", "--mount", "sh", "-c", script, "sh"];
    let arguments = Server::arguments(&["--events", "small/told", "--event-memory", "50"]);
    let mut command = host.defrost_by(&starter, arguments);
    let server = Server::started(command.stdout(Stdio::piped()).stderr(Stdio::null()));
    until("a full disk and a loss", || {
        (0..50).for_each(|_| assert_eq!(get(server.http, "/healthz").0, 200));
        let full = host.run(["resources", NAME]).worked().contains("which cannot be written: ");
        let told = host.run(["events", NAME]).err;
        full && told.contains("events were not written to the server's file")
    });
    let inside = format!("/proc/{}/root{}", server.pid, host.path("small/told").display());
    let kept = events(&host, &[&inside]);
    assert!(kept.len() > 20, "what was written before can be read: {}", kept.len());
}

#[test]
fn bad_input_is_named() {
    let Some(host) = Host::for_test("bad_input_is_named") else { return };
    let refused = |arguments: &[&str], status| {
        let error = host.run(["events"].iter().chain(arguments)).failed(status);
        assert!(error.contains("hint: "), "{error}");
        error
    };
    assert!(refused(&["x", "--format", "{nme}"], 2).contains("unknown placeholder '{nme}'"));
    assert!(refused(&["x", "--name", "a["], 2).contains("'a[' is no pattern of names"));
    assert!(refused(&["x", "--since", "10 parsecs"], 2).contains("'10 parsecs' is no duration"));
    assert!(refused(&["x"], 1).contains("no server is named x"));
    std::fs::write(host.path("text"), "some text that has nothing to do with events").unwrap();
    assert!(refused(&["./text"], 4).contains("is no file of events"));
    // Sparse, and not searched to its end.
    std::fs::File::create(host.path("long")).unwrap().set_len(1 << 40).unwrap();
    assert!(refused(&["./long"], 4).contains("is no file of events"));
    assert!(refused(&["./nothing"], 1).contains("./nothing: No such file"));
    assert!(refused(&["./"], 1).contains("is a folder, but no history"));
    assert!(refused(&["/dev/null"], 1).contains("is no regular file"));
    assert!(refused(&["x", "--since", "-1m"], 2).contains("'-1m' is no duration"));
    let mut other = b"defr-evt\x63\0\0\0\x01\0\0\0".to_vec();
    let sum = crc32fast::hash(&[&other[..], b"x"].concat());
    other.extend_from_slice(&sum.to_le_bytes());
    other.push(b'x');
    std::fs::write(host.path("other"), &other).unwrap();
    assert!(refused(&["./other"], 4).contains("made by a newer defrost: format 99, this one reads 1"));
    let serve = ["serve", "--echo", "0", "--events", "./text"];
    let error = host.run(serve).failed(1);
    assert!(error.contains("cannot take further events"), "{error}");

    let mut server = Server::start(&host, &["--events", "told"]);
    get(server.http, "/random");
    until("events", || std::fs::metadata(host.path("told")).unwrap().len() > 400);
    server.signal(Signal::SIGTERM);
    server.process.ended();
    let mut bytes = std::fs::read(host.path("told")).unwrap();
    bytes[30] ^= 1;
    bytes.extend_from_slice(b"defr-evt torn");
    std::fs::write(host.path("told"), bytes).unwrap();
    let done = host.run(["events", "./told"]);
    assert_eq!(done.status, 4);
    assert!(done.err.contains("bytes at offset 0 are lost: record has checksum"), "{}", done.err);
    assert!(done.err.contains("the last 13 bytes are of a record"), "{}", done.err);
    assert!(done.out.lines().count() > 2, "{}", done.out);
    // The first record is not even recognised as one: the others are.
    let mut bytes = std::fs::read(host.path("told")).unwrap();
    bytes[0] ^= 1;
    std::fs::write(host.path("told"), bytes).unwrap();
    let again = host.run(["events", "./told"]);
    assert_eq!((again.status, again.out), (4, done.out), "{}", again.err);
    assert!(again.err.contains("bytes at offset 0 are lost: record begins with"), "{}", again.err);
}
