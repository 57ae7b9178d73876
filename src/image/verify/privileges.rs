//! Whether the restoring engine may give the restored process its capabilities, and its pids. CRIU does not ask
//! before: its restorer hits a BUG and all threads wait for ever.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;

use nix::unistd::geteuid;

use super::finding::{Class, Finding};
use super::host::Host;
use crate::image::manifest::Capabilities;

const CAP_SETPCAP: u32 = 8;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_CHECKPOINT_RESTORE: u32 = 40;

/// The capabilities in force of this thread, as a bit mask; none if they are not known. Asked of the kernel itself, as
/// this is on the way of every restore.
#[must_use]
pub fn effective_capabilities() -> u64 {
    rustix::thread::capabilities(None).map_or(0, |own| own.effective.bits())
}

/// Whether this process may say which pids its children get: with CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN in the
/// user namespace that owns its pid namespace (clone(2), `set_tid`). It has that, or not, in the user namespace that
/// it is in, and in those above it has none.
#[must_use]
pub fn may_choose_pids() -> bool {
    let capable = effective_capabilities() & (1 << CAP_CHECKPOINT_RESTORE | 1 << CAP_SYS_ADMIN) != 0;
    let same = || {
        let owner = File::from(crate::sys::namespace::owner(File::open("/proc/self/ns/pid").ok()?).ok()?);
        let own = File::open("/proc/self/ns/user").ok()?.metadata().ok()?;
        Some(owner.metadata().ok()?.ino() == own.ino())
    };
    capable && same().unwrap_or(false)
}

/// Whether this process is in the initial user namespace, whose capabilities are those over the host: limits cannot
/// be raised with another's, nor can CRIU look at mapped files.
#[must_use]
pub fn in_initial_user_namespace() -> bool {
    // All users mapped to themselves: user_namespaces(7).
    std::fs::read_to_string("/proc/self/uid_map")
        .is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]))
}

/// Capabilities that an engine gets when this process starts it. None if they depend on capabilities of its file,
/// as they do unless we are root (capabilities(7), "Transformation of capabilities during execve").
#[must_use]
pub fn capabilities_of_child() -> Option<Capabilities> {
    if !geteuid().is_root() {
        return None;
    }
    let own = own_capabilities()?;
    // exec(2) grants nothing new to a process that has renounced it.
    let renounced = nix::sys::prctl::get_no_new_privs().unwrap_or(false);
    let granted = (own.inheritable | own.bounding) & if renounced { own.permitted } else { u64::MAX };
    Some(Capabilities { effective: granted, permitted: granted, ..own })
}

/// The capabilities of this process. None if /proc does not tell.
#[must_use]
pub fn own_capabilities() -> Option<Capabilities> {
    // On the way of every restore: one read, and only the lines that matter (proc_pid_status(5)).
    let mut bytes = [0; 4096];
    let len = File::open("/proc/self/status").ok()?.read(&mut bytes).ok()?;
    capabilities_in(std::str::from_utf8(&bytes[..len]).ok()?)
}

