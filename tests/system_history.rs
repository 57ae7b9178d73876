//! Tier 2: histories of checkpoints: stored by content, restored, damaged, and what comes back after a crash.

#![allow(clippy::unwrap_used, reason = "a test says by a panic what is wrong")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod support;

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use support::apart::nothing_is_left;
use support::client::{get, requests};
use support::host::{DEFROST, Done};
use support::process::{Running, gone};
use support::restored::Restored;
use support::server::{Dumped, NAME};
use support::{Host, Server, info, until, within};

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

/// The arguments of a server under test that is checkpointed as it goes.
fn kept<'a>(every: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let run = ["run", "--history", "history", "--checkpoint-every", every];
    let serve = ["--", DEFROST].into_iter().chain(Server::arguments(&WARM));
    run.into_iter().chain(more.iter().copied()).chain(serve).collect()
}

/// Starts it; what its supervisor says goes to the file `log`.
#[track_caller]
fn start(host: &Host, every: &str, more: &[&str]) -> Server {
    let mut command = host.defrost(kept(every, more));
    logged(host, &mut command);
    Server::started(&mut command)
}

fn logged(host: &Host, command: &mut Command) {
    command.stdout(Stdio::piped()).stderr(fs::File::create(host.path("log")).unwrap());
}

fn log(host: &Host) -> String {
    fs::read_to_string(host.path("log")).unwrap()
}

/// The number of the last checkpoint.
fn last(host: &Host) -> u64 {
    let done = host.run(["history", "history", "--json"]);
    let listed: Vec<Value> = serde_json::from_str(&done.out).unwrap_or_default();
    listed.last().and_then(|entry| entry["number"].as_u64()).unwrap_or(0)
}

/// Waits for more than these checkpoints.
#[track_caller]
fn beyond(host: &Host, number: u64) {
    assert!(within(Duration::from_secs(90), || last(host) > number), "no checkpoint: {}", log(host));
}

/// How many requests the server has answered as far as it remembers.
fn count(http: u16) -> Option<u64> {
    let metrics = try_get(http, "/metrics")?;
    let line = metrics.lines().find(|line| line.contains("http_requests_total{path=\"/healthz\""))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// The body of `GET PATH`, if somebody answers.
fn try_get(http: u16, path: &str) -> Option<String> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", http)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.starts_with("HTTP/1.1 200").then_some(answer)
}

#[test]
fn a_server_is_checkpointed_as_it_goes_and_goes_back_in_time() {
    let name = "a_server_is_checkpointed_as_it_goes_and_goes_back_in_time";
    let Some(host) = Host::for_test(name) else { return };
    let mut server = start(&host, "500ms", &["--keep", "3"]);
    beyond(&host, 4);
    assert_eq!(server.info()["generation"], 0, "it goes on");
    let error = host.run(["history", "add", "history", "img"]).failed(1);
    assert!(error.contains(&format!("in use by process {}", server.process.pid())), "{error}");
    let error = host.run(kept("1s", &[])).failed(1);
    assert!(error.contains("nothing was started"), "{error}");
    server.process.signal(Signal::SIGTERM);
    assert_eq!(server.process.ended().code(), Some(0));
    gone(server.pid);

    let listed = list(&host);
    assert_eq!(listed.len(), 3, "{listed:#?}");
    let written: u64 = listed.iter().map(|entry| entry["written_bytes"].as_u64().unwrap()).max().unwrap();
    assert!(written < 4 << 20 && listed[0]["pause_us"].as_u64() > Some(0), "{listed:#?}");
    assert!(listed[0]["took_us"].as_u64() > listed[0]["pause_us"].as_u64(), "{listed:#?}");
    host.run(["history", "history", "--check"]).worked();
    let before = format!("history@{}", listed[1]["number"]);
    assert_eq!(durable(&host), [false], "the last image, of which what is new is on disk");
    for image in ["history@-2", &before] {
        let mut restored = Running::start(&mut host.defrost(["restore", image]));
        requests(server.echo, 3);
        let now = info(server.http);
        assert_eq!((&now["generation"], &now["pid"]), (&1.into(), &server.pid.into()));
        assert_eq!(get(server.http, "/checksum").0, 200);
        // Mapped from the image in the history, which is to last as long as the new one then.
        host.run(["checkpoint", NAME, "later", "--leave-running"]).worked();
        assert!(durable(&host).contains(&true));
        host.run(["image", "rm", "later"]).worked();
        restored.signal(Signal::SIGTERM);
        assert_eq!(restored.ended().code(), Some(0));
        gone(server.pid);
    }
    let error = host.run(["restore", "history@99"]).failed(4);
    assert!(error.contains("@99 is not there: the history has 3 checkpoints"), "{error}");
}

