//! The instant engine: restores a CRIU image by mapping its pages instead of copying them.
//!
//! The time that it takes does not grow with the memory in the image. It reads the image, decides whether it can
//! restore all of it ([`support`]), writes a plan, and starts the restorer of the crate `criu-restorer` with the
//! pid of the dumped process, as a child of the caller. It dumps nothing: images are CRIU's, and `criu restore`
//! restores them too.
//!
//! | | restored | else a reason to use another engine |
//! |---|---|---|
//! | image | one process that defrost's own self-dump wrote, under this very kernel, no older than 6.1 | parent images, labels, namespaces |
//! | threads | registers with AVX-512, masks, alternative stacks, robust lists, rseq, names, niceness, policies, pending signals | 32-bit code, AMX, shadow stacks, seccomp |
//! | memory | files, private or shared, anonymous memory, private or shared, memory files with seals, stacks, guards, vDSO, advice, locks; droppable memory comes back empty | huge, system V |
//! | descriptors | files with or without a name, folders, devices by path, mere paths, memory files, pipes with or without a name and what is in them, eventfd, epoll, signalfd, timerfd, inotify, its own pidfd, CRIU's service socket; owners | locks, fanotify, terminals, other devices |
//! | sockets | listening, bound or new TCP, UDP, listening or bound Unix sockets, Unix pairs with what is in them, netlink; options | connections, descriptors or credentials on their way, raw sockets, packet filters |
//! | process | dispositions, interval and POSIX timers, limits, clocks, notes on memory, working folder, umask, session, out-of-memory score, audit user | a session or group that it does not lead, what takes a privilege that we lack |
//! | credentials, of each thread | users, groups, capabilities, secure bits, no_new_privs, parent-death signals | labels, users that this user namespace lacks, a parent-death signal when detached |
//!
//! Choosing pids takes CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN over the pid namespace. An ordinary user has these in
//! namespaces of his own, which the supervisor makes; there a server that ran as root is root again, with the groups
//! and limits of that user.
//!
//! Every part of the plan is made by one module, which also says what it cannot carry, so that what is supported
//! and what is done cannot drift apart. Nothing is started before all have agreed.

mod aside;
mod backing;
mod choice;
mod credentials;
mod descriptors;
mod exit;
mod fill;
mod frame;
mod huge;
mod large;
mod layout;
mod locks;
mod memory;
mod obstacles;
mod outcome;
pub mod pager;
mod plan;
mod prefetch;
mod proc_self;
mod recorder;
mod room;
mod seams;
mod shared;
mod sound;
mod source;
mod start;
mod state;
pub mod support;
mod threads;
mod timers;
mod vdso;

pub use obstacles::obstacles;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use pager::Record;

use super::{
    Dump, DumpError, DumpOrder, Engine, EngineName, Original, Prepared, RestoreError, RestoreOrder,
    RestoredProcess,
};
use crate::image::Image;
use crate::image::working_set::{TouchedRun, WorkingSet};

/// How the memory of an image comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryMode {
    /// Mapped if the process is right with that, which it says of itself; else copied.
    #[default]
    Auto,
    /// Large pieces are private mappings of the image's pages file, which must stay as it is while the process
    /// lives.
    ///
    /// The image must not be on a file system that is mounted noexec: its memory could never become executable.
    ///
    /// A page that a process gives back by `MADV_DONTNEED` would then show the file again instead of zeros, and
    /// memory that it extends by `mremap` would go on with the file. A process that links this library has its own
    /// [`madvise`](crate::sys::discard) and [`mremap`](crate::sys::remap), which make up for it, whatever its
    /// allocator. They say what they do not cover: code that makes these system calls without the C library.
    Map,
    /// All of it is read into memory of the process's own, by as many tasks as pay, and into huge pages where these are
    /// free and would be filled.
    Copy,
    /// Large pieces are memory of the process's own, filled by a [`pager`] when they are asked for, and bit by bit
    /// otherwise. It takes CAP_SYS_PTRACE: [`pager::possible`].
    Fault,
}

impl fmt::Display for MemoryMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Map => "map",
            Self::Copy => "copy",
            Self::Fault => "fault",
        })
    }
}

/// Restores images of defrost's own servers by mapping them.
#[derive(Debug, Clone, Default)]
pub struct InstantEngine {
    memory: MemoryMode,
    working_set: Option<WorkingSet>,
    recording: Option<Duration>,
}

impl InstantEngine {
    /// With this way to bring memory back.
    #[must_use]
    pub fn new(memory: MemoryMode) -> Self {
        Self { memory, ..Self::default() }
    }

    /// Brings these pages of the image before they are asked for. What is copied is not concerned.
    #[must_use]
    pub fn prefetching(mut self, working_set: Option<WorkingSet>) -> Self {
        self.working_set = working_set;
        self
    }

    /// Records the pages that the process touches in the time after its restore, beside the image, for later
    /// restores; nothing is prefetched meanwhile. Memory that is copied cannot be recorded. A process that ends
    /// before is recorded under [`MemoryMode::Fault`] only. A failure to record does not concern the process; the
    /// system log has it.
    #[must_use]
    pub fn recording(mut self, time: Option<Duration>) -> Self {
        self.recording = time;
        self
    }

    fn prefetched(&self) -> &[TouchedRun] {
        match &self.working_set {
            Some(set) if self.recording.is_none() => set.runs(),
            _ => &[],
        }
    }

    fn record(&self, image: &Image) -> Option<Record> {
        let time = self.recording?;
        Some(Record { folder: image.path().to_owned(), image: image.manifest().id, time })
    }
}

impl Engine for InstantEngine {
    fn name(&self) -> EngineName {
        EngineName::Instant
    }

    fn prepare(&self, _target: &Path) -> Result<Prepared, DumpError> {
        Err(not_dumping())
    }

    fn dump(&self, _prepared: Prepared, order: DumpOrder) -> Dump {
        Dump::Original(Original::new(false, order.kept, || Err(not_dumping())))
    }

    fn restore(&self, order: &RestoreOrder<'_>) -> Result<RestoredProcess, RestoreError> {
        start::restore(self, order)
    }
}

fn not_dumping() -> DumpError {
    DumpError::Reported {
        cause: "the instant engine dumps nothing".to_owned(),
        hint: Some("dump by the criu engine, whose images it restores".to_owned()),
        log: None,
    }
}