fn capabilities_in(status: &str) -> Option<Capabilities> {
    let lines = &status[status.find("CapInh:")?..];
    let set = |name: &str| {
        let line = lines.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    Some(Capabilities {
        effective: set("CapEff:")?,
        permitted: set("CapPrm:")?,
        inheritable: set("CapInh:")?,
        bounding: set("CapBnd:")?,
        ambient: set("CapAmb:").unwrap_or(0),
    })
}

pub(super) fn check(dumped: &Capabilities, own: &Capabilities, host: &Host) -> Option<Finding> {
    let missing = (dumped.permitted | dumped.effective | dumped.ambient) & !own.permitted;
    if missing != 0 {
        return Some(Finding::new(
            Class::Host,
            format!("restore lacks capabilities that the dumped process had: {}", capability_names(missing)),
            "restore with the privileges that the server was started with".into(),
        ));
    }
    // Every capability that is not in the dumped bounding set is dropped, be it there or not (capabilities(7)).
    let known = u64::MAX >> (63 - host.last_capability.min(63));
    let dropped = known & !dumped.bounding;
    if dropped != 0 && own.effective & (1 << CAP_SETPCAP) == 0 {
        return Some(Finding::new(
            Class::Host,
            "restore lacks cap_setpcap, and the dumped bounding set has holes".into(),
            "give CRIU cap_setpcap, or restore as root".into(),
        ));
    }
    None
}

/// The names of these capabilities, as setcap(8) takes them.
#[must_use]
pub fn capability_names(set: u64) -> String {
    let name = |bit: usize| match NAMES.get(bit) {
        Some(name) => format!("cap_{name}"),
        None => format!("number {bit}"),
    };
    (0..64).filter(|bit| set >> bit & 1 != 0).map(name).collect::<Vec<_>>().join(", ")
}

/// By number, from linux/capability.h.
const NAMES: [&str; 41] = [
    "chown",
    "dac_override",
    "dac_read_search",
    "fowner",
    "fsetid",
    "kill",
    "setgid",
    "setuid",
    "setpcap",
    "linux_immutable",
    "net_bind_service",
    "net_broadcast",
    "net_admin",
    "net_raw",
    "ipc_lock",
    "ipc_owner",
    "sys_module",
    "sys_rawio",
    "sys_chroot",
    "sys_ptrace",
    "sys_pacct",
    "sys_admin",
    "sys_boot",
    "sys_nice",
    "sys_resource",
    "sys_time",
    "sys_tty_config",
    "mknod",
    "lease",
    "audit_write",
    "audit_control",
    "setfcap",
    "mac_override",
    "mac_admin",
    "syslog",
    "wake_alarm",
    "block_suspend",
    "audit_read",
    "perfmon",
    "bpf",
    "checkpoint_restore",
];

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = (1 << 41) - 1;

    fn host() -> Host {
        Host { last_capability: 40, ..Host::default() }
    }

    fn set(bits: u64) -> Capabilities {
        Capabilities { effective: bits, permitted: bits, inheritable: 0, bounding: bits, ambient: 0 }
    }

    #[test]
    fn the_same_privileges_will_do() {
        assert_eq!(check(&set(ALL), &set(ALL), &host()), None);
        assert_eq!(check(&set(ALL & !(1 << 24)), &set(ALL & !(1 << 24)), &host()), None);
        assert_eq!(check(&set(0), &set(ALL), &host()), None);
    }

    #[test]
    fn capabilities_are_read_by_name() {
        let status = "Name:\tx\nCapInh:\t1\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000000003\n\
                      CapBnd:\t000001fffeffffff\nCapAmb:\t0000000000000004\nNoNewPrivs:\t0\n";
        let expected = Capabilities {
            effective: 3,
            permitted: ALL,
            inheritable: 1,
            bounding: ALL & !(1 << 24),
            ambient: 4,
        };
        assert_eq!(capabilities_in(status), Some(expected));
        assert_eq!(capabilities_in("Name:\tx\n"), None);
        let own = own_capabilities().unwrap();
        assert_eq!(own.effective & own.permitted, own.effective);
    }

    #[test]
    fn a_child_of_root_gets_the_bounding_set() {
        let Some(child) = capabilities_of_child() else {
            assert!(!geteuid().is_root());
            return;
        };
        assert_eq!(child.permitted & child.bounding, child.bounding);
        // So it can restore what it may have dumped itself.
        assert_eq!(check(&child, &child, &Host::here().unwrap()), None);
    }

    #[test]
    fn capabilities_that_cannot_be_given_back_are_named() {
        let finding = check(&set(ALL), &set(ALL & !(1 << 24) & !(1 << 21)), &host()).unwrap();
        assert!(finding.what.ends_with("had: cap_sys_admin, cap_sys_resource"), "{finding}");
        assert_eq!(finding.class, Class::Host);
    }

    #[test]
    fn what_root_of_the_host_may() {
        let own = own_capabilities().unwrap();
        if own.effective == 0 {
            assert!(!may_choose_pids());
        } else if in_initial_user_namespace() && own.effective >> CAP_SYS_ADMIN & 1 != 0 {
            // A pid namespace in sight is the initial one, or a container's without a user namespace of its own.
            assert!(may_choose_pids());
        }
    }

    #[test]
    fn a_bounding_set_with_holes_needs_setpcap() {
        let dumped = Capabilities { bounding: ALL & !(1 << 24), ..set(0) };
        let finding = check(&dumped, &set(1 << 40), &host()).unwrap();
        assert!(finding.what.contains("cap_setpcap"), "{finding}");
        assert_eq!(check(&dumped, &set(1 << 40 | 1 << CAP_SETPCAP), &host()), None);
        assert_eq!(check(&Capabilities { bounding: ALL, ..set(0) }, &set(1 << 40), &host()), None);
    }
}
