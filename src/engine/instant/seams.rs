//! Seams: pages that are copied within memory that is mapped, so that nothing extends a mapping of the pages file.
//!
//! mremap(2) extends one mapping, and fails for a range in two. What is extended into the pages file would go on
//! with other memory's contents, and behind the file's end with SIGBUS. The program's own calls are seen to (see
//! `sys::remap`), the C library's are not: its realloc extends large blocks in place, and copies them if that
//! fails. So the first page of each such block, which the manifest lists, is no mapping of the file; nor is the first
//! page of a mapping, so that code which makes the system call by itself sees an error and not wrong contents.

use criu_images::PAGE_SIZE;

use super::memory::Piece;

/// The pages of a piece that must not be mapped, in order, for a mapping that begins at `first`.
pub(super) fn within(seams: &[u64], piece: &Piece, first: u64) -> Vec<u64> {
    let end = piece.start + piece.len;
    let from = seams.partition_point(|page| *page < piece.start);
    let listed = seams[from..].iter().copied().take_while(|page| *page < end);
    let mut pages: Vec<u64> = listed.filter(|page| page.is_multiple_of(PAGE_SIZE)).collect();
    if first == piece.start && pages.first() != Some(&first) {
        pages.insert(0, first);
    }
    pages
}

/// Cuts these pages of a piece out, as pieces of their own.
pub(super) fn cut(piece: Piece, pages: Vec<u64>) -> Vec<Piece> {
    let end = piece.start + piece.len;
    let part = |start: u64, end: u64| Piece {
        start,
        len: end - start,
        offset: piece.offset + (start - piece.start),
        ..piece
    };
    let mut parts = Vec::with_capacity(2 * pages.len() + 1);
    let mut at = piece.start;
    for page in pages {
        parts.push(part(at, page));
        at = page + PAGE_SIZE;
        parts.push(part(page, at));
    }
    parts.push(part(at, end));
    parts.retain(|part| part.len > 0);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_cut_around_its_seams() {
        let piece = Piece { start: 0x10_0000, len: 0x8000, offset: 0x3000, vma: 4 };
        let seams = [0x1000, 0x10_3000, 0x10_4000, 0x10_4010, 0x10_7000, 0x10_8000];
        let pages = within(&seams, &piece, 0x10_0000);
        assert_eq!(pages, [0x10_0000, 0x10_3000, 0x10_4000, 0x10_7000]);
        let parts: Vec<_> =
            cut(piece, pages).into_iter().map(|part| (part.start, part.len, part.offset)).collect();
        assert_eq!(
            parts,
            [
                (0x10_0000, 0x1000, 0x3000),
                (0x10_1000, 0x2000, 0x4000),
                (0x10_3000, 0x1000, 0x6000),
                (0x10_4000, 0x1000, 0x7000),
                (0x10_5000, 0x2000, 0x8000),
                (0x10_7000, 0x1000, 0xa000),
            ]
        );
    }

    #[test]
    fn a_piece_without_seams_is_whole() {
        let piece = Piece { start: 0x10_0000, len: 0x8000, offset: 0, vma: 0 };
        assert!(within(&[0x1000, 0x20_0000], &piece, 0xf_0000).is_empty());
        assert_eq!(cut(piece, Vec::new()), [piece]);
        assert_eq!(within(&[0x10_0000], &piece, 0x10_0000), [0x10_0000]);
    }
}
