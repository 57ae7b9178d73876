//! The plan as a whole: from an image to what the restorer carries out.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use criu_restorer::plan::{
    ANYTHING, CODE_ROOM, Call, EXPECTED, Header, MOST_HELPERS, SIZE_LIMIT, STACK, Step, Thread, Writer,
};

use super::MemoryMode;
use super::backing::Files;
use super::choice::{Choice, choose, is_executable};
use super::descriptors::{Descriptors, descriptors};
use super::large::Large;
use super::layout::{Layout, SPACE_END};
use super::memory::{self, Backing, Memory};
use super::pager::{self, Handing, Pager, Record, Run};
use super::shared::SharedMemory;
use super::source::Source;
use super::support::Reasons;
use super::{credentials, exit, prefetch, room, state, threads, vdso};
use crate::image::Manifest;
use crate::image::working_set::TouchedRun;
use crate::sys;

const PAGE: u64 = 4096;
/// Room for the vDSO with its data while it waits.
const SCRATCH: u64 = 64 * PAGE;
/// Everything that is decided before a process is started.
#[derive(Debug)]
pub(super) struct Plan {
    /// For the restorer.
    pub(super) bytes: Vec<u8>,
    pub(super) descriptors: Descriptors,
    /// How memory comes back.
    pub(super) memory: MemoryMode,
    /// Why in this way: a phrase.
    pub(super) memory_reason: &'static str,
    /// Memory that descriptors and mappings share, to be filled in the process.
    pub(super) shared: SharedMemory,
    /// Memory that is mapped from the pages file, or left for the pager to fill.
    pub(super) large: Vec<Run>,
    /// Fills memory, where it is left to be filled.
    pub(super) pager: Option<Pager>,
    /// Open files that the restorer needs under the numbers that they have.
    pub(super) files: Vec<OwnedFd>,
}

/// What is wanted of the memory.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    /// How it comes back.
    pub(super) memory: MemoryMode,
    /// Pages to bring at once, where not all of them are.
    pub(super) pages: &'a [TouchedRun],
    /// What the process touches is to be recorded.
    pub(super) record: Option<&'a Record>,
}

/// A system call that must not fail.
pub(super) fn any(step: Step, number: libc::c_long, arguments: &[u64]) -> Call {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    Call { step: step as u32, number: number.cast_unsigned(), arguments: all, ..Call::default() }
}

/// A system call that must give this result.
pub(super) fn exactly(step: Step, number: libc::c_long, arguments: &[u64], expected: u64) -> Call {
    Call { outcome: EXPECTED, expected, ..any(step, number, arguments) }
}

/// A system call that may fail.
pub(super) fn perhaps(step: Step, number: libc::c_long, arguments: &[u64]) -> Call {
    Call { outcome: ANYTHING, ..any(step, number, arguments) }
}

/// Adds a text with a zero byte at its end; gives its address.
pub(super) fn pointer_to_text(writer: &mut Writer, text: &[u8]) -> u64 {
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    let mut bytes = text[..end].to_vec();
    bytes.push(0);
    writer.data(&bytes)
}

