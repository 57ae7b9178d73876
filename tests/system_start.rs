//! Tier 2: however a server was started, a plain `criu restore -D` brings it back: from a terminal, with pipes,
//! files, sockets or nothing for its standard streams, as a job of a shell, and with what a careless parent left
//! open. What concerns PID namespaces is in `system_container`.

#![allow(clippy::unwrap_used, reason = "a test says by a panic what is wrong")]

mod support;

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use command_fds::{CommandFdExt, FdMapping};
use nix::sys::signal::Signal;
use support::client::{free_port, requests};
use support::process::{Running, gone};
use support::restored::Restored;
use support::server::{Dumped, NAME};
use support::terminal::Terminal;
use support::{Host, Server, until};

/// Requests, checkpoint, plain restore, requests, a graceful end.
#[track_caller]
fn goes_through(host: &Host, server: Server) -> Dumped {
    requests(server.echo, 20);
    let dumped = server.checkpoint(host, "img");
    Restored::plain(host, &dumped).stop();
    dumped
}

/// The arguments of a server whose output nobody can read: its ports are chosen here.
struct Silent {
    echo: u16,
    http: u16,
}

impl Silent {
    fn new() -> Self {
        Self { echo: free_port(), http: free_port() }
    }

    fn arguments(&self) -> Vec<String> {
        let mut arguments: Vec<String> = ["serve", "--name", NAME, "--drain", "1"].map(str::to_owned).into();
        arguments.extend([
            "--echo".to_owned(),
            self.echo.to_string(),
            "--http".to_owned(),
            self.http.to_string(),
        ]);
        arguments
    }

    #[track_caller]
    fn start(&self, command: &mut Command) -> Server {
        Server::at(Running::start(command), self.echo, self.http)
    }
}

/// Where each open descriptor of a process leads.
fn targets(pid: i32) -> Vec<(u32, String)> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().map(Result::unwrap);
    let read = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned();
        Some((entry.file_name().to_str()?.parse().ok()?, target))
    };
    entries.filter_map(read).collect()
}

// (a) A terminal.

