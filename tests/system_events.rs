//! Tier 2: what happened is told, by a live server and by one that was restored.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test says by a panic what is wrong")]

mod support;

use serde_json::Value;
use support::restored::Restored;
use support::server::NAME;
use support::{Host, Server};

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
    assert!(last(&told, "cycle.image")["fields"]["frozen_us"].as_u64().unwrap() > 0);
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
    let sequences: Vec<u64> = told.iter().map(|event| event["sequence"].as_u64().unwrap()).collect();
    assert!(sequences.is_sorted(), "{sequences:?}");
    restored.stop();
    host.run(["events", NAME]).failed(1);
}
