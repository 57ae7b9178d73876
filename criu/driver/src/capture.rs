//! What a child writes, kept in memory. A pipe would have to be drained meanwhile, and would stay open for as long as any
//! of its descendants lives.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::process::Stdio;

use nix::sys::memfd::{MFdFlags, memfd_create};

/// Bytes that are read back, from the start.
const LIMIT: usize = 64 * 1024;

/// A place for the standard output or error of a child.
#[derive(Debug)]
pub(crate) struct Capture {
    file: File,
}

impl Capture {
    pub(crate) fn new() -> io::Result<Capture> {
        Ok(Capture { file: memfd_create(c"criu-output", MFdFlags::MFD_CLOEXEC)?.into() })
    }

    /// For [`std::process::Command`].
    pub(crate) fn stdio(&self) -> io::Result<Stdio> {
        Ok(self.file.try_clone()?.into())
    }

    /// What has been written so far; empty if it cannot be read.
    pub(crate) fn text(&self) -> String {
        let mut bytes = vec![0; LIMIT];
        let mut filled = 0;
        // The offset belongs to the child, so only positioned reads.
        while let Ok(count @ 1..) = self.file.read_at(&mut bytes[filled..], filled as u64) {
            filled += count;
        }
        String::from_utf8_lossy(&bytes[..filled]).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn keeps_what_a_child_wrote() {
        let capture = Capture::new().unwrap();
        let script = "echo one; head -c 200000 /dev/zero";
        let status =
            Command::new("sh").args(["-c", script]).stdout(capture.stdio().unwrap()).status().unwrap();
        assert!(status.success());
        assert!(capture.text().starts_with("one\n"));
        assert_eq!(capture.text().len(), LIMIT);
    }
}
