//! The decision: what blocks, what is named, what passes.
//!
//! A pure function of a scan and the claims. It must not look at the system. What CRIU carries was measured
//! with CRIU 4.2, and read in its source where named.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::RawFd;

use super::Report;
use super::blocker::{Blocker, BlockerKind, Note, Owner};
use super::carry;
use super::claims::Claims;
use super::descriptors::Descriptor;
use super::kind::DescriptorKind;
use super::mappings::{Mapping, MappingKind};
use super::pairs;
use super::process::ProcessState;
use super::scan::Scan;

/// CRIU stores the content of a deleted file up to this size in bytes (`DEFAULT_GHOST_LIMIT` in
/// `criu/include/cr_options.h`).
pub(super) const GHOST_LIMIT: u64 = 1 << 20;

/// Decides about a scan.
pub(super) fn judge(scan: Scan, claims: &Claims) -> Report {
    let mut findings = Findings::default();
    let facts = Facts::of(&scan);
    for descriptor in scan.descriptors.iter().filter(|descriptor| !claims.exempt(descriptor.fd)) {
        judge_descriptor(descriptor, &facts, claims.owner(descriptor), &mut findings);
    }
    for mapping in &scan.mappings {
        judge_mapping(mapping, &scan.descriptors, &mut findings);
    }
    judge_process(&scan.process, &mut findings);
    Report {
        process: scan.process,
        blockers: findings.blockers,
        notes: findings.notes,
        descriptors: scan.descriptors,
        mappings: scan.mappings,
    }
}

#[derive(Default)]
struct Findings {
    blockers: Vec<Blocker>,
    notes: Vec<Note>,
}

impl Findings {
    fn block(&mut self, kind: BlockerKind, target: String) {
        self.blockers.push(Blocker::of_process(kind, target));
    }

    fn note(&mut self, text: String) {
        self.notes.push(Note { fd: None, text, owner: Owner::Process });
    }
}

/// What has to be known of all descriptors to judge one.
pub(super) struct Facts<'a> {
    pub(super) scan: &'a Scan,
    /// What to look for elsewhere, for descriptors whose other end is not in the process.
    pub(super) open_ended: BTreeMap<RawFd, String>,
    /// The epoll instances and eventfds of an asynchronous runtime.
    pub(super) runtime: HashSet<RawFd>,
}

impl<'a> Facts<'a> {
    fn of(scan: &'a Scan) -> Self {
        let open_ended = pairs::open_ended(&scan.descriptors);
        Self { scan, open_ended, runtime: runtime(&scan.descriptors) }
    }
}

/// An epoll instance that watches an eventfd of this process is a runtime's, and so is the eventfd: mio wakes
/// its poll loop in this way. A duplicate of the one shows the same registrations, of the other the same id.
fn runtime(descriptors: &[Descriptor]) -> HashSet<RawFd> {
    let eventfds: BTreeMap<RawFd, Option<u64>> = descriptors
        .iter()
        .filter_map(|descriptor| match descriptor.kind {
            DescriptorKind::EventFd { id, .. } => Some((descriptor.fd, id)),
            _ => None,
        })
        .collect();
    let mut owned = HashSet::new();
    for descriptor in descriptors {
        let DescriptorKind::Epoll { watched } = &descriptor.kind else { continue };
        for id in watched.iter().filter_map(|watched| eventfds.get_key_value(&watched.fd)) {
            owned.insert(descriptor.fd);
            owned.insert(*id.0);
            owned
                .extend(eventfds.iter().filter(|other| id.1.is_some() && other.1 == id.1).map(|(fd, _)| *fd));
        }
    }
    owned
}

fn judge_descriptor(descriptor: &Descriptor, facts: &Facts<'_>, owner: Owner, findings: &mut Findings) {
    let block = |kind, target| Blocker::of_descriptor(descriptor.fd, kind, target, owner.clone());
    for lock in &descriptor.locks {
        let target = format!("lock ({}) on {}", lock.to_lowercase(), descriptor.target);
        findings.blockers.push(block(BlockerKind::FileLock, target));
    }
    let claimed = matches!(owner, Owner::Resource(_));
    let obstacle = carry::impossible(descriptor, facts)
        .or_else(|| if claimed { None } else { carry::unclaimed(descriptor, facts) });
    if let Some((kind, target)) = obstacle {
        findings.blockers.push(block(kind, target));
        return;
    }
    if let Some(text) = carry::remark(descriptor, facts, claimed) {
        findings.notes.push(Note { fd: Some(descriptor.fd), text, owner });
    }
}

fn judge_mapping(mapping: &Mapping, descriptors: &[Descriptor], findings: &mut Findings) {
    let path = &mapping.path;
    let what = if mapping.executable { "executable" } else { "file" };
    match mapping.kind {
        MappingKind::Deleted if mapping.size > GHOST_LIMIT => {
            let text = format!("mapping: deleted {what} {path} ({})", megabytes(mapping.size));
            findings.block(BlockerKind::DeletedMapping, text);
        }
        MappingKind::Deleted => {
            findings.note(format!("mapping: deleted {what} {path}, its content is stored"))
        }
        MappingKind::Elsewhere => {
            findings.block(BlockerKind::RenamedFile, format!("mapping: renamed {what} {path}"));
        }
        MappingKind::SharedFile { writable } => {
            let access = if writable { "shared and writable" } else { "shared" };
            findings.note(format!("mapping: {path}, {access}: must be the same file at the restore"));
        }
        MappingKind::SysvShm => {
            findings.block(BlockerKind::SysvShm, format!("mapping: System V shared memory {path}"));
        }
        MappingKind::IoUring => {
            // Its descriptor, if there is one, says it already.
            if !descriptors.iter().any(|descriptor| descriptor.kind == DescriptorKind::IoUring) {
                findings.block(BlockerKind::IoUring, "mapping: rings of an io_uring".to_owned());
            }
        }
        MappingKind::Device => findings.block(BlockerKind::DeviceMapping, format!("mapping: device {path}")),
        MappingKind::KernelObject => {
            findings.block(BlockerKind::KernelObject, format!("mapping: kernel object {path}"));
        }
        MappingKind::HugePages => {
            findings.note("mapping: huge pages: as many must be free at the restore".to_owned());
        }
        MappingKind::MemFd => {}
    }
}

fn judge_process(state: &ProcessState, findings: &mut Findings) {
    if let Some(tracer) = &state.tracer {
        findings.block(BlockerKind::Traced, format!("process: traced by {tracer}"));
    }
    if state.session != state.process.pid {
        let text = format!("process: not a session leader (its session is {})", state.session);
        findings.block(BlockerKind::Session, text);
    }
    if state.terminal {
        findings.block(BlockerKind::ControllingTerminal, "process: has a controlling terminal".to_owned());
    }
    for child in &state.children {
        findings.block(BlockerKind::Child, format!("process: living child {child}"));
    }
    for child in &state.zombies {
        findings.note(format!("process: ended child {child} was not waited for"));
    }
    // A dump from outside does not care who adopts orphans; of the own process CRIU is to be the orphan.
    if state.own && state.process.pid == 1 {
        findings.block(BlockerKind::Reaper, "process: is pid 1, which adopts every orphan".to_owned());
    } else if state.own && state.subreaper == Some(true) {
        findings.block(BlockerKind::Reaper, "process: is a child subreaper".to_owned());
    }
}

/// A size for people, in MiB with one digit.
pub(super) fn megabytes(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10) >> 20;
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}
