//! Tier 2: what speaks against a restore is found before anything is started: a damaged image, one that does not
//! fit, a host that cannot, numbers and ports that are taken. All of it at once, and nothing is left running.

#![allow(clippy::unwrap_used, reason = "a test says by a panic what is wrong")]

mod support;

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use support::client::requests;
use support::host::Done;
use support::process::{Running, children, end, gone, lives, state};
use support::restored::{Restored, nothing_runs};
use support::server::{Dumped, NAME};
use support::{Host, PATIENCE, Server, info, until, within};

/// Exit status: this host cannot.
const HOST: i32 = 3;
/// Exit status: the image is damaged, or does not fit.
const IMAGE: i32 = 4;

const MANIFEST: &str = "defrost.manifest";

/// Sees that a restore of this image is refused with this status and by these words, and that nothing runs.
#[track_caller]
fn refused(host: &Host, dumped: &Dumped, more: &[&str], status: i32, words: &[&str]) -> String {
    let arguments = [&["restore", dumped.image.to_str().unwrap()], more].concat();
    let error = host.run(arguments).failed(status);
    for word in words.iter().chain(&["hint: "]) {
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
    nothing_runs(dumped);
    error
}

/// The files of an image, with their contents.
fn files(image: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let paths = fs::read_dir(image).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

#[test]
fn each_file_that_is_cut_or_missing_is_named() {
    let Some(host) = Host::for_test("each_file_that_is_cut_or_missing_is_named") else { return };
    let dumped = Server::start(&host, &[]).checkpoint(&host, "img");
    let listed: Vec<String> = files(&dumped.image).iter().map(|(path, _)| name(path).to_owned()).collect();
    for kind in ["core-", "mm-", "pagemap-", "pages-", "files.img", "inventory.img", "pstree.img", MANIFEST] {
        assert!(listed.iter().any(|name| name.starts_with(kind)), "{kind} is not among {listed:?}");
    }
    for (path, contents) in files(&dumped.image) {
        // CRIU's logs are no part of the image.
        if name(&path).ends_with(".log") || contents.is_empty() {
            continue;
        }
        for length in [0, contents.len() / 2, contents.len() - 1] {
            fs::write(&path, &contents[..length]).unwrap();
            refused(&host, &dumped, &[], IMAGE, &[name(&path)]);
        }
        fs::remove_file(&path).unwrap();
        let missing =
            if name(&path) == MANIFEST { "a CRIU image without a defrost manifest" } else { "is missing" };
        refused(&host, &dumped, &[], IMAGE, &[missing]);
        fs::write(&path, &contents).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    }
    Restored::plain(&host, &dumped).stop();
}

#[test]
fn a_flipped_byte_is_found() {
    let Some(host) = Host::for_test("a_flipped_byte_is_found") else { return };
    let dumped = Server::start(&host, &[]).checkpoint(&host, "img");
    for (path, contents) in files(&dumped.image) {
        if name(&path).ends_with(".log") || contents.is_empty() {
            continue;
        }
        let at = contents.len() / 2;
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[contents[at] ^ 0x10], at as u64).unwrap();
        // Memory pages are gigabytes: they are read on request only.
        let full: &[&str] = if name(&path).starts_with("pages-") { &["--verify", "full"] } else { &[] };
        refused(&host, &dumped, full, IMAGE, &[name(&path)]);
        file.write_all_at(&contents[at..=at], at as u64).unwrap();
    }
    assert_eq!(host.run(["restore", "img", "--engine", "simulated", "--verify", "full"]).status, 0);
}

#[test]
fn several_damages_are_told_at_once() {
    let Some(host) = Host::for_test("several_damages_are_told_at_once") else { return };
    let dumped = Server::start(&host, &[]).checkpoint(&host, "img");
    let _taken = std::net::TcpListener::bind(("127.0.0.1", dumped.echo)).unwrap();
    File::create(dumped.image.join("files.img")).unwrap();
    fs::remove_file(dumped.image.join("pstree.img")).unwrap();
    fs::set_permissions(dumped.image.join("inventory.img"), Permissions::from_mode(0o666)).unwrap();
    let error = host.run(["restore", "img"]).failed(IMAGE);
    for word in
        ["files.img has 0 bytes", "pstree.img is missing", "inventory.img can be changed by others", "in use"]
    {
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
    assert!(!lives(dumped.pid));
}

#[test]
fn a_manifest_of_a_newer_defrost_says_so() {
    let Some(host) = Host::for_test("a_manifest_of_a_newer_defrost_says_so") else { return };
    let dumped = Server::start(&host, &[]).checkpoint(&host, "img");
    let path = dumped.image.join(MANIFEST);
    let mut bytes = fs::read(&path).unwrap();
    // The header: magic (8 bytes), version, length, CRC-32 of those and of the body.
    let version = u32::from_le_bytes(bytes[8..12].try_into().unwrap()) + 1;
    bytes[8..12].copy_from_slice(&version.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    refused(&host, &dumped, &[], IMAGE, &["checksum"]);
    let mut crc = crc32fast::Hasher::new();
    crc.update(&bytes[..16]);
    crc.update(&bytes[20..]);
    bytes[16..20].copy_from_slice(&crc.finalize().to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    refused(&host, &dumped, &[], IMAGE, &["newer defrost", &format!("format {version}")]);
}

#[test]
fn an_image_that_others_could_have_written_is_refused() {
    let Some(host) = Host::for_test("an_image_that_others_could_have_written_is_refused") else { return };
    let dumped = Server::start(&host, &[]).checkpoint(&host, "img");
    let mode = |mode| fs::set_permissions(&dumped.image, Permissions::from_mode(mode)).unwrap();
    for open in [0o777, 0o770, 0o1777] {
        mode(open);
        refused(&host, &dumped, &[], IMAGE, &["can be changed by others", &format!("{open:04o}")]);
    }
    mode(0o700);
    for place in [dumped.image.clone(), dumped.image.join(MANIFEST), dumped.image.join("files.img")] {
        chown(&place, Some(65534), None).unwrap();
        refused(&host, &dumped, &[], IMAGE, &["can be changed by others", "owner 65534"]);
        chown(&place, Some(0), None).unwrap();
    }
    Restored::plain(&host, &dumped).stop();
}

#[test]
fn a_deploy_between_dump_and_restore_is_told_with_all_that_does_not_fit() {
    let name = "a_deploy_between_dump_and_restore_is_told_with_all_that_does_not_fit";
    let Some(host) = Host::for_test(name) else { return };
    let program = host.deploy("server");
    fs::create_dir(host.path("data")).unwrap();
    let mut command = host.at_home(Command::new(&program));
    command.args(Server::arguments(&[])).current_dir(host.path("data"));
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let dumped = Server::started(&mut command).checkpoint(&host, "img");

    fs::rename(&program, host.path("old")).unwrap();
    fs::copy("/bin/true", &program).unwrap();
    fs::set_permissions(host.path("data"), Permissions::from_mode(0o500)).unwrap();
    let sizes = [host.path("old"), program.clone()].map(|path| fs::metadata(path).unwrap().len().to_string());
    let words = [
        program.to_str().unwrap(),
        &sizes[0],
        &sizes[1],
        "build-id",
        host.path("data").to_str().unwrap(),
        "mode",
    ]
    .map(str::to_owned);
    refused(&host, &dumped, &[], IMAGE, &words.each_ref().map(String::as_str));
    fs::remove_file(&program).unwrap();
    refused(&host, &dumped, &[], IMAGE, &[&format!("program {} is gone", program.display())]);

    fs::rename(host.path("old"), &program).unwrap();
    fs::set_permissions(host.path("data"), Permissions::from_mode(0o755)).unwrap();
    Restored::plain(&host, &dumped).stop();
}

// What passes: ports and pids that are taken.

#[test]
fn a_port_that_is_taken_is_told_with_its_holder() {
    let Some(host) = Host::for_test("a_port_that_is_taken_is_told_with_its_holder") else { return };
    let dumped = Server::start(&host, &[]).checkpoint(&host, "img");
    let taken = std::net::TcpListener::bind(("127.0.0.1", dumped.echo)).unwrap();
    let error = host.run(["restore", "img"]).failed(HOST);
    let address = format!("address 127.0.0.1:{} of resource echo", dumped.echo);
    for word in [address.as_str(), &format!("process {} (", std::process::id()), "hint: "] {
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
    assert!(!lives(dumped.pid));
    drop(taken);
    Restored::plain(&host, &dumped).stop();
}

#[test]
fn the_original_that_still_runs_is_known_and_left_alone() {
    let Some(host) = Host::for_test("the_original_that_still_runs_is_known_and_left_alone") else { return };
    let server = Server::start(&host, &[]);
    host.run(["checkpoint", NAME, "img", "--leave-running"]).worked();
    let error = host.run(["restore", "img"]).failed(HOST);
    let holder = format!("the original, which still runs: process {}", server.pid);
    for word in [holder.as_str(), "PID namespace", "hint: "] {
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
    requests(server.echo, 20);
    assert_eq!(server.info()["generation"], 0);
}

#[test]
fn a_second_restore_is_refused_and_names_the_first() {
    let Some(host) = Host::for_test("a_second_restore_is_refused_and_names_the_first") else { return };
    let dumped = Server::start(&host, &[]).checkpoint(&host, "img");
    let mut first = Running::start(&mut host.defrost(["restore", "img"]));
    requests(dumped.echo, 1);
    let instance = info(dumped.http)["instance"].clone();
    let error = host.run(["restore", "img"]).failed(HOST);
    assert!(error.contains(&format!("process {} (", dumped.pid)), "{error}");
    assert!(error.contains("perhaps restored from this image"), "{error}");
    requests(dumped.echo, 20);
    assert_eq!(info(dumped.http)["instance"], instance);
    first.signal(Signal::SIGTERM);
    assert_eq!(first.ended().code(), Some(0));
}

#[test]
fn a_pid_held_by_a_stranger_is_told_with_its_command_line() {
    let Some(host) = Host::for_test("a_pid_held_by_a_stranger_is_told_with_its_command_line") else { return };
    let dumped = Server::start(&host, &[]).checkpoint(&host, "img");
    let stranger = Running::start_as(dumped.pid, Command::new("sleep").arg("1234"));
    let error = host.run(["restore", "img", "--pid-namespace", "never"]).failed(HOST);
    let held = format!("held by process {} (sleep 1234)", dumped.pid);
    assert!(error.contains(&held) && error.contains("hint: "), "{error}");
    assert!(lives(stranger.pid()), "it is left alone");
    drop(stranger);
    Restored::plain(&host, &dumped).stop();
}

#[test]
fn a_pid_held_by_a_zombie_is_waited_for() {
    let Some(host) = Host::for_test("a_pid_held_by_a_zombie_is_waited_for") else { return };
    let dumped = Server::start(&host, &[]).checkpoint(&host, "img");
    let zombie = Running::start_as(dumped.pid, Command::new("sleep").arg("1234"));
    zombie.signal(Signal::SIGKILL);
    until("the death of a process", || state(dumped.pid) == Some('Z'));
    let error = host.run(["restore", "img", "--pid-namespace", "never"]).failed(HOST);
    let own = std::process::id();
    let held =
        format!("held by dead process {} ([sleep]), which its parent {own} has not collected", dumped.pid);
    assert!(error.contains(&held) && error.contains("hint: "), "{error}");

    // It is collected while the next one waits.
    let mut supervisor = Running::start(&mut host.defrost(["restore", "img", "--pid-namespace", "never"]));
    let collected = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        drop(zombie);
    });
    requests(dumped.echo, 20);
    collected.join().unwrap();
    supervisor.signal(Signal::SIGTERM);
    assert_eq!(supervisor.ended().code(), Some(0));
}

// The host.

/// A program that says this and ends with this status.
fn script(host: &Host, text: &str) -> String {
    let path = host.path("fake-criu");
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_criu_that_will_not_do_is_told() {
    let Some(host) = Host::for_test("a_criu_that_will_not_do_is_told") else { return };
    let dumped = Server::start(&host, &[]).checkpoint(&host, "img");
    refused(&host, &dumped, &["--engine", "criu", "--criu", "/no/such/criu"], HOST, &["/no/such/criu"]);
    let old = script(&host, "echo Version: 3.17.1");
    refused(&host, &dumped, &["--engine", "criu", "--criu", &old], HOST, &[&old, "3.17.1"]);
    let broken = script(&host, "exit 3");
    refused(&host, &dumped, &["--engine", "criu", "--criu", &broken], HOST, &[&broken]);

    let mut command = host.defrost(["restore", "img", "--engine", "criu"]);
    command
        .env_remove("DEFROST_CRIU")
        .env("HOME", "/nowhere")
        .env("XDG_DATA_HOME", "/nowhere")
        .env("PATH", "/nowhere");
    let error = Done::of(&mut command).failed(HOST);
    assert!(error.contains("hint: "), "{error}");
    nothing_runs(&dumped);

    // A checkpoint that finds none leaves the server alone.
    let mut command = host.defrost(Server::arguments(&[]));
    command.env("DEFROST_CRIU", "/no/such/criu").stdout(Stdio::piped()).stderr(Stdio::null());
    let server = Server::started(&mut command);
    let error = host.run(["checkpoint", NAME, "other"]).failed(1);
    assert!(error.contains("/no/such/criu") && error.contains("the server goes on"), "{error}");
    requests(server.echo, 20);
}

#[test]
fn a_restore_without_the_privileges_is_refused() {
    let Some(host) = Host::for_test("a_restore_without_the_privileges_is_refused") else { return };
    // Where another user can reach it, wherever the tests were built.
    let program = host.deploy("server");
    let mut command = host.at_home(Command::new(&program));
    command.args(Server::arguments(&[])).stdout(Stdio::piped()).stderr(Stdio::null());
    let dumped = Server::started(&mut command).checkpoint(&host, "img");
    let few = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"];
    let error = Done::of(&mut host.defrost_by(&few, ["restore", "img", "--engine", "criu"])).failed(HOST);
    assert!(error.contains("restore lacks capabilities") && error.contains("cap_sys_ptrace"), "{error}");
    nothing_runs(&dumped);

    // As somebody who may read everything, and has an image of his own.
    fs::set_permissions(host.folder(), Permissions::from_mode(0o755)).unwrap();
    Done::of(Command::new("chown").args(["-R", "65534:65534"]).arg(&dumped.image)).worked();
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(program)
        .args(["restore", "img", "--engine", "criu"]);
    let error = Done::of(&mut host.at_home(command)).failed(HOST);
    assert!(error.contains("hint: "), "{error}");
    nothing_runs(&dumped);
}

#[test]
fn a_criu_that_is_killed_during_a_restore_leaves_nothing() {
    let Some(host) = Host::for_test("a_criu_that_is_killed_during_a_restore_leaves_nothing") else { return };
    let dumped = Server::start(&host, &["--warm-mib", "48"]).checkpoint(&host, "img");
    for after_ms in [0, 5, 10, 20, 40] {
        let mut supervisor =
            Running::start(host.defrost(["restore", "img", "--engine", "criu"]).stderr(Stdio::piped()));
        let mut criu = None;
        until("the start of CRIU", || {
            criu = children(supervisor.pid()).into_iter().find(|pid| *pid != dumped.pid);
            criu.is_some()
        });
        // The moment is what is tested here: there is nothing to wait for.
        std::thread::sleep(Duration::from_millis(after_ms));
        end(criu.unwrap());
        let mut ended = None;
        let served = || std::net::TcpStream::connect(("127.0.0.1", dumped.echo)).is_ok();
        assert!(within(PATIENCE, || {
            ended = supervisor.has_ended();
            ended.is_some() || served()
        }));
        eprintln!("after {after_ms} ms: {ended:?}");
        match ended {
            Some(status) => {
                assert_eq!(status.code(), Some(1));
                until("the end of what was half restored", || state(dumped.pid).is_none());
                nothing_runs(&dumped);
            }
            // It was done already.
            None => {
                supervisor.signal(Signal::SIGTERM);
                assert_eq!(supervisor.ended().code(), Some(0));
                gone(dumped.pid);
            }
        }
    }
    Restored::plain(&host, &dumped).stop();
}
