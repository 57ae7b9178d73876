use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;

use super::pack::{PAGE, Pack};
use super::*;
use crate::image::digest::Digest;
use crate::image::machine::Machine;
use crate::image::manifest::tests::manifest;
use crate::image::manifest::{ImageFile, ImageId, MANIFEST_NAME, Manifest};
use crate::image::{Image, Partial};

struct Scene {
    folder: TempDir,
    history: History,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let history = History::create(&folder.path().join("history")).unwrap();
        Self { folder, history }
    }

    /// An image whose memory has these pages, each full of one value, and 17 bytes more.
    fn image(&self, pages: &[u32]) -> PathBuf {
        let partial = Partial::create(&self.folder.path().join("img")).unwrap();
        let mut memory: Vec<u8> = pages.iter().flat_map(|page| page.to_le_bytes().repeat(PAGE / 4)).collect();
        // The end of the file is no whole page, and is the same where the first page is.
        memory.extend([pages[0].to_le_bytes()[0]; 17]);
        let mut manifest = manifest();
        (manifest.ancestors, manifest.depth) = (Vec::new(), 0);
        manifest.id = ImageId::fresh().unwrap();
        manifest.machine = Machine::here().unwrap();
        manifest.files = [("inventory.img", &b"inventory"[..], false), ("pages-1.img", &memory[..], true)]
            .map(|(name, bytes, bulk)| {
                fs::write(partial.path().join(name), bytes).unwrap();
                let size = bytes.len() as u64;
                ImageFile { name: name.into(), size, blake3: Digest::of(bytes), bulk }
            })
            .to_vec();
        partial.complete(&manifest).unwrap()
    }

    fn add(&self, pages: &[u32]) -> Index {
        self.history.add(&self.image(pages)).unwrap()
    }

    /// The values of the pages of a checkpoint, from an image that is as the one that was stored.
    #[track_caller]
    fn pages(&self, number: u64) -> Vec<u32> {
        let out = self.history.checkout(number, &self.folder.path().join("out")).unwrap();
        let manifest = Image::open(&out).unwrap().manifest().clone();
        assert_eq!(manifest.id, self.history.index(number).unwrap().id);
        for file in &manifest.files {
            assert_eq!(Digest::of(&fs::read(out.join(&file.name)).unwrap()), file.blake3, "{}", file.name);
        }
        let memory = fs::read(out.join("pages-1.img")).unwrap();
        memory.chunks_exact(PAGE).map(|page| u32::from_le_bytes(page[..4].try_into().unwrap())).collect()
    }

    fn files(&self, end: &str) -> Vec<PathBuf> {
        let paths = fs::read_dir(self.history.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = paths.filter(|path| path.to_str().unwrap().ends_with(end)).collect();
        files.sort();
        files
    }

    fn bytes(&self, end: &str) -> u64 {
        self.files(end).iter().map(|path| fs::metadata(path).unwrap().len()).sum()
    }
}

#[test]
fn a_checkpoint_costs_its_changes_and_comes_back() {
    let scene = Scene::new();
    let first: Vec<u32> = (1..=1000).collect();
    let index = scene.add(&first);
    assert_eq!((index.number, index.pause_us, index.server.as_str()), (1, 512, "shop"));
    assert!(index.written_bytes > 1000 * PAGE as u64);
    // One more in front of all, two changed, and one that is there twice.
    let mut second: Vec<u32> = std::iter::once(5000).chain(1..=1000).collect();
    (second[10], second[500], second[501]) = (6000, 7000, 1);
    let index = scene.add(&second);
    assert_eq!(index.number, 2);
    assert!(index.written_bytes < 6 * PAGE as u64, "{} bytes for 3 pages", index.written_bytes);
    assert_eq!((scene.pages(1), scene.pages(2)), (first, second.clone()));
    let again = scene.add(&second);
    assert!(again.written_bytes < PAGE as u64, "{} bytes for nothing", again.written_bytes);
    assert_eq!(scene.history.complete(), [1, 2, 3]);
    assert_eq!(scene.files(".pack").len(), 3);
    let left = fs::read_dir(scene.history.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.into_iter().all(|name| !name.to_str().unwrap().starts_with(".writing")));
}

