//! A server under test: `defrost serve` with an echo and an HTTP port of its own.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use super::process::{Running, children, gone, parent};
use super::{Host, client};

/// A server that runs, with the ports that it printed.
pub struct Server {
    /// What was started: the server, or its supervisor.
    pub process: Running,
    /// The server itself.
    pub pid: i32,
    pub echo: u16,
    pub http: u16,
}

/// The name under which it is asked for.
pub const NAME: &str = "subject";

impl Server {
    /// Starts one in the test's folder, with these further arguments. Its standard output is a pipe.
    #[track_caller]
    pub fn start(host: &Host, arguments: &[&str]) -> Self {
        let mut command = host.defrost(Self::arguments(arguments));
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        Self::started(&mut command)
    }

    /// The arguments that every server under test has, and some more.
    pub fn arguments<'a>(more: &[&'a str]) -> Vec<&'a str> {
        let always =
            ["serve", "--name", NAME, "--echo", "127.0.0.1:0", "--http", "127.0.0.1:0", "--drain", "1"];
        always.into_iter().chain(more.iter().copied()).collect()
    }

    /// Starts this command, whose output is a pipe, and waits until it says where it listens.
    #[track_caller]
    pub fn started(command: &mut Command) -> Self {
        let mut process = Running::start(command);
        let output = process.child().stdout.take().expect("its output is a pipe");
        Self::heard(process, output)
    }

    /// Waits until a server that was started says where it listens.
    #[track_caller]
    pub fn heard(process: Running, output: impl Read + Send + 'static) -> Self {
        let mut lines = BufReader::new(output).lines();
        // A terminal or a socket shows the log too, between these lines.
        let mut port = |what: &str| -> u16 {
            let line = lines.by_ref().map_while(Result::ok).find(|line| line.starts_with(what));
            let line = line.unwrap_or_else(|| panic!("the server ended without `{what}`"));
            line[what.len()..].trim().parse().unwrap()
        };
        let (echo, http) = (port("listening on port "), port("http on port "));
        // Whatever else it says is read, so that it never blocks; a terminal ends with an error.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Self::at(process, echo, http)
    }

    /// Waits until a server that was started answers at these ports.
    #[track_caller]
    pub fn at(process: Running, echo: u16, http: u16) -> Self {
        let (_, info) = client::get(http, "/info");
        let info: serde_json::Value = serde_json::from_str(&info).unwrap();
        let pid = i32::try_from(info["pid"].as_i64().unwrap()).unwrap();
        Self { process, pid, echo, http }
    }

    /// Checkpoints it by the command, which ends it, and reaps it.
    #[track_caller]
    pub fn checkpoint(mut self, host: &Host, image: impl AsRef<OsStr>) -> Dumped {
        let said = host.run([OsStr::new("checkpoint"), OsStr::new(NAME), image.as_ref()]).worked();
        assert!(said.contains("is complete"), "{said}");
        self.process.ended();
        gone(self.pid);
        Dumped {
            pid: self.pid,
            echo: self.echo,
            http: self.http,
            image: host.folder().join(Path::new(&image)),
        }
    }

    /// `GET /info` as JSON.
    #[track_caller]
    pub fn info(&self) -> serde_json::Value {
        info(self.http)
    }

    pub fn signal(&self, signal: Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid), signal).unwrap();
    }
}

/// `GET /info` of a server, as JSON.
#[track_caller]
pub fn info(http: u16) -> serde_json::Value {
    serde_json::from_str(&client::get(http, "/info").1).unwrap()
}

impl Drop for Server {
    fn drop(&mut self) {
        // A server of its own session outlives its supervisor's SIGKILL for a moment; it must not outlive the
        // test. Its pid is only used while it still has the parent that was started here.
        let own = self.pid != self.process.pid() && parent(self.pid) == Some(self.process.pid());
        if own && children(self.process.pid()).contains(&self.pid) {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid), Signal::SIGKILL);
        }
    }
}

/// A server that a checkpoint has ended.
#[derive(Debug, Clone)]
pub struct Dumped {
    pub pid: i32,
    pub echo: u16,
    pub http: u16,
    pub image: PathBuf,
}
