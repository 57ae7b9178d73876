//! Tier 2: the main job. A server is warmed, checkpointed, and restored, serving, by plain `criu restore` and by
//! `defrost restore`.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test says by a panic what is wrong")]

mod support;

use std::time::Duration;

use nix::sys::signal::Signal;
use support::client::{Echo, get, requests};
use support::host::Done;
use support::process::{Running, children, end, gone, lives};
use support::server::{NAME, info};
use support::{Host, Server, until};

const WARM: [&str; 2] = ["--warm-mib", "4"];

#[test]
fn twenty_plain_restores_of_one_image() {
    let Some(host) = Host::for_test("twenty_plain_restores_of_one_image") else { return };
    let server = Server::start(&host, &WARM);
    requests(server.echo, 100);
    let dumped = server.checkpoint(&host, "img");
    let mut instances = std::collections::HashSet::new();
    for round in 1..=20 {
        let criu = host.plain_restore(&dumped.image);
        requests(dumped.echo, 100);
        let info = info(dumped.http);
        assert_eq!(info["generation"], 1, "round {round}");
        assert_eq!(info["pid"], dumped.pid);
        assert!(instances.insert(info["instance"].as_str().unwrap().to_owned()), "an instance id came twice");
        assert_eq!(get(dumped.http, "/checksum").0, 200);
        end(dumped.pid);
        drop(criu);
    }
}

#[test]
fn three_generations_by_plain_restore() {
    let Some(host) = Host::for_test("three_generations_by_plain_restore") else { return };
    let server = Server::start(&host, &WARM);
    let mut dumped = server.checkpoint(&host, "img0");
    for generation in 1..=3 {
        let mut criu = host.plain_restore(&dumped.image);
        requests(dumped.echo, 100);
        assert_eq!(info(dumped.http)["generation"], generation);
        assert_eq!(get(dumped.http, "/checksum").0, 200);
        let image = format!("img{generation}");
        let said = host.run(["checkpoint", NAME, &image]).worked();
        assert!(said.contains("is complete"), "{said}");
        criu.ended();
        gone(dumped.pid);
        dumped.image = host.path(image);
    }
}

#[test]
fn three_generations_by_defrost_restore() {
    let Some(host) = Host::for_test("three_generations_by_defrost_restore") else { return };
    let mut dumped = Server::start(&host, &WARM).checkpoint(&host, "img0");
    for generation in 1..=3 {
        let mut supervisor = Running::start(&mut host.defrost(["restore", dumped.image.to_str().unwrap()]));
        requests(dumped.echo, 100);
        assert_eq!(info(dumped.http)["generation"], generation);
        let image = format!("img{generation}");
        host.run(["checkpoint", NAME, &image]).worked();
        // Ended by intent, with the image complete: that is no failure.
        assert_eq!(supervisor.ended().code(), Some(0));
        dumped.image = host.path(image);
    }
}

#[test]
fn a_detached_restore_is_left_to_itself() {
    let Some(host) = Host::for_test("a_detached_restore_is_left_to_itself") else { return };
    let dumped = Server::start(&host, &WARM).checkpoint(&host, "img");
    for (option, transport) in [("--detach", "rpc"), ("--wait-ready", "rpc"), ("--wait-ready", "cli")] {
        let pid = host.run(["restore", "img", option, "--transport", transport]).worked();
        assert_eq!(pid, dumped.pid.to_string());
        requests(dumped.echo, 100);
        let ready = || get(dumped.http, "/readyz").0 == 200;
        if option == "--wait-ready" {
            assert!(ready(), "it was waited for");
        } else {
            until("readiness", ready);
        }
        end(dumped.pid);
    }
}

