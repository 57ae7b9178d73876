// The plan as it lies in memory: shared by the program, which knows no more than this, and by the module `plan`.

/// The first eight bytes of a plan.
pub const MAGIC: u64 = u64::from_le_bytes(*b"DEFRPLAN");
/// Changes with every change of the layout.
pub const VERSION: u32 = 2;
/// The most that a plan may take. A plan of 1,000 mappings and 200 threads takes about 1 MiB.
pub const SIZE_LIMIT: u64 = 64 * 1024 * 1024;
/// Bytes of stack for each thread while the program runs in it.
pub const STACK: u64 = 8 * 1024;
/// Room for a copy of the program.
pub const CODE_ROOM: u64 = 32 * 1024;

/// The most helpers that a plan may ask for.
pub const MOST_HELPERS: u32 = 8;
/// What a [`Call`] must give: no error.
pub const NO_ERROR: u32 = 0;
/// What a [`Call`] must give: the expected result.
pub const EXPECTED: u32 = 1;
/// What a [`Call`] must give: nothing. It may fail.
pub const ANYTHING: u32 = 2;

/// A part of the plan: where it begins, in bytes, and how many items (for a frame: bytes) it has.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Bytes from the start of the plan.
    pub offset: u32,
    /// Number of items.
    pub count: u32,
}

/// The head of a plan. All addresses are page-aligned unless said otherwise.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`VERSION`].
    pub version: u32,
    /// Descriptor that a [`Report`] is written to.
    pub report: i32,
    /// Bytes of the plan, this header among them.
    pub size: u64,
    /// A hole in the restored address space, where the program lives until it leaves. The plan lies at its start.
    pub home: u64,
    /// Bytes of it.
    pub home_len: u64,
    /// Where in it the program copies itself: [`CODE_ROOM`] bytes.
    pub code: u64,
    /// Where in it the vDSO waits meanwhile, with its data pages.
    pub scratch: u64,
    /// Where in it a page of zeros lies, for the words that tasks sleep at and agree by.
    pub park: u64,
    /// End of the stacks, of [`STACK`] bytes for each thread, or, where these are more, for the leader and each helper.
    /// The last is the leader's.
    pub stacks: u64,
    /// End of the address space that is emptied.
    pub space_end: u64,
    /// Address of the instructions `syscall; ret` in restored memory.
    pub gadget: u64,
    /// What the kernel mapped into every program, and where the restored one expects it.
    pub moves: [Move; 3],
    /// [`Call`]s that come first: they make mappings.
    pub maps: Part,
    /// [`Part`]s, which are lists of [`Call`]s that fill the mappings. Each list is worked off in its order; of the
    /// lists each may be taken by another task, at any time.
    pub jobs: Part,
    /// [`Call`]s that make everything else that belongs to the process, once its memory is filled.
    pub calls: Part,
    /// [`Thread`]s, the leader first.
    pub threads: Part,
    /// The leader's [`Call`]s for when all other threads have made theirs.
    pub finish: Part,
    /// The first descriptor that is only for the restore; it and all above are closed.
    pub spare: u32,
    /// How many tasks help with the jobs, at most [`MOST_HELPERS`]. They are gone before there are threads.
    pub helpers: u32,
}

/// A mapping of the kernel's that moves.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Move {
    /// Where it is now, in bytes from the vDSO's first.
    pub offset: i64,
    /// Bytes; 0 for none.
    pub len: u64,
    /// Where it goes.
    pub target: u64,
}

/// A system call to make.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// What it is a part of: a [`Step`], for the report of a failure.
    pub step: u32,
    /// What the result must be: [`NO_ERROR`], [`EXPECTED`] or [`ANYTHING`].
    pub outcome: u32,
    /// Its number.
    pub number: u64,
    /// Its arguments. The plan lies at a known address, so they may point into it.
    pub arguments: [u64; 6],
    /// See `outcome`.
    pub expected: u64,
}

/// A thread to make.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Its id.
    pub tid: i32,
    /// Not used.
    pub padding: u32,
    /// Base of thread-local storage.
    pub tls: u64,
    /// What the kernel clears when it ends.
    pub clear_tid: u64,
    /// Its own [`Call`]s.
    pub calls: Part,
    /// Its signal frame: bytes.
    pub frame: Part,
    /// Where on its stack the frame goes, not aligned to a page: the thread leaves by returning into it.
    pub frame_at: u64,
}

/// What the program says: that all is done, or what failed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// A [`Step`].
    pub step: u32,
    /// Which of the step's calls, counted from the start of its list; which thread, when it is about threads; which
    /// job, when it is about one.
    pub index: u32,
    /// The kernel's error number; 0 when the result was not the expected one.
    pub errno: i32,
}

/// The parts of a restore, for reports.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// All is done: the threads are on their way.
    Done = 0,
    /// Reading the plan and moving to the hole.
    Move = 1,
    /// Emptying the address space, and keeping the vDSO.
    Empty = 2,
    /// Mapping memory.
    Map = 3,
    /// Reading pages.
    Fill = 4,
    /// Protecting and advising on memory.
    Protect = 5,
    /// The kernel's notes on memory: program, heap, arguments.
    Notes = 6,
    /// Signal dispositions and pending signals.
    Signals = 7,
    /// Timers.
    Timers = 8,
    /// Resource limits.
    Limits = 9,
    /// Other attributes of the process.
    Process = 10,
    /// Descriptor flags.
    Descriptors = 11,
    /// Making a thread.
    Threads = 12,
    /// Attributes of a thread.
    Thread = 13,
    /// Waiting for the threads.
    Gather = 14,
    /// Users, groups and capabilities of a thread.
    Credentials = 15,
}
