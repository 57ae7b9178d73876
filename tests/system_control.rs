//! Tier 2: every spelling of `echo checkpoint ./img`, each followed by a plain restore.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test says by a panic what is wrong")]

mod support;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use support::client::requests;
use support::host::Done;
use support::process::{Running, end, gone};
use support::restored::Restored;
use support::server::{Dumped, NAME};
use support::{Host, PATIENCE, Server, until};

/// The server has been checkpointed by other means than the command: it comes back.
#[track_caller]
fn comes_back(host: &Host, mut server: Server) {
    server.process.ended();
    gone(server.pid);
    let dumped = Dumped { pid: server.pid, echo: server.echo, http: server.http, image: host.path("img") };
    assert!(dumped.image.join("defrost.manifest").exists(), "the image is complete when its end is told");
    let restored = Restored::plain(host, &dumped);
    requests(dumped.echo, 20);
    restored.stop();
}

/// A shell in the test's folder, as a user has it.
fn shell(host: &Host, script: &str) -> Command {
    let programs = Path::new(support::host::DEFROST).parent().unwrap();
    let path = format!("{}:/usr/bin:/bin", programs.display());
    let mut command = host.at_home(Command::new("sh"));
    command.args(["-c", script]).current_dir(host.folder()).env("PATH", path).stdin(Stdio::null());
    command
}

#[test]
fn a_line_to_ctl() {
    let Some(host) = Host::for_test("a_line_to_ctl") else { return };
    let server = Server::start(&host, &[]);
    let said = Done::of(&mut shell(&host, "echo checkpoint ./img | defrost ctl subject")).worked();
    assert!(said.contains("img is complete") && said.contains("the server has ended"), "{said}");
    comes_back(&host, server);
}

#[test]
fn doctors_are_no_obstacle_to_each_other_nor_to_a_checkpoint() {
    let name = "doctors_are_no_obstacle_to_each_other_nor_to_a_checkpoint";
    let Some(host) = Host::for_test(name) else { return };
    let server = Server::start(&host, &[]);
    let pid = server.pid.to_string();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..15 {
                    let said = host.run(["doctor", &pid]).worked();
                    assert!(said.starts_with("nothing blocks a checkpoint"), "{said}");
                }
            });
        }
    });
    let checkpointed = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            // These are cut off by the checkpoint, as any connection is.
            scope.spawn(|| {
                while !checkpointed.load(std::sync::atomic::Ordering::Relaxed) {
                    host.run(["doctor", &pid]);
                }
            });
        }
        for round in 0..3 {
            let done = host.run(["checkpoint", NAME, &format!("img{round}"), "--leave-running"]);
            if round == 2 || done.status != 0 {
                checkpointed.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            done.worked();
        }
    });
}

#[test]
fn the_doctor_names_what_blocks_and_what_to_do() {
    let Some(host) = Host::for_test("the_doctor_names_what_blocks_and_what_to_do") else { return };
    let mut server = Server::start(&host, &[]);
    requests(server.echo, 1);
    let said = host.run(["doctor", &server.pid.to_string()]).worked();
    assert!(said.starts_with("nothing blocks a checkpoint") && said.contains("adapters::rng"), "{said}");
    server.process.signal(Signal::SIGTERM);
    server.process.ended();

    // A process that knows nothing of all this, with a pipe to this one.
    let other = Running::start(Command::new("sleep").arg("100").stdin(Stdio::piped()).stdout(Stdio::null()));
    let pid = other.pid().to_string();
    let done = host.run(["doctor", &pid]);
    assert_eq!(done.status, 1, "{}", done.err);
    for part in [&format!("sleep (pid {pid}): "), "blocker: descriptor 0: ", "hint: ", "advice: "] {
        assert!(done.out.contains(part), "no {part}: {}", done.out);
    }
    let found: serde_json::Value = serde_json::from_str(&host.run(["doctor", &pid, "--json"]).out).unwrap();
    assert_eq!((&found["clear"], &found["blockers"][0]["fd"]), (&false.into(), &0.into()), "{found}");
    drop(other);
    assert!(host.run(["doctor", &pid]).failed(1).contains("does not exist"));
    assert_eq!(host.run(["doctor", "0"]).status, 2);
}

