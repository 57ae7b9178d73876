//! The image files of CRIU as types: a reader with limits, verification, and a writer.
//!
//! CRIU dumps a process tree into a folder of small protobuf files and large files of raw pages.
//! This crate reads what CRIU 4.2 writes, says whether the files are whole and fit together, and
//! writes the small ones. It never runs CRIU and looks at no process.
//!
//! ```no_run
//! use criu_images::{ImageDir, verify};
//!
//! let image = ImageDir::open("./img")?;
//! let report = verify(&image);
//! for finding in &report.findings {
//!     eprintln!("{finding}\nhint: {}", finding.remedy());
//! }
//! for process in image.pstree()? {
//!     println!("{}: {} bytes", process.pid, image.pagemap(process.pid)?.present_bytes());
//! }
//! for listener in image.files()?.listeners() {
//!     println!("listens on {}", listener.address);
//! }
//! # Ok::<(), criu_images::ReadError>(())
//! ```
//!
//! # Where what is
//!
//! | module | what |
//! |---|---|
//! | `folder` | [`ImageDir`]: the files by name |
//! | `write` | [`ImageWriter`]: the same files, written |
//! | `verify`, `finding` | [`verify()`]: everything that is wrong, at once, each [`Finding`] with its remedy |
//! | `error` | [`ReadError`]: one file that cannot be read, with the byte where |
//! | `inventory`, `process` | what the dump was told; the tree of processes |
//! | `task`, `registers`, `credentials`, `signals`, `timers` | execution state of threads |
//! | `memory`, `pagemap`, `mapped` | mappings; which pages are where; mapped files with their paths |
//! | `files` | [`FileTable`]: everything open, one type for each kind of file |
//! | `time`, `stats`, `cpuinfo` | clocks, figures, the processor |
//! | `format`, `wire` | layout and limits of files; what protobuf decoders pass over in silence |
//!
//! # What is trusted
//!
//! Nothing. A file that was cut, flipped or made up gives a [`ReadError`], never a panic or a hang:
//! files, records, their number and their parts have limits ([`MAX_FILE`], [`MAX_RECORD`],
//! [`MAX_RECORDS`], [`MAX_PARTS`]), a length is believed only as far as the file goes, and a required
//! field that is missing is an error as it is for CRIU. Fields of a later CRIU are passed over, but
//! not in page maps, where they can change what the others mean, and not by who reads [strictly
//! ](ImageDir::strictly) to write the file again: a message holds what it knows, and no more.
//!
//! Names are bytes, as they are on Linux. Register sets are decoded for x86 only.
#![forbid(unsafe_code)]

mod cpuinfo;
mod credentials;
mod decode;
mod error;
mod files;
mod finding;
mod folder;
mod format;
mod inventory;
mod mapped;
mod memory;
mod pagemap;
mod process;
mod registers;
mod signals;
mod stats;
mod task;
mod time;
mod timers;
mod verify;
mod wire;
mod write;

pub use cpuinfo::{CpuInfo, CpuInfoX86, CpuVendor};
pub use credentials::Credentials;
pub use error::ReadError;
pub use files::*;
pub use finding::Finding;
pub use folder::{Contents, ImageDir};
pub use format::{MAX_FILE, MAX_PARTS, MAX_RECORD, MAX_RECORDS};
pub use inventory::{IMAGE_VERSION, Inventory, LsmType, NetworkLock, Plugins};
pub use mapped::MappedFile;
pub use memory::{AioRing, Memory, Vma, VmaStatus};
pub use pagemap::{Extent, PAGE_SIZE, PageFlags, Pagemap, PagemapEntry, PagemapHead, Run};
pub use process::{FsInfo, KernelIds, Process};
pub use registers::{
    ExtendedState, FloatingRegisters, GeneralRegisters, RegsMode, SegmentDescriptor, ShadowStackState,
    ThreadInfoX86,
};
pub use signals::{PendingSignal, SignalAction, SignalQueue, SignalStack};
pub use stats::{DumpStats, RestoreStats, Stats};
pub use task::{
    Core, Machine, ResourceLimit, ResourceLimits, RestartableSequences, SeccompMode, TaskCore, TaskState,
    ThreadCore,
};
pub use time::{TimeNamespace, Timespec, Timeval};
pub use timers::{IntervalTimer, PosixTimer, TaskTimers};
pub use verify::{Report, verify};
pub use write::{ImageWriter, WriteError};
