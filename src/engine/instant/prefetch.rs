//! Bringing the pages of a recorded working set before they are asked for. It must not know how they were recorded.

use std::ops::Range;

use criu_images::PAGE_SIZE;
use criu_restorer::plan::{Call, Step};

use super::pager::Run;
use super::plan::any;
use crate::image::working_set::TouchedRun;

/// madvise(2), Linux 5.14: maps pages as a read would.
const MADV_POPULATE_READ: u64 = 22;
/// The same as a write would: pages of a file are copied.
const MADV_POPULATE_WRITE: u64 = 23;
/// Gaps up to this between pages that were read are brought too: a call costs more than they do.
const GAP: u64 = 8 * PAGE_SIZE;
/// Most bytes that are mapped before the process starts, which waits for it.
const MOST_READ: u64 = 256 << 20;
/// Most bytes that are copied before it starts: less, since copying takes longer than filling page tables.
const MOST_WRITTEN: u64 = 32 << 20;
/// Most calls.
const MOST_CALLS: usize = 16 * 1024;

/// A range to bring.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    range: Range<u64>,
    written: bool,
}

/// Calls that bring what is `wanted` of these pieces, each of which is mapped with this protection.
pub(super) fn calls(wanted: &[TouchedRun], pieces: impl Iterator<Item = (Run, u32)>) -> Vec<Call> {
    let (readable, writable) = (libc::PROT_READ.cast_unsigned(), libc::PROT_WRITE.cast_unsigned());
    let (mut read, mut written) = (0, 0);
    let mut calls = Vec::new();
    for (piece, prot) in pieces.filter(|(_, prot)| prot & readable != 0) {
        for Wanted { range, written: write } in within(wanted, &piece) {
            // A page that was written may be read-only by now, for the time being.
            let write = write && prot & writable != 0;
            let (sum, most, advice) = match write {
                true => (&mut written, MOST_WRITTEN, MADV_POPULATE_WRITE),
                false => (&mut read, MOST_READ, MADV_POPULATE_READ),
            };
            *sum += range.end - range.start;
            if *sum <= most && calls.len() < MOST_CALLS {
                let arguments = [range.start, range.end - range.start, advice];
                calls.push(any(Step::Fill, libc::SYS_madvise, &arguments));
            }
        }
    }
    calls
}

/// What is wanted of these pieces, by address, whether it was read or written.
pub(super) fn ranges(wanted: &[TouchedRun], pieces: &[Run]) -> Vec<Range<u64>> {
    let of_piece = |piece| within(wanted, piece).into_iter().map(|wanted| wanted.range);
    pieces.iter().flat_map(of_piece).collect()
}

/// What is wanted of a piece. The runs are sorted by address.
fn within(wanted: &[TouchedRun], piece: &Run) -> Vec<Wanted> {
    let first = wanted.partition_point(|run| run.range().end <= piece.start);
    let mut found: Vec<Wanted> = Vec::new();
    for run in wanted[first..].iter().take_while(|run| run.start < piece.end) {
        let range = run.start.max(piece.start)..run.range().end.min(piece.end);
        let gap = if run.written { 0 } else { GAP };
        match found.last_mut() {
            Some(last) if last.written == run.written && range.start - last.range.end <= gap => {
                last.range.end = range.end;
            }
            _ => found.push(Wanted { range, written: run.written }),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ_WRITE: u32 = 3;

    fn touched(start: u64, pages: u64, written: bool) -> TouchedRun {
        TouchedRun { start: start * PAGE_SIZE, pages, written }
    }

    fn piece(start: u64, end: u64) -> Run {
        Run { start: start * PAGE_SIZE, end: end * PAGE_SIZE, offset: 0 }
    }

    /// First page, number of pages, advice.
    fn brought(wanted: &[TouchedRun], pieces: &[(Run, u32)]) -> Vec<(u64, u64, u64)> {
        let calls = calls(wanted, pieces.iter().copied());
        calls
            .iter()
            .map(|call| (call.arguments[0] / PAGE_SIZE, call.arguments[1] / PAGE_SIZE, call.arguments[2]))
            .collect()
    }

    #[test]
    fn what_was_touched_is_brought_as_it_was_and_cut_to_what_is_there() {
        let wanted =
            [touched(0, 15, false), touched(18, 1, false), touched(40, 2, true), touched(95, 20, true)];
        let pieces = [(piece(10, 50), READ_WRITE), (piece(90, 100), READ_WRITE)];
        assert_eq!(brought(&wanted, &pieces), [(10, 9, 22), (40, 2, 23), (95, 5, 23)]);
        let ranges = ranges(&wanted, &[piece(10, 50)]);
        assert_eq!(ranges, [10 * PAGE_SIZE..19 * PAGE_SIZE, 40 * PAGE_SIZE..42 * PAGE_SIZE]);
    }

    #[test]
    fn memory_that_may_not_be_touched_is_not() {
        let wanted = [touched(10, 1, true)];
        assert_eq!(brought(&wanted, &[(piece(0, 50), 0)]), []);
        assert_eq!(brought(&wanted, &[(piece(0, 50), 1)]), [(10, 1, 22)]);
    }

    #[test]
    fn there_is_an_end_to_it() {
        let pages = MOST_READ / PAGE_SIZE;
        let wanted =
            [touched(0, pages, false), touched(pages + 100, 1, false), touched(pages + 200, 1, true)];
        let all = piece(0, 2 * pages);
        assert_eq!(brought(&wanted, &[(all, READ_WRITE)]), [(0, pages, 22), (pages + 200, 1, 23)]);
    }
}
