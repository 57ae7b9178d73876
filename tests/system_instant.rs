//! Tier 2: the main job again, restored by the instant engine: the same image, the same process, without CRIU.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test says by a panic what is wrong")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod support;

use std::collections::{BTreeMap, HashSet};
use std::fs;

use criu_images::ImageDir;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::client::{get, requests};
use support::process::{Running, end, gone, lives};
use support::server::{Dumped, NAME, info};
use support::{Host, Server, until};

const WARM: [&str; 2] = ["--warm-mib", "4"];

/// `defrost restore IMAGE --engine instant`, in the foreground, with these further arguments.
fn restored(host: &Host, image: &str, more: &[&str]) -> Running {
    let arguments = ["restore", image, "--engine", "instant"];
    Running::start(&mut host.defrost(arguments.iter().chain(more)))
}

/// Kills the server, which its supervisor tells by its status.
fn kill_under(supervisor: &mut Running, dumped: &Dumped) {
    kill(Pid::from_raw(dumped.pid), Signal::SIGKILL).unwrap();
    assert_eq!(supervisor.ended().code(), Some(128 + 9));
    gone(dumped.pid);
}

#[test]
fn twenty_instant_restores_of_one_image() {
    let Some(host) = Host::for_test("twenty_instant_restores_of_one_image") else { return };
    let server = Server::start(&host, &WARM);
    requests(server.echo, 100);
    let dumped = server.checkpoint(&host, "img");
    let mut instances = HashSet::new();
    for round in 0..20 {
        let memory = ["auto", "map", "copy"][round % 3];
        let mut supervisor = restored(&host, "img", &["--memory", memory]);
        requests(dumped.echo, 100);
        let info = info(dumped.http);
        assert_eq!(info["generation"], 1, "round {round}");
        assert_eq!(info["pid"], dumped.pid);
        assert!(instances.insert(info["instance"].as_str().unwrap().to_owned()), "an instance id came twice");
        assert_eq!(get(dumped.http, "/checksum").0, 200, "{memory}");
        kill_under(&mut supervisor, &dumped);
    }
}

#[test]
fn a_detached_instant_restore_is_left_to_itself() {
    let Some(host) = Host::for_test("a_detached_instant_restore_is_left_to_itself") else { return };
    let dumped = Server::start(&host, &WARM).checkpoint(&host, "img");
    for option in ["--detach", "--wait-ready"] {
        let pid = host.run(["restore", "img", "--engine", "instant", option]).worked();
        assert_eq!(pid, dumped.pid.to_string());
        requests(dumped.echo, 100);
        assert_eq!(get(dumped.http, "/readyz").0, 200);
        end(dumped.pid);
    }
}

#[test]
fn generations_go_on_by_either_engine() {
    let Some(host) = Host::for_test("generations_go_on_by_either_engine") else { return };
    let mut dumped = Server::start(&host, &WARM).checkpoint(&host, "img0");
    // Copied memory depends on no earlier image; mapped memory does, and that image is still there.
    for (generation, memory) in [(1, "copy"), (2, "map"), (3, "copy")] {
        let before = format!("img{}", generation - 1);
        let mut supervisor = restored(&host, &before, &["--memory", memory]);
        requests(dumped.echo, 100);
        assert_eq!(info(dumped.http)["generation"], generation);
        assert_eq!(get(dumped.http, "/checksum").0, 200);
        let image = format!("img{generation}");
        host.run(["checkpoint", NAME, &image]).worked();
        assert_eq!(supervisor.ended().code(), Some(0), "ended by intent");
        dumped.image = host.path(image);
    }
    let _criu = host.plain_restore(&dumped.image);
    requests(dumped.echo, 100);
    assert_eq!(info(dumped.http)["generation"], 4);
    assert_eq!(get(dumped.http, "/checksum").0, 200);
    end(dumped.pid);
}

