//! A real image: what CRIU 4.2.1 made of `fixtures/rich.py`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use criu_images::*;
use prost::Message;
use tempfile::TempDir;

use crate::image::framing;

const ROOT: u32 = 27490;
const CHILD: u32 = 27495;
const ZOMBIE: u32 = 27496;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/rich")
}

/// A copy of the image with its pages files, which are not kept, as holes.
pub(crate) fn copy() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    for (id, bytes) in [(1, 12_288), (2, 4096), (3, 4_534_272), (4, 4_534_272)] {
        File::create(dir.path().join(format!("pages-{id}.img"))).unwrap().set_len(bytes).unwrap();
    }
    dir
}

#[test]
fn it_is_whole() {
    let dir = copy();
    let report = verify(&ImageDir::open(dir.path()).unwrap());
    if Machine::host() == Machine::X86_64 {
        assert!(report.is_ok(), "{:#?}", report.findings);
    }
    assert_eq!((report.processes, report.threads, report.present_bytes), (3, 6, 9_084_928));
}

/// The decoded messages encode to the bytes that were read, so no field was lost.
#[test]
fn its_records_are_understood_to_the_last_byte() {
    fn same<M: Message + Default>(name: &str) {
        let bytes = fs::read(fixture().join(name)).unwrap();
        let (_, ends) = framing(name, &bytes);
        for pair in ends.windows(2) {
            let record = &bytes[pair[0] + 4..pair[1]];
            assert_eq!(M::decode(record).unwrap().encode_to_vec(), record, "{name} at {}", pair[0]);
        }
    }
    same::<Inventory>("inventory.img");
    same::<Process>("pstree.img");
    for tid in [ROOT, 27492, 27493, 27494, CHILD, ZOMBIE] {
        same::<Core>(&format!("core-{tid}.img"));
    }
    for pid in [ROOT, CHILD] {
        same::<KernelIds>(&format!("ids-{pid}.img"));
        same::<Memory>(&format!("mm-{pid}.img"));
        same::<FsInfo>(&format!("fs-{pid}.img"));
    }
    for id in [2, 3] {
        same::<Fdinfo>(&format!("fdinfo-{id}.img"));
    }
    same::<FileEntry>("files.img");
    same::<TimeNamespace>("timens-0.img");
    same::<Stats>("stats-dump");
    same::<Stats>("stats-restore");
    same::<CpuInfo>("cpuinfo.img");
    same::<Memfd>("memfd.img");
    same::<Remap>("remap-fpath.img");
}

#[test]
fn its_processes_and_threads_are_as_they_were() {
    let image = ImageDir::open(fixture()).unwrap();
    let tree = image.pstree().unwrap();
    assert_eq!(tree[0].threads, [ROOT, 27492, 27493, 27494]);
    assert_eq!((tree[1].pid, tree[1].ppid, tree[2].ppid), (CHILD, ROOT, CHILD));
    let core = image.core(ROOT).unwrap();
    let (task, thread) = (core.task.as_ref().unwrap(), core.thread.as_ref().unwrap());
    assert_eq!((task.state(), task.comm.as_slice()), (Some(TaskState::Alive), b"python3".as_slice()));
    assert_eq!(task.limits.as_ref().unwrap().limits.len(), 16);
    // Signals 1 to 64 without the two that have no disposition.
    assert_eq!(task.sigactions.len(), 62);
    assert_eq!(thread.rseq.as_ref().unwrap().signature, 0x5305_3053);
    let registers = core.thread_info.unwrap();
    // It slept in clock_nanosleep(2), and the thread pointer leads to its own thread block.
    assert_eq!(registers.general.orig_ax, 230);
    assert_eq!(registers.clear_tid_addr, registers.general.fs_base + 0x2d0);
    assert_eq!(registers.floating.xsave.unwrap().ymmh_space.len(), 64);
    let zombie = image.core(ZOMBIE).unwrap().task.unwrap();
    assert_eq!((zombie.state(), zombie.exit_code), (Some(TaskState::Dead), 3 << 8));
}

