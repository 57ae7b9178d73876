//! Tier 2: which engine restores when none is asked for, and that everybody is told which and why.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test says by a panic what is wrong")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod support;

use std::fs;

use defrost::image::manifest::{MANIFEST_NAME, Manifest};
use support::client::requests;
use support::host::Done;
use support::process::{end, lives};
use support::server::{Dumped, NAME, info};
use support::{Host, Server};

/// Restores by this engine, and ends the server again; gives what was said by `-v`, in `/info` and in `status`.
fn told(host: &Host, dumped: &Dumped, more: &[&str]) -> (String, serde_json::Value, String) {
    let arguments = ["-v", "restore", "img", "--wait-ready"];
    let mut command = host.defrost(arguments.iter().chain(more));
    let done = Done::of(command.env_remove("DEFROST_ENGINE"));
    assert_eq!(done.status, 0, "{}", done.err);
    requests(dumped.echo, 10);
    let by = info(dumped.http)["restore"]["by"].clone();
    let status = host.run(["status", NAME]).worked();
    end(dumped.pid);
    (done.err, by, status)
}

/// Has the image say that it was made under another kernel, which the instant engine refuses.
fn move_to_another_kernel(dumped: &Dumped) {
    let path = dumped.image.join(MANIFEST_NAME);
    let mut manifest = Manifest::from_bytes(&fs::read(&path).unwrap()).unwrap();
    manifest.machine.kernel = "6.17.0-other".to_owned();
    fs::write(path, manifest.to_bytes().unwrap()).unwrap();
}

#[test]
fn an_image_that_instant_can_restore_is_restored_by_it() {
    let Some(host) = Host::for_test("an_image_that_instant_can_restore_is_restored_by_it") else { return };
    let dumped = Server::start(&host, &[]).checkpoint(&host, "img");
    let (said, by, status) = told(&host, &dumped, &[]);
    assert!(
        said.contains("restored by engine instant (it can restore this image), memory by map ("),
        "{said}"
    );
    assert!(said.contains("it took ") && said.contains(" ms to plan, "), "{said}");
    let inspected = host.run(["inspect", "img"]).worked();
    assert!(inspected.contains("restored here by\n  instant, or criu\n"), "{inspected}");
    assert_eq!((&by["engine"], &by["memory"]), (&"instant".into(), &"map".into()), "{by}");
    assert!(status.contains("by engine instant (it can restore this image)"), "{status}");

    let (said, by, _) = told(&host, &dumped, &["--memory", "copy"]);
    assert!(said.contains("memory by copy (it was asked for)"), "{said}");
    assert_eq!(by["memory_reason"], "it was asked for");
    let (said, by, _) = told(&host, &dumped, &["--engine", "criu"]);
    assert!(said.contains("restored by engine criu (it was asked for)"), "{said}");
    assert_eq!(by["memory"], serde_json::Value::Null);
    // A plain restore says nothing, and nothing is made up.
    let _criu = host.plain_restore(&dumped.image);
    requests(dumped.echo, 10);
    assert_eq!(info(dumped.http)["restore"]["by"], serde_json::Value::Null);
    end(dumped.pid);
}

#[test]
fn criu_is_not_needed_where_instant_restores() {
    let Some(host) = Host::for_test("criu_is_not_needed_where_instant_restores") else { return };
    let dumped = Server::start(&host, &[]).checkpoint(&host, "img");
    let (_, by, _) = told(&host, &dumped, &["--criu", "/no/such/criu"]);
    assert_eq!(by["engine"], "instant");
    move_to_another_kernel(&dumped);
    let mut command = host.defrost(["restore", "img", "--criu", "/no/such/criu"]);
    let failed = Done::of(command.env_remove("DEFROST_ENGINE")).failed(3);
    for word in
        ["/no/such/criu", "criu was taken because the instant engine cannot", "6.17.0-other", "hint: "]
    {
        assert!(failed.contains(word), "`{word}` is not in: {failed}");
    }
    assert!(!lives(dumped.pid));
}

#[test]
fn criu_restores_what_instant_cannot_and_the_reason_is_told() {
    let Some(host) = Host::for_test("criu_restores_what_instant_cannot_and_the_reason_is_told") else {
        return;
    };
    let dumped = Server::start(&host, &[]).checkpoint(&host, "img");
    move_to_another_kernel(&dumped);
    let (said, by, status) = told(&host, &dumped, &[]);
    let reason = "engine criu (the instant engine cannot restore this image: the image was made under kernel 6.17.0-other";
    assert!(said.contains(reason), "{said}");
    assert!(status.contains(reason), "{status}");
    assert_eq!(by["engine"], "criu");
    let inspected = host.run(["inspect", "img"]).worked();
    assert!(
        inspected.contains("  criu; not by instant:\n    the image was made under kernel 6.17.0"),
        "{inspected}"
    );
    let mut command = host.defrost(["restore", "img", "--engine", "instant"]);
    let refused = Done::of(&mut command).failed(1);
    assert!(refused.contains("6.17.0-other") && refused.contains("--engine criu"), "{refused}");
    assert!(!lives(dumped.pid));
}

#[test]
fn the_environment_can_choose_the_engine() {
    let Some(host) = Host::for_test("the_environment_can_choose_the_engine") else { return };
    let dumped = Server::start(&host, &[]).checkpoint(&host, "img");
    let mut command = host.defrost(["-v", "restore", "img", "--wait-ready"]);
    let done = Done::of(command.env("DEFROST_ENGINE", "criu"));
    assert!(done.err.contains("restored by engine criu (it was asked for)"), "{}", done.err);
    end(dumped.pid);
}
