//! Users, groups and capabilities: what every thread begins with here, and the calls that make it what it was.
//!
//! Credentials belong to each thread (credentials(7)), so each changes its own, as the last thing that it does: what
//! takes a privilege is done by then. The module must not know what else a thread does.

use criu_images::Credentials;
use criu_restorer::plan::{Call, EXPECTED, Step, Writer};

use super::plan::any;
use super::source::Source;
use super::support::Reasons;
use crate::image::manifest::Capabilities;
use crate::image::verify::{capabilities_of_child, capability_names};

const CAP_SETGID: u64 = 1 << 6;
const CAP_SETUID: u64 = 1 << 7;
const CAP_SETPCAP: u64 = 1 << 8;
/// Changes of the user leave capabilities alone (capabilities(7)).
const SECBIT_NO_SETUID_FIXUP: u64 = 1 << 2;
/// The third version of `struct __user_cap_header_struct`, with sets of 64 bits.
const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// An id that no user and no group has: setfsuid(2) then changes nothing, and tells the one in force.
const NOBODY_AT_ALL: u64 = u32::MAX as u64;

/// What every thread begins with: a child of ours that has become another program, as root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Inherited {
    groups: Vec<u32>,
    /// A user namespace made by an ordinary user fixes the groups to those of that user, which give him no right that
    /// he has not got anyway (user_namespaces(7), setgroups). CRIU fails there.
    groups_are_fixed: bool,
    capabilities: Capabilities,
    no_new_privs: bool,
}

impl Inherited {
    fn here() -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| format!("our own credentials cannot be read: {error}");
        let capabilities =
            capabilities_of_child().ok_or("what a program gets from us is not known: not root")?;
        let bits = rustix::thread::capabilities_secure_bits().map_err(|error| failed(&error))?;
        if !bits.is_empty() {
            return Err(
                "this process has secure bits of its own, which change what a program gets".to_owned()
            );
        }
        let groups = nix::unistd::getgroups().map_err(|error| failed(&error))?;
        let no_new_privs = nix::sys::prctl::get_no_new_privs().map_err(|error| failed(&error))?;
        let groups = groups.iter().map(|group| group.as_raw()).collect();
        // A kernel without user namespaces has no such file.
        let setgroups = std::fs::read_to_string("/proc/self/setgroups");
        let groups_are_fixed = setgroups.is_ok_and(|text| text.trim() == "deny");
        Ok(Self { groups, groups_are_fixed, capabilities, no_new_privs })
    }

    /// Whether these supplementary groups are to be set.
    fn lacks(&self, groups: &[u32]) -> bool {
        self.groups != groups && !self.groups_are_fixed
    }
}

/// What a thread shall have.
#[derive(Clone, Copy, Debug)]
struct Wanted<'a> {
    /// Real, effective, saved, for files.
    users: [u32; 4],
    groups: [u32; 4],
    others: &'a [u32],
    capabilities: Capabilities,
    secure_bits: u64,
    no_new_privs: bool,
}

impl<'a> Wanted<'a> {
    fn of(credentials: &'a Credentials) -> Self {
        // Two words, the low one first.
        let set =
            |words: &[u32]| words.iter().take(2).rev().fold(0_u64, |set, word| set << 32 | u64::from(*word));
        let c = credentials;
        Self {
            users: [c.uid, c.euid, c.suid, c.fsuid],
            groups: [c.gid, c.egid, c.sgid, c.fsgid],
            others: &c.groups,
            capabilities: Capabilities {
                effective: set(&c.cap_eff),
                permitted: set(&c.cap_prm),
                inheritable: set(&c.cap_inh),
                bounding: set(&c.cap_bnd),
                ambient: set(&c.cap_amb),
            },
            secure_bits: c.secbits.into(),
            no_new_privs: c.no_new_privs.unwrap_or(0) != 0,
        }
    }

    /// Whether a user or a group must change.
    fn is_somebody_else(&self) -> bool {
        self.users != [0; 4] || self.groups != [0; 4]
    }
}

