//! Tier 2: which engine restores when none is asked for, and that everybody is told which and why.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test says by a panic what is wrong")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

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

/// What `--timings` wrote: name, beginning and length of each part.
fn parts(host: &Host) -> Vec<(String, u64, u64)> {
    let text = fs::read(host.path("timings")).unwrap();
    let told: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(told["form"], 1);
    assert!(told["began_ns"].as_u64() > Some(0));
    let number = |part: &serde_json::Value, name: &str| part[name].as_u64().unwrap();
    let part = |part: &serde_json::Value| {
        (part["name"].as_str().unwrap().to_owned(), number(part, "began_us"), number(part, "took_us"))
    };
    told["parts"].as_array().unwrap().iter().map(part).collect()
}

#[test]
fn what_the_time_of_a_restore_went_into_is_told_to_all() {
    let Some(host) = Host::for_test("what_the_time_of_a_restore_went_into_is_told_to_all") else { return };
    let dumped = Server::start(&host, &[]).checkpoint(&host, "img");
    let of_criu: &[&str] = &["start criu and end it", "have criu restore"];
    let of_instant: &[&str] = &["read the image", "plan", "make its memory and threads"];
    for (engine, own) in [("criu", of_criu), ("instant", of_instant)] {
        for how in ["--wait-ready", "--detach"] {
            let arguments = ["restore", "img", "--engine", engine, how, "--timings", "./timings"];
            host.run(arguments).worked();
            requests(dumped.echo, 10);
            let told = parts(&host);
            let around: &[&str] =
                if how == "--detach" { &[] } else { &["wake", "run after_restore of http"] };
            for name in ["open the image", "verify it"].iter().chain(own).chain(around) {
                assert!(told.iter().any(|part| part.0 == *name), "{engine} {how}, {name}: {told:?}");
            }
            assert!(told.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{told:?}");
            // The server has it in its own record.
            let listed = host.run(["events", NAME, "--name", "restore.engine", "--json"]).worked();
            let event: serde_json::Value = serde_json::from_str(listed.lines().last().unwrap()).unwrap();
            let field = |name: &str| event["fields"][format!("{}_us", name.replace(' ', "_"))].as_u64();
            for name in own {
                let took = told.iter().find(|part| part.0 == *name).unwrap().2;
                assert_eq!(field(name), Some(took), "{name}: {event}");
            }
            end(dumped.pid);
        }
    }
    // In a namespace of its own it is one part, and the server's follow.
    let arguments = ["restore", "img", "--pid-namespace", "always", "--wait-ready", "--timings", "./timings"];
    let pid = host.run(arguments).worked().trim().parse().unwrap();
    let told = parts(&host);
    for name in ["restore it in a namespace of its own", "wake"] {
        assert!(told.iter().any(|part| part.0 == name), "{name}: {told:?}");
    }
    end(pid);
}

#[test]
fn a_file_for_times_that_cannot_be_is_told_before_anything_starts() {
    let Some(host) = Host::for_test("a_file_for_times_that_cannot_be_is_told_before_anything_starts") else {
        return;
    };
    let dumped = Server::start(&host, &[]).checkpoint(&host, "img");
    let said = host.run(["restore", "img", "--detach", "--timings", "./no/such/file"]).failed(2);
    assert!(said.contains("no/such/file") && said.contains("nothing was started"), "{said}");
    assert!(!lives(dumped.pid));
    let done = host.run(["restore", "img", "--clones", "2", "--timings", "./timings"]);
    assert!(done.status == 2 && done.err.contains("cannot be used with"), "{}", done.err);
}

/// A CRIU under which each restore fails: a file of the image goes away when it begins.
fn failing(host: &Host, image: &Path) -> PathBuf {
    let path = host.path("failing-criu");
    let lose = format!("mv {0}/mm-*.img {0}/../lost", image.display());
    let script =
        format!("#!/bin/sh\ncase \"$*\" in *swrk*) {lose};; esac\nexec {} \"$@\"\n", host.criu.display());
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn the_logs_of_the_last_failures_stay_where_the_error_says() {
    let name = "the_logs_of_the_last_failures_stay_where_the_error_says";
    let Some(host) = Host::for_test(name) else { return };
    let dumped = Server::start(&host, &[]).checkpoint(&host, "img");
    fs::create_dir(host.path("lost")).unwrap();
    let criu = failing(&host, &dumped.image);
    let elsewhere = host.path("defrost-restore-of-another-user");
    fs::create_dir(&elsewhere).unwrap();
    chown(&elsewhere, Some(65534), None).unwrap();
    let mut logs = Vec::new();
    for _ in 0..7 {
        let mut command = host.defrost(["restore", "img", "--engine", "criu", "--detach"]);
        let failed = Done::of(command.env("DEFROST_CRIU", &criu)).failed(1);
        let (_, log) = failed.split_once("criu's log: ").unwrap_or_else(|| panic!("{failed}"));
        logs.push(PathBuf::from(log.trim_end()));
        for entry in fs::read_dir(host.path("lost")).unwrap() {
            let path = entry.unwrap().path();
            fs::rename(&path, dumped.image.join(path.file_name().unwrap())).unwrap();
        }
    }
    let there: Vec<_> = logs.iter().map(|log| log.is_file()).collect();
    assert_eq!(there, [false, false, true, true, true, true, true], "{logs:?}");
    assert!(logs[6].starts_with(host.folder()) && fs::metadata(&logs[6]).unwrap().len() > 0);
    assert!(!logs[0].parent().unwrap().exists() && elsewhere.exists());
    host.run(["restore", "img", "--engine", "criu", "--wait-ready"]).worked();
    end(dumped.pid);
}
