//! Tier 2: a restore in a pid namespace of its own: where pids are taken, and where an ordinary user restores.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test says by a panic what is wrong")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod support;

use std::fs::{self, Permissions};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::apart::{namespaces, nothing_is_left};
use support::client::{free_port, get, requests};
use support::host::Done;
use support::process::{Running, children, lives, parent, state};
use support::restored::in_pid_namespace;
use support::server::{Dumped, NAME};
use support::{Host, Server, info, until};

/// An ordinary user, who has nothing here.
const USER: u32 = 65534;
/// The copy of the command that this user can reach, in the test's folder.
const PROGRAM: &str = "server";

fn dumped(host: &Host, arguments: &[&str]) -> Dumped {
    Server::start(host, arguments).checkpoint(host, "img")
}

/// Restores in the foreground, in a namespace of its own.
fn restored(host: &Host, more: &[&str]) -> Running {
    restored_from(host, "img", more)
}

fn restored_from(host: &Host, image: &str, more: &[&str]) -> Running {
    let arguments = ["restore", image, "--pid-namespace", "always"];
    Running::start(&mut host.defrost(arguments.iter().chain(more)))
}

/// The server in the namespace that a supervisor attends.
#[track_caller]
fn server_of(supervisor: &Running) -> i32 {
    let mut servers = Vec::new();
    until("one process beside process 1 of the namespace", || {
        let inits = children(supervisor.pid());
        servers = inits.iter().flat_map(|init| children(*init)).collect();
        servers.len() == 1
    });
    servers[0]
}

/// Waits until nothing is left of a restore. A process that is ending has no name any more while its sockets are
/// still open.
#[track_caller]
fn all_gone(host: &Host, dumped: &Dumped) {
    nothing_is_left(host);
    for port in [dumped.echo, dumped.http] {
        until("the end of all listeners", || TcpStream::connect(("127.0.0.1", port)).is_err());
    }
}

/// Kills a supervisor, and waits until all is gone that it had started.
#[track_caller]
fn kill_supervisor(host: &Host, dumped: &Dumped, mut supervisor: Running) {
    // So that it starts no more while we look.
    supervisor.signal(Signal::SIGSTOP);
    until("its stop", || state(supervisor.pid()) == Some('T'));
    let inits = children(supervisor.pid());
    supervisor.signal(Signal::SIGKILL);
    supervisor.ended();
    // Process 1 is dead only when all of its namespace is: pid_namespaces(7).
    until("the end of the namespace", || !inits.iter().any(|pid| lives(*pid)));
    all_gone(host, dumped);
}

#[test]
fn an_image_whose_pids_are_taken_gets_a_namespace_of_its_own() {
    let name = "an_image_whose_pids_are_taken_gets_a_namespace_of_its_own";
    let Some(host) = Host::for_test(name) else { return };
    let dumped = dumped(&host, &[]);
    let stranger = Running::start_as(dumped.pid, Command::new("sleep").arg("1234"));
    let held = format!("held by process {} (sleep 1234)", dumped.pid);
    for engine in ["instant", "criu"] {
        let done = Done::of(&mut host.defrost(["-v", "restore", "img", "--engine", engine, "--wait-ready"]));
        assert!(
            done.err.contains("in a pid namespace of its own: ") && done.err.contains(&held),
            "{}",
            done.err
        );
        let pid: i32 = done.worked().parse().unwrap();
        assert_ne!(pid, dumped.pid);
        requests(dumped.echo, 20);
        let info = info(dumped.http);
        assert_eq!((&info["pid"], &info["generation"]), (&dumped.pid.into(), &1.into()), "as it sees itself");
        let status = host.run(["status", NAME]).worked();
        assert!(status.contains("generation 1"), "{status}");

        // Case 12: a second one is restored beside the first, at other addresses.
        let again = host.run(["restore", "img", "--engine", engine, "--detach"]).failed(3);
        assert!(again.contains("in use by process") && again.contains(&held), "{again}");
        let port = free_port();
        let (echo, http) = ("echo.listen=127.0.0.1:0", format!("http.listen=:{port}"));
        let more = ["--engine", engine, "--wait-ready", "--set", echo, "--set", &http];
        let second: i32 = host.run(["restore", "img"].iter().chain(&more)).worked().parse().unwrap();
        assert_ne!(support::info(port)["instance"], info["instance"]);
        assert_eq!(namespaces(&host).len(), 2);
        for pid in [pid, second] {
            kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
        }
        all_gone(&host, &dumped);
    }
    let never = host.run(["restore", "img", "--pid-namespace", "never"]).failed(3);
    assert!(never.contains(&held) && never.contains("--pid-namespace always"), "{never}");
    assert!(lives(stranger.pid()), "it is left alone");
}

