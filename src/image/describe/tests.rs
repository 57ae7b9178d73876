use std::os::unix::fs::{MetadataExt, symlink};

use criu_images::{
    Core, Fdinfo, FileEntry, FileKind, FsInfo, InetSocket, Inventory, KernelIds, Memory, PagemapEntry,
    PagemapHead, Remap, SocketOptions, TaskCore, ThreadCore, ThreadInfoX86, Vma, VmaStatus,
};
use prost::Message;
use tempfile::TempDir;

use super::*;

pub(in crate::image) const PID: u32 = 4711;
const DEAD: u32 = 4713;
const COMMON: u32 = 0x5456_4319;

/// An image of one process with two threads and a dead child, and the files around it.
pub(in crate::image) struct Scene {
    root: TempDir,
    pub(in crate::image) image: PathBuf,
}

impl Scene {
    pub(in crate::image) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let image = root.path().join("image");
        fs::create_dir(&image).unwrap();
        let scene = Self { root, image };
        fs::copy(std::env::current_exe().unwrap(), scene.path("server")).unwrap();
        fs::write(scene.path("data"), "data").unwrap();
        fs::write(scene.path("log"), "log").unwrap();
        scene.write_tree();
        scene.write_files();
        scene
    }

    pub(in crate::image) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn put<M: Message>(&self, name: &str, magics: &[u32], records: &[M]) {
        let mut bytes: Vec<u8> = magics.iter().flat_map(|magic| magic.to_le_bytes()).collect();
        for record in records {
            let body = record.encode_to_vec();
            bytes.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
            bytes.extend(body);
        }
        fs::write(self.image.join(name), bytes).unwrap();
    }

    fn write_tree(&self) {
        let inventory = Inventory { img_version: 2, fdinfo_per_id: Some(true), ..Default::default() };
        self.put("inventory.img", &[0x5831_3116], &[inventory]);
        let process = |pid, ppid, threads: &[u32]| Process {
            pid,
            ppid,
            pgid: PID,
            sid: PID,
            threads: threads.to_vec(),
        };
        let tree = [process(PID, 0, &[PID, PID + 1]), process(DEAD, PID, &[0xdead_beef])];
        self.put("pstree.img", &[COMMON, 0x5027_3030], &tree);

        let credentials =
            Credentials { cap_eff: vec![0xffff_ffff, 0x1ff], cap_bnd: vec![7, 0], ..Default::default() };
        let thread = ThreadCore { credentials: Some(credentials), ..Default::default() };
        let task = |state| TaskCore { task_state: state, comm: b"server\0".to_vec(), ..Default::default() };
        let core = |task, thread: Option<ThreadCore>| Core {
            machine: criu_images::Machine::host() as i32,
            thread_info: thread.is_some().then(ThreadInfoX86::default),
            task,
            ids: None,
            thread,
        };
        let cores = [
            (PID, core(Some(task(1)), Some(thread.clone()))),
            (PID + 1, core(None, Some(thread))),
            (DEAD, core(Some(task(2)), None)),
        ];
        for (tid, core) in cores {
            self.put(&format!("core-{tid}.img"), &[COMMON, 0x5505_3847], &[core]);
        }
        let ids = KernelIds { vm_id: 1, files_id: 2, fs_id: 1, sighand_id: 1, ..Default::default() };
        self.put(&format!("ids-{PID}.img"), &[COMMON, 0x5443_2030], &[ids]);
        let vma = |start, status: VmaStatus, object| Vma {
            start,
            end: start + 0x2000,
            object,
            status: (VmaStatus::REGULAR | status).bits(),
            fd: -1,
            ..Default::default()
        };
        let vmas = vec![
            vma(0x1000, VmaStatus::FILE_PRIVATE, 1),
            vma(0x3000, VmaStatus::FILE_PRIVATE, 2),
            vma(0x5000, VmaStatus::ANON_PRIVATE, 0),
        ];
        self.put(
            &format!("mm-{PID}.img"),
            &[COMMON, 0x5749_2820],
            &[Memory { exe_file_id: 1, vmas, ..Default::default() }],
        );
        let head = PagemapHead { pages_id: 1 }.encode_to_vec();
        let run = PagemapEntry { vaddr: 0x5000, flags: Some(4), nr_pages: Some(2), ..Default::default() };
        let mut pagemap: Vec<u8> =
            [COMMON, 0x5608_4025].iter().flat_map(|magic| magic.to_le_bytes()).collect();
        for body in [head, run.encode_to_vec()] {
            pagemap.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
            pagemap.extend(body);
        }
        fs::write(self.image.join(format!("pagemap-{PID}.img")), pagemap).unwrap();
        fs::write(self.image.join("pages-1.img"), [7; 8192]).unwrap();
    }

    fn write_files(&self) {
        let regular = |id, name: &str, size: Option<u64>| {
            let mode = fs::metadata(self.path(name)).map_or(0o100_644, |meta| meta.mode());
            let name = self.path(name).into_os_string().into_encoded_bytes();
            let file = RegularFile { id, name, size, mode: Some(mode), ..Default::default() };
            FileEntry {
                kind: FileKind::Regular as i32,
                id,
                regular: Some(Box::new(file)),
                ..Default::default()
            }
        };
        let size = |name| Some(fs::metadata(self.path(name)).unwrap().len());
        let socket = InetSocket {
            id: 6,
            family: 2,
            kind: 1,
            protocol: 6,
            state: 10,
            src_port: 8080,
            src_addr: vec![u32::from_le_bytes([127, 0, 0, 1])],
            options: SocketOptions { reuse_port: Some(true), ..Default::default() },
            ..Default::default()
        };
        let listener = FileEntry {
            kind: FileKind::InetSocket as i32,
            id: 6,
            inet: Some(Box::new(socket)),
            ..Default::default()
        };
        let files = [
            regular(1, "server", size("server")),
            regular(2, "data", size("data")),
            regular(3, "log", None),
            regular(4, "", None),
            regular(5, "unlinked", Some(3)),
            listener,
            // The mapped file once more, as a descriptor.
            regular(7, "data", size("data")),
        ];
        self.put("files.img", &[COMMON, 0x5630_3138], &files);
        let descriptor =
            |fd, id, kind: FileKind| Fdinfo { id, flags: 0, kind: kind as i32, fd, selinux_label: None };
        let open = [
            descriptor(1, 3, FileKind::Regular),
            descriptor(3, 6, FileKind::InetSocket),
            descriptor(4, 7, FileKind::Regular),
            descriptor(5, 5, FileKind::Regular),
        ];
        self.put("fdinfo-2.img", &[COMMON, 0x5621_3732], &open);
        self.put(
            &format!("fs-{PID}.img"),
            &[COMMON, 0x5140_3912],
            &[FsInfo { cwd_id: 4, root_id: 4, umask: None }],
        );
        self.put(
            "remap-fpath.img",
            &[COMMON, 0x5913_3954],
            &[Remap { file_id: 5, remap_id: 1, kind: Some(1) }],
        );
        fs::write(self.image.join("ghost-file-1.img"), "abc").unwrap();
        fs::write(self.image.join("dump.log"), "log").unwrap();
        fs::write(self.image.join("stats-restore"), "").unwrap();
    }

    pub(in crate::image) fn describe(&self) -> Result<Manifest, DescribeError> {
        let criu = CriuRecord { version: (4, 2, 1), restore_flags: Vec::new() };
        let phases = vec![Phase { name: "dump".into(), micros: 7 }];
        describe(&self.image, SubjectRecord { name: "shop".into(), ..SubjectRecord::default() }, criu, phases)
    }

    /// A complete image of that name beside it, which a restore finds no port of taken.
    pub(in crate::image) fn complete(&self, name: &str) -> PathBuf {
        let partial = crate::image::Partial::create(&self.path(name)).unwrap();
        for entry in fs::read_dir(&self.image).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), partial.path().join(entry.file_name())).unwrap();
        }
        let mut manifest = self.describe().unwrap();
        manifest.listeners.clear();
        crate::image::chain::dependents::register(&manifest, &partial.target()).unwrap();
        partial.complete(&manifest).unwrap()
    }
}