/// Decides everything. `report` is what the restorer reports to, and `given` has the inodes of pipes that are
/// handed in. `None`, with reasons added, when the image is not supported.
///
/// # Errors
/// The kernel's own.
pub(super) fn plan(
    source: &Source,
    manifest: &Manifest,
    wanted: &Wanted<'_>,
    report: impl AsFd,
    given: &[u64],
    reasons: &mut Reasons,
) -> std::io::Result<Option<Plan>> {
    let descriptors = descriptors(source, given, reasons);
    let floor = descriptors.floor();
    let layout = Layout::of(source);
    let moves = vdso::moves(source, reasons);
    let Some(home) = layout.hole(SIZE_LIMIT + room(source.threads.len() as u64, MOST_HELPERS)) else {
        reasons.add("the address space has no hole for the restorer".to_owned());
        return Ok(None);
    };
    room::make(source, floor, reasons)?;
    if !reasons.is_empty() {
        return Ok(None);
    }
    let pages = source.folder.path().join(source.pagemap.pages_file());
    let shared = SharedMemory::of(source, floor, reasons)?;
    let pages = File::open(pages)?;
    let mut files = Files::new(source, floor, &pages, &shared)?;
    let program = files.readable(source.memory.exe_file_id).unwrap_or_else(|reason| {
        reasons.add(reason);
        0
    });
    let code = exit::code(source, &layout);
    reasons.add_if(code.is_none(), "no code was found that the threads could leave through");
    let Choice { memory, reason: memory_reason, entry } =
        choose(manifest, &layout, is_executable(&pages)?, wanted.memory, reasons);
    let mut writer = Writer::new(home);
    // What is cached is mapped sooner as it is asked for than at once, and until then it takes no room.
    let cached = memory == MemoryMode::Map && sys::cache::is_cached(&pages).unwrap_or(false);
    let at_once = if cached { &[] } else { wanted.pages };
    let (way, mut pager) = way(memory, manifest, pages, descriptors.free(), &mut files, reasons)?;
    reasons.add_if(
        wanted.record.is_some() && matches!(way, Large::Read),
        "there is nothing to record of memory that is copied",
    );
    let Memory { maps, filling, mut calls, large, handled } =
        memory::memory(source, &layout, way, at_once, &mut files, &mut writer, reasons);
    if let Some(pager) = &mut pager {
        let first = prefetch::ranges(at_once, &large);
        pager.fill(large.clone(), handled, first, wanted.record.cloned());
    }
    let entered = entry.map(|entry| entry.calls(files.pages(), &maps));
    calls.extend(entered.unwrap_or_default());
    calls.extend(state::early(source, program, &mut writer, reasons));
    calls.extend(shared.calls());
    calls.extend(descriptors.calls(&mut writer));
    let code = code.unwrap_or_default();
    let mut parting = credentials::calls(source, &mut writer, reasons);
    // The leader waits for the others before it does the rest.
    let leaders = parting.first_mut().map(std::mem::take).unwrap_or_default();
    let threads = threads::threads(source, &layout, code.return_to, &parting, &mut writer, reasons);
    let mut finish = state::late(source, &mut writer, reasons);
    finish.extend(descriptors.late_calls(&mut writer));
    finish.extend(leaders);
    finish.extend(state::dumpable(source));
    if !reasons.is_empty() {
        return Ok(None);
    }
    let report = files.keep(report)?;
    let header = Header {
        report,
        moves,
        gadget: code.gadget,
        maps: writer.calls(&maps),
        jobs: writer.jobs(&filling.jobs),
        calls: writer.calls(&calls),
        finish: writer.calls(&finish),
        spare: floor.unsigned_abs(),
        helpers: filling.helpers,
        ..Header::default()
    };
    let bytes = lay_out(header, home, &threads, writer).map_err(std::io::Error::other)?;
    let files = files.into_open();
    Ok(Some(Plan { bytes, descriptors, memory, memory_reason, shared, large, pager, files }))
}

/// How large pieces come back under this mode, and the pager if one fills them. `pages` is the file that they come
/// from, and `free` the next descriptor of the restored process.
fn way<'a>(
    memory: MemoryMode,
    manifest: &'a Manifest,
    pages: File,
    free: u64,
    files: &mut Files<'_>,
    reasons: &mut Reasons,
) -> std::io::Result<(Large<'a>, Option<Pager>)> {
    Ok(match memory {
        MemoryMode::Map => (Large::Mapped(&manifest.seams), None),
        MemoryMode::Auto | MemoryMode::Copy => (Large::Read, None),
        MemoryMode::Fault => {
            if let Err(why) = pager::possible() {
                reasons.add(format!("memory cannot be filled on demand here: {why}"));
            }
            let pager = Pager::new(pages)?;
            let socket = u64::from(files.keep(pager.entrance())?.unsigned_abs());
            (Large::Filled(Handing { free, socket }), Some(pager))
        }
    })
}

/// What the restorer needs beside the plan, in bytes.
fn room(threads: u64, helpers: u32) -> u64 {
    let threads = threads.max(1 + u64::from(helpers));
    CODE_ROOM + SCRATCH + PAGE + (threads * STACK).next_multiple_of(PAGE)
}

/// Divides the hole: plan, program, vDSO, words to sleep at, stacks.
fn lay_out(
    header: Header,
    home: u64,
    threads: &[Thread],
    mut writer: Writer,
) -> Result<Vec<u8>, criu_restorer::plan::TooLarge> {
    let threads_at = writer.threads(threads);
    let code = home + writer.len().next_multiple_of(PAGE);
    let stacks = code + room(threads.len() as u64, header.helpers);
    let header = Header {
        threads: threads_at,
        code,
        scratch: code + CODE_ROOM,
        park: code + CODE_ROOM + SCRATCH,
        stacks,
        home_len: stacks - home,
        space_end: SPACE_END,
        ..header
    };
    writer.finish(&header)
}
