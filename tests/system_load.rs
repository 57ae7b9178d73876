//! Tier 2: clients that check every answer, through checkpoints and restores of their server.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test says by a panic what is wrong")]

mod support;

use std::process::Stdio;

use nix::sys::signal::Signal;
use serde_json::Value;
use support::client::free_port;
use support::host::Done;
use support::process::Running;
use support::server::NAME;
use support::{Host, Server, until};

/// A run of `defrost load` under way.
struct Load {
    process: Running,
    out: std::path::PathBuf,
}

impl Load {
    fn start(host: &Host, port: u16, clients: u32, messages: u32) -> Self {
        let out = host.path("load.json");
        let (port, clients, messages) = (port.to_string(), clients.to_string(), messages.to_string());
        let words = ["load", "127.0.0.1", &port, &clients, &messages, "--through-checkpoint", "--json"];
        let mut command = host.defrost(words.into_iter().chain(["--timeout", "60"]));
        command.stdout(std::fs::File::create(&out).unwrap()).stderr(Stdio::null());
        Self { process: Running::start(&mut command), out }
    }

    /// Waits for its end, at which no message may be lost or wrong.
    #[track_caller]
    fn whole(mut self) -> Value {
        let mut status = None;
        until("the end of the load", || {
            status = self.process.has_ended();
            status.is_some()
        });
        let text = std::fs::read_to_string(&self.out).unwrap();
        assert_eq!(status.unwrap().code(), Some(0), "{text}");
        let outcome: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(outcome["answered"], outcome["messages"], "{text}");
        assert_eq!((outcome["wrong"].as_u64(), outcome["lost"].as_u64()), (Some(0), Some(0)), "{text}");
        outcome
    }
}

/// Waits until this many clients have a connection.
#[track_caller]
fn connected(server: &Server, clients: usize) {
    let own = server.pid;
    until("the clients", || {
        let all = std::fs::read_dir(format!("/proc/{own}/fd")).map_or(0, |open| open.flatten().count());
        all >= clients
    });
}

#[test]
fn no_message_is_lost_over_checkpoints_and_a_restore() {
    let Some(host) = Host::for_test("no_message_is_lost_over_checkpoints_and_a_restore") else { return };
    let server = Server::start(&host, &[]);
    let load = Load::start(&host, server.echo, 200, 8);
    connected(&server, 200);
    let said = host.run(["checkpoint", NAME, "img", "--leave-running"]).worked();
    assert!(said.contains("the server goes on"), "{said}");
    connected(&server, 150);
    let dumped = server.checkpoint(&host, "img2");
    host.run(["restore", dumped.image.to_str().unwrap(), "--wait-ready"]).worked();
    let outcome = load.whole();
    assert!(outcome["reconnects"].as_u64() >= Some(200), "{outcome}");
    assert!(outcome["longest_wait"].as_f64() <= outcome["seconds"].as_f64(), "{outcome}");
    host.run(["load", "127.0.0.1", &dumped.echo.to_string(), "100", "20", "--no-wait"]).worked();
}