/// Ways to be started on a terminal, each with what `echo $?` would show in a file `status` if there is a shell.
const ON_A_TERMINAL: [(&str, &[&str]); 3] = [
    ("as the session's leader", &["setsid", "--ctty"]),
    (
        "as a job of its own group",
        &["setsid", "--ctty", "bash", "-m", "-c", r#""$@"; echo $? > status"#, "bash"],
    ),
    ("in the shell's own group", &["setsid", "--ctty", "bash", "-c", r#""$@"; echo $? > status"#, "bash"]),
];

#[test]
fn a_server_in_the_foreground_of_a_terminal_goes_through() {
    let Some(host) = Host::for_test("a_server_in_the_foreground_of_a_terminal_goes_through") else { return };
    for (way, starter) in ON_A_TERMINAL {
        eprintln!("{way}");
        let mut terminal = Terminal::open();
        let mut command = host.defrost_by(starter, Server::arguments(&[]));
        let screen = terminal.attach(&mut command);
        goes_through(&host, Server::heard(Running::start(&mut command), screen));
    }
}

#[test]
fn ctrl_c_stops_it_gracefully_and_its_status_is_handed_on() {
    let Some(host) = Host::for_test("ctrl_c_stops_it_gracefully_and_its_status_is_handed_on") else { return };
    for (way, starter) in ON_A_TERMINAL {
        eprintln!("{way}");
        let mut terminal = Terminal::open();
        let mut command = host.defrost_by(starter, Server::arguments(&["--exit-with", "7"]));
        let screen = terminal.attach(&mut command);
        let mut server = Server::heard(Running::start(&mut command), screen);
        terminal.interrupt();
        let status = server.process.ended().code();
        let has_shell = starter.contains(&"bash");
        let handed_on =
            if has_shell { fs::read_to_string(host.path("status")).unwrap() } else { String::new() };
        assert_eq!(
            (status, handed_on.trim()),
            if has_shell { (Some(0), "7") } else { (Some(7), "") },
            "{way}"
        );
    }
}

#[test]
fn ctrl_c_stops_what_was_restored_on_another_terminal() {
    let Some(host) = Host::for_test("ctrl_c_stops_what_was_restored_on_another_terminal") else { return };
    let mut first = Terminal::open();
    let mut command = host.defrost_by(ON_A_TERMINAL[0].1, Server::arguments(&["--exit-with", "7"]));
    let screen = first.attach(&mut command);
    let dumped = Server::heard(Running::start(&mut command), screen).checkpoint(&host, "img");
    drop(first);

    let mut second = Terminal::open();
    let mut command = host.defrost_by(ON_A_TERMINAL[0].1, ["restore", "img"]);
    let _screen = second.attach(&mut command);
    let mut supervisor = Running::start(&mut command);
    requests(dumped.echo, 20);
    second.interrupt();
    assert_eq!(supervisor.ended().code(), Some(7));
    gone(dumped.pid);
}

// (b) Pipes.

#[test]
fn pipes_for_standard_streams_go_through() {
    let Some(host) = Host::for_test("pipes_for_standard_streams_go_through") else { return };
    let mut command = host.defrost(Server::arguments(&[]));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    goes_through(&host, Server::started(&mut command));
}

#[test]
fn pipes_that_nobody_holds_any_more_go_through() {
    let Some(host) = Host::for_test("pipes_that_nobody_holds_any_more_go_through") else { return };
    let silent = Silent::new();
    let mut command = host.defrost(silent.arguments());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Running::start(&mut command);
    let child = process.child();
    drop((child.stdin.take(), child.stdout.take(), child.stderr.take()));
    goes_through(&host, Server::at(process, silent.echo, silent.http));
}

// (c) Files.

/// A server that was started by `> out.log 2>&1`, dumped.
fn dumped_with_a_log(host: &Host) -> Dumped {
    let silent = Silent::new();
    let starter = ["sh", "-c", r#"exec "$@" > out.log 2>&1"#, "sh"];
    let server = silent.start(&mut host.defrost_by(&starter, silent.arguments()));
    requests(server.echo, 20);
    server.checkpoint(host, "img")
}

/// What may happen to a log in the gap.
type Fate = fn(&Path);

const FATES: [(&str, Fate); 4] = [
    ("grown", |log| {
        File::options().append(true).open(log).unwrap().write_all(b"a line of somebody's\n").unwrap()
    }),
    ("shrunk", |log| File::create(log).unwrap().write_all(b"short\n").unwrap()),
    ("rotated", |log| {
        fs::rename(log, log.with_extension("1")).unwrap();
        File::create(log).unwrap();
    }),
    ("removed", |log| fs::remove_file(log).unwrap()),
];

#[test]
fn a_file_for_output_may_change_in_the_gap() {
    let Some(host) = Host::for_test("a_file_for_output_may_change_in_the_gap") else { return };
    let dumped = dumped_with_a_log(&host);
    let log = host.path("out.log");
    let length = || fs::metadata(&log).map_or(0, |found| found.len());
    assert!(fs::read_to_string(&log).unwrap().starts_with("listening on port "));
    for (fate, befall) in FATES {
        eprintln!("{fate}");
        befall(&log);
        let before = fs::read(&log).unwrap_or_default();
        let restored = Restored::plain(&host, &dumped);
        until("a line in the log", || length() > before.len() as u64);
        restored.stop();
        assert!(fs::read(&log).unwrap().starts_with(&before), "{fate}: what was in the log is still there");
    }
}

// (d) Nothing.

#[test]
fn dev_null_for_standard_streams_goes_through() {
    let Some(host) = Host::for_test("dev_null_for_standard_streams_goes_through") else { return };
    let silent = Silent::new();
    let mut command = host.defrost(silent.arguments());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    goes_through(&host, silent.start(&mut command));
}

#[test]
fn closed_standard_streams_go_through() {
    let Some(host) = Host::for_test("closed_standard_streams_go_through") else { return };
    let silent = Silent::new();
    let starter = ["sh", "-c", r#"exec "$@" <&- >&- 2>&-"#, "sh"];
    goes_through(&host, silent.start(&mut host.defrost_by(&starter, silent.arguments())));
}

// (e) Sockets.

#[test]
fn a_socket_pair_for_standard_streams_goes_through() {
    let Some(host) = Host::for_test("a_socket_pair_for_standard_streams_goes_through") else { return };
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = on_a_socket(&host, theirs.into(), ours);
    goes_through(&host, server);
}

#[test]
fn a_connection_for_standard_streams_as_inetd_gives_it_goes_through() {
    let name = "a_connection_for_standard_streams_as_inetd_gives_it_goes_through";
    let Some(host) = Host::for_test(name) else { return };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    let server = on_a_socket(&host, theirs.into(), ours);
    goes_through(&host, server);
}

#[track_caller]
fn on_a_socket(host: &Host, theirs: OwnedFd, ours: impl std::io::Read + Send + 'static) -> Server {
    let mut command = host.defrost(Server::arguments(&[]));
    command.stdin(theirs.try_clone().unwrap()).stdout(theirs.try_clone().unwrap()).stderr(theirs);
    let process = Running::start(&mut command);
    // The command has copies of its own, which would keep the socket open.
    drop(command);
    Server::heard(process, ours)
}

// (f) A background job.

#[test]
fn background_jobs_go_through() {
    let Some(host) = Host::for_test("background_jobs_go_through") else { return };
    let ways: [(&str, &[&str]); 3] = [
        ("of a shell without job control", &["bash", "-c", r#""$@" & wait $!"#, "bash"]),
        ("of a shell with job control", &["bash", "-m", "-c", r#""$@" & wait $!"#, "bash"]),
        ("in a session of its own", &["setsid", "--fork", "--wait"]),
    ];
    for (way, starter) in ways {
        eprintln!("{way}");
        let mut command = host.defrost_by(starter, Server::arguments(&[]));
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        goes_through(&host, Server::started(&mut command));
    }
}

#[test]
fn a_background_job_whose_shell_has_ended_goes_through() {
    let Some(host) = Host::for_test("a_background_job_whose_shell_has_ended_goes_through") else { return };
    let mut command = host.defrost_by(&["sh", "-c", r#""$@" 2> /dev/null &"#, "sh"], Server::arguments(&[]));
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = Server::started(&mut command);
    assert_eq!(server.process.ended().code(), Some(0));
    goes_through(&host, server);
}

#[test]
fn a_server_under_defrost_run_goes_through() {
    let Some(host) = Host::for_test("a_server_under_defrost_run_goes_through") else { return };
    let mut command = host.defrost_by(&[support::host::DEFROST, "run", "--"], Server::arguments(&[]));
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    goes_through(&host, Server::started(&mut command));
}

// (h) What the parent left open.

#[test]
fn stray_descriptors_are_closed_at_the_start_and_not_in_the_image() {
    let name = "stray_descriptors_are_closed_at_the_start_and_not_in_the_image";
    let Some(host) = Host::for_test(name) else { return };
    let file = File::create(host.path("stray")).unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let (mut near, far) = UnixStream::pair().unwrap();
    let strays: [(i32, OwnedFd); 3] = [(57, file.into()), (200, writer.into()), (1000, far.into())];
    let mappings = strays.map(|(child_fd, parent_fd)| FdMapping { parent_fd, child_fd });
    // As a group's leader it has a supervisor, which must not hold them either.
    let mut command = host.defrost_by(&["setsid", "--ctty"], Server::arguments(&[]));
    let mut terminal = Terminal::open();
    let screen = terminal.attach(&mut command);
    command.fd_mappings(mappings.into()).unwrap();
    let process = Running::start(&mut command);
    drop(command);
    let server = Server::heard(process, screen);
    for end in [&mut reader as &mut dyn std::io::Read, &mut near] {
        assert_eq!(end.read(&mut [0]).unwrap(), 0, "the other end is closed while the server runs");
    }
    assert!(targets(server.pid).iter().all(|(number, _)| *number < 50), "{:?}", targets(server.pid));

    let dumped = server.checkpoint(&host, "img");
    let restored = Restored::plain(&host, &dumped);
    let known = ["/dev/null", "socket:", "anon_inode:[eventpoll]", "anon_inode:[eventfd]", "pipe:"];
    for (number, target) in targets(restored.pid) {
        assert!(known.iter().any(|known| target.starts_with(known)), "descriptor {number} is {target}");
        assert!(number < 50, "descriptor {number} is {target}");
    }
    restored.stop();
}

#[test]
fn sockets_of_socket_activation_stay_open_and_are_named_as_what_blocks() {
    let name = "sockets_of_socket_activation_stay_open_and_are_named_as_what_blocks";
    let Some(host) = Host::for_test(name) else { return };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let starter = ["sh", "-c", r#"export LISTEN_FDS=1 LISTEN_PID=$$; exec "$@""#, "sh"];
    let mut command = host.defrost_by(&starter, Server::arguments(&[]));
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    command.fd_mappings(vec![FdMapping { parent_fd: listener.into(), child_fd: 3 }]).unwrap();
    let server = Server::started(&mut command);
    drop(command);
    let third = targets(server.pid).into_iter().find(|(number, _)| *number == 3).unwrap().1;
    assert!(third.starts_with("socket:"), "{third}");
    // Nothing in this server has it registered, so it cannot be carried: that is said before anything is lost.
    let error = host.run(["checkpoint", NAME, "img"]).failed(1);
    for part in ["descriptor 3", &address, "inherited", "the server goes on", "hint: "] {
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
    requests(server.echo, 20);
    assert!(!host.path("img").exists());
}

#[test]
fn a_full_disk_for_what_is_told_ends_no_server() {
    let Some(host) = Host::for_test("a_full_disk_for_what_is_told_ends_no_server") else { return };
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let mut command = host.defrost(Server::arguments(&[]));
    let server = Server::started(command.stdout(Stdio::piped()).stderr(full()));
    let dumped = server.checkpoint(&host, "img");
    // Told in the foreground: by what it was restored, and when it is ready.
    let mut restore = host.defrost(["-v", "restore", "img"]);
    let mut restored = Running::start(restore.stdout(Stdio::null()).stderr(full()));
    until("readiness", || host.run(["status", NAME]).out.contains(" ready, generation 1"));
    requests(dumped.echo, 5);
    restored.signal(Signal::SIGTERM);
    assert_eq!(restored.ended().code(), Some(0));
    // And what fails keeps its status.
    assert_eq!(host.defrost(["status", NAME]).stderr(full()).status().unwrap().code(), Some(1));
    assert_eq!(host.defrost(["no such command"]).stderr(full()).status().unwrap().code(), Some(2));
}