#[test]
fn an_image_larger_than_a_pack_comes_back() {
    let scene = Scene::new();
    let pages: Vec<u32> = (1..=1300).collect();
    scene.add(&pages);
    assert_eq!(scene.files(".pack").len(), 3);
    assert_eq!(scene.pages(1), pages);
}

#[test]
fn old_ones_leave_and_the_others_stay_whole() {
    let scene = Scene::new();
    let at = |number: u32| -> Vec<u32> { (0..100).map(|page| page + number * 30).collect() };
    for number in 1..=8 {
        scene.add(&at(number));
        scene.history.prune(3).unwrap();
        let numbers = scene.history.numbers();
        assert_eq!(numbers.len(), 3.min(number as usize));
        for kept in numbers {
            assert_eq!(scene.pages(kept), at(u32::try_from(kept).unwrap()), "{kept} after {number}");
        }
    }
    // 160 different pages and the tails of files are needed, and no pack is less than half full.
    assert!(scene.bytes(".pack") <= 2 * 170 * PAGE as u64, "{} bytes", scene.bytes(".pack"));
    assert_eq!(scene.files(".pack").len(), scene.files(".digests").len());
    assert_eq!(scene.history.prune(3).unwrap(), Pruned::default());
    assert_eq!(scene.add(&at(1)).number, 9, "no number is given twice");
}

#[test]
fn each_loss_is_named_and_the_rest_is_usable() {
    let scene = Scene::new();
    scene.add(&[1, 2, 3]);
    scene.add(&[4, 5, 6]);
    scene.add(&[1, 2, 7]);
    scene.add(&[4, 5, 8]);
    let pack = &scene.files(".pack")[0];
    let file = fs::File::options().write(true).open(pack).unwrap();
    file.write_all_at(b"x", PAGE as u64 + 5).unwrap();
    assert_eq!(scene.history.complete(), [1, 2, 3, 4], "nothing is read for that");
    for number in [1, 3] {
        let losses = scene.history.losses(number, true).unwrap();
        assert_eq!(losses.len(), 1, "{losses:?}");
        assert!(losses[0].contains("00000001.pack has other contents in page 1"), "{losses:?}");
        let error = scene.history.checkout(number, &scene.folder.path().join("out")).unwrap_err();
        assert!(matches!(error, HistoryError::Damaged { .. }) && error.is_of_the_image(), "{error}");
    }
    assert_eq!((scene.pages(2), scene.pages(4)), (vec![4, 5, 6], vec![4, 5, 8]));
    // The page is needed again: it is written again, and the new checkpoint is whole.
    scene.add(&[1, 2, 9]);
    assert_eq!(scene.pages(5), [1, 2, 9]);

    file.set_len(100).unwrap();
    assert_eq!(scene.history.complete(), [2, 4], "5 refers to page 0 of that pack");
    fs::remove_file(&scene.files(".digests")[1]).unwrap();
    assert!(scene.history.losses(2, false).unwrap()[0].contains("00000002.digests"));
    let index = scene.history.index_path(4);
    let mut bytes = fs::read(&index).unwrap();
    bytes[30] ^= 1;
    fs::write(&index, bytes).unwrap();
    assert!(scene.history.losses(4, false).unwrap()[0].contains("00000004.checkpoint: record has checksum"));
    // No number comes after this one, and nobody ever writes to that FIFO.
    fs::write(scene.history.index_path(u64::MAX), "").unwrap();
    let fifo = scene.history.path().join("00000009.pack");
    mkfifo(&fifo, Mode::from_bits_truncate(0o600)).unwrap();
    fs::copy(&scene.files(".digests")[0], fifo.with_extension("digests")).unwrap();
    assert!(Pack::open(scene.history.path(), 9).is_err());
    scene.add(&[1, 2, 3, 4, 5]);
    assert_eq!(scene.pages(6), [1, 2, 3, 4, 5]);
    scene.history.prune(1).unwrap();
    assert_eq!((scene.history.numbers(), scene.pages(6)), (vec![6], vec![1, 2, 3, 4, 5]));
}