#[test]
fn processes_and_privileges_are_those_of_the_image() {
    let manifest = Scene::new().describe().unwrap();
    let [server, dead] = &manifest.processes[..] else { panic!("{:?}", manifest.processes) };
    assert_eq!((server.pid, server.parent, server.group, server.session), (PID, 0, PID, PID));
    assert_eq!((server.threads.as_slice(), server.command.as_str()), ([PID, PID + 1].as_slice(), "server"));
    assert_eq!((dead.pid, dead.parent, dead.threads.as_slice()), (DEAD, PID, [DEAD].as_slice()));
    assert_eq!((manifest.capabilities.effective, manifest.capabilities.bounding), (0x1ff_ffff_ffff, 7));
    assert_eq!(manifest.machine, Machine::here().unwrap());
    assert_eq!(manifest.present_bytes, 8192);
    let listen = Listen { name: String::new(), address: ([127, 0, 0, 1], 8080).into(), reuse_port: true };
    assert_eq!(manifest.listeners, [listen]);
    let phases: Vec<&str> = manifest.phases.iter().map(|phase| phase.name.as_str()).collect();
    assert_eq!(
        phases,
        [
            "dump",
            "check the image",
            "look at earlier images",
            "hash the image",
            "hash what it needs",
            "describe the host",
            "look for large blocks"
        ]
    );
}

