//! A small server to dump, and what a host must have for it.

use std::fs::Permissions;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use criu_driver::Criu;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, geteuid};

/// Answers `hello`, ends with 7 on `exit`, and holds the file of its argument open.
const SERVER: &str = r#"
import os, socket, sys
if "no-session" not in sys.argv:
    os.setsid()
files = [open(name, "r+") for name in sys.argv[1:] if name.startswith("/")]
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(16)
print("listening on port %d" % listener.getsockname()[1], flush=True)
null = os.open("/dev/null", os.O_RDWR)
os.dup2(null, 1)
os.close(null)
while True:
    client, _ = listener.accept()
    if client.recv(64) == b"exit":
        os._exit(7)
    try:
        client.sendall(b"hello")
    except OSError:
        pass
    client.close()
    del client
"#;

/// CRIU, or `None` after saying why the test cannot run here.
pub(crate) fn host() -> Option<Criu> {
    let reason = if !geteuid().is_root() {
        "not root".to_owned()
    } else if let Err(error) = Command::new("python3").arg("--version").stdout(Stdio::null()).status() {
        format!("python3: {error}")
    } else {
        match Criu::find(None) {
            Ok(criu) => return Some(criu),
            Err(error) => error.to_string(),
        }
    };
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    assert_ne!(
        std::env::var("DEFROST_REQUIRE_SYSTEM").as_deref(),
        Ok("1"),
        "{name} cannot run here: {reason}"
    );
    // Past the harness, which keeps the output of a passing test to itself.
    let _ = writeln!(io::stderr().lock(), "skipped {name}: {reason}");
    None
}

/// A server to be started.
pub(crate) struct Subject {
    command: Command,
}

impl Subject {
    pub(crate) fn new() -> Subject {
        let mut command = Command::new("python3");
        command.args(["-c", SERVER]);
        Subject { command }
    }

    pub(crate) fn argument(mut self, argument: &str) -> Subject {
        self.command.arg(argument);
        self
    }

    pub(crate) fn command(self) -> Command {
        self.command
    }

    /// Starts it, and waits until it listens.
    pub(crate) fn start(mut self) -> Running {
        self.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = self.command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let port = line.trim().strip_prefix("listening on port ").unwrap().parse().unwrap();
        // Its end says that standard output is on /dev/null.
        output.read_line(&mut line).unwrap();
        Running { child, port }
    }
}

/// A server that runs; killed on drop.
pub(crate) struct Running {
    child: Child,
    port: u16,
}

impl Running {
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn say(&self, word: &str) -> io::Result<String> {
        say(self.port, word)
    }

    /// After a dump that has killed it. Returns the port.
    pub(crate) fn reap_killed(mut self) -> u16 {
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(self.child.wait().unwrap().signal(), Some(Signal::SIGKILL as i32));
        self.port
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has been reaped if it was dumped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks the server; an empty answer is an error.
pub(crate) fn say(port: u16, word: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(word.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if answer.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(answer) }
}

/// How a child ended; waits for it.
pub(crate) fn status(pid: i32) -> WaitStatus {
    for _ in 0..2000 {
        if let Some(status) = try_status(pid) {
            return status;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{pid} does not end");
}

/// How a child ended, or `None`: it runs, or there is no such child.
pub(crate) fn try_status(pid: i32) -> Option<WaitStatus> {
    match waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG)) {
        Ok(WaitStatus::StillAlive) | Err(_) => None,
        Ok(status) => Some(status),
    }
}

/// Whether there is such a process that has not ended. One that init has not reaped yet has.
pub(crate) fn lives(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// The same CRIU by way of a wrapper that daemonizes it, as a self-dump needs: `setsid --fork` ends at once.
pub(crate) fn daemonizing(criu: &Criu, folder: &Path) -> Criu {
    let wrapper = folder.join("daemonizing-criu");
    std::fs::write(&wrapper, format!("#!/bin/sh\nexec setsid --fork '{}' \"$@\"\n", criu.path.display()))
        .unwrap();
    std::fs::set_permissions(&wrapper, Permissions::from_mode(0o755)).unwrap();
    let mut criu = criu.clone();
    criu.path = wrapper;
    criu
}