#[test]
fn an_image_in_use_is_not_replaced() {
    let Some(host) = Host::for_test("an_image_in_use_is_not_replaced") else { return };
    let dumped = Server::start(&host, &WARM).checkpoint(&host, "img");
    let mut supervisor = restored(&host, "img", &["--memory", "map"]);
    requests(dumped.echo, 1);
    let refused = host.run(["checkpoint", NAME, "img"]).failed(1);
    assert!(refused.contains("cannot be replaced"), "{refused}");
    requests(dumped.echo, 100);
    assert_eq!(get(dumped.http, "/checksum").0, 200);
    kill_under(&mut supervisor, &dumped);

    let mut supervisor = restored(&host, "img", &["--memory", "copy"]);
    requests(dumped.echo, 1);
    host.run(["checkpoint", NAME, "img"]).worked();
    assert_eq!(supervisor.ended().code(), Some(0));
    let mut supervisor = restored(&host, "img", &[]);
    requests(dumped.echo, 1);
    assert_eq!(get(dumped.http, "/checksum").0, 200);
    kill_under(&mut supervisor, &dumped);
}

#[test]
fn signals_and_status_are_handed_on() {
    let Some(host) = Host::for_test("signals_and_status_are_handed_on") else { return };
    let dumped = Server::start(&host, &["--exit-with", "7"]).checkpoint(&host, "img");
    let mut supervisor = restored(&host, "img", &[]);
    requests(dumped.echo, 1);
    supervisor.signal(Signal::SIGTERM);
    assert_eq!(supervisor.ended().code(), Some(7), "the server's own status");
    gone(dumped.pid);

    let mut supervisor = restored(&host, "img", &[]);
    requests(dumped.echo, 1);
    supervisor.signal(Signal::SIGKILL);
    supervisor.ended();
    until("the end of the server", || !lives(dumped.pid));
    gone(dumped.pid);
}

#[test]
fn parameters_arrive() {
    let Some(host) = Host::for_test("parameters_arrive") else { return };
    let dumped = Server::start(&host, &WARM).checkpoint(&host, "img");
    let more = ["--set", "echo.listen=127.0.0.1:0", "--env", "COLOUR=blue", "--", "one", "two"];
    let mut supervisor = restored(&host, "img", &more);
    until("the first answer", || std::net::TcpStream::connect(("127.0.0.1", dumped.http)).is_ok());
    let info = info(dumped.http);
    assert_eq!(info["restore"]["arguments"], serde_json::json!(["one", "two"]), "{info}");
    assert!(info["restore"]["settings"].to_string().contains("echo.listen"), "{info}");
    assert!(info["restore"]["environment"].to_string().contains("COLOUR"), "{info}");
    kill_under(&mut supervisor, &dumped);
}

#[test]
fn the_out_of_memory_score_is_the_images() {
    let Some(host) = Host::for_test("the_out_of_memory_score_is_the_images") else { return };
    let score = |pid: &str| -> i32 {
        fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim().parse().unwrap()
    };
    let own = score("self");
    let dumped = Server::start(&host, &WARM).checkpoint(&host, "img");
    // Nobody needs a privilege to go up and down again.
    fs::write("/proc/self/oom_score_adj", (own + 77).min(1000).to_string()).unwrap();
    let restored = host.run(["restore", "img", "--engine", "instant", "--detach"]);
    fs::write("/proc/self/oom_score_adj", own.to_string()).unwrap();
    restored.worked();
    requests(dumped.echo, 1);
    assert_eq!(score(&dumped.pid.to_string()), own);
    end(dumped.pid);
}

