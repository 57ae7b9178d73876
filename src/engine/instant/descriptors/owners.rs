//! Who is told by signal that a descriptor is ready: fcntl(2) with F_SETOWN, F_SETSIG and O_ASYNC.

use criu_images::{FileEntry, Owner};
use criu_restorer::plan::{Call, Step, Writer};
use rustix::fs::OFlags;

use super::super::plan::any;
use super::super::source::Source;
use super::files::ASYNC;

/// fcntl(2).
const F_SETSIG: u64 = 10;
const F_SETOWN_EX: u64 = 15;
/// Types of an owner, `F_OWNER_*`.
const THREAD: u32 = 0;
const PROCESS: u32 = 1;
const GROUP: u32 = 2;

/// What to set, when all threads are there.
#[derive(Debug)]
pub(super) struct Telling {
    signal: u32,
    /// Type and number.
    receiver: Option<(u32, u32)>,
    /// All status flags, if O_ASYNC is one of them.
    flags: Option<u32>,
}

impl Telling {
    /// Decides; `None` where nobody is told.
    ///
    /// # Errors
    /// What the descriptor is, if somebody is who is not known here.
    pub(super) fn of(source: &Source, entry: &FileEntry) -> Result<Option<Self>, String> {
        let Some((owner, flags)) = owner(source, entry) else { return Ok(None) };
        let flags = Some(flags).filter(|flags| OFlags::from_bits_retain(*flags).contains(ASYNC));
        if owner.pid == 0 {
            let told = owner.signal != 0 || flags.is_some();
            return Ok(told.then_some(Self { signal: owner.signal, receiver: None, flags }));
        }
        let known = match owner.pid_type {
            THREAD => source.threads.iter().any(|thread| thread.tid == owner.pid),
            PROCESS => source.process.pid == owner.pid,
            GROUP => source.process.pgid == owner.pid,
            _ => false,
        };
        if !known {
            return Err("one that signals another process".to_owned());
        }
        // The kernel notes the users of who sets the owner, and lets signals pass by them.
        let users = source.threads.first().and_then(|thread| thread.core.credentials.as_ref());
        if users.is_none_or(|own| (own.uid, own.euid) != (owner.uid, owner.euid)) {
            return Err("one that signals its owner by the rights of another user".to_owned());
        }
        Ok(Some(Self { signal: owner.signal, receiver: Some((owner.pid_type, owner.pid)), flags }))
    }

    /// The calls that set it.
    pub(super) fn calls(&self, number: i32, writer: &mut Writer) -> Vec<Call> {
        let mut calls = Vec::new();
        let mut control = |command: u64, value: u64| {
            let arguments = [u64::from(number.unsigned_abs()), command, value];
            calls.push(any(Step::Descriptors, libc::SYS_fcntl, &arguments));
        };
        if self.signal != 0 {
            control(F_SETSIG, self.signal.into());
        }
        if let Some((kind, pid)) = self.receiver {
            control(F_SETOWN_EX, writer.data(&[kind, pid].map(u32::to_ne_bytes).concat()));
        }
        if let Some(flags) = self.flags {
            control(libc::F_SETFL as u64, flags.into());
        }
        calls
    }
}

/// Owner and status flags of the kinds that are made here.
fn owner<'a>(source: &'a Source, entry: &'a FileEntry) -> Option<(&'a Owner, u32)> {
    let named = entry.fifo.as_deref().and_then(|fifo| source.files.get(fifo.file_id?));
    let regular = named.unwrap_or(entry).regular.as_deref();
    None.or(regular.map(|file| (&file.owner, file.flags)))
        .or(entry.pipe.as_deref().map(|file| (&file.owner, file.flags)))
        .or(entry.eventfd.as_deref().map(|file| (&file.owner, file.flags)))
        .or(entry.epoll.as_deref().map(|file| (&file.owner, file.flags)))
        .or(entry.timerfd.as_deref().map(|file| (&file.owner, file.flags)))
        .or(entry.signalfd.as_deref().map(|file| (&file.owner, file.flags)))
        .or(entry.inotify.as_deref().map(|file| (&file.owner, file.flags)))
        .or(entry.unix.as_deref().map(|file| (&file.owner, file.flags)))
        .or(entry.inet.as_deref().map(|file| (&file.owner, file.flags)))
        .or(entry.netlink.as_deref().map(|file| (&file.owner, file.flags)))
        .or(entry.pidfd.as_deref().map(|file| (&file.owner, file.flags)))
        .or(entry.memfd.as_deref().map(|file| (&file.owner, file.flags)))
}