#[test]
fn its_files_are_as_they_were() {
    let image = ImageDir::open(fixture()).unwrap();
    let files = image.files().unwrap();
    let listeners: Vec<_> = files.listeners().map(|l| (l.address.to_string(), l.backlog, l.v6only)).collect();
    assert_eq!(listeners, [("127.0.0.1:18471".into(), 7, false), ("[::1]:18472".into(), 9, true)]);
    let ids = image.ids(ROOT).unwrap();
    let open = image.fdinfo(ids.files_id).unwrap();
    let of = |fd: u32| files.get(open.iter().find(|d| d.fd == fd).unwrap().id).unwrap();
    assert_eq!(of(0).path(), Some(Path::new("/dev/null")));
    assert_eq!(of(6).path(), Some(Path::new("/tmp/rich/local.sock")));
    let epoll = of(13).epoll.as_ref().unwrap();
    assert_eq!(epoll.watched.iter().map(|w| w.fd).collect::<Vec<_>>(), [11, 3]);
    assert_eq!(of(14).eventfd.as_ref().unwrap().counter, 3);
    assert_eq!(of(16).signalfd.as_ref().unwrap().sigmask, 2);
    assert_eq!(of(17).inotify.as_ref().unwrap().watches[0].mask, 2);
    assert_eq!(of(18).pidfd.as_ref().unwrap().pid, ROOT as i32);
    // An append-only log may grow; a data file may not.
    assert_eq!(of(22).regular.as_ref().unwrap().size, None);
    assert_eq!(of(23).regular.as_ref().unwrap().size, Some(100));
    let fifo = of(25).fifo.as_ref().unwrap();
    let name = files.get(fifo.file_id.unwrap()).unwrap().path().unwrap();
    assert_eq!(name.as_os_str().as_encoded_bytes(), b"/tmp/rich/fifo\xff");
    let names: Vec<_> = image.memfds().unwrap().into_iter().map(|m| m.name).collect();
    assert_eq!(names, [b"/dev/zero".to_vec(), "mémo".into(), b"empty".to_vec()]);
    assert_eq!(image.remaps().unwrap()[0].file_id, of(24).id);
}

#[test]
fn its_memory_is_as_it_was() {
    let image = ImageDir::open(fixture()).unwrap();
    let (mm, files) = (image.mm(ROOT).unwrap(), image.files().unwrap());
    let python = mm.mapped_files(&files).next().unwrap();
    assert_eq!(python.path(), Path::new("/usr/bin/python3.11"));
    assert_eq!((python.size(), python.mode()), (Some(6_831_736), Some(0o100_755)));
    assert_eq!(python.build_id().len(), 20);
    let map = image.pagemap(ROOT).unwrap();
    assert_eq!((map.pages_file().as_str(), map.present_bytes()), ("pages-3.img", 4_534_272));
    assert!(map.extents().iter().all(Extent::is_present) && map.extents().iter().any(Extent::is_lazy));
    assert!(map.extents().is_sorted_by_key(|e| e.vaddr));
}

#[test]
fn its_figures_and_clocks_are_as_they_were() {
    let image = ImageDir::open(fixture()).unwrap();
    let dump = image.stats_dump().unwrap().unwrap();
    // Pages of both processes; shared memory is counted apart.
    assert_eq!((dump.pages_written, dump.shpages_written), (2 * 1107, Some(4)));
    assert_eq!(image.stats_restore().unwrap().unwrap().pages_restored, Some(1230));
    let clocks = image.timens().unwrap().unwrap();
    assert!(clocks.boottime.since_zero() >= clocks.monotonic.since_zero());
    let cpu = &image.cpuinfo().unwrap().unwrap().x86[0];
    assert_eq!((cpu.vendor(), cpu.xsave_size), (CpuVendor::Amd, Some(2432)));
    let inventory = image.inventory().unwrap();
    assert_eq!(inventory.network_lock(), Some(NetworkLock::Iptables));
}
