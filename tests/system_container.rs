//! Tier 2: a server that is process 1 of a PID namespace, as in a container, or a child of what is. The namespace
//! ends with it, and must leave a complete image or none.

#![allow(clippy::unwrap_used, reason = "a test says by a panic what is wrong")]

mod support;

use std::process::{Command, Stdio};
use std::time::Instant;

use support::client::{get, requests};
use support::host::{DEFROST, Done};
use support::process::Running;
use support::restored::in_pid_namespace;
use support::server::NAME;
use support::{Host, Server, info, until};

const NAMESPACE: [&str; 5] = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];

/// Starts a server in a fresh PID namespace, with this between process 1 and it.
#[track_caller]
fn start(host: &Host, between: &[&str]) -> Server {
    let starter = [&NAMESPACE[..], between].concat();
    let mut command = host.defrost_by(&starter, Server::arguments(&[]));
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    Server::started(&mut command)
}

/// Checkpoints it, which ends its namespace.
#[track_caller]
fn checkpoint(host: &Host, server: &mut Server) {
    let said = host.run(["checkpoint", NAME, "img"]).worked();
    assert!(said.contains("is complete"), "{said}");
    server.process.ended();
}

#[test]
fn process_1_goes_through_and_each_restore_has_a_fresh_namespace() {
    let name = "process_1_goes_through_and_each_restore_has_a_fresh_namespace";
    let Some(host) = Host::for_test(name) else { return };
    let mut server = start(&host, &[]);
    requests(server.echo, 20);
    checkpoint(&host, &mut server);
    assert_eq!(server.process.ended().code(), Some(0), "a checkpoint is no failure");
    host.run(["inspect", "img"]).worked();

    let by_defrost = || host.defrost_by(&NAMESPACE, ["restore", "img"]);
    let by_criu = || in_pid_namespace(&host, &host.path("img"));
    for restore in [&by_criu as &dyn Fn() -> Command, &by_defrost, &by_criu] {
        let namespace = Running::start(&mut restore());
        requests(server.echo, 20);
        let info = info(server.http);
        assert_eq!((info["pid"].as_i64(), &info["generation"]), (Some(server.pid.into()), &1.into()));
        drop(namespace);
        until("the end of the namespace", || {
            std::net::TcpStream::connect(("127.0.0.1", server.echo)).is_err()
        });
    }
}

#[test]
fn a_child_of_process_1_goes_through() {
    let Some(host) = Host::for_test("a_child_of_process_1_goes_through") else { return };
    let ways: [(&str, &[&str]); 3] = [
        ("under defrost run", &[DEFROST, "run", "--"]),
        ("under a shell script", &["sh", "-c", r#""$@"; exit $?"#, "sh"]),
        ("as a job of a shell", &["bash", "-m", "-c", r#""$@" & wait $!"#, "bash"]),
    ];
    for (way, between) in ways {
        eprintln!("{way}");
        let mut server = start(&host, between);
        requests(server.echo, 20);
        checkpoint(&host, &mut server);
        let namespace = Running::start(&mut in_pid_namespace(&host, &host.path("img")));
        requests(server.echo, 20);
        assert_eq!(info(server.http)["generation"], 1, "{way}");
        drop(namespace);
    }
}

#[test]
fn a_namespace_that_is_killed_during_a_checkpoint_leaves_a_complete_image_or_none() {
    let name = "a_namespace_that_is_killed_during_a_checkpoint_leaves_a_complete_image_or_none";
    let Some(host) = Host::for_test(name) else { return };
    let mut undisturbed = start(&host, &[]);
    let asked = Instant::now();
    checkpoint(&host, &mut undisturbed);
    let whole = asked.elapsed();
    for percent in [0, 30, 60, 80, 90, 95, 100, 110] {
        std::fs::remove_dir_all(host.path("img")).or_else(missing).unwrap();
        let server = start(&host, &[]);
        let asked = Instant::now();
        let mut client = Running::start(host.defrost(["checkpoint", NAME, "img"]).stderr(Stdio::null()));
        // The moment is what is tested here: there is nothing to wait for.
        std::thread::sleep((whole * percent / 100).saturating_sub(asked.elapsed()));
        let (echo, http) = (server.echo, server.http);
        drop(server);
        let told = client.ended().success();
        let image = host.path("img");
        let complete = image.exists();
        eprintln!("at {percent} % of a checkpoint: complete {complete}, told {told}");
        assert!(complete || !told, "the client was told of an image, and there is none");
        if complete {
            let mut check =
                host.defrost_by(&NAMESPACE, ["restore", "img", "--engine", "simulated", "--verify", "full"]);
            Done::of(&mut check).worked();
            let _namespace = Running::start(&mut in_pid_namespace(&host, &image));
            requests(echo, 1);
            assert_eq!(get(http, "/readyz").0, 200);
        }
    }
}

fn missing(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}
