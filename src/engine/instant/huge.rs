//! Huge pages: whether memory may come back in them, and how many are at hand. It must not know what is put there.
//!
//! They are asked for by MADV_COLLAPSE, which leaves no mark on the mapping, unlike MADV_HUGEPAGE. It makes a huge page
//! of what is there, which takes that one page is. Only memory that is filled whole comes back so: the process takes
//! no more of it than in small pages.

use std::fs;
use std::path::Path;

use criu_images::{PAGE_SIZE, Vma, VmaStatus};
use criu_restorer::plan::{Call, Step};

use super::plan::perhaps;

/// Bytes of one.
pub(super) const HUGE: u64 = 2 << 20;
/// Fewer are not worth asking for: each call of madvise(2) waits for every CPU (lru_add_drain_all in mm/swap.c).
const LEAST: u64 = 8;
/// Most that are asked for, since each takes a call in the plan.
const MOST: u64 = 1 << 16;
const SETTINGS: &str = "/sys/kernel/mm/transparent_hugepage";
const VIRTIO: &str = "/sys/bus/virtio/devices";
/// The number of a memory balloon among virtual devices, and of the feature.
const BALLOON: &str = "0x0005";
const REPORTING: usize = 5;
const FREE: &str = "/proc/buddyinfo";
/// Pages of a huge one, as a power of two.
const ORDER: usize = 9;
/// madvise(2), Linux 6.1.
pub(super) const MADV_COLLAPSE: u64 = 25;
/// Advice of madvise(2), by number, that huge pages go against.
const ADVICE_AGAINST: u64 = 1 << libc::MADV_NOHUGEPAGE | 1 << libc::MADV_MERGEABLE;

/// The huge pages that may be used for `wanted` of them.
///
/// None where the administrator wants none, or where they come unasked. And none beyond those that are free: to make
/// them the kernel moves other memory away, which takes longer than small pages. Nor where those that are free have been
/// given back to the host of a virtual machine, which has to find memory for them then.
pub(super) fn at_hand(wanted: u64) -> u64 {
    if wanted < LEAST {
        return 0;
    }
    let setting = |name: &str| fs::read_to_string(format!("{SETTINGS}/{name}")).unwrap_or_default();
    if !setting("enabled").contains("[madvise]") || setting("hpage_pmd_size").trim() != HUGE.to_string() {
        return 0;
    }
    if is_reporting(VIRTIO.as_ref()) {
        return 0;
    }
    free(&fs::read_to_string(FREE).unwrap_or_default()).min(wanted).min(MOST)
}

/// Whether free memory is reported to the host, which is done in pieces of the size of huge pages: virtio specification
/// 1.2, 5.5, the feature VIRTIO_BALLOON_F_REPORTING of a memory balloon. `devices` has a folder for each device.
fn is_reporting(devices: &Path) -> bool {
    let said = |device: &Path, what: &str| fs::read_to_string(device.join(what)).unwrap_or_default();
    fs::read_dir(devices).into_iter().flatten().flatten().map(|entry| entry.path()).any(|device| {
        said(&device, "device").trim() == BALLOON
            && said(&device, "features").as_bytes().get(REPORTING) == Some(&b'1')
    })
}

/// How many are free, by /proc/buddyinfo: of each zone the number of free blocks of one page, two, four and so on. A
/// quarter is left to others.
fn free(text: &str) -> u64 {
    let of_zone = |line: &str| -> Option<u64> {
        let mut words = line.split_whitespace().skip_while(|word| *word != "zone").skip(1);
        // What is there for old devices is not given to programs.
        words.next().filter(|name| *name != "DMA")?;
        let blocks = words.skip(ORDER).map(|word| word.parse::<u64>().unwrap_or(0));
        Some(blocks.zip(0..32).map(|(count, order)| count.saturating_mul(1 << order)).sum())
    };
    text.lines().filter_map(of_zone).sum::<u64>() / 4 * 3
}