#[test]
fn status_and_signals_go_through_the_namespace() {
    let Some(host) = Host::for_test("status_and_signals_go_through_the_namespace") else { return };
    let dumped = dumped(&host, &["--exit-with", "7"]);
    for engine in ["instant", "criu"] {
        let mut supervisor = restored(&host, &["--engine", engine]);
        requests(dumped.echo, 1);
        // A shell's `$!` names the server.
        let status = host.run(["status", &supervisor.pid().to_string()]).worked();
        assert!(status.contains("generation 1"), "{status}");
        supervisor.signal(Signal::SIGTSTP);
        let server = server_of(&supervisor);
        until("the server's stop", || state(server) == Some('T'));
        until("the supervisor's stop", || state(supervisor.pid()) == Some('T'));
        supervisor.signal(Signal::SIGCONT);
        requests(dumped.echo, 1);
        supervisor.signal(Signal::SIGTERM);
        assert_eq!(supervisor.ended().code(), Some(7), "the server's own status");
        all_gone(&host, &dumped);

        let mut supervisor = restored(&host, &["--engine", engine]);
        requests(dumped.echo, 1);
        kill(Pid::from_raw(server_of(&supervisor)), Signal::SIGKILL).unwrap();
        assert_eq!(supervisor.ended().code(), Some(128 + 9));
        all_gone(&host, &dumped);
    }
}

#[test]
fn whoever_is_killed_nothing_is_left() {
    let Some(host) = Host::for_test("whoever_is_killed_nothing_is_left") else { return };
    let dumped = dumped(&host, &[]);
    let supervisor = restored(&host, &[]);
    requests(dumped.echo, 1);
    kill_supervisor(&host, &dumped, supervisor);

    // Process 1 of the namespace takes all of it along.
    let mut supervisor = restored(&host, &[]);
    requests(dumped.echo, 1);
    let inits = children(supervisor.pid());
    assert_eq!(inits.len(), 1);
    kill(Pid::from_raw(inits[0]), Signal::SIGKILL).unwrap();
    assert_eq!(supervisor.ended().code(), Some(128 + 9));
    all_gone(&host, &dumped);

    // The supervisor, at some moments of a restore.
    for pause in [0, 2, 5, 10, 15, 20, 30, 50] {
        let supervisor = restored(&host, &[]);
        // The moment is what is tested here: there is nothing to wait for.
        std::thread::sleep(std::time::Duration::from_millis(pause));
        kill_supervisor(&host, &dumped, supervisor);
    }
    let mut supervisor = restored(&host, &[]);
    requests(dumped.echo, 1);
    supervisor.signal(Signal::SIGTERM);
    assert_eq!(supervisor.ended().code(), Some(0), "all is as before");
    all_gone(&host, &dumped);
}

#[test]
fn a_detached_server_lives_on_in_its_namespace() {
    let Some(host) = Host::for_test("a_detached_server_lives_on_in_its_namespace") else { return };
    let dumped = dumped(&host, &[]);
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    for option in ["--detach", "--wait-ready"] {
        // Its output is read to the end: whoever stays behind has let go of it.
        let pid: i32 =
            host.run(["restore", "img", "--pid-namespace", "always", option]).worked().parse().unwrap();
        requests(dumped.echo, 20);
        assert_eq!(info(dumped.http)["pid"], dumped.pid);
        assert_eq!(
            fs::read_to_string(format!("/proc/{}/comm", parent(pid).unwrap())).unwrap(),
            "defrost-init\n"
        );
        assert_eq!(fs::read_to_string("/proc/self/mounts").unwrap(), mounts, "a mount has come out");
        kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
        all_gone(&host, &dumped);
    }
}