#[test]
fn what_is_no_history_is_told_apart() {
    let scene = Scene::new();
    let path = scene.folder.path();
    assert!(matches!(History::open(&path.join("none")), Err(HistoryError::Missing { .. })));
    assert!(matches!(History::open(path), Err(HistoryError::NotHistory { .. })));
    assert!(matches!(History::create(path), Err(HistoryError::NotHistory { .. })));
    assert!(matches!(History::create(&path.join("a\nb")), Err(HistoryError::LineBreak { .. })));
    let claim = scene.history.claim().unwrap();
    let error = scene.history.claim().unwrap_err();
    assert!(error.to_string().contains(&format!("is in use by process {}", std::process::id())), "{error}");
    drop(claim);
    drop(scene.history.claim().unwrap());
    // A copy of what is stored only.
    scene.add(&[1]);
    fs::remove_file(scene.history.path().join("history.lock")).unwrap();
    drop(History::create(scene.history.path()).unwrap().claim().unwrap());
    scene.history.prune(1).unwrap();
    fs::remove_file(scene.history.index_path(1)).unwrap();
    fs::remove_file(&scene.files(".pack")[0]).unwrap();
    let image = scene.image(&[1]);
    fs::write(image.join("inventory.img"), "something").unwrap();
    assert!(matches!(scene.history.add(&image), Err(HistoryError::Changed { .. })));
    fs::remove_file(image.join(MANIFEST_NAME)).unwrap();
    assert!(matches!(scene.history.add(&image), Err(HistoryError::Image(_))));
    assert_eq!((scene.history.numbers(), scene.files(".pack")), (vec![], vec![]));
}

#[test]
fn a_checkout_within_the_history_is_used_again_and_pruned() {
    let scene = Scene::new();
    for pages in [[1, 2], [1, 3]] {
        scene.add(&pages);
    }
    let first = scene.history.checked_out(1).unwrap().image;
    let mark = first.path().join("working-set");
    fs::write(&mark, "mark").unwrap();
    drop(scene.history.checked_out(1).unwrap());
    assert!(mark.exists(), "it was made again");
    fs::write(first.path().join("inventory.img"), "damaged").unwrap();
    drop(scene.history.checked_out(1).unwrap());
    assert!(!mark.exists(), "it was damaged, and not made again");
    // What was left to the kernel to write is not trusted once the host was started anew.
    let (first, manifest) = (first.path(), Image::open(first.path()).unwrap().manifest().clone());
    assert!(!manifest.durable);
    let machine = Machine { boot_id: "another".into(), ..manifest.machine.clone() };
    fs::write(first.join(MANIFEST_NAME), Manifest { machine, ..manifest }.to_bytes().unwrap()).unwrap();
    fs::write(&mark, "mark").unwrap();
    let first = scene.history.checked_out(1).unwrap();
    assert!(!first.image.manifest().durable);
    assert!(!mark.exists(), "it was not made again");
    assert!(
        Image::open(&scene.history.checkout(1, &scene.folder.path().join("out")).unwrap())
            .unwrap()
            .manifest()
            .durable
    );
    drop(scene.history.checked_out(2).unwrap());
    let there = |number| Path::exists(&scene.history.checkout_path(number));
    scene.history.prune(5).unwrap();
    assert_eq!((there(1), there(2)), (true, true), "somebody is about to restore the first");
    drop(first);
    scene.history.prune(5).unwrap();
    assert_eq!((there(1), there(2)), (false, true));
}

#[test]
fn what_is_pruned_meanwhile_is_no_loss() {
    let scene = Scene::new();
    let at = |number: u32| -> Vec<u32> { (0..100).map(|page| page + number * 30).collect() };
    scene.add(&at(0));
    let (done, mut looks) = (AtomicBool::new(false), 0);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for number in 1..150 {
                scene.add(&at(number));
                scene.history.prune(2).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        let out = scene.folder.path().join("out");
        while !done.load(Ordering::Relaxed) {
            for number in scene.history.numbers() {
                match scene.history.losses(number, true) {
                    Ok(losses) => assert!(losses.is_empty(), "{number}: {losses:?}"),
                    Err(HistoryError::Unknown { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
                match scene.history.checkout(number, &out) {
                    Ok(_) | Err(HistoryError::Unknown { .. }) => looks += 1,
                    Err(error) => panic!("{error}"),
                }
            }
        }
    });
    assert!(looks > 20, "{looks} looks only");
}
