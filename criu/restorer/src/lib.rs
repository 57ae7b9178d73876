//! The restorer: a freestanding program that becomes a process of a CRIU image, and the plan that it follows.
//!
//! CRIU restores a process from the inside, by a piece of code that it injects. This does the same with less: a
//! static program is started with the process's pid and descriptors, and carries out a *plan*, which is a list of
//! system calls, a list of threads with a signal frame each, and a hole in the address space to work from. All
//! decisions are made by whoever writes the plan; this crate must not know images, files or engines.
//!
//! | module | what |
//! |---|---|
//! | [`plan`] | the plan's layout, and [`plan::Writer`], which lays it out |
//! | `program/` | the program itself, built by `build.rs` and embedded as [`PROGRAM`] |

pub mod plan;

/// The program, an ELF file to execute with the plan's descriptor as its only argument. `None` where there is no
/// restorer: it exists for x86-64 Linux.
#[cfg(has_restorer)]
pub const PROGRAM: Option<&[u8]> = Some(include_bytes!(concat!(env!("OUT_DIR"), "/restorer")));
/// The program; there is none for this target.
#[cfg(not(has_restorer))]
pub const PROGRAM: Option<&[u8]> = None;
