//! Which pieces of memory are large, so that they need not be read before the process runs. It must not know how they
//! come back instead.

use criu_images::{PAGE_SIZE, Vma, VmaStatus};

use super::memory::Piece;
use super::{pager, seams};

/// Pieces of fewer pages are copied. A mapping of its own costs about as much as reading one page, and what is only
/// read then costs a tenth of that; but most of a small piece is soon written, and mappings slow other things down.
const LEAST_MAPPED: u64 = 8;
/// Pieces of fewer pages are no reason to have a mapping filled on demand: each fault costs about 50 us.
const LEAST_FILLED: u64 = 64;
/// Advice of madvise(2), by number, that must outlast the mapping: what comes in the place of a mapped page that is
/// given back has none. A file cannot be wiped on fork at all.
const LASTING_ADVICE: u64 =
    1 << libc::MADV_DONTFORK | 1 << libc::MADV_MERGEABLE | 1 << libc::MADV_DONTDUMP | 1 << MADV_WIPEONFORK;
const MADV_WIPEONFORK: u64 = 18;

/// How large pieces come back.
#[derive(Clone, Copy, Debug)]
pub(super) enum Large<'a> {
    /// Mapped from the pages file, but for these pages.
    Mapped(&'a [u64]),
    /// Left empty, and their faults told to a pager.
    Filled(pager::Handing),
    /// Read, like small ones.
    Read,
}

/// Divides pieces into the large ones, which come back in this way, and those that are read.
///
/// Where a pager fills a large piece it fills the others of its mapping too: the faults of a whole mapping are
/// told, since one that is cut would behave differently, under mremap(2) for one; and nothing of it may be touched
/// before, since the kernel could make a huge page of zeros of it.
pub(super) fn divide(pieces: Vec<Piece>, vmas: &[Vma], way: Large<'_>) -> (Vec<Piece>, Vec<Piece>) {
    let mappable = |piece: &Piece| is_mapped(&vmas[piece.vma], piece);
    match way {
        Large::Read => (Vec::new(), pieces),
        Large::Mapped(seams) => pieces
            .into_iter()
            .flat_map(|piece| {
                let pages = seams::within(seams, &piece, vmas[piece.vma].start);
                if mappable(&piece) { seams::cut(piece, pages) } else { vec![piece] }
            })
            .partition(mappable),
        Large::Filled(_) => {
            let mut filled = vec![false; vmas.len()];
            let large = pieces.iter().filter(|piece| is_filled(&vmas[piece.vma], piece));
            large.for_each(|piece| filled[piece.vma] = true);
            pieces.into_iter().partition(|piece| filled[piece.vma])
        }
    }
}

/// Whether a piece is mapped where mapping was chosen. A mapping that grows cannot be a file's, executable memory may
/// not come from every file system, and what is locked would be read at once.
fn is_mapped(vma: &Vma, piece: &Piece) -> bool {
    piece.len >= LEAST_MAPPED * PAGE_SIZE
        && vma.area().intersects(VmaStatus::ANON_PRIVATE | VmaStatus::FILE_PRIVATE)
        && vma.flags & (libc::MAP_GROWSDOWN | libc::MAP_LOCKED).cast_unsigned() == 0
        && vma.prot & libc::PROT_EXEC.cast_unsigned() == 0
        && vma.madv.unwrap_or(0) & LASTING_ADVICE == 0
}

/// Whether a piece is large enough, and of memory that a pager can fill.
fn is_filled(vma: &Vma, piece: &Piece) -> bool {
    let anonymous = vma.area().contains(VmaStatus::ANON_PRIVATE);
    anonymous && piece.len >= LEAST_FILLED * PAGE_SIZE && is_mapped(vma, piece)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vma(flags: libc::c_int) -> Vma {
        let status = VmaStatus::REGULAR | VmaStatus::ANON_PRIVATE;
        let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        Vma {
            end: 0x100_0000,
            prot: 3,
            flags: flags.cast_unsigned(),
            status: status.bits(),
            ..Vma::default()
        }
    }

    const LARGE: Piece = Piece { start: 0x1000, len: LEAST_FILLED * PAGE_SIZE, offset: 0, vma: 0 };
    const SMALL: Piece = Piece { len: PAGE_SIZE, ..LARGE };

    #[test]
    fn only_large_private_memory_that_does_not_grow_is_mapped() {
        let piece = Piece { len: LEAST_MAPPED * PAGE_SIZE, ..LARGE };
        assert!(is_mapped(&vma(0), &piece));
        assert!(!is_mapped(&vma(libc::MAP_GROWSDOWN), &piece));
        assert!(!is_mapped(&vma(libc::MAP_LOCKED), &piece));
        assert!(!is_mapped(&vma(0), &SMALL));
        let changed = Vma { status: VmaStatus::FILE_PRIVATE.bits(), ..vma(0) };
        assert!(is_mapped(&changed, &piece) && !is_filled(&changed, &LARGE));
        assert!(!is_mapped(&Vma { prot: 5, ..changed }, &piece));
        let wiped = Vma { madv: Some(1 << MADV_WIPEONFORK), ..vma(0) };
        assert!(!is_mapped(&wiped, &piece));
    }

    #[test]
    fn a_mapping_is_filled_as_a_whole_or_not_at_all() {
        let vmas = [vma(0), vma(0)];
        let [beside, alone] = [Piece { start: 0x80_0000, ..SMALL }, Piece { vma: 1, ..SMALL }];
        let pieces = vec![LARGE, beside, alone];
        let handing = pager::Handing { free: 5, socket: 9 };
        let divided = divide(pieces.clone(), &vmas, Large::Filled(handing));
        assert_eq!(divided, (vec![LARGE, beside], vec![alone]));
        assert_eq!(divide(pieces.clone(), &vmas, Large::Mapped(&[])), (vec![LARGE], vec![beside, alone]));
        assert_eq!(divide(pieces.clone(), &vmas, Large::Read), (vec![], pieces));
    }
}
