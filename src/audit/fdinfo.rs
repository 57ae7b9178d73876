//! Reads `/proc/PID/fdinfo/FD`, the kernel's own account of a descriptor (`proc_pid_fdinfo(5)`).
//!
//! A pure parser: it must not open anything. What it does not know it skips, for each kernel adds lines.

use nix::libc;

use super::kind::{PipeEnd, Watched};

/// The part of the account that matters to a dump.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct FdInfo {
    /// Access mode and status flags of `open(2)`.
    pub(super) flags: i32,
    /// The inode behind it. Shown since Linux 5.14.
    pub(super) inode: Option<u64>,
    /// What is registered, if it is an epoll instance.
    pub(super) watched: Vec<Watched>,
    /// The number of an eventfd's counter.
    pub(super) eventfd: Option<u64>,
    /// Whether it counts as a semaphore does.
    pub(super) semaphore: bool,
    /// The process of a pidfd.
    pub(super) pid: Option<i32>,
    /// File locks held through this descriptor, as the kernel writes them: `FLOCK ADVISORY WRITE`.
    pub(super) locks: Vec<String>,
}

impl FdInfo {
    pub(super) fn parse(text: &str) -> Self {
        let mut info = Self::default();
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else { continue };
            let value = value.trim();
            match key.trim() {
                "flags" => info.flags = i32::from_str_radix(value, 8).unwrap_or(0),
                "ino" => info.inode = value.parse().ok(),
                "tfd" => info.watched.extend(watched(value)),
                "eventfd-id" => info.eventfd = value.parse().ok(),
                "eventfd-semaphore" => info.semaphore = value == "1",
                "Pid" => info.pid = value.parse().ok(),
                "lock" => info.locks.push(lock(value)),
                _ => {}
            }
        }
        info
    }

    /// Opened with `O_PATH`.
    pub(super) fn path_only(&self) -> bool {
        self.flags & libc::O_PATH != 0
    }

    /// Opened `O_WRONLY|O_APPEND`.
    pub(super) fn append_only(&self) -> bool {
        self.flags & libc::O_ACCMODE == libc::O_WRONLY && self.flags & libc::O_APPEND != 0
    }

    /// Which ends of a pipe this is.
    pub(super) fn pipe_end(&self) -> PipeEnd {
        match self.flags & libc::O_ACCMODE {
            libc::O_RDONLY => PipeEnd::Read,
            libc::O_WRONLY => PipeEnd::Write,
            _ => PipeEnd::Both,
        }
    }
}

/// `7 events: 2019 data: … pos:0 ino:2b sdev:f`; the inode is hexadecimal (`ep_show_fdinfo`).
fn watched(value: &str) -> Option<Watched> {
    let fd = value.split_whitespace().next()?.parse().ok()?;
    let inode = value.split_whitespace().find_map(|word| word.strip_prefix("ino:"))?;
    Some(Watched { fd, inode: u64::from_str_radix(inode, 16).ok()? })
}

/// `1: FLOCK  ADVISORY  WRITE 359 00:13:11691 0 EOF`: the kind, without the numbers.
fn lock(value: &str) -> String {
    value.split_whitespace().skip(1).take(3).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        let text = "pos:\t0\nflags:\t0102001\nmnt_id:\t15\nino:\t77\n\
                    lock:\t1: FLOCK  ADVISORY  WRITE 359 00:13:11691 0 EOF\n\
                    tfd:        7 events:       19 data:                7  pos:0 ino:2b sdev:f\n\
                    eventfd-count:                0\neventfd-id: 12\neventfd-semaphore: 1\nPid:\t-1\n";
        let info = FdInfo::parse(text);
        assert!(info.append_only() && !info.path_only());
        assert_eq!(info.pipe_end(), PipeEnd::Write);
        assert_eq!(info.watched, [Watched { fd: 7, inode: 0x2b }]);
        assert_eq!(info.inode, Some(77));
        assert_eq!((info.eventfd, info.semaphore), (Some(12), true));
        assert_eq!(info.pid, Some(-1));
        assert_eq!(info.locks, ["FLOCK ADVISORY WRITE"]);
    }

    #[test]
    fn survives_nonsense() {
        for text in ["", ":::\n:\n", "flags: 9z\ntfd: x\ntfd:\nlock:\n", "tfd: 5 ino:zz"] {
            let info = FdInfo::parse(text);
            assert!(info.watched.is_empty() && info.flags == 0, "{text:?}");
        }
    }
}