/// Calls by which each thread, in the order of the source, gets its credentials and then its parent-death signal,
/// which the kernel forgets when the user changes (prctl(2)). What cannot be given here is a reason against.
pub(super) fn calls(source: &Source, writer: &mut Writer, reasons: &mut Reasons) -> Vec<Vec<Call>> {
    let inherited = match Inherited::here() {
        Ok(inherited) => inherited,
        Err(reason) => {
            reasons.add(reason);
            return vec![Vec::new(); source.threads.len()];
        }
    };
    let mut last: Option<(&Credentials, Vec<Call>)> = None;
    let mut lists = Vec::with_capacity(source.threads.len());
    for thread in &source.threads {
        let mut calls = match (&thread.core.credentials, &last) {
            (None, _) => {
                reasons.add(format!("thread {} has no credentials in the image", thread.tid));
                Vec::new()
            }
            (Some(own), Some((known, calls))) if own == *known => calls.clone(),
            (Some(own), _) => {
                let wanted = Wanted::of(own);
                let labelled = own.lsm_profile.is_some() || own.apparmor_data.is_some();
                reasons.add_if(labelled, &format!("thread {} has a security module's label", thread.tid));
                for what in obstacles(&inherited, &wanted) {
                    reasons.add(format!("thread {} {what}", thread.tid));
                }
                let calls = change(&inherited, &wanted, writer);
                last = Some((own, calls.clone()));
                calls
            }
        };
        let signal = thread.core.pdeath_sig.unwrap_or(0);
        if signal != 0 {
            calls.push(control(libc::PR_SET_PDEATHSIG, signal.into()));
        }
        lists.push(calls);
    }
    lists
}

/// Whether the kernel marks memory as not to be dumped when one of the threads becomes who it was
/// (kernel/cred.c, `commit_creds`).
pub(super) fn change_dumpable(source: &Source) -> bool {
    let mut all = source.threads.iter().filter_map(|thread| thread.core.credentials.as_ref());
    all.any(|credentials| Wanted::of(credentials).is_somebody_else())
}

/// Why this cannot be given here, each what is said of a thread.
fn obstacles(inherited: &Inherited, wanted: &Wanted<'_>) -> Vec<String> {
    let (own, asked) = (&inherited.capabilities, &wanted.capabilities);
    let mut found = Vec::new();
    for (set, missing) in [
        ("", (asked.permitted | asked.effective | asked.ambient) & !own.permitted),
        ("inheritable ", asked.inheritable & !(own.inheritable | own.bounding)),
        ("bounding ", asked.bounding & !own.bounding),
    ] {
        if missing != 0 {
            let names = capability_names(missing);
            found.push(format!("had {set}capabilities that cannot be given here: {names}"));
        }
    }
    if inherited.no_new_privs && !wanted.no_new_privs {
        found.push("could gain privileges, and we cannot (no_new_privs)".to_owned());
    }
    let (users, groups) = (wanted.users != [0; 4], wanted.groups != [0; 4]);
    let others = inherited.lacks(wanted.others);
    let bounded = own.bounding & !asked.bounding != 0;
    for (needed, capability) in [
        (users, CAP_SETUID),
        (groups || others, CAP_SETGID),
        (users || groups || bounded || wanted.secure_bits != 0, CAP_SETPCAP),
    ] {
        if needed && own.effective & capability == 0 {
            let name = capability_names(capability);
            found.push(format!("had other credentials, and changing them takes {name}"));
        }
    }
    if users {
        found.extend(unmapped("user", "/proc/self/uid_map", &wanted.users));
    }
    if groups || others {
        let set = if others { wanted.others } else { &[] };
        let all: Vec<u32> = wanted.groups.iter().chain(set).copied().collect();
        found.extend(unmapped("group", "/proc/self/gid_map", &all));
    }
    found
}

/// The first of these ids that does not exist in our user namespace (user_namespaces(7)).
fn unmapped(what: &str, map: &str, ids: &[u32]) -> Option<String> {
    let text = std::fs::read_to_string(map).ok()?;
    let missing = ids.iter().find(|id| !is_mapped(&text, **id))?;
    Some(format!("was {what} {missing}, which does not exist in this user namespace"))
}

fn is_mapped(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(first)), _, Some(Ok(count))) = (numbers.next(), numbers.next(), numbers.next()) else {
            return false;
        };
        (first..first.saturating_add(count)).contains(&id.into())
    })
}

