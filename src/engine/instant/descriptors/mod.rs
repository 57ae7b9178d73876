//! Descriptors: which to make, and making them.
//!
//! They are made in the new process, before it becomes the restorer, in two steps: each under a number of its own
//! above all that the process will have, then all at once under the right ones. What refers to a descriptor by its
//! number is left to the plan: what epoll instances watch, expiries that wait, who is told by signal.
//!
//! | module | what it decides about and makes |
//! |---|---|
//! | `files` | files, folders and devices by path, mere paths |
//! | `ghosts` | files that had lost their name |
//! | `memory_files` | memory files, whose content is in the shared memory of the plan |
//! | `pipes` | pipes with and without a name, with what is in them |
//! | `events` | eventfd, epoll, signalfd, timerfd |
//! | `watches` | inotify |
//! | `unix`, `inet`, `netlink`, `sockets` | sockets: local ones, those of the internet, the kernel's, what all have |
//! | `owners` | who is told by signal |
//! | `make` | all kinds together |

mod events;
mod files;
mod ghosts;
mod inet;
mod make;
mod memory_files;
mod netlink;
mod owners;
mod pipes;
mod sockets;
mod unix;
mod watches;

use std::io;
use std::os::fd::OwnedFd;

use criu_images::{Epoll, Fdinfo, FileEntry};
use criu_restorer::plan::{Call, Step, Writer};
use rustix::fs::OFlags;

use self::make::{Made, Make};
use self::owners::Telling;
use super::plan::any;
use super::shared::SharedMemory;
use super::source::Source;
use super::support::Reasons;

/// What to make, and under which numbers.
#[derive(Debug)]
pub(super) struct Descriptors {
    /// By file id; a pair or pipe stands under the first of its files.
    make: Vec<(u32, Make)>,
    /// Number, file id, close-on-exec.
    numbers: Vec<(i32, u32, bool)>,
    registrations: Vec<(i32, Epoll)>,
    /// By one of the numbers that the file has.
    told: Vec<(i32, Telling)>,
}

/// Decides about all descriptors. `given` are inodes of pipes that are handed in, in the order of the stand-ins.
pub(super) fn descriptors(source: &Source, given: &[u64], reasons: &mut Reasons) -> Descriptors {
    let mut made =
        Descriptors { make: Vec::new(), numbers: Vec::new(), registrations: Vec::new(), told: Vec::new() };
    for Fdinfo { id, flags, fd, .. } in &source.descriptors {
        let Ok(number) = i32::try_from(*fd) else {
            reasons.add(format!("descriptor {fd} has an impossible number"));
            continue;
        };
        let known = made.numbers.iter().any(|(_, other, _)| other == id);
        made.numbers.push((number, *id, flags & 1 != 0));
        let Some(entry) = source.files.get(*id) else {
            reasons.add(format!("descriptor {fd} is of no known file"));
            continue;
        };
        if known {
            continue;
        }
        if let Err(what) = made.add(source, number, entry, given) {
            reasons.add(format!("descriptor {fd} is {what}"));
        }
    }
    // Those that need others come after them.
    made.make.sort_by_key(|(_, make)| make.needs_others());
    for (_, epoll) in &made.registrations {
        for watch in &epoll.watched {
            let open = made.numbers.iter().any(|(number, ..)| u32::try_from(*number) == Ok(watch.fd));
            reasons.add_if(!open, "an epoll instance watches something that is not open under its number");
        }
    }
    made
}

/// Whether O_NONBLOCK is among these status flags.
fn nonblocking(flags: u32) -> bool {
    OFlags::from_bits_retain(flags).contains(OFlags::NONBLOCK)
}

impl Descriptors {
    /// Decides about a file of the table, at the first of its numbers.
    fn add(&mut self, source: &Source, number: i32, entry: &FileEntry, given: &[u64]) -> Result<(), String> {
        if let Some(epoll) = entry.epoll.as_deref() {
            self.registrations.push((number, epoll.clone()));
        }
        self.told.extend(Telling::of(source, entry)?.map(|telling| (number, telling)));
        if !self.make.iter().any(|(_, make)| make.also_makes(entry.id)) {
            self.make.push((entry.id, Make::of(source, entry, given)?));
        }
        Ok(())
    }

    /// The number above which nothing will be open in the process; one below it is free.
    pub(super) fn floor(&self) -> i32 {
        self.numbers.iter().map(|(number, ..)| number + 2).max().unwrap_or(0).max(3)
    }

    /// The lowest number that is free, which the kernel gives to what is opened next. It is below the floor.
    pub(super) fn free(&self) -> u64 {
        let taken = |free: i32| self.numbers.iter().any(|(number, ..)| *number == free);
        let free = (0..).find(|number| !taken(*number)).unwrap_or(i32::MAX);
        u64::from(free.unsigned_abs())
    }

    /// Calls that refer to descriptors by their numbers, for the plan.
    pub(super) fn calls(&self, writer: &mut Writer) -> Vec<Call> {
        let mut calls = Vec::new();
        for (number, epoll) in &self.registrations {
            for watch in &epoll.watched {
                // struct epoll_event is packed on x86-64.
                let mut event = watch.events.to_ne_bytes().to_vec();
                event.extend(watch.data.to_ne_bytes());
                let at = writer.data(&event);
                let arguments =
                    [u64::from(number.unsigned_abs()), libc::EPOLL_CTL_ADD as u64, u64::from(watch.fd), at];
                calls.push(any(Step::Descriptors, libc::SYS_epoll_ctl, &arguments));
            }
        }
        for (id, make) in &self.make {
            let number = self.numbers.iter().find(|(_, file, _)| file == id);
            if let (Make::TimerFd(timer), Some((number, ..))) = (make, number) {
                calls.extend(timer.expired(*number, writer));
            }
        }
        for (number, ..) in self.numbers.iter().filter(|(.., close)| *close) {
            let arguments = [u64::from(number.unsigned_abs()), libc::F_SETFD as u64, libc::FD_CLOEXEC as u64];
            calls.push(any(Step::Descriptors, libc::SYS_fcntl, &arguments));
        }
        calls
    }

    /// Calls for when all threads are there, who may be told by signal.
    pub(super) fn late_calls(&self, writer: &mut Writer) -> Vec<Call> {
        self.told.iter().flat_map(|(number, telling)| telling.calls(*number, writer)).collect()
    }

    /// Makes all of them; `given` are the stand-ins. The numbers are not the right ones yet, but above `floor`.
    ///
    /// # Errors
    /// The kernel's own, with the lowest number of what could not be made.
    pub(super) fn make(&self, given: &[OwnedFd], memory: &SharedMemory) -> Result<Made, (u32, io::Error)> {
        let mut made = Made::new();
        let lowest = |id: u32| {
            self.numbers.iter().filter(|(_, file, _)| *file == id).map(|(number, ..)| *number).min()
        };
        for (id, make) in &self.make {
            make.make(*id, given, memory, self.floor(), &mut made)
                .map_err(|error| (lowest(*id).unwrap_or_default().unsigned_abs(), error))?;
        }
        Ok(made)
    }

    /// Each number with what is to be behind it.
    pub(super) fn numbered<'a>(&self, made: &'a Made) -> Vec<(i32, &'a OwnedFd)> {
        self.numbers.iter().filter_map(|(number, id, _)| Some((*number, made.get(id)?))).collect()
    }
}