#[test]
fn image_files_are_listed_without_logs() {
    let manifest = Scene::new().describe().unwrap();
    let names: Vec<&str> = manifest.files.iter().map(|file| file.name.as_str()).collect();
    assert!(
        names.is_sorted() && names.contains(&"inventory.img") && names.contains(&"ghost-file-1.img"),
        "{names:?}"
    );
    assert!(!names.contains(&"dump.log") && !names.contains(&"stats-restore"), "{names:?}");
    let bulk: Vec<_> = manifest.files.iter().filter(|file| file.bulk).collect();
    let pages =
        ImageFile { name: "pages-1.img".into(), size: 8192, blake3: Digest::of(&[7; 8192]), bulk: true };
    assert_eq!(bulk, [&pages]);
    assert_eq!(manifest.bulk_bytes(), 8192);
}

#[test]
fn needed_files_are_listed_once_with_their_use() {
    let scene = Scene::new();
    let manifest = scene.describe().unwrap();
    let uses: Vec<_> =
        manifest.needed.iter().map(|file| (Path::new(&file.path), file.need, file.size)).collect();
    let size = fs::metadata(scene.path("server")).unwrap().len();
    assert_eq!(
        uses,
        [
            (scene.path("").as_path(), Need::Folder, None),
            (scene.path("data").as_path(), Need::Mapped, Some(4)),
            (scene.path("log").as_path(), Need::Open, None),
            (scene.path("server").as_path(), Need::Program, Some(size)),
        ]
    );
    assert_eq!(manifest.needed[1].blake3, Some(Digest::of(b"data")));
    assert_eq!((manifest.needed[2].blake3, &manifest.needed[2].build_id), (None, &None));
    assert_eq!(manifest.needed[3].build_id, build_id(&File::open(scene.path("server")).unwrap()));
}

#[test]
fn what_was_described_passes_verification_and_what_changes_does_not() {
    use crate::image::Image;
    use crate::image::verify::{VerifyOptions, verify};

    let scene = Scene::new();
    let path = scene.complete("img");
    let image = Image::open(&path).unwrap();
    let options = VerifyOptions { full: true, pids: false, ..VerifyOptions::default() };
    assert_eq!(verify(&image, &options), []);

    fs::write(scene.path("data"), "other data").unwrap();
    fs::write(path.join("pages-1.img"), [7; 4096]).unwrap();
    let findings: Vec<_> = verify(&image, &options).into_iter().map(|finding| finding.what).collect();
    let [pages, data] = &findings[..] else { panic!("{findings:?}") };
    assert_eq!(pages, "pages-1.img has 4096 bytes, 8192 expected");
    assert!(data.ends_with("data has 10 bytes, 4 expected"), "{data}");
}

#[test]
fn an_image_that_cannot_be_restored_is_refused() {
    let scene = Scene::new();
    fs::write(scene.image.join("pages-1.img"), [7; 4096]).unwrap();
    fs::remove_file(scene.image.join("fdinfo-2.img")).unwrap();
    let Err(DescribeError::NotWhole { findings }) = scene.describe() else { panic!("it was described") };
    assert!(findings.len() >= 2, "{findings:?}");

    let scene = Scene::new();
    fs::remove_file(scene.path("server")).unwrap();
    let error = scene.describe().unwrap_err();
    assert!(error.to_string().starts_with("cannot look at "), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("/server' in its place")), "{:?}", error.hint());
    // A link of that name is as good as the file.
    symlink(std::env::current_exe().unwrap(), scene.path("server")).unwrap();
    scene.describe().unwrap();
}