#[test]
fn a_foreground_restore_hands_signals_and_status_on() {
    let Some(host) = Host::for_test("a_foreground_restore_hands_signals_and_status_on") else { return };
    let dumped = Server::start(&host, &["--exit-with", "7"]).checkpoint(&host, "img");
    let restore = || Running::start(&mut host.defrost(["restore", "img"]));

    let mut supervisor = restore();
    requests(dumped.echo, 1);
    supervisor.signal(Signal::SIGTERM);
    assert_eq!(
        supervisor.ended().code(),
        Some(7),
        "SIGTERM is forwarded, and the server's own status handed on"
    );
    gone(dumped.pid);

    let mut supervisor = restore();
    requests(dumped.echo, 1);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(dumped.pid), Signal::SIGKILL).unwrap();
    assert_eq!(supervisor.ended().code(), Some(128 + 9));
    gone(dumped.pid);

    let mut supervisor = restore();
    requests(dumped.echo, 1);
    let guards: Vec<i32> = children(supervisor.pid()).into_iter().filter(|pid| *pid != dumped.pid).collect();
    supervisor.signal(Signal::SIGKILL);
    supervisor.ended();
    gone(dumped.pid);
    until("the end of the guard", || guards.iter().all(|pid| !lives(*pid)));
}

#[test]
fn run_hands_signals_and_status_on() {
    let Some(host) = Host::for_test("run_hands_signals_and_status_on") else { return };
    let run = |script: &str| Done::of(&mut host.defrost(["run", "--", "/bin/sh", "-c", script])).status;
    assert_eq!(run("exit 7"), 7);
    assert_eq!(run("kill -TERM $$"), 128 + 15);
    assert_eq!(host.run(["run", "--", "/no/such/program"]).failed(1).lines().count(), 2);

    let command = host.path("lives");
    let mut supervisor = Running::start(&mut host.defrost([
        "run",
        "--",
        "/bin/sh",
        "-c",
        "sleep 1000 & echo $$ $! > lives; wait",
    ]));
    let mut pids = Vec::new();
    until("the pids", || {
        let text = std::fs::read_to_string(&command).unwrap_or_default();
        pids = text.split_whitespace().map(|pid| pid.parse::<i32>().unwrap()).collect();
        pids.len() == 2
    });
    supervisor.signal(Signal::SIGTERM);
    assert_eq!(supervisor.ended().code(), Some(128 + 15));
    // What it left behind does not stay either.
    until("the end of both", || pids.iter().all(|pid| !lives(*pid)));
}

#[test]
fn leave_running_goes_on_and_restores_later() {
    let Some(host) = Host::for_test("leave_running_goes_on_and_restores_later") else { return };
    let log = host.path("server.log");
    let server = Server::start(&host, &["--warm-mib", "4", "--log", log.to_str().unwrap()]);
    let said = host.run(["checkpoint", NAME, "img", "--leave-running"]).worked();
    assert!(said.contains("the server goes on"), "{said}");
    requests(server.echo, 100);
    assert_eq!(server.info()["generation"], 0);
    let (pid, echo, http) = (server.pid, server.echo, server.http);
    server.signal(Signal::SIGTERM);
    let mut server = server;
    assert_eq!(server.process.ended().code(), Some(0));
    gone(pid);
    let _criu = host.plain_restore(&host.path("img"));
    requests(echo, 100);
    assert_eq!(info(http)["generation"], 1);
    end(pid);
}

#[test]
fn connections_are_closed_and_clients_served_again() {
    let Some(host) = Host::for_test("connections_are_closed_and_clients_served_again") else { return };
    let server = Server::start(&host, &[]);
    let mut idle: Vec<Echo> = (0..100).map(|_| Echo::connect(server.echo)).collect();
    assert!(idle.iter_mut().all(Echo::ask));
    let dumped = server.checkpoint(&host, "img");
    assert!(idle.iter_mut().all(Echo::is_closed));
    let _criu = host.plain_restore(&dumped.image);
    requests(dumped.echo, 100);
    end(dumped.pid);
}

#[test]
fn an_idle_server_uses_no_cpu() {
    let Some(host) = Host::for_test("an_idle_server_uses_no_cpu") else { return };
    let server = Server::start(&host, &[]);
    let used = |pid: i32| -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let before = used(server.pid);
    std::thread::sleep(Duration::from_secs(3));
    let ticks = used(server.pid) - before;
    assert!(ticks <= 1, "{ticks} clock ticks of CPU in three idle seconds");
}
