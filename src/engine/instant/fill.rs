//! Reading pages: in jobs that several tasks share, into huge pages where there are any. It must not know why these
//! pages are read and others are not.

use criu_images::{Vma, VmaStatus};
use criu_restorer::plan::{Call, MOST_HELPERS, Step, Writer};

use super::huge;
use super::memory::Piece;
use super::plan::{exactly, perhaps};

/// Most vectors of one preadv(2): UIO_MAXIOV.
const VECTORS: usize = 1024;
/// Bytes of one read, unless there would be too many: pages that were just made are still in the processor's cache.
const READ: u64 = 2 << 20;
/// About the most reads: each takes some 200 bytes of the plan.
const MOST_READS: u64 = 1 << 15;
/// Smaller pieces are not worth a call that makes their pages before they are read into.
const LEAST_MADE: u64 = 64 << 10;
/// Bytes of one job, which is what one task does at a time. More than one call for huge pages for so much would take
/// longer where all CPUs are busy, since each waits for them all.
const JOB: u64 = 64 << 20;
/// What makes another task worth its while.
const SHARE: u64 = JOB;
/// Most tasks: memory is not read faster by more.
const MOST_TASKS: u64 = 8;

/// How pages are read.
#[derive(Debug, Default)]
pub(super) struct Filling {
    /// Lists of calls, which may be made by several tasks.
    pub(super) jobs: Vec<Vec<Call>>,
    /// How many tasks are to help.
    pub(super) helpers: u32,
}

/// Has pieces read. `small` says that the process has no huge pages.
pub(super) fn filling(
    pieces: &[Piece],
    vmas: &[Vma],
    small: bool,
    pages: u64,
    writer: &mut Writer,
) -> Filling {
    let inside = |piece: &Piece| huge::inside(piece.start, piece.len).1;
    let wanted = pieces.iter().filter(|piece| huge::may_hold(&vmas[piece.vma])).map(inside).sum();
    let mut left = if small { 0 } else { huge::at_hand(wanted) };
    let jobs = jobs(pieces, vmas, &mut left, pages, writer);
    let total: u64 = pieces.iter().map(|piece| piece.len).sum();
    let helpers = if total < 2 * SHARE { 0 } else { helpers(total, tasks_at_once()) };
    Filling { jobs, helpers }
}

/// How many tasks of this process can run at the same time, by its CPUs and its share of them.
fn tasks_at_once() -> u64 {
    std::thread::available_parallelism().map_or(1, |count| count.get() as u64)
}

fn helpers(total: u64, at_once: u64) -> u32 {
    let tasks = (total / SHARE).min(at_once).min(MOST_TASKS);
    u32::try_from(tasks.saturating_sub(1)).unwrap_or(0).min(MOST_HELPERS)
}

/// Divides the reading of pieces; `left` huge pages may be used.
fn jobs(pieces: &[Piece], vmas: &[Vma], left: &mut u64, pages: u64, writer: &mut Writer) -> Vec<Vec<Call>> {
    let total: u64 = pieces.iter().map(|piece| piece.len).sum();
    let most = READ.max((total / MOST_READS).next_power_of_two());
    let mut jobs = Vec::new();
    let mut reads = reads(pieces, most).into_iter().peekable();
    while let Some(first) = reads.next() {
        let mut len = bytes(&first);
        let mut together = vec![first];
        while let Some(next) = reads.next_if(|next| len + bytes(next) <= JOB) {
            len += bytes(&next);
            together.push(next);
        }
        let mut calls = huge_pages(together.iter().flatten(), vmas, left);
        together.iter().for_each(|chunks| calls.extend(read(chunks, vmas, pages, writer)));
        jobs.push(calls);
    }
    jobs
}

fn bytes(chunks: &[Piece]) -> u64 {
    chunks.iter().map(|chunk| chunk.len).sum()
}

/// What is read at once: as much as lies together in the file, up to so many bytes.
fn reads(pieces: &[Piece], most: u64) -> Vec<Vec<Piece>> {
    let mut reads = Vec::new();
    let mut chunks = pieces.iter().flat_map(|piece| chunks(piece, most)).peekable();
    while let Some(first) = chunks.next() {
        let (mut together, mut len) = (vec![first], first.len);
        while let Some(next) = chunks.next_if(|next| {
            next.offset == first.offset + len && together.len() < VECTORS && len + next.len <= most
        }) {
            together.push(next);
            len += next.len;
        }
        reads.push(together);
    }
    reads
}

/// A piece, cut at addresses that are multiples of this, which is one of the size of a huge page.
fn chunks(piece: &Piece, most: u64) -> impl Iterator<Item = Piece> + use<> {
    let piece = *piece;
    let end = piece.start + piece.len;
    let cut = move |start: u64| (start + 1).next_multiple_of(most).min(end);
    let starts = std::iter::successors(Some(piece.start), move |start| Some(cut(*start)));
    starts.take_while(move |start| *start < end).map(move |start| {
        let offset = piece.offset + (start - piece.start);
        Piece { start, len: cut(start) - start, offset, ..piece }
    })
}

