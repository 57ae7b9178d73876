//! Reading pages: in jobs that several tasks share, into huge pages where there are any. It must not know why these
//! pages are read and others are not.

use criu_images::Vma;
use criu_restorer::plan::{Call, MOST_HELPERS, Step, Writer};

use super::huge;
use super::memory::Piece;
use super::plan::exactly;

/// Most vectors of one preadv(2): UIO_MAXIOV.
const VECTORS: usize = 1024;
/// Most bytes of one job: small enough that tasks end at about the same time.
const JOB: u64 = 16 << 20;
/// What makes another task worth its while: about 20 ms of work.
const SHARE: u64 = 32 << 20;
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

/// Reads pieces, as many at once as lie together in the file; `left` huge pages may be used.
fn jobs(pieces: &[Piece], vmas: &[Vma], left: &mut u64, pages: u64, writer: &mut Writer) -> Vec<Vec<Call>> {
    let mut jobs = Vec::new();
    let mut chunks = pieces.iter().flat_map(chunks).peekable();
    while let Some(first) = chunks.next() {
        let mut together = vec![first];
        let mut len = first.len;
        while let Some(next) = chunks.next_if(|next| {
            next.offset == first.offset + len && together.len() < VECTORS && len + next.len <= JOB
        }) {
            together.push(next);
            len += next.len;
        }
        let mut job = Vec::new();
        for chunk in together.iter().filter(|chunk| huge::may_hold(&vmas[chunk.vma])) {
            let (start, count) = huge::inside(chunk.start, chunk.len);
            let count = count.min(*left);
            *left -= count;
            job.extend(huge::calls(start, count));
        }
        let vectors = together.iter().flat_map(|chunk| [chunk.start, chunk.len]);
        let at = writer.data(&vectors.flat_map(u64::to_ne_bytes).collect::<Vec<u8>>());
        let arguments = [pages, at, together.len() as u64, first.offset, 0];
        job.push(exactly(Step::Fill, libc::SYS_preadv, &arguments, len));
        jobs.push(job);
    }
    jobs
}

/// A piece, cut where a job would have to end, at addresses that huge pages could begin at.
fn chunks(piece: &Piece) -> impl Iterator<Item = Piece> + use<> {
    let piece = *piece;
    let end = piece.start + piece.len;
    let cut = move |start: u64| (start < end).then_some(start);
    std::iter::successors(cut(piece.start), move |start| cut((start + 1).next_multiple_of(JOB))).map(
        move |start| {
            let len = end.min((start + 1).next_multiple_of(JOB)) - start;
            Piece { start, len, offset: piece.offset + (start - piece.start), ..piece }
        },
    )
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

    fn read(jobs: &[Vec<Call>]) -> Vec<(u64, u64)> {
        jobs.iter().map(|job| (job[job.len() - 1].arguments[2], job[job.len() - 1].expected)).collect()
    }

    #[test]
    fn what_lies_together_is_read_at_once_and_cut_at_the_limits() {
        let pieces =
            [piece(0x1000, 0x1000, 0), piece(0x9000, 0x2000, 0x1000), piece(0x2_0000, 0x1000, 0x8000)];
        assert_eq!(read(&of(&pieces, &mut 0)), [(2, 0x3000), (1, 0x1000)]);
        let long = [piece(JOB - 0x1000, 2 * JOB + 0x2000, 0)];
        assert_eq!(read(&of(&long, &mut 0)), [(1, 0x1000), (1, JOB), (1, JOB), (1, 0x1000)]);
        let many: Vec<Piece> =
            (0..1025).map(|number| piece(number * 0x2000, 0x1000, number * 0x1000)).collect();
        assert_eq!(read(&of(&many, &mut 0)), [(1024, 1024 << 12), (1, 0x1000)]);
    }

    #[test]
    fn every_byte_is_read_once() {
        let long = piece(0x7_3000, 3 * JOB, 0x5000);
        let mut at = long;
        for chunk in chunks(&long) {
            assert_eq!((chunk.start, chunk.offset), (at.start, at.offset));
            (at.start, at.offset) = (at.start + chunk.len, at.offset + chunk.len);
        }
        assert_eq!(at.start, long.start + long.len);
    }

    #[test]
    fn huge_pages_are_made_as_far_as_there_are_any() {
        let mut left = 10;
        let jobs = of(&[piece(huge::HUGE - 0x1000, 2 * JOB, 0)], &mut left);
        // Seven up to the first cut, then three of eight; each list has the read, and a call for them all.
        assert_eq!(jobs.iter().map(Vec::len).collect::<Vec<_>>(), [7 + 2, 3 + 2, 1]);
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
