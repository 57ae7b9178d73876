//! New pid and mount namespaces, and where this process may not make these by itself also a user namespace, for a
//! process that shall have pids that are taken here.
//!
//! It must not know what runs in them.

use std::fs;
use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::signal::Signal;

use super::run::LOWEST_PID;
use crate::engine::INIT_NAME;
use crate::image::manifest::{Capabilities, Manifest};
use crate::image::verify::{effective_capabilities, may_choose_pids, own_capabilities};
use crate::sys;
use crate::sys::process::Fork;

const CAP_SETPCAP: u32 = 8;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_CHECKPOINT_RESTORE: u32 = 40;

/// Which namespaces a process gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespaces {
    user: bool,
}

/// They could not be made; nothing of them is left.
#[derive(Debug, thiserror::Error)]
#[error("no pid namespace of its own: {step}: {source}")]
pub struct NamespaceError {
    step: &'static str,
    source: io::Error,
}

impl NamespaceError {
    fn at(step: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self { step, source }
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let number = self.source.raw_os_error().map(Errno::from_raw);
        let text = match (self.step, number) {
            (MAKING, Some(Errno::EPERM)) => {
                "restore as root, or allow users to make namespaces: see user_namespaces(7), \
                 kernel.unprivileged_userns_clone and AppArmor's restrictions on them"
            }
            (MAKING, Some(Errno::ENOSPC)) => "raise the limits in /proc/sys/user, or end other namespaces",
            (PROC, Some(Errno::EPERM)) => {
                "parts of /proc are covered here, as in a container; restore where they are not, or as root"
            }
            _ => return None,
        };
        Some(text.to_owned())
    }
}

const MAKING: &str = "making it";
const PROC: &str = "mounting its /proc";

impl Namespaces {
    /// Those that this process may make: with a user namespace unless it has the capabilities to do without.
    #[must_use]
    pub fn possible() -> Self {
        Self { user: effective_capabilities() & 1 << CAP_SYS_ADMIN == 0 || !may_choose_pids() }
    }

    /// Whether there is a user namespace among them: then the process is root in there and an ordinary user here.
    #[must_use]
    pub fn with_user(self) -> bool {
        self.user
    }

    /// Forks into them. Process 1 there must [`settle`](Self::settle) first of all. The caller must have one thread.
    ///
    /// # Errors
    /// [`NamespaceError`]: there is no child.
    pub(super) fn fork(self) -> Result<Fork, NamespaceError> {
        sys::namespace::fork_into_namespaces(self.user).map_err(NamespaceError::at(MAKING))
    }

    /// In process 1: dies with its parent from now on, has a session of its own, is `user` of `group` under the
    /// name of root where there is a user namespace, sees its own processes in /proc, gives new ones pids above those
    /// of the image, and may at most what the image's processes might.
    ///
    /// # Errors
    /// [`NamespaceError`].
    pub(super) fn settle(
        self,
        (user, group): (u32, u32),
        image: &Manifest,
        parent: impl AsFd,
    ) -> Result<(), NamespaceError> {
        let errno = |step| move |errno: Errno| NamespaceError { step, source: errno.into() };
        let _ = rustix::thread::set_name(&std::ffi::CString::new(INIT_NAME).unwrap_or_default());
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(errno("tying it to its supervisor"))?;
        // It may have died before that.
        if super::link::is_gone(parent) {
            return Err(NamespaceError::at("tying it to its supervisor")(io::ErrorKind::BrokenPipe.into()));
        }
        nix::unistd::setsid().map_err(errno("making its session"))?;
        if self.user {
            become_root(user, group).map_err(NamespaceError::at("mapping its user"))?;
        }
        // What is mounted outside still arrives; what is mounted here stays here.
        let downwards = MsFlags::MS_REC | MsFlags::MS_SLAVE;
        let nothing = None::<&str>;
        mount(nothing, "/", nothing, downwards, nothing).map_err(errno("separating its mounts"))?;
        let plain = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("proc"), "/proc", Some("proc"), plain, nothing).map_err(errno(PROC))?;
        number_from(image).map_err(NamespaceError::at("numbering its processes"))?;
        if self.user {
            limit_to(&image.capabilities).map_err(NamespaceError::at("limiting its capabilities"))?;
        }
        Ok(())
    }
}

/// Makes this user root of the user namespace; it must be the only one there. Its groups stay what they are, since
/// an ordinary user may not leave any: user_namespaces(7).
fn become_root(user: u32, group: u32) -> io::Result<()> {
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1"))
}

/// Has the next pid be one above those of the image, and above those that are always taken elsewhere: the image of a
/// thread that begins here is to be restored among other processes, too.
fn number_from(image: &Manifest) -> io::Result<()> {
    let numbers = image.processes.iter().flat_map(|process| process.threads.iter().chain([&process.pid]));
    let highest = numbers.copied().max().unwrap_or(0).max(LOWEST_PID.unsigned_abs());
    fs::write("/proc/sys/kernel/ns_last_pid", highest.to_string())
}

/// A new user namespace gives all capabilities, of which the dumped process may have had less. What is started
/// from here gets no more than that one, unless it takes more to restore it.
fn limit_to(may: &Capabilities) -> io::Result<()> {
    let has = |capability: u32| may.bounding >> capability & 1 != 0;
    if !has(CAP_SETPCAP) || !(has(CAP_CHECKPOINT_RESTORE) || has(CAP_SYS_ADMIN)) {
        return Ok(());
    }
    let own = own_capabilities().unwrap_or_default().bounding;
    let surplus = (0..64).filter(|capability| (own & !may.bounding) >> capability & 1 != 0);
    surplus.into_iter().try_for_each(sys::namespace::drop_from_bounding_set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_needs_no_user_namespace_and_others_do() {
        let namespaces = Namespaces::possible();
        if !nix::unistd::geteuid().is_root() {
            assert!(namespaces.with_user());
        } else if effective_capabilities() >> CAP_SYS_ADMIN & 1 != 0 && may_choose_pids() {
            assert!(!namespaces.with_user());
        }
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let error = NamespaceError::at(MAKING)(Errno::EPERM.into());
        assert!(error.to_string().starts_with("no pid namespace of its own: making it: "), "{error}");
        assert!(error.hint().unwrap().contains("as root"));
        assert!(NamespaceError::at(PROC)(Errno::EPERM.into()).hint().unwrap().contains("covered"));
        assert_eq!(NamespaceError::at(PROC)(Errno::EIO.into()).hint(), None);
    }
}
