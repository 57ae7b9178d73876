//! A server that plain `criu restore` has brought back.

use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::client::{get, requests};
use super::process::{Running, gone, lives};
use super::server::Dumped;
use super::{Host, info, until};

/// A restored server, the child of a CRIU in the foreground.
pub struct Restored {
    criu: Running,
    pub pid: i32,
}

impl Restored {
    /// Restores by `criu restore -D IMAGE` with no other flag, from another folder, and sees that it serves.
    #[track_caller]
    pub fn plain(host: &Host, dumped: &Dumped) -> Self {
        let restored = Self { criu: host.plain_restore(&dumped.image), pid: dumped.pid };
        restored.serves(dumped);
        restored
    }

    #[track_caller]
    fn serves(&self, dumped: &Dumped) {
        requests(dumped.echo, 20);
        let info = info(dumped.http);
        assert_eq!(info["pid"], self.pid);
        assert!(info["generation"].as_u64() > Some(0), "{info}");
        until("readiness", || get(dumped.http, "/readyz").0 == 200);
    }

    /// Has it end gracefully, and waits until its pid and ports are free.
    #[track_caller]
    pub fn stop(mut self) {
        kill(Pid::from_raw(self.pid), Signal::SIGTERM).unwrap();
        self.criu.ended();
        gone(self.pid);
    }

    /// Waits until something else has ended it.
    #[track_caller]
    pub fn ended(mut self) {
        self.criu.ended();
        gone(self.pid);
    }
}

/// The command for a restore in a fresh PID namespace, all of which ends with it.
pub fn in_pid_namespace(host: &Host, image: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]).arg(&host.criu);
    command.args(["restore", "-D"]).arg(image).current_dir("/").env("XDG_RUNTIME_DIR", host.folder());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Sees that nothing of a refused or failed restore is there: no process of that number, nobody on the port.
#[track_caller]
pub fn nothing_runs(dumped: &Dumped) {
    assert!(!lives(dumped.pid), "process {} was started", dumped.pid);
    let listens = std::net::TcpStream::connect(("127.0.0.1", dumped.echo)).is_ok();
    assert!(!listens, "somebody listens on port {}", dumped.echo);
}
