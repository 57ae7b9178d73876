//! A pseudo-terminal, and what is typed on it.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::Command;

use nix::pty::openpty;

/// A terminal of a test's own: this is the side where somebody sits.
pub struct Terminal {
    keyboard: File,
    line: Option<OwnedFd>,
}

impl Terminal {
    #[track_caller]
    pub fn open() -> Self {
        let pair = openpty(None, None).unwrap();
        for side in [&pair.master, &pair.slave] {
            // openpty(3) knows no such flag, and a program under test must not get more than its three.
            rustix::io::fcntl_setfd(side, rustix::io::FdFlags::CLOEXEC).unwrap();
        }
        Self { keyboard: pair.master.into(), line: Some(pair.slave) }
    }

    /// Has the command use it for input, output and errors. Once only: the terminal hangs up when the last
    /// program on it has ended.
    #[track_caller]
    pub fn attach(&mut self, command: &mut Command) -> File {
        let line = self.line.take().expect("it is attached once");
        command.stdin(line.try_clone().unwrap()).stdout(line.try_clone().unwrap()).stderr(line);
        self.keyboard.try_clone().unwrap()
    }

    /// Ctrl-C.
    #[track_caller]
    pub fn interrupt(&mut self) {
        self.keyboard.write_all(b"\x03").unwrap();
    }
}
