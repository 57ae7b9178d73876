//! What makes a start fast that was there before: the page cache, and what CRIU remembers of the kernel.
//!
//! It must not know what is started.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use crate::sys::cache::is_cached;

/// Where CRIU keeps what it found out about the kernel (criu/kerndat.c).
pub const KERNDAT: &str = "/run/criu.kdat";
/// How much is read at once.
const PART: usize = 1 << 20;

/// Takes an image's files out of the page cache.
///
/// # Errors
/// The system's own, and that the files stayed there: on a tmpfs they cannot leave.
pub fn evict(image: &Path) -> io::Result<()> {
    for path in files(image)? {
        let file = File::open(&path)?;
        // What is not on the disk yet stays.
        file.sync_all()?;
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        let length = file.metadata()?.len();
        if length > 0 && is_cached(&file).unwrap_or(false) {
            let text = format!("{} stays in the page cache: it is mapped, or on a tmpfs", path.display());
            return Err(io::Error::other(text));
        }
    }
    Ok(())
}

/// Reads an image's files, so that they are in the page cache.
///
/// # Errors
/// The system's own.
pub fn warm(image: &Path) -> io::Result<()> {
    let mut part = vec![0; PART];
    for path in files(image)? {
        let mut file = File::open(path)?;
        if !is_cached(&file).unwrap_or(false) {
            while file.read(&mut part)? > 0 {}
        }
    }
    Ok(())
}

/// The sum of the sizes of an image's files, in bytes.
///
/// # Errors
/// The system's own.
pub fn size(image: &Path) -> io::Result<u64> {
    files(image)?.iter().map(|path| Ok(fs::metadata(path)?.len())).sum()
}

fn files(image: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(image)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Whether CRIU will find its cache.
#[must_use]
pub fn has_kerndat() -> bool {
    Path::new(KERNDAT).exists()
}

/// Has CRIU write its cache, if it is not there. Whether it is there then: CRIU writes it only to a tmpfs.
#[must_use]
pub fn make_kerndat(criu: &Path) -> bool {
    if !has_kerndat() {
        // It has a deadline of its own, and what it says of the kernel does not matter here.
        let quiet = Stdio::null;
        let _ = Command::new(criu).arg("check").stdin(quiet()).stdout(quiet()).stderr(quiet()).status();
    }
    has_kerndat()
}

/// Removes it; the next start of CRIU writes it again, where it can.
pub fn forget_kerndat() {
    // One that is not there is what is wanted.
    let _ = fs::remove_file(KERNDAT);
}
