//! What a test has started and not ended, however it was started, dumped or restored: found by its environment,
//! which a restored process has from its original.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::process::lives;
use super::within;

/// Ends every process that has this folder as its `XDG_RUNTIME_DIR`, when dropped.
pub struct Leftovers(PathBuf);

impl Leftovers {
    pub fn of(folder: &Path) -> Self {
        Self(folder.to_owned())
    }

    /// Those that are there, zombies not among them.
    pub fn pids(&self) -> Vec<i32> {
        let mark = [b"XDG_RUNTIME_DIR=", self.0.as_os_str().as_encoded_bytes()].concat();
        let all =
            fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let marked = |pid: &i32| {
            let variables = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            variables.split(|byte| *byte == 0).any(|variable| variable == mark)
        };
        all.filter(marked).collect()
    }
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        // A supervisor's guard, or CRIU in the middle of a restore, may start another while one is ended.
        let gone = within(Duration::from_secs(5), || {
            let left = self.pids();
            for pid in &left {
                let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
            }
            left.iter().all(|pid| !lives(*pid))
        });
        if !gone {
            eprintln!("processes {:?} of a test could not be ended", self.pids());
        }
    }
}
