//! Watches on files and folders: inotify. As with CRIU, events that waited to be read are gone.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use criu_images::{FileHandle, Inotify, InotifyWatch};
use rustix::fs::{Mode, OFlags, inotify};

use super::nonblocking;
use crate::sys::watch::{open_by_handle, set_next_watch};

/// What inotify_add_watch(2) takes: all events, and that a watch does not count links, or ends with its first event.
const CARRIED_MASK: u32 = libc::IN_ALL_EVENTS | libc::IN_EXCL_UNLINK | libc::IN_ONESHOT;

/// How to make an instance.
#[derive(Debug)]
pub(super) struct Watches {
    /// By ascending number.
    watches: Vec<Watch>,
    nonblocking: bool,
}

/// One watch, whose file is open already: whether it is there is known before anything starts.
#[derive(Debug)]
struct Watch {
    number: i32,
    mask: u32,
    file: OwnedFd,
}

impl Watches {
    /// Decides.
    ///
    /// # Errors
    /// What the instance is, if it cannot be made again.
    pub(super) fn of(instance: &Inotify) -> Result<Self, String> {
        let mut watches =
            instance.watches.iter().map(Watch::of).collect::<Result<Vec<_>, _>>().map_err(|error| {
                format!("an inotify instance that watches what cannot be found again: {error}")
            })?;
        watches.sort_by_key(|watch| watch.number);
        Ok(Self { watches, nonblocking: nonblocking(instance.flags) })
    }

    /// Makes it.
    ///
    /// # Errors
    /// The kernel's own.
    pub(super) fn make(&self) -> io::Result<OwnedFd> {
        let instance = inotify::init(inotify::CreateFlags::CLOEXEC)?;
        for watch in &self.watches {
            set_next_watch(&instance, watch.number)?;
            let path = format!("/proc/self/fd/{}", watch.file.as_raw_fd());
            let mask = inotify::WatchFlags::from_bits_retain(watch.mask);
            if inotify::add_watch(&instance, path, mask)? != watch.number {
                return Err(io::Error::other("a watch got another number"));
            }
        }
        rustix::io::ioctl_fionbio(&instance, self.nonblocking)?;
        Ok(instance)
    }
}

impl Watch {
    fn of(watch: &InotifyWatch) -> io::Result<Self> {
        let file = find(watch)?;
        let found = std::fs::File::from(file.try_clone()?).metadata()?.ino();
        if found != watch.inode {
            return Err(io::Error::other("it is another file now"));
        }
        let number = i32::try_from(watch.wd).map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(Self { number, mask: watch.mask & CARRIED_MASK, file })
    }
}

/// Opens what is watched, by its path if CRIU found it, else by its handle.
fn find(watch: &InotifyWatch) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let FileHandle { length, kind, handle, path, .. } = &watch.handle;
    if let Some(path) = path {
        let path = path.split(|byte| *byte == 0).next().unwrap_or(&[]);
        return Ok(rustix::fs::open(Path::new(std::ffi::OsStr::from_bytes(path)), flags, Mode::empty())?);
    }
    let bytes: Vec<u8> = handle.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let bytes = bytes.get(..*length as usize).ok_or(io::ErrorKind::InvalidData)?;
    let kind = i32::try_from(*kind).map_err(|_| io::ErrorKind::InvalidData)?;
    // The kernel's own encoding of a device (MKDEV in include/linux/kdev_t.h).
    let device = format!("{}:{}", watch.device >> 20, watch.device & 0xf_ffff);
    let mounts =
        procfs::process::Process::myself().and_then(|own| own.mountinfo()).map_err(io::Error::other)?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "its file system is not mounted");
    for mount in mounts.into_iter().filter(|mount| mount.majmin == device) {
        let opened = rustix::fs::open(&mount.mount_point, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        match opened.map_err(io::Error::from).and_then(|mount| open_by_handle(&mount, kind, bytes)) {
            Ok(file) => return Ok(file),
            Err(error) => last = error,
        }
    }
    Err(last)
}
