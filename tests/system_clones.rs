//! Tier 2: several restores of one image at once, each in a pid namespace of its own, with its own identity,
//! addresses and control socket.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test says by a panic what is wrong")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod support;

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::apart::{Clone, clones, namespaces, nothing_is_left, random_numbers};
use support::client::{get, requests};
use support::process::{Running, gone, lives};
use support::server::{Dumped, NAME};
use support::{Host, Server, info, until};

const WARM: [&str; 2] = ["--warm-mib", "4"];

fn dumped(host: &Host, arguments: &[&str]) -> Dumped {
    Server::start(host, arguments).checkpoint(host, "img")
}

/// Has each end by itself, asked over its own socket.
#[track_caller]
fn stop(host: &Host, clones: &[Clone]) {
    for clone in clones {
        let mut ask = host.defrost(["ctl", &clone.socket]);
        let mut asking = ask.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        std::io::Write::write_all(&mut asking.stdin.take().unwrap(), b"stop\n").unwrap();
        assert!(asking.wait().unwrap().success());
    }
    nothing_is_left(host);
}

#[track_caller]
fn all_different<T: std::hash::Hash + Eq>(what: &str, values: impl IntoIterator<Item = T>) {
    let values: Vec<T> = values.into_iter().collect();
    let count = values.len();
    assert_eq!(values.into_iter().collect::<HashSet<_>>().len(), count, "{what}: some are the same");
}

#[test]
fn ten_clones_are_each_their_own() {
    let Some(host) = Host::for_test("ten_clones_are_each_their_own") else { return };
    dumped(&host, &WARM);
    let clones = clones(&host, "img", &["--clones", "10", "--engine", "instant", "--memory", "map"]);
    assert_eq!(clones.len(), 10);
    for (number, clone) in (1..).zip(&clones) {
        assert_eq!((clone.number, clone.generation), (number, 1));
        requests(clone.port("echo"), 20);
        clone.is_itself();
        assert_eq!(get(clone.port("http"), "/checksum").0, 200);
        assert!(clone.pss_kib.is_some_and(|kib| kib > 100), "{clone:?}");
    }
    all_different("instances", clones.iter().map(|clone| &clone.instance));
    all_different("pids", clones.iter().map(|clone| clone.pid));
    all_different("sockets", clones.iter().map(|clone| &clone.socket));
    all_different("addresses", clones.iter().flat_map(|clone| clone.addresses.values()));
    all_different("random numbers", clones.iter().flat_map(|clone| random_numbers(clone.port("http"), 50)));
    assert_eq!(namespaces(&host).len(), 10);
    let status = host.run(["status", &format!("{NAME}-7")]).worked();
    assert!(status.contains(&clones[6].instance), "{status}");
    let by_pid = host.run(["status", &clones[3].pid.to_string()]).worked();
    assert!(by_pid.contains(&clones[3].instance), "{by_pid}");

    // More of them, beside those: their sockets have the next names.
    let more = support::apart::clones(&host, "img", &["--clones", "2"]);
    assert!(more[0].socket.ends_with(&format!("{NAME}-11.sock")), "{more:?}");
    stop(&host, &more.into_iter().chain(clones).collect::<Vec<_>>());
}

#[test]
fn clones_share_one_address_where_they_shall() {
    let Some(host) = Host::for_test("clones_share_one_address_where_they_shall") else { return };
    let dumped = dumped(&host, &[]);
    let clones = clones(&host, "img", &["--clones", "3", "--share-address"]);
    assert!(clones.iter().all(|clone| clone.port("http") == dumped.http), "{clones:?}");
    let mut seen = HashSet::new();
    // The kernel chooses by the client's port.
    until("an answer of each clone", || {
        seen.insert(info(dumped.http)["instance"].as_str().unwrap().to_owned());
        seen.len() == 3
    });
    assert_eq!(seen, clones.iter().map(|clone| clone.instance.clone()).collect());
    // The others take over what one leaves.
    for clone in &clones[1..] {
        kill(Pid::from_raw(clone.pid), Signal::SIGKILL).unwrap();
    }
    // Until the last thread of a process is gone, its listener still takes connections.
    clones[1..].iter().for_each(|clone| gone(clone.pid));
    requests(dumped.echo, 20);
    clones[0].is_itself();

    // A checkpoint of one that shared is an image like any other.
    host.run(["checkpoint", &format!("{NAME}-1"), "img2"]).worked();
    nothing_is_left(&host);
    let pid = host.run(["restore", "img2", "--wait-ready"]).worked();
    assert_eq!(info(dumped.http)["generation"], 2);
    kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGTERM).unwrap();
    nothing_is_left(&host);
}

/// Three ports in a row that are free, of which the last is held. The kernel gives none of them to others, as it does
/// above.
fn last_of_three() -> (u16, TcpListener) {
    let bind = |port: u16| TcpListener::bind(("127.0.0.1", port)).ok();
    let mut rows = (20_000..32_000).step_by(3);
    rows.find_map(|first: u16| {
        let (_low, _middle) = (bind(first)?, bind(first + 1)?);
        Some((first + 2, bind(first + 2)?))
    })
    .expect("three free ports in a row")
}