/// Whether the images that lie in the history are on disk.
fn durable(host: &Host) -> Vec<bool> {
    let inside = fs::read_dir(host.path("history")).unwrap().map(|entry| entry.unwrap().path());
    let images = inside.filter(|path| path.to_str().unwrap().contains("/.checkout-"));
    let said =
        images.map(|image| host.run(["inspect".as_ref(), "--json".as_ref(), image.as_os_str()]).worked());
    said.map(|said| serde_json::from_str::<Value>(&said).unwrap()["durable"].as_bool().unwrap()).collect()
}

/// Kills it again and again for this long; gives by how much it went back each time.
#[track_caller]
fn killed_for(host: &Host, server: &Server, time: Duration, pause: Duration) -> Vec<Duration> {
    let (begun, mut back) = (Instant::now(), Vec::new());
    let mut seen: Vec<(Instant, u64)> = Vec::new();
    while begun.elapsed() < time {
        let life = Instant::now();
        while life.elapsed() < pause {
            let asked = Instant::now();
            if try_get(server.http, "/healthz").is_some()
                && let Some(count) = count(server.http)
            {
                seen.push((asked, count));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let killed = Instant::now();
        server.signal(Signal::SIGKILL);
        let mut now = 0;
        let came_back = within(Duration::from_secs(60), || {
            now = count(server.http).unwrap_or(0);
            now > 0
        });
        assert!(came_back, "it did not come back: {}", log(host));
        // When it was where it is now.
        let then = seen.iter().rev().find(|(_, count)| *count <= now).map_or(begun, |(then, _)| *then);
        back.push(killed - then);
        seen.retain(|(_, count)| *count <= now);
    }
    back
}

#[test]
fn killed_again_and_again_it_comes_back_from_its_last_checkpoint() {
    let name = "killed_again_and_again_it_comes_back_from_its_last_checkpoint";
    let Some(host) = Host::for_test(name) else { return };
    let mut server = start(&host, "500ms", &["--on-crash", "restore", "--keep", "3"]);
    try_get(server.http, "/healthz").unwrap();
    beyond(&host, 0);
    let seconds = std::env::var("DEFROST_TEST_KILLED_FOR").ok().and_then(|text| text.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(15));
    let back = killed_for(&host, &server, time, Duration::from_secs(4));
    eprintln!("{} kills, went back by {back:.1?}", back.len());
    assert!(back.len() >= 2, "{back:?}");
    // The interval, a checkpoint's own time, and what a busy host makes of it.
    assert!(back.iter().all(|back| *back < Duration::from_secs(10)), "{back:?}: {}", log(&host));
    assert!(info(server.http)["generation"].as_u64() >= Some(2));
    assert!(!log(&host).contains("starting cold"), "{}", log(&host));
    let newest = last(&host);
    beyond(&host, newest);
    server.process.signal(Signal::SIGTERM);
    assert_eq!(server.process.ended().code(), Some(0));
    gone(server.pid);

    // It was restored by mapping an earlier one, and what is stored of it is whole all the same.
    host.run(["history", "checkout", "history@-1", "out"]).worked();
    fs::remove_dir_all(host.path("history")).unwrap();
    let dumped = Dumped { pid: server.pid, echo: server.echo, http: server.http, image: host.path("out") };
    let plain = Restored::plain(&host, &dumped);
    assert_eq!(get(dumped.http, "/checksum").0, 200);
    plain.stop();
    gone(dumped.pid);
}

#[test]
fn a_full_disk_leaves_the_server_and_the_last_checkpoint() {
    let name = "a_full_disk_leaves_the_server_and_the_last_checkpoint";
    let Some(host) = Host::for_test(name) else { return };
    fs::create_dir(host.path("history")).unwrap();
    // Enough for one image and what is stored of it, and not for a second image.
    let mount = "mount -t tmpfs -o size=44m,mode=700 tmpfs history && exec \"$@\"";
    let mut command = host.defrost_by(&["unshare", "--mount", "sh", "-c", mount, "sh"], kept("300ms", &[]));
    logged(&host, &mut command);
    let mut server = Server::started(&mut command);
    until("three failures", || log(&host).contains("NO CHECKPOINT for 3 times in a row"));
    assert!(log(&host).contains("the server goes on, the last complete one: 1"), "{}", log(&host));
    assert!(log(&host).contains("No space left on device"), "{}", log(&host));
    requests(server.echo, 10);
    let within = ["nsenter", "--mount", "--target", &server.pid.to_string(), "--wd"];
    let checked = Done::of(&mut host.defrost_by(&within, ["history", "history", "--check"])).worked();
    assert!(checked.contains("generation 0") && checked.lines().count() == 1, "{checked}");
    server.process.signal(Signal::SIGTERM);
    assert_eq!(server.process.ended().code(), Some(0));
    gone(server.pid);
}

#[test]
fn what_is_no_crash_or_cannot_come_back_ends_the_supervisor() {
    let name = "what_is_no_crash_or_cannot_come_back_ends_the_supervisor";
    let Some(host) = Host::for_test(name) else { return };
    let run = |limit: &str, script: &str| {
        let options = ["--checkpoint-every", "1s", "--on-crash", "restore", "--crash-limit", limit];
        let all = ["run", "--history", "history"].into_iter().chain(options);
        host.run(all.chain(["--", "sh", "-c", script]))
    };
    assert_eq!(run("2", "echo x >> tries; exit 0").status, 0);
    assert_eq!(run("2", "echo x >> tries; kill -TERM $$").status, 128 + 15);
    assert_eq!(fs::read_to_string(host.path("tries")).unwrap(), "x\nx\n");
    let done = run("2", "echo x >> tries; exit 7");
    assert_eq!((done.status, fs::read_to_string(host.path("tries")).unwrap().len()), (7, 10), "{}", done.err);
    assert!(done.err.contains("the server has crashed: it exited with 7"), "{}", done.err);
    assert!(done.err.contains("starting cold") && done.err.contains("stays ended"), "{}", done.err);

    let wrong = |arguments: &[&str]| {
        let done = host.run(["run"].iter().chain(arguments).chain(&["--", "touch", "started"]));
        assert_eq!(done.status, 2, "{}", done.err);
        assert!(!host.path("started").exists());
        done.err
    };
    let error = wrong(&["--history", "h", "--checkpoint-every", "often"]);
    assert!(error.contains("write it as 10s"), "{error}");
    wrong(&["--history", "h", "--checkpoint-every", "10"]);
    wrong(&["--history", "h", "--checkpoint-every", "1s", "--keep", "0"]);
    wrong(&["--checkpoint-every", "1s"]);
    wrong(&["--on-crash", "restore"]);
    fs::write(host.path("file"), "x").unwrap();
    let error = host.run(["run", "--history", "file", "--checkpoint-every", "1s", "--", "true"]).failed(4);
    assert!(error.contains("is no history") && error.contains("nothing was started"), "{error}");
}

#[test]
fn serve_is_its_own_supervisor() {
    let Some(host) = Host::for_test("serve_is_its_own_supervisor") else { return };
    let more = ["--history", "history", "--checkpoint-every", "500ms", "--on-crash", "restore"];
    let mut command = host.defrost(Server::arguments(&more));
    logged(&host, &mut command);
    let mut server = Server::started(&mut command);
    assert_ne!(server.pid, server.process.pid());
    beyond(&host, 1);
    server.signal(Signal::SIGKILL);
    until("its return", || try_get(server.http, "/healthz").is_some());
    assert_eq!(info(server.http)["generation"], 1);
    beyond(&host, last(&host));
    host.run(["history", "prune", "history", "--keep", "1"]).failed(1);
    server.process.signal(Signal::SIGKILL);
    server.process.ended();
    nothing_is_left(&host);
    host.run(["history", "prune", "history", "--keep", "1"]).worked();
    assert_eq!(list(&host).len(), 1);
    host.run(["history", "history", "--check"]).worked();
    // What this host cannot open is not lost.
    let few = ["sh", "-c", "ulimit -n 4 && exec \"$@\"", "sh"];
    let checkout = ["history", "checkout", "history@-1", "out"];
    let error = Done::of(&mut host.defrost_by(&few, checkout)).failed(1);
    assert!(error.contains("Too many open files") && !error.contains("damaged"), "{error}");
}