#[test]
fn a_limit_on_descriptors_is_raised_as_far_as_it_goes() {
    let Some(host) = Host::for_test("a_limit_on_descriptors_is_raised_as_far_as_it_goes") else { return };
    let limited = |limits: &str, arguments: &[&str]| {
        let script = format!("{limits}; exec \"$0\" \"$@\"");
        host.defrost_by(&["sh", "-c", &script], arguments.iter())
    };
    let arguments = Server::arguments(&["--connections", "300"]);
    let mut command = limited("ulimit -Sn 100", &arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let server = Server::started(&mut command);
    let port = server.echo.to_string();
    let load = ["load", "127.0.0.1", &port, "250", "20", "--no-wait", "--json"];
    let pid = server.pid.to_string();
    let said = Done::of(&mut limited("ulimit -Sn 100", &[&load[..], &["--pid", &pid]].concat())).worked();
    let outcome: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(outcome["answered"], 5000, "{said}");

    let said = Done::of(&mut limited("ulimit -n 200", &load)).failed(3);
    assert!(said.contains("314 descriptors are needed, and the hard limit of this process is 200"), "{said}");
    assert!(
        said.contains("nothing was sent") && said.contains("hint: ") && said.contains("ulimit -Hn 314"),
        "{said}"
    );
    // It has the name.
    server.signal(Signal::SIGTERM);
    let mut server = server;
    server.process.ended();
    let said = Done::of(&mut limited("ulimit -n 200", &arguments)).failed(3);
    assert!(said.contains("--connections") && said.contains("nothing runs"), "{said}");
}

#[test]
fn what_cannot_be_loaded_is_told() {
    let Some(host) = Host::for_test("what_cannot_be_loaded_is_told") else { return };
    let port = free_port().to_string();
    let said = host.run(["load", "127.0.0.1", &port, "5", "5"]).failed(1);
    assert!(
        said.contains("refused") && said.contains("nothing was sent") && said.contains("hint: "),
        "{said}"
    );
    let usage = |arguments: &[&str]| host.run(arguments.iter()).status;
    assert_eq!(usage(&["load", "127.0.0.1", "70000", "5", "5"]), 2);
    assert_eq!(usage(&["load", "127.0.0.1", &port, "0", "5"]), 2);
    assert_eq!(usage(&["load", "127.0.0.1", &port, "5", "5", "--rate", "0"]), 2);
    assert_eq!(usage(&["load", "127.0.0.1", &port, "5", "5", "--rate", "5", "--no-wait"]), 2);
    // The kernel's own resolver is not asked for what is no name.
    let said = host.run(["load", "no such host", &port, "5", "5"]).failed(1);
    assert!(said.contains("no such host") && said.contains("nothing was sent"), "{said}");
}

#[test]
fn a_load_that_is_interrupted_tells_what_it_has() {
    let Some(host) = Host::for_test("a_load_that_is_interrupted_tells_what_it_has") else { return };
    let server = Server::start(&host, &[]);
    let port = server.echo.to_string();
    for (signal, status, json) in [(Signal::SIGINT, 130, true), (Signal::SIGTERM, 143, false)] {
        let words = ["load", "127.0.0.1", &port, "150", "100"];
        let mut command = host.defrost(words.into_iter().chain(json.then_some("--json")));
        let mut load = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        connected(&server, 150);
        // Each waits up to a second before its first message.
        std::thread::sleep(std::time::Duration::from_millis(1500));
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(load.id().cast_signed()), signal).unwrap();
        let status_of = load.wait().unwrap();
        let done = load.wait_with_output().unwrap();
        let (out, said) = (String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap());
        assert!(status_of.code() == Some(status) && said.contains("ended it before its end"), "{said}{out}");
        if json {
            let outcome: Value = serde_json::from_str(&out).unwrap();
            assert!(outcome["interrupted"] == true && outcome["lost"] == 0, "{outcome}");
            assert!(outcome["answered"].as_u64().is_some_and(|answered| (1..15_000).contains(&answered)));
            assert!(outcome["longest_wait"].as_f64().is_some_and(|waited| waited > 0.5), "{outcome}");
            assert!(outcome["memory"]["connections"].as_u64().is_some_and(|open| open >= 100), "{outcome}");
        } else {
            assert!(out.starts_with("interrupted: ") && out.contains("of 15000 messages answered"), "{out}");
            assert!(out.contains("resident memory for each of 1"), "{out}");
        }
    }
}

#[test]
fn a_full_disk_is_told_and_a_pipe_that_nobody_reads_is_not() {
    let Some(host) = Host::for_test("a_full_disk_is_told_and_a_pipe_that_nobody_reads_is_not") else {
        return;
    };
    let server = Server::start(&host, &[]);
    let port = server.echo.to_string();
    let (load, pid) = (["load", "127.0.0.1", &port, "2", "2", "--no-wait"], server.pid.to_string());
    for words in [&load[..], &["status", NAME], &["doctor", &pid], &["events", NAME], &["load", "--help"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let failed = host.defrost(words).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8(failed.stderr).unwrap();
        assert!(
            failed.status.code() == Some(1) && said.contains("standard output: No space left"),
            "{words:?}: {said}"
        );
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let done = host.defrost(words).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert!(done.status.success() && !said.contains("panicked"), "{words:?}: {said}");
    }
}