#[test]
fn ports_are_given_in_ranges() {
    let Some(host) = Host::for_test("ports_are_given_in_ranges") else { return };
    dumped(&host, &[]);
    let few = host.run(["restore", "img", "--clones", "3", "--ports", "9000-9004"]).failed(2);
    assert!(few.contains("3 clones need more ports"), "{few}");
    let one = host.run(["restore", "img", "--clones", "2", "--set", "echo.listen=127.0.0.1:9000"]).failed(2);
    assert!(one.contains("one address for 2 clones") && one.contains("--share-address"), "{one}");

    let (taken, holder) = last_of_three();
    let range = format!("echo.listen=127.0.0.1:{}-{taken}", taken - 2);
    let refused = host.run(["restore", "img", "--clones", "3", "--set", &range]).failed(3);
    assert!(refused.contains(&format!("address 127.0.0.1:{taken} of resource echo is in use")), "{refused}");
    drop(holder);
    let clones = clones(&host, "img", &["--clones", "3", "--set", &range]);
    let ports: Vec<u16> = clones.iter().map(|clone| clone.port("echo")).collect();
    assert_eq!(ports, [taken - 2, taken - 1, taken]);
    clones.iter().for_each(Clone::is_itself);
    stop(&host, &clones);
}

#[test]
fn all_come_up_or_none_is_left() {
    let Some(host) = Host::for_test("all_come_up_or_none_is_left") else { return };
    dumped(&host, &[]);
    // No socket: it is in nobody's use, and in the way all the same.
    let in_the_way = host.path(format!("defrost/{NAME}-2.sock"));
    std::fs::write(&in_the_way, "").unwrap();
    let failed = host.run(["restore", "img", "--clones", "3", "--detach"]).failed(1);
    assert!(failed.contains("clone 2 of 3: the restored process is not ready: control"), "{failed}");
    assert!(failed.contains("none is left") && !failed.contains("clone 1"), "{failed}");
    nothing_is_left(&host);

    std::fs::remove_file(&in_the_way).unwrap();
    let late = host.run(["restore", "img", "--clones", "2", "--ready-timeout", "0.000001"]).failed(1);
    assert!(late.contains("clone 2 of 2: the restored process was not ready within"), "{late}");
    nothing_is_left(&host);
}

/// Clones in the foreground, up, by the lines that they are told in.
#[track_caller]
fn attended(host: &Host, more: &[&str]) -> (Running, Vec<i32>) {
    let count: usize = more[1].parse().unwrap();
    let mut command = host.defrost(["restore", "img"].iter().chain(more));
    let mut supervisor = Running::start(command.stdout(Stdio::piped()));
    let lines = BufReader::new(supervisor.child().stdout.take().unwrap()).lines();
    let pid_in = |line: String| -> i32 {
        let rest = line.split_once(": pid ").unwrap_or_else(|| panic!("no pid: {line}")).1;
        rest.split(',').next().unwrap().parse().unwrap()
    };
    let pids: Vec<i32> = lines.take(count).map(|line| pid_in(line.unwrap())).collect();
    assert_eq!(pids.len(), count);
    (supervisor, pids)
}

#[test]
fn clones_in_the_foreground_get_signals_and_give_their_status() {
    let name = "clones_in_the_foreground_get_signals_and_give_their_status";
    let Some(host) = Host::for_test(name) else { return };
    dumped(&host, &["--exit-with", "7"]);
    let (mut supervisor, pids) = attended(&host, &["--clones", "3"]);
    supervisor.signal(Signal::SIGTERM);
    assert_eq!(supervisor.ended().code(), Some(7), "the servers' own status");
    assert!(pids.iter().all(|pid| !lives(*pid)));
    nothing_is_left(&host);

    // Each is on its own: the end of one is not that of the others.
    let (mut supervisor, pids) = attended(&host, &["--clones", "2"]);
    kill(Pid::from_raw(pids[0]), Signal::SIGKILL).unwrap();
    until("the end of one clone", || !lives(pids[0]));
    assert!(lives(pids[1]) && supervisor.has_ended().is_none());
    supervisor.signal(Signal::SIGTERM);
    assert_eq!(supervisor.ended().code(), Some(128 + 9), "the first that was not 0");
    nothing_is_left(&host);

    let (mut supervisor, _) = attended(&host, &["--clones", "2"]);
    supervisor.signal(Signal::SIGKILL);
    supervisor.ended();
    nothing_is_left(&host);
}

#[test]
fn clones_by_criu_work_too() {
    let Some(host) = Host::for_test("clones_by_criu_work_too") else { return };
    dumped(&host, &[]);
    let clones = clones(&host, "img", &["--clones", "3", "--engine", "criu"]);
    clones.iter().for_each(Clone::is_itself);
    stop(&host, &clones);
}

#[test]
fn fifty_at_once() {
    let Some(host) = Host::for_test("fifty_at_once") else { return };
    dumped(&host, &[]);
    let more = ["--clones", "50", "--ready-timeout", "120", "--timeout", "120", "--engine", "instant"];
    let clones = clones(&host, "img", &more);
    clones.iter().for_each(|clone| requests(clone.port("echo"), 2));
    all_different("instances", clones.iter().map(|clone| &clone.instance));
    for clone in &clones {
        kill(Pid::from_raw(clone.pid), Signal::SIGTERM).unwrap();
    }
    nothing_is_left(&host);
}