#[test]
fn a_line_to_the_socket_is_answered_after_the_server_has_ended() {
    let Some(host) = Host::for_test("a_line_to_the_socket_is_answered_after_the_server_has_ended") else {
        return;
    };
    let server = Server::start(&host, &[]);
    // What `echo checkpoint ./img | nc -U SOCKET` does: a relative folder is the server's.
    let mut socket = UnixStream::connect(host.path(format!("defrost/{NAME}.sock"))).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.write_all(b"checkpoint ./img\n").unwrap();
    socket.shutdown(std::net::Shutdown::Write).unwrap();
    let mut said = String::new();
    socket.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("ok: ") && said.contains("the server has ended"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    comes_back(&host, server);
}

#[test]
fn a_line_into_a_fifo() {
    let Some(host) = Host::for_test("a_line_into_a_fifo") else { return };
    let server = Server::start(&host, &["--control", "FIFO"]);
    Done::of(&mut shell(&host, "echo checkpoint ./img > FIFO")).worked();
    comes_back(&host, server);
}

#[test]
fn a_line_on_standard_input_is_answered_on_standard_output() {
    let Some(host) = Host::for_test("a_line_on_standard_input_is_answered_on_standard_output") else {
        return;
    };
    let mut command = host.defrost(Server::arguments(&["--control", "stdin"]));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = Running::start(&mut command);
    let mut input = process.child().stdin.take().unwrap();
    // A copy of what it says, beside what the test reads of it.
    let mut tee = Command::new("tee");
    let output = process.child().stdout.take().unwrap();
    let mut tee = Running::start(tee.arg(host.path("said")).stdin(output).stdout(Stdio::piped()));
    let copied = tee.child().stdout.take().unwrap();
    let server = Server::heard(process, copied);
    input.write_all(b"checkpoint ./img\n").unwrap();
    until("the answer", || std::fs::read_to_string(host.path("said")).unwrap().contains("img is complete"));
    comes_back(&host, server);
    tee.ended();
}

#[test]
fn a_signal_with_a_pattern() {
    let Some(host) = Host::for_test("a_signal_with_a_pattern") else { return };
    let server = Server::start(&host, &["--checkpoint-to", "img-%p-%g"]);
    let image = host.path(format!("img-{}-0", server.pid));
    server.signal(Signal::SIGUSR2);
    until("the image", || image.join("defrost.manifest").exists());
    std::fs::rename(image, host.path("img")).unwrap();
    comes_back(&host, server);
}

#[test]
fn the_example_server_is_told_literally() {
    let Some(host) = Host::for_test("the_example_server_is_told_literally") else { return };
    let example = Path::new(support::host::DEFROST).parent().unwrap().join("examples/echo");
    assert!(example.exists(), "build the examples first: cargo build --examples");
    let mut serve = host.at_home(Command::new(&example));
    serve.args(["serve", "127.0.0.1:0"]).current_dir(host.folder()).stdin(Stdio::null());
    let mut serve = Running::start(serve.stdout(std::fs::File::create(host.path("said")).unwrap()));
    let mut port = 0;
    until("its port", || {
        let said = std::fs::read_to_string(host.path("said")).unwrap();
        port = said.trim().strip_prefix("listening on port ").and_then(|port| port.parse().ok()).unwrap_or(0);
        port != 0
    });
    requests(port, 20);
    let pid = serve.pid();
    // `env` runs the program of that name, where a shell has a command of its own.
    let script = format!("PATH={}:$PATH; env echo checkpoint ./img", example.parent().unwrap().display());
    let mut literally = host.at_home(Command::new("sh"));
    literally.args(["-c", &script]).current_dir(host.folder());
    let said = Done::of(literally.stdin(Stdio::null())).worked();
    assert!(said.contains("img is complete"), "{said}");
    serve.ended();
    gone(pid);
    let _criu = host.plain_restore(&host.path("img"));
    requests(port, 20);
    end(pid);
}
