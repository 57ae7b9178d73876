//! Processes that have memory mapped from the pages files of an image.
//!
//! Looks into /proc only: a process in another PID namespace, or one whose mappings we may not read, is not seen.
//! Such a process keeps its memory whatever happens to the name of the file; what it loses is its next checkpoint.

use std::ffi::CStr;
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::stat::{major, minor};

use crate::image::process;

/// The most that is read of the mappings of one process: Linux allows 65,530 of them unless told otherwise.
const MAPS_LIMIT: u64 = 64 << 20;

/// What a pager calls itself.
pub const PAGER: &CStr = c"defrost-pager";

/// A process that has memory mapped from an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapper {
    /// Its pid, as we see it.
    pub pid: u32,
    /// Its command line, shortened.
    pub command: String,
    /// Whether it is a pager: it fills the memory of another process from there, and ends when that has all of it.
    pub pager: bool,
}

impl fmt::Display for Mapper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.command)
    }
}

/// The processes that have a pages file of this folder mapped, by ascending pid.
#[must_use]
pub fn mappers(folder: &Path) -> Vec<Mapper> {
    let wanted = Wanted::of(folder);
    if wanted.files.is_empty() {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut found: Vec<u32> = pids.filter(|pid| maps_of(*pid).lines().any(|line| wanted.has(line))).collect();
    found.sort_unstable();
    found.into_iter().map(|pid| Mapper { pid, command: command(pid), pager: is_pager(pid) }).collect()
}

fn command(pid: u32) -> String {
    process::holder(pid).map(|holder| holder.command).unwrap_or_default()
}

fn is_pager(pid: u32) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().as_bytes() == PAGER.to_bytes()
}

/// Empty for a process that has ended, or that we may not look into.
fn maps_of(pid: u32) -> String {
    let mut bytes = Vec::new();
    let read = File::open(format!("/proc/{pid}/maps"))
        .and_then(|maps| maps.take(MAPS_LIMIT).read_to_end(&mut bytes));
    if read.is_err() {
        bytes.clear();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The files that are looked for.
struct Wanted {
    /// As /proc/PID/maps shows them, which on some file systems (btrfs, overlayfs) is not the device of stat(2).
    folder: String,
    /// Device, as major and minor number, and inode.
    files: Vec<(u64, u64, u64)>,
}

impl Wanted {
    fn of(folder: &Path) -> Self {
        let folder = folder.canonicalize().unwrap_or_default();
        let mut files = Vec::new();
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let named = entry.file_name().to_str().is_some_and(is_pages_file);
            if let Some(meta) = entry.metadata().ok().filter(|meta| named && meta.is_file()) {
                let device = meta.dev();
                files.push((major(device), minor(device), meta.ino()));
            }
        }
        Self { folder: folder.to_string_lossy().into_owned(), files }
    }

    /// Whether a line of proc_pid_maps(5) is about one of them.
    fn has(&self, line: &str) -> bool {
        let mut fields = line.splitn(6, ' ').skip(3);
        let (Some(device), Some(inode), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            return false;
        };
        let numbers = device.split_once(':').and_then(|(major, minor)| {
            let number = |text| u64::from_str_radix(text, 16).ok();
            Some((number(major)?, number(minor)?, inode.parse().ok()?))
        });
        let beside = || path.trim_start().rsplit_once('/').filter(|(folder, _)| *folder == self.folder);
        numbers.is_some_and(|numbers| self.files.contains(&numbers))
            || beside().is_some_and(|(_, name)| is_pages_file(name))
    }
}

/// Whether CRIU calls a file of memory pages so.
pub(in crate::image) fn is_pages_file(name: &str) -> bool {
    name.strip_prefix("pages-").is_some_and(|rest| rest.ends_with(".img"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_maps_what_was_just_made() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("pages-1.img"), [7; 4096]).unwrap();
        assert_eq!(mappers(folder.path()), []);
        assert_eq!(mappers(&folder.path().join("missing")), []);
    }

    #[test]
    fn a_mapping_is_known_by_inode_and_by_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap();
        fs::write(path.join("pages-1.img"), [7; 4096]).unwrap();
        fs::write(path.join("core-1.img"), "x").unwrap();
        let wanted = Wanted::of(folder.path());
        let [(major, minor, inode)] = wanted.files[..] else { panic!("{:?}", wanted.files) };
        let line = |device: String, inode: u64, path: &str| {
            format!("7f00-7f10 rw-p 000e7000 {device} {inode}                {path}")
        };
        let device = format!("{major:02x}:{minor:02x}");
        assert!(wanted.has(&line(device.clone(), inode, "/moved/pages-1.img (deleted)")));
        assert!(!wanted.has(&line(device, inode + 1, "/moved/pages-1.img")));
        let there = path.join("pages-9.img");
        assert!(wanted.has(&line("00:99".into(), 5, there.to_str().unwrap())));
        assert!(!wanted.has(&line("00:99".into(), 5, path.join("core-1.img").to_str().unwrap())));
        assert!(!wanted.has("7f00-7f10 rw-p 00000000 00:00 0 "));
        assert!(!wanted.has("garbage"));
    }
}