/// What /proc tells of a process that does not depend on when and how it was restored.
fn portrait(pid: i32) -> BTreeMap<String, String> {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
    let mut portrait = BTreeMap::new();
    let wanted = [
        "Name",
        "Umask",
        "Uid",
        "Gid",
        "Groups",
        "Threads",
        "SigBlk",
        "SigIgn",
        "SigCgt",
        "CapInh",
        "CapPrm",
        "CapEff",
        "CapBnd",
        "CapAmb",
        "NoNewPrivs",
        "Seccomp",
    ];
    for line in read("status").lines() {
        let (key, value) = line.split_once(':').unwrap();
        if wanted.contains(&key) {
            portrait.insert(format!("status {key}"), value.trim().to_owned());
        }
    }
    for name in ["limits", "cmdline", "environ", "personality", "oom_score_adj"] {
        portrait.insert(name.to_owned(), read(name));
    }
    let auxv = fs::read(format!("/proc/{pid}/auxv")).unwrap();
    portrait.insert("auxv".to_owned(), format!("{auxv:?}"));
    for name in ["exe", "cwd", "root", "ns/net", "ns/mnt", "ns/pid"] {
        let target = fs::read_link(format!("/proc/{pid}/{name}")).unwrap();
        portrait.insert(name.to_owned(), target.display().to_string());
    }
    // Where files are mapped, what may be done there, and that it is the same file.
    for line in read("smaps").lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if fields[0].contains('-') {
            portrait.insert(format!("map {}", fields[0]), format!("{:?}", &fields[1..]));
        }
    }
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    for task in tasks {
        let tid = task.unwrap().file_name().to_str().unwrap().to_owned();
        portrait.insert(format!("name of {tid}"), read(&format!("task/{tid}/comm")));
        let status = read(&format!("task/{tid}/status"));
        let blocked = status.lines().find(|line| line.starts_with("SigBlk")).unwrap();
        portrait.insert(format!("mask of {tid}"), blocked.to_owned());
    }
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let number = entry.unwrap().file_name().to_str().unwrap().to_owned();
        let Ok(target) = fs::read_link(format!("/proc/{pid}/fd/{number}")) else { continue };
        // Sockets and pipes have new inodes.
        let target = target.display().to_string();
        let target = target.split(":[").next().unwrap().to_owned();
        let flags = read(&format!("fdinfo/{number}"));
        let flags = flags.lines().find(|line| line.starts_with("flags")).unwrap();
        portrait.insert(format!("descriptor {number}"), format!("{target} {flags}"));
    }
    portrait
}

#[test]
fn both_engines_restore_the_same_process() {
    let Some(host) = Host::for_test("both_engines_restore_the_same_process") else { return };
    let dumped = Server::start(&host, &WARM).checkpoint(&host, "img");
    let portraits = ["criu", "instant"].map(|engine| {
        let arguments = ["restore", "img", "--engine", engine, "--memory", "copy", "--wait-ready"];
        host.run(arguments).worked();
        // The threads that took part in the dump and the report end some time after the latter.
        until("the end of the threads of the cycle", || {
            let mut tasks = fs::read_dir(format!("/proc/{}/task", dumped.pid)).unwrap();
            !tasks.any(|task| {
                let name = fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default();
                name.starts_with("defrost-")
            })
        });
        let portrait = portrait(dumped.pid);
        end(dumped.pid);
        portrait
    });
    let [criu, instant] = &portraits;
    // What the process has mapped since it runs again is its own affair.
    let image = ImageDir::open(&dumped.image).unwrap();
    let memory = image.mm(u32::try_from(dumped.pid).unwrap()).unwrap();
    let dumped_at = |key: &str| {
        let start = key.strip_prefix("map ").and_then(|range| range.split('-').next());
        start.is_none_or(|start| memory.vmas.iter().any(|vma| format!("{:x}", vma.start) == start))
    };
    let keys: std::collections::BTreeSet<&String> = criu.keys().chain(instant.keys()).collect();
    let mut differences = Vec::new();
    for key in keys {
        if dumped_at(key) && criu.get(key) != instant.get(key) {
            differences.push(format!(
                "{key}:\n  criu    {:?}\n  instant {:?}",
                criu.get(key),
                instant.get(key)
            ));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