/// Whether memory of this mapping may come back in huge pages.
pub(super) fn may_hold(vma: &Vma) -> bool {
    vma.area().contains(VmaStatus::ANON_PRIVATE)
        && vma.flags & (libc::MAP_GROWSDOWN | libc::MAP_LOCKED).cast_unsigned() == 0
        && vma.madv.unwrap_or(0) & ADVICE_AGAINST == 0
}

/// The first and the number of those that lie inside of this memory.
pub(super) fn inside(start: u64, len: u64) -> (u64, u64) {
    let first = start.next_multiple_of(HUGE);
    (first, (start + len).saturating_sub(first) / HUGE)
}

/// Calls that make so many huge pages from `start` on, which are full of zeros then. It does not matter if one fails.
pub(super) fn calls(start: u64, count: u64) -> impl Iterator<Item = Call> {
    let populate = u64::from(libc::MADV_POPULATE_WRITE.unsigned_abs());
    let touched = (0..count).map(move |number| [start + number * HUGE, PAGE_SIZE, populate]);
    let all = (count > 0).then_some([start, count * HUGE, MADV_COLLAPSE]);
    touched.chain(all).map(|arguments| perhaps(Step::Fill, libc::SYS_madvise, &arguments))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::instant::layout::tests::vma;

    #[test]
    fn free_blocks_are_counted_as_huge_pages() {
        let text = "Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3 \n\
                    Node 0, zone    DMA32   1128    420    286    186    100     60     58     46     24     10    136 \n\
                    Node 0, zone   Normal  18221   4758   1034    276    329    142    109     39     40    102     46 \n";
        assert_eq!(free(text), (10 + 2 * 136 + 102 + 2 * 46) / 4 * 3);
        for text in
            ["", "Node 0, zone", "Node 0, zone Normal 1 2 3", "Node 0, zone Normal x x x x x x x x x x"]
        {
            assert_eq!(free(text), 0, "{text}");
        }
        assert!(at_hand(MOST + 5) <= MOST);
        assert_eq!(at_hand(LEAST - 1), 0);
    }

    #[test]
    fn a_balloon_that_reports_is_told_from_one_that_does_not() {
        let devices = tempfile::tempdir().unwrap();
        assert!(!is_reporting(devices.path()) && !is_reporting("/no/such/folder".as_ref()));
        for (name, device, features, reports) in [
            ("virtio0", "0x0002", "11111111", false),
            ("virtio1", "0x0005", "11111011", false),
            ("virtio2", "0x0005", "0", false),
            ("virtio3", "0x0005", "00000100", true),
        ] {
            let folder = devices.path().join(name);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("device"), format!("{device}\n")).unwrap();
            fs::write(folder.join("features"), format!("{features}\n")).unwrap();
            assert_eq!(is_reporting(devices.path()), reports, "{name}");
        }
    }

    #[test]
    fn only_whole_ones_are_used() {
        assert_eq!(inside(0, 2 * HUGE), (0, 2));
        assert_eq!(inside(PAGE_SIZE, 2 * HUGE), (HUGE, 1));
        assert_eq!(inside(PAGE_SIZE, HUGE), (HUGE, 0));
        assert_eq!(inside(PAGE_SIZE, PAGE_SIZE), (HUGE, 0));
        assert_eq!(calls(HUGE, 0).count(), 0);
        let made: Vec<Call> = calls(HUGE, 2).collect();
        assert_eq!(made.len(), 3);
        assert_eq!(made[2].arguments[..3], [HUGE, 2 * HUGE, MADV_COLLAPSE]);
    }

    #[test]
    fn memory_that_is_not_meant_for_them_has_none() {
        assert!(may_hold(&vma(0, HUGE, 0)));
        assert!(!may_hold(&vma(0, HUGE, libc::MAP_GROWSDOWN)));
        let advised = |advice: i32| Vma { madv: Some(1 << advice), ..vma(0, HUGE, 0) };
        assert!(may_hold(&advised(libc::MADV_HUGEPAGE)));
        assert!(!may_hold(&advised(libc::MADV_NOHUGEPAGE)));
        assert!(!may_hold(&Vma { status: VmaStatus::FILE_PRIVATE.bits(), ..vma(0, HUGE, 0) }));
    }
}