#[test]
fn a_checkpoint_in_a_namespace_is_an_image_like_any_other() {
    let Some(host) = Host::for_test("a_checkpoint_in_a_namespace_is_an_image_like_any_other") else { return };
    let dumped = dumped(&host, &["--warm-mib", "4"]);
    // What was restored by mapping an image needs that one for its own.
    for (from, to, generation, memory) in [("img", "img2", 2, "copy"), ("img2", "img3", 3, "map")] {
        let mut supervisor = restored_from(&host, from, &["--engine", "instant", "--memory", memory]);
        requests(dumped.echo, 1);
        let said = host.run(["checkpoint", NAME, to]).worked();
        assert!(said.contains("is complete"), "{said}");
        assert_eq!(supervisor.ended().code(), Some(0), "a checkpoint is no failure");
        all_gone(&host, &dumped);

        // By a plain CRIU too. Threads that began in the namespace may have ids that are taken outside.
        let mut namespace = Running::start(&mut in_pid_namespace(&host, &host.path(to)));
        requests(dumped.echo, 1);
        assert_eq!(info(dumped.http)["generation"], generation);
        assert_eq!(get(dumped.http, "/checksum").0, 200);
        namespace.signal(Signal::SIGKILL);
        namespace.ended();
        all_gone(&host, &dumped);
    }
    let pid: i32 = host.run(["restore", "img3", "--wait-ready"]).worked().parse().unwrap();
    assert_eq!(info(dumped.http)["generation"], 3);
    kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    all_gone(&host, &dumped);
}

#[test]
fn a_failure_in_the_namespace_is_told_outside() {
    let Some(host) = Host::for_test("a_failure_in_the_namespace_is_told_outside") else { return };
    dumped(&host, &[]);
    let in_the_way = host.path("in-the-way");
    fs::write(&in_the_way, "").unwrap();
    let setting = format!("control.listen={}", in_the_way.display());
    for (mode, told) in [("--wait-ready", "the restored process is not ready"), ("-v", "not ready")] {
        let arguments = ["restore", "img", "--pid-namespace", "always", "--set", &setting, mode];
        let failed = host.run(arguments).failed(1);
        assert!(failed.contains(told) && failed.contains("control"), "{failed}");
        nothing_is_left(&host);
    }
    let cold = ["--fallback", "echo cold; exit 9"];
    let arguments = ["restore", "img", "--pid-namespace", "always", "--set", &setting, "--wait-ready"];
    let done = Done::of(&mut host.defrost(arguments.iter().chain(&cold)));
    assert_eq!((done.status, done.out.as_str()), (9, "cold\n"), "{}", done.err);
}

/// The command as an ordinary user, with a runtime folder of that user's.
fn by_user(host: &Host, arguments: &[&str]) -> Command {
    let id = USER.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]).arg(host.path(PROGRAM)).args(arguments);
    let mut command = host.at_home(command);
    command.env("XDG_RUNTIME_DIR", host.path("run")).env("TMPDIR", host.path("run"));
    command
}

/// A dumped server whose program the ordinary user can reach, wherever the tests were built.
fn dumped_where_users_are(host: &Host, arguments: &[&str]) -> Dumped {
    fs::set_permissions(host.folder(), Permissions::from_mode(0o755)).unwrap();
    let mut command = host.at_home(Command::new(host.deploy(PROGRAM)));
    command.args(Server::arguments(arguments)).stdout(Stdio::piped()).stderr(Stdio::null());
    Server::started(&mut command).checkpoint(host, "img")
}

