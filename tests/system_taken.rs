//! Tier 2: pids that are taken when nobody has looked: between the look and the restore, and after a crash.

#![allow(clippy::unwrap_used, reason = "a test says by a panic what is wrong")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod support;

use std::fs::{self, File};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use defrost::sys::process::in_own_session;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::apart::nothing_is_left;
use support::client::requests;
use support::host::{DEFROST, Done};
use support::process::{Running, children, end, gone, lives, state};
use support::server::NAME;
use support::{Host, Server, info, until, within};

/// How long a checkpoint or a return may take on a busy host.
const LONG: Duration = Duration::from_secs(90);

/// Has this pid kept by a session only, with neither a process nor a group of that number: such a one is not seen
/// beforehand, like one that is taken right after the look.
#[track_caller]
fn kept_by_a_session(host: &Host, pid: i32) {
    let mut command = host.at_home(Command::new("bash"));
    command.args(["-c", "set -m; read; sleep 1234 &"]).stdin(Stdio::piped());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut leader = Running::start_as(pid, in_own_session(&mut command));
    // From here on, its child gets no number that a thread of the image has.
    drop(leader.child().stdin.take());
    assert!(leader.ended().success());
    until("the end of the leader", || state(pid).is_none());
}

#[track_caller]
fn nothing_listens(port: u16) {
    until("the end of the server", || TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn a_pid_that_is_taken_after_the_look_leads_to_a_namespace_too() {
    let name = "a_pid_that_is_taken_after_the_look_leads_to_a_namespace_too";
    let Some(host) = Host::for_test(name) else { return };
    let dumped = Server::start(&host, &["--exit-with", "7"]).checkpoint(&host, "img");
    kept_by_a_session(&host, dumped.pid);
    let held = format!("pid {} is held by the session of process ", dumped.pid);
    let elsewhere = "restoring in a pid namespace of its own instead";
    for engine in ["instant", "criu", "auto"] {
        let arguments = ["-v", "restore", "img", "--engine", engine, "--wait-ready"];
        let mut done = Done::of(&mut host.defrost(arguments));
        // On a busy host others may have a thread id of the image for a while, which is seen beforehand.
        let by_others = |done: &Done| done.status == 0 && !done.err.contains(elsewhere);
        for _ in 0..20 {
            if !by_others(&done) {
                break;
            }
            end(done.worked().parse().unwrap());
            nothing_listens(dumped.http);
            std::thread::sleep(Duration::from_millis(500));
            done = Done::of(&mut host.defrost(arguments));
        }
        assert!(done.err.contains(&held) && done.err.contains(elsewhere), "{}", done.err);
        assert!(done.err.contains("File exists"), "the engine's own words: {}", done.err);
        let pid: i32 = done.worked().parse().unwrap();
        assert_eq!(info(dumped.http)["pid"], dumped.pid);
        kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
        nothing_listens(dumped.http);

        let mut supervisor = Running::start(&mut host.defrost(["restore", "img", "--engine", engine]));
        requests(dumped.echo, 1);
        supervisor.signal(Signal::SIGTERM);
        assert_eq!(supervisor.ended().code(), Some(7), "the server's own status");

        let never = ["restore", "img", "--engine", engine, "--pid-namespace", "never", "--detach"];
        let never = host.run(never).failed(3);
        assert!(never.contains(&held) && never.contains("--pid-namespace always"), "{never}");
    }
    let kept = fs::read_dir(host.folder()).unwrap().map(|entry| entry.unwrap().file_name());
    let kept: Vec<_> = kept.filter(|name| name.to_string_lossy().starts_with("defrost-restore-")).collect();
    assert!(kept.is_empty(), "no log is kept where the cause is known: {kept:?}");
}

#[test]
fn a_restore_that_is_asked_to_end_tries_nothing_else() {
    let Some(host) = Host::for_test("a_restore_that_is_asked_to_end_tries_nothing_else") else { return };
    let dumped = Server::start(&host, &[]).checkpoint(&host, "img");
    kept_by_a_session(&host, dumped.pid);
    let script = host.path("slow-criu");
    let slow =
        format!("case \"$*\" in *swrk*|*restore*) : >{}; sleep 1;; esac", host.path("asked").display());
    fs::write(&script, format!("#!/bin/sh\n{slow}\nexec {} \"$@\"\n", host.criu.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let said = || fs::read_to_string(host.path("said")).unwrap();
    let asked_to_end = |signal: Signal| {
        let words =
            ["-v", "restore", "img", "--engine", "criu", "--fallback", "echo started >cold", "--criu"];
        let mut command = host.defrost(words);
        let mut restore =
            Running::start(command.arg(&script).stderr(File::create(host.path("said")).unwrap()));
        until("its CRIU", || host.path("asked").exists());
        restore.signal(signal);
        let status = restore.ended().code();
        nothing_listens(dumped.http);
        fs::remove_file(host.path("asked")).unwrap();
        status
    };
    for (signal, status) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130)] {
        let mut ended = asked_to_end(signal);
        // On a busy host others may have a thread id of the image for a while, which is seen beforehand.
        for _ in 0..20 {
            if !said().contains("restoring in a pid namespace of its own: ") {
                break;
            }
            std::thread::sleep(Duration::from_millis(500));
            ended = asked_to_end(signal);
        }
        assert_eq!(ended, Some(status), "{}", said());
        assert!(!said().contains("instead") && !host.path("cold").exists(), "{}", said());
    }
}

/// The child of a process whose command line has this word.
fn child_with(word: &str, parent: i32) -> Option<i32> {
    let line = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    children(parent).into_iter().find(|pid| line(pid).split('\0').any(|part| part == word))
}

/// The server that a supervisor attends in a namespace.
fn contained(supervisor: i32) -> Option<i32> {
    let name = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let init = children(supervisor).into_iter().find(|pid| name(pid) == "defrost-init\n")?;
    child_with("serve", init)
}

/// A server that is checkpointed as it goes and comes back after a crash.
struct Kept {
    host: Host,
    server: Server,
}

impl Kept {
    #[track_caller]
    fn start(host: Host, engine: &str) -> Self {
        let run = [
            "run",
            "--history",
            "history",
            "--checkpoint-every",
            "500ms",
            "--on-crash",
            "restore",
            "--engine",
            engine,
        ];
        let serve = Server::arguments(&["--warm-mib", "4", "--exit-with", "7"]);
        let serve = ["--", DEFROST].into_iter().chain(serve);
        let mut command = host.defrost(run.into_iter().chain(serve));
        command.stdout(Stdio::piped()).stderr(File::create(host.path("log")).unwrap());
        Self { server: Server::started(&mut command), host }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.host.path("log")).unwrap()
    }

    /// The generation of which the last checkpoint is. One of the life before may be stored after that has ended.
    fn last(&self) -> Option<u64> {
        let said = self.host.run(["history", "history", "--json"]).out;
        let listed: Vec<serde_json::Value> = serde_json::from_str(&said).unwrap_or_default();
        listed.last().and_then(|entry| entry["generation"].as_u64())
    }

    #[track_caller]
    fn is_checkpointed(&self) {
        let now = info(self.server.http)["generation"].as_u64();
        assert!(within(LONG, || self.last() == now), "no checkpoint of {now:?}: {}", self.log());
    }

    /// How often it is known to have come back.
    fn returns(&self) -> usize {
        self.log().matches(" is back as process ").count()
    }

    /// Kills the server, which has this pid here, and does something when its pid is free, before it comes back.
    #[track_caller]
    fn crash<T>(&self, pid: i32, meanwhile: impl FnOnce() -> T) -> T {
        let (supervisor, before) = (self.server.process.pid(), self.returns());
        // The supervisor waits for the end of the process beside the server before it restores.
        let beside = child_with("beside", supervisor).expect("there is a process beside the server");
        kill(Pid::from_raw(beside), Signal::SIGSTOP).unwrap();
        until("its stop", || state(beside) == Some('T'));
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        gone(pid);
        let done = meanwhile();
        kill(Pid::from_raw(beside), Signal::SIGCONT).unwrap();
        // A connection says less: what was to complete a checkpoint may still hold the listener.
        assert!(within(LONG, || self.returns() > before), "it does not come back: {}", self.log());
        done
    }
}

#[test]
fn after_a_crash_it_comes_back_though_its_pid_is_taken() {
    let name = "after_a_crash_it_comes_back_though_its_pid_is_taken";
    let Some(host) = Host::for_test(name) else { return };
    let mut kept = Kept::start(host, "auto");
    let (pid, http, supervisor) = (kept.server.pid, kept.server.http, kept.server.process.pid());
    kept.is_checkpointed();
    let stranger = kept.crash(pid, || Running::start_as(pid, Command::new("sleep").arg("1234")));
    let own = info(http);
    assert_eq!((&own["pid"], own["generation"].as_u64() > Some(0)), (&pid.into(), true), "{own}");
    let log = kept.log();
    let held = format!("pid {pid} is held by process {pid} (sleep 1234)");
    assert!(log.contains(&held) && log.contains("in a pid namespace of its own"), "{log}");
    let outside = contained(supervisor).expect("it is in a namespace");
    assert!(log.contains(&format!("is back as process {outside} ")), "{log}");
    let seen = format!("pid {outside} ({pid} in its own namespace), ready");
    let status = kept.host.run(["status", NAME]).worked();
    assert!(status.contains(&seen), "{status}");
    let status = kept.host.run(["status", NAME, "--json"]).worked();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!((&status["pid"], &status["pid_inside"]), (&outside.into(), &pid.into()));

    // It is checkpointed there too, and comes back from that, again beside the other.
    kept.is_checkpointed();
    kept.crash(outside, || ());
    let again = info(http);
    assert!(again["generation"].as_u64() > own["generation"].as_u64(), "{again}: {}", kept.log());
    let outside = contained(supervisor).expect("it is in a namespace");
    assert_ne!(outside, pid);
    kept.is_checkpointed();

    // Where it was at first, once that is free.
    drop(stranger);
    gone(pid);
    kept.crash(outside, || ());
    assert_eq!(contained(supervisor), None, "{}", kept.log());
    assert!(children(supervisor).contains(&pid), "{}", kept.log());
    assert!(!kept.log().contains("starting cold"), "{}", kept.log());
    kept.server.process.signal(Signal::SIGTERM);
    assert_eq!(kept.server.process.ended().code(), Some(7), "the server's own status");
    gone(pid);
}

/// By this engine, and taken between the look and the restore.
#[track_caller]
fn ends_as_it_would_elsewhere(host: Host, engine: &str) {
    let mut kept = Kept::start(host, engine);
    let (pid, http, supervisor) = (kept.server.pid, kept.server.http, kept.server.process.pid());
    kept.is_checkpointed();
    kept.crash(pid, || kept_by_a_session(&kept.host, pid));
    assert_eq!(info(http)["pid"], pid);
    until("word of its return", || kept.log().contains(&format!("by engine {engine} ")));
    assert!(kept.log().contains("is held by the session of process "), "{}", kept.log());
    contained(supervisor).expect("it is in a namespace");
    kept.is_checkpointed();
    kept.server.process.signal(Signal::SIGTERM);
    assert_eq!(kept.server.process.ended().code(), Some(7), "the server's own status");
    assert!(TcpStream::connect(("127.0.0.1", http)).is_err(), "nothing is left");
}

#[test]
fn a_server_in_a_namespace_ends_as_it_would_elsewhere() {
    let Some(host) = Host::for_test("a_server_in_a_namespace_ends_as_it_would_elsewhere") else { return };
    ends_as_it_would_elsewhere(host, "instant");
}

#[test]
fn so_does_one_that_criu_restores() {
    let Some(host) = Host::for_test("so_does_one_that_criu_restores") else { return };
    ends_as_it_would_elsewhere(host, "criu");
}

#[test]
fn a_server_in_a_namespace_ends_with_its_supervisor() {
    let Some(host) = Host::for_test("a_server_in_a_namespace_ends_with_its_supervisor") else { return };
    let mut kept = Kept::start(host, "auto");
    kept.is_checkpointed();
    let pid = kept.server.pid;
    let stranger = kept.crash(pid, || Running::start_as(pid, Command::new("sleep").arg("1234")));
    contained(kept.server.process.pid()).expect("it is in a namespace");
    kept.server.process.signal(Signal::SIGKILL);
    kept.server.process.ended();
    nothing_is_left(&kept.host);
    assert!(lives(stranger.pid()), "it is left alone");
}
