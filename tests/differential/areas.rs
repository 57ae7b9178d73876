//! Mappings as they are to the program: adjacent ones of the same kind are one, and a mapping of the image's pages
//! file is the memory that it stands for.

use std::ops::Range;

use criu_images::{Vma, VmaStatus};

/// Memory that is the same all over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    pub start: u64,
    pub end: u64,
    pub traits: Traits,
}

/// Everything that is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traits {
    protection: u32,
    flags: u32,
    status: VmaStatus,
    advice: u64,
    file: Option<String>,
    /// What is added to an address to get its place in the file.
    shift: u64,
}

impl Area {
    /// Where it is. A stack has its end only: it grows whenever it is written below, as by the frame of a signal.
    pub fn place(&self) -> String {
        let grows = self.traits.flags & libc::MAP_GROWSDOWN.cast_unsigned() != 0;
        if grows { format!("up to {:x}", self.end) } else { format!("{:x}-{:x}", self.start, self.end) }
    }
}

/// Whether this is where the instant engine maps pages from.
fn is_pages_file(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| name.starts_with("pages-") && name.ends_with(".img"))
}

/// What was restored.
#[derive(Clone, Debug)]
pub struct Original {
    /// The areas of the image.
    pub areas: Vec<Area>,
    /// Where the program keeps a ledger of what is mapped, which the instant engine writes and CRIU does not.
    pub ledger: Range<u64>,
}

/// All areas by address. `path` gives the path of a file by its id, and `original` is what the image was whose pages
/// file may be mapped.
pub fn of(vmas: &[Vma], path: &impl Fn(u32) -> Option<String>, original: Option<&Original>) -> Vec<Area> {
    let mut areas: Vec<Area> = Vec::new();
    for vma in vmas {
        let area = Area { start: vma.start, end: vma.end, traits: traits(vma, path, original) };
        match areas.last_mut() {
            Some(last) if last.end == area.start && last.traits == area.traits => last.end = area.end,
            _ => areas.push(area),
        }
    }
    areas
}

fn traits(vma: &Vma, path: &impl Fn(u32) -> Option<String>, original: Option<&Original>) -> Traits {
    // CRIU takes the heap from a name that only anonymous mappings have.
    let status = vma.area() - VmaStatus::HEAP;
    let file = vma.file_id().map(|id| path(id).unwrap_or_else(|| "a file of no name".to_owned()));
    let shift = file.as_ref().map_or(0, |_| vma.offset.wrapping_sub(vma.start));
    let own =
        Traits { protection: vma.prot, flags: vma.flags, status, advice: vma.madv.unwrap_or(0), file, shift };
    if !own.file.as_deref().is_some_and(is_pages_file) {
        return own;
    }
    let Some(Original { areas, ledger }) = original else { return own };
    let meant = areas.iter().find(|area| area.start <= vma.start && vma.end <= area.end);
    let Some(Area { traits: meant, .. }) = meant else { return own };
    if ledger.contains(&vma.start) {
        return meant.clone();
    }
    let anonymous = meant.flags & libc::MAP_ANONYMOUS.cast_unsigned();
    let Traits { status, file, shift, .. } = meant.clone();
    Traits { flags: own.flags | anonymous, status, file, shift, ..own }
}