/// Gives an image to the ordinary user, who has a runtime folder then.
#[track_caller]
fn given_to_user(host: &Host, image: &Path) {
    let run = host.path("run");
    fs::create_dir(&run).unwrap();
    let all = fs::read_dir(image).unwrap().map(|entry| entry.unwrap().path());
    for path in all.chain([image.to_owned(), run]) {
        chown(path, Some(USER), Some(USER)).unwrap();
    }
}

/// Why an ordinary user cannot make namespaces here, if so.
fn no_namespaces_for_users() -> Option<String> {
    let id = USER.to_string();
    let starter = ["--reuid", &id, "--regid", &id, "--clear-groups"];
    let mut command = Command::new("setpriv");
    command.args(starter).args(["unshare", "--user", "--map-root-user", "--pid", "--mount", "--fork"]);
    let output = command.args(["--mount-proc", "true"]).output();
    match output {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Some(error.to_string()),
    }
}

#[test]
fn an_ordinary_user_restores() {
    let name = "an_ordinary_user_restores";
    let Some(host) = Host::for_test(name) else { return };
    if let Some(reason) = no_namespaces_for_users() {
        support::host::skip(name, &reason);
        return;
    }
    let dumped = dumped_where_users_are(&host, &["--warm-mib", "4", "--exit-with", "7"]);
    let not_his = Done::of(&mut by_user(&host, &["restore", "img"]));
    assert_ne!(not_his.status, 0, "{}", not_his.err);
    given_to_user(&host, &dumped.image);

    for memory in ["map", "copy"] {
        let more = ["restore", "img", "--engine", "instant", "--memory", memory];
        let mut supervisor = Running::start(&mut by_user(&host, &more));
        requests(dumped.echo, 20);
        let info = info(dumped.http);
        assert_eq!((&info["pid"], &info["generation"]), (&dumped.pid.into(), &1.into()));
        assert_eq!(get(dumped.http, "/checksum").0, 200);
        let status = Done::of(&mut by_user(&host, &["status", NAME])).worked();
        assert!(status.contains(info["instance"].as_str().unwrap()), "{status}");
        let text = fs::read_to_string(format!("/proc/{}/status", server_of(&supervisor))).unwrap();
        assert!(text.contains(&format!("Uid:\t{USER}\t{USER}\t{USER}\t{USER}\n")), "{text}");
        supervisor.signal(Signal::SIGTERM);
        assert_eq!(supervisor.ended().code(), Some(7), "the server's own status");
        users_processes_are_gone(&host, &dumped);

        let mut supervisor = Running::start(&mut by_user(&host, &more));
        requests(dumped.echo, 1);
        supervisor.signal(Signal::SIGKILL);
        supervisor.ended();
        users_processes_are_gone(&host, &dumped);
    }
    let pid = Done::of(&mut by_user(&host, &["restore", "img", "--wait-ready"])).worked();
    requests(dumped.echo, 1);
    kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGTERM).unwrap();
    users_processes_are_gone(&host, &dumped);
    let said = Done::of(&mut by_user(&host, &["restore", "img", "--clones", "3", "--detach"])).worked();
    assert_eq!(said.lines().count(), 3, "{said}");
    for line in said.lines() {
        let pid = line.split_once(": pid ").unwrap().1.split(',').next().unwrap();
        kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGTERM).unwrap();
    }
    users_processes_are_gone(&host, &dumped);
    let refused = Done::of(&mut by_user(
        &host,
        &["restore", "img", "--engine", "instant", "--pid-namespace", "never", "--detach"],
    ));
    let refused = refused.failed(1);
    assert!(
        refused.contains("cap_checkpoint_restore") && refused.contains("--pid-namespace always"),
        "{refused}"
    );
}

/// Waits until nothing that the ordinary user started here is left; those have another runtime folder.
#[track_caller]
fn users_processes_are_gone(host: &Host, dumped: &Dumped) {
    let theirs = support::leftovers::Leftovers::of(&host.path("run"));
    until("the end of the user's processes", || theirs.pids().into_iter().all(|pid| !lives(pid)));
    all_gone(host, dumped);
}
