//! Memory that is locked (mlock(2)): whether as much of it may be locked here.
//!
//! It is locked when it is mapped, under the limit that the restorer has from us. Its own limit comes last.

use criu_images::Vma;
use rustix::process::{Resource, getrlimit};

use super::source::Source;
use super::support::Reasons;
use crate::image::verify::capabilities_of_child;

/// Lifts the limit of locked memory (capabilities(7)).
const CAP_IPC_LOCK: u32 = 14;

/// Adds a reason if there is more than may be locked.
pub(super) fn check(source: &Source, reasons: &mut Reasons) {
    let locked = bytes(&source.memory.vmas);
    if locked == 0 {
        return;
    }
    let unlimited =
        capabilities_of_child().is_some_and(|capabilities| capabilities.effective >> CAP_IPC_LOCK & 1 != 0);
    let limit = getrlimit(Resource::Memlock).current.filter(|_| !unlimited);
    if let Some(limit) = limit.filter(|limit| locked > *limit) {
        reasons.add(format!("{locked} bytes of its memory are locked, and {limit} may be here"));
    }
}

fn bytes(vmas: &[Vma]) -> u64 {
    let locked = vmas.iter().filter(|vma| vma.flags & libc::MAP_LOCKED.cast_unsigned() != 0);
    locked.map(Vma::len).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_memory_is_counted() {
        let vma = |start, end, flags: i32| Vma { start, end, flags: flags.cast_unsigned(), ..Vma::default() };
        let vmas =
            [vma(0, 0x3000, libc::MAP_LOCKED), vma(0x3000, 0x9000, 0), vma(0x9000, 0xa000, libc::MAP_LOCKED)];
        assert_eq!(bytes(&vmas), 0x4000);
    }
}