/// Calls that make huge pages of what is read whole, as long as some are left.
fn huge_pages<'a>(chunks: impl Iterator<Item = &'a Piece>, vmas: &[Vma], left: &mut u64) -> Vec<Call> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for chunk in chunks.filter(|chunk| huge::may_hold(&vmas[chunk.vma])) {
        let (start, count) = huge::inside(chunk.start, chunk.len);
        let count = count.min(*left);
        *left -= count;
        match ranges.last_mut() {
            Some((first, so_far)) if *first + *so_far * huge::HUGE == start => *so_far += count,
            _ => ranges.push((start, count)),
        }
    }
    ranges.into_iter().flat_map(|(start, count)| huge::calls(start, count)).collect()
}

/// Reads these chunks into pages that are made before: one call for many costs less than a fault for each.
fn read(chunks: &[Piece], vmas: &[Vma], pages: u64, writer: &mut Writer) -> Vec<Call> {
    let large = chunks
        .iter()
        .filter(|chunk| chunk.len >= LEAST_MADE && vmas[chunk.vma].area().contains(VmaStatus::ANON_PRIVATE));
    let populate = u64::from(libc::MADV_POPULATE_WRITE.unsigned_abs());
    let made = |chunk: &Piece| perhaps(Step::Fill, libc::SYS_madvise, &[chunk.start, chunk.len, populate]);
    let mut calls: Vec<Call> = large.map(made).collect();
    let vectors = chunks.iter().flat_map(|chunk| [chunk.start, chunk.len]);
    let at = writer.data(&vectors.flat_map(u64::to_ne_bytes).collect::<Vec<u8>>());
    let arguments = [pages, at, chunks.len() as u64, chunks[0].offset, 0];
    calls.push(exactly(Step::Fill, libc::SYS_preadv, &arguments, bytes(chunks)));
    calls
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::instant::layout::tests::vma;

    fn piece(start: u64, len: u64, offset: u64) -> Piece {
        Piece { start, len, offset, vma: 0 }
    }

    fn of(pieces: &[Piece], left: &mut u64) -> Vec<Vec<Call>> {
        jobs(pieces, &[vma(0, 1 << 40, 0)], left, 5, &mut Writer::new(0))
    }

    /// How many pieces are read at once, and how many bytes.
    fn read_at_once(jobs: &[Vec<Call>]) -> Vec<(u64, u64)> {
        let reads = jobs.iter().flatten().filter(|call| call.number == libc::SYS_preadv.cast_unsigned());
        reads.map(|call| (call.arguments[2], call.expected)).collect()
    }

    #[test]
    fn what_lies_together_is_read_at_once_and_cut_at_the_limits() {
        let pieces =
            [piece(0x1000, 0x1000, 0), piece(0x9000, 0x2000, 0x1000), piece(0x2_0000, 0x1000, 0x8000)];
        assert_eq!(read_at_once(&of(&pieces, &mut 0)), [(2, 0x3000), (1, 0x1000)]);
        let long = [piece(READ - 0x1000, 2 * READ + 0x2000, 0)];
        assert_eq!(read_at_once(&of(&long, &mut 0)), [(1, 0x1000), (1, READ), (1, READ), (1, 0x1000)]);
        let many: Vec<Piece> =
            (0..513).map(|number| piece(number * 0x2000, 0x1000, number * 0x1000)).collect();
        assert_eq!(read_at_once(&of(&many, &mut 0)), [(512, 512 << 12), (1, 0x1000)]);
    }

    #[test]
    fn every_byte_is_read_once() {
        let long = piece(0x7_3000, 3 * READ, 0x5000);
        let mut at = long;
        for chunk in chunks(&long, READ) {
            assert_eq!((chunk.start, chunk.offset), (at.start, at.offset));
            (at.start, at.offset) = (at.start + chunk.len, at.offset + chunk.len);
        }
        assert_eq!(at.start, long.start + long.len);
        assert_eq!(of(&[piece(0, 3 * JOB, 0)], &mut 0).len(), 3);
    }

    #[test]
    fn however_much_there_is_the_plan_stays_small() {
        let jobs = of(&[piece(0x7000, 1 << 39, 0)], &mut 0);
        assert!(read_at_once(&jobs).len() <= 2 * usize::try_from(MOST_READS).unwrap());
    }

    #[test]
    fn huge_pages_are_made_as_far_as_there_are_any() {
        let mut left = 40;
        let jobs = of(&[piece(huge::HUGE - 0x1000, 2 * JOB + 0x1000, 0)], &mut left);
        let collapsed = |job: &Vec<Call>| -> Vec<[u64; 2]> {
            let calls = job.iter().filter(|call| call.arguments[2] == huge::MADV_COLLAPSE);
            calls.map(|call| [call.arguments[0], call.arguments[1] / huge::HUGE]).collect()
        };
        // A page comes first, which leaves 31 of 32 for the first job.
        let made: Vec<Vec<[u64; 2]>> = jobs.iter().map(collapsed).collect();
        assert_eq!(made, [vec![[huge::HUGE, 31]], vec![[32 * huge::HUGE, 9]], vec![]]);
        assert_eq!(left, 0);
    }

    #[test]
    fn helpers_are_as_many_as_pay() {
        assert_eq!(helpers(SHARE, 4), 0);
        assert_eq!(helpers(2 * SHARE, 4), 1);
        assert_eq!(helpers(100 * SHARE, 1), 0);
        assert_eq!(helpers(100 * SHARE, 4), 3);
        assert_eq!(helpers(100 * SHARE, 64), 7);
    }
}
