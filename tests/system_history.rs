//! Tier 2: histories of checkpoints: stored by content, restored, damaged, and what comes back after a crash.

#![allow(clippy::unwrap_used, reason = "a test says by a panic what is wrong")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod support;

use std::fs;
use std::os::unix::fs::FileExt;

use serde_json::Value;
use support::client::{get, requests};
use support::process::gone;
use support::restored::Restored;
use support::server::{Dumped, NAME};
use support::{Host, Server};

const WARM: [&str; 2] = ["--warm-mib", "16"];

/// What `defrost history history` says.
#[track_caller]
fn list(host: &Host) -> Vec<Value> {
    serde_json::from_str(&host.run(["history", "history", "--json"]).worked()).unwrap()
}

/// A server that is checkpointed twice, and stored; it has ended.
#[track_caller]
fn stored(host: &Host) -> Dumped {
    let server = Server::start(host, &WARM);
    host.run(["checkpoint", NAME, "img", "--leave-running"]).worked();
    host.run(["history", "add", "history", "img"]).worked();
    requests(server.echo, 5);
    let dumped = server.checkpoint(host, "img");
    let said = host.run(["history", "add", "history", "img"]).worked();
    assert!(said.contains("is checkpoint 2 of"), "{said}");
    dumped
}

#[test]
fn a_stored_checkpoint_costs_its_changes_and_criu_restores_it() {
    let name = "a_stored_checkpoint_costs_its_changes_and_criu_restores_it";
    let Some(host) = Host::for_test(name) else { return };
    let dumped = stored(&host);
    let listed = list(&host);
    let bytes = |entry: &Value, name: &str| entry[name].as_u64().unwrap();
    assert_eq!((&listed[0]["number"], &listed[1]["number"]), (&1.into(), &2.into()));
    assert!(bytes(&listed[0], "written_bytes") > 16 << 20);
    assert!(bytes(&listed[1], "memory_bytes") > 16 << 20);
    let changes = bytes(&listed[1], "written_bytes");
    assert!(changes < 4 << 20, "{changes} bytes were written for nearly nothing");
    assert!(host.run(["history", "history"]).worked().contains("generation 0"));

    fs::remove_dir_all(host.path("img")).unwrap();
    host.run(["history", "checkout", "history@-1", "out"]).worked();
    host.run(["restore", "out", "--engine", "simulated", "--verify", "full"]).worked();
    let plain = Restored::plain(&host, &Dumped { image: host.path("out"), ..dumped.clone() });
    assert_eq!(get(dumped.http, "/checksum").0, 200);
    plain.stop();
    gone(dumped.pid);
}

#[test]
fn a_damaged_history_names_each_loss_and_the_rest_is_usable() {
    let name = "a_damaged_history_names_each_loss_and_the_rest_is_usable";
    let Some(host) = Host::for_test(name) else { return };
    stored(&host);
    host.run(["history", "history", "--check"]).worked();
    let pack = fs::File::options().write(true).open(host.path("history/00000002.pack")).unwrap();
    pack.write_all_at(b"damage", 100).unwrap();
    let error = host.run(["history", "history", "--check"]).failed(4);
    assert!(error.contains("lost: 1 of 2 checkpoints (2)"), "{error}");
    let done = host.run(["history", "history", "--check"]);
    assert!(
        done.out.contains("lost: pages-1.img: 00000002.pack has other contents in page 0"),
        "{}",
        done.out
    );
    let error = host.run(["history", "checkout", "history@2", "out"]).failed(4);
    assert!(error.contains("checkpoint 2 of") && error.contains("is damaged"), "{error}");
    assert!(!host.path("out").exists());
    host.run(["history", "checkout", "history@1", "out"]).worked();

    let error = host.run(["history", "checkout", "history@99", "other"]).failed(4);
    assert!(error.contains("history@99 is not there: the history has 2 checkpoints, 1 to 2"), "{error}");
    host.run(["history", "checkout", "history@last", "other"]).failed(2);
    host.run(["history", "checkout", "history", "other"]).failed(2);
    host.run(["history", "nothing"]).failed(4);
    assert!(!host.path("other").exists());
}