/// The calls from what a thread begins with to what it shall have. None if that is the same.
fn change(inherited: &Inherited, wanted: &Wanted<'_>, writer: &mut Writer) -> Vec<Call> {
    let mut calls = Vec::new();
    let (own, asked) = (&inherited.capabilities, &wanted.capabilities);
    if inherited.lacks(wanted.others) {
        let bytes: Vec<u8> = wanted.others.iter().flat_map(|group| group.to_ne_bytes()).collect();
        let list = [wanted.others.len() as u64, writer.data(&bytes)];
        calls.push(any(Step::Credentials, libc::SYS_setgroups, &list));
    }
    let mut secure_bits = 0;
    if wanted.is_somebody_else() {
        secure_bits = SECBIT_NO_SETUID_FIXUP;
        calls.push(control(libc::PR_SET_SECUREBITS, secure_bits));
        calls.extend(become_user(libc::SYS_setresgid, libc::SYS_setfsgid, wanted.groups));
        calls.extend(become_user(libc::SYS_setresuid, libc::SYS_setfsuid, wanted.users));
    }
    // Ambient capabilities are only raised from inheritable ones, and may be forbidden by the secure bits to come.
    let mut held = (own.effective, own.permitted, own.inheritable);
    let mut hold = |calls: &mut Vec<Call>, sets: (u64, u64, u64)| {
        if sets != held {
            calls.push(set_capabilities(sets, writer));
            held = sets;
        }
    };
    hold(&mut calls, (own.effective, own.permitted, asked.inheritable));
    if own.ambient & !asked.ambient != 0 {
        calls.push(ambient(libc::PR_CAP_AMBIENT_CLEAR_ALL, 0));
    }
    calls.extend(numbers(asked.ambient).map(|number| ambient(libc::PR_CAP_AMBIENT_RAISE, number)));
    if wanted.secure_bits != secure_bits {
        calls.push(control(libc::PR_SET_SECUREBITS, wanted.secure_bits));
    }
    let beyond = own.bounding & !asked.bounding;
    calls.extend(numbers(beyond).map(|number| control(libc::PR_CAPBSET_DROP, number)));
    hold(&mut calls, (asked.effective, asked.permitted, asked.inheritable));
    if wanted.no_new_privs && !inherited.no_new_privs {
        calls.push(control(libc::PR_SET_NO_NEW_PRIVS, 1));
    }
    calls
}

/// Changes all four ids. setfsuid(2) and setfsgid(2) do not fail: they tell the id that was in force before.
fn become_user(all: libc::c_long, for_files: libc::c_long, ids: [u32; 4]) -> Vec<Call> {
    let [real, effective, saved, files] = ids.map(u64::from);
    let mut calls = vec![any(Step::Credentials, all, &[real, effective, saved])];
    if files != effective {
        for (id, before) in [(files, effective), (NOBODY_AT_ALL, files)] {
            let told = any(Step::Credentials, for_files, &[id]);
            calls.push(Call { outcome: EXPECTED, expected: before, ..told });
        }
    }
    calls
}

/// capset(2), of the calling thread.
fn set_capabilities((effective, permitted, inheritable): (u64, u64, u64), writer: &mut Writer) -> Call {
    let head = writer.data(&[CAPABILITY_VERSION, 0].map(u32::to_ne_bytes).concat());
    let half = |shift: u32| {
        [effective, permitted, inheritable].map(|set| (set >> shift & u64::from(u32::MAX)) as u32)
    };
    let words = [half(0), half(32)].concat();
    let sets = writer.data(&words.into_iter().flat_map(u32::to_ne_bytes).collect::<Vec<u8>>());
    any(Step::Credentials, libc::SYS_capset, &[head, sets])
}

fn numbers(set: u64) -> impl Iterator<Item = u64> {
    (0..64).filter(move |number| set >> number & 1 != 0)
}

fn ambient(what: libc::c_int, capability: u64) -> Call {
    let arguments =
        [libc::PR_CAP_AMBIENT.unsigned_abs().into(), what.unsigned_abs().into(), capability, 0, 0];
    any(Step::Credentials, libc::SYS_prctl, &arguments)
}

fn control(option: libc::c_int, value: u64) -> Call {
    any(Step::Credentials, libc::SYS_prctl, &[option.unsigned_abs().into(), value, 0, 0, 0])
}

#[cfg(test)]
mod tests;
