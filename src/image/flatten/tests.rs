use std::os::unix::fs::MetadataExt;

use criu_images::{
    FileEntry, FileKind, ImageWriter, PAGE_SIZE, PageFlags, Pagemap, RegularFile, Run, VmaStatus,
};

use super::*;
use crate::image::describe::tests::{PID, Scene};
use crate::image::manifest::MANIFEST_NAME;
use crate::image::verify::{VerifyOptions, verify};
use crate::image::{RemoveError, remove};

const FILE: u32 = 8;

/// What the process of the scene becomes when it is restored by mapping this image, changes its second page, and is
/// dumped again.
fn go_on(scene: &Scene, from: &Path) {
    let dir = ImageDir::open(&scene.image).unwrap();
    let (mut memory, table) = (dir.mm(PID).unwrap(), dir.files().unwrap());
    let vma = &mut memory.vmas[2];
    vma.status = (VmaStatus::REGULAR | VmaStatus::FILE_PRIVATE).bits();
    (vma.object, vma.fdflags) = (FILE.into(), Some(0));
    let pages = from.join("pages-1.img");
    let meta = fs::metadata(&pages).unwrap();
    let file = RegularFile {
        id: FILE,
        name: pages.into_os_string().into_encoded_bytes(),
        size: Some(meta.len()),
        mode: Some(meta.mode()),
        ..RegularFile::default()
    };
    let entry = FileEntry {
        kind: FileKind::Regular as i32,
        id: FILE,
        regular: Some(Box::new(file)),
        ..FileEntry::default()
    };
    for name in ["files.img".to_owned(), format!("mm-{PID}.img"), format!("pagemap-{PID}.img")] {
        fs::remove_file(scene.image.join(name)).unwrap();
    }
    let writer = ImageWriter::new(&scene.image);
    writer.files(table.entries().iter().filter(|old| old.id != FILE).chain([&entry])).unwrap();
    writer.mm(PID, &memory).unwrap();
    let changed = Run { vaddr: 0x6000, pages: 1, flags: PageFlags::PRESENT };
    writer.pagemap(PID, &Pagemap::of(1, [changed]).unwrap()).unwrap();
    fs::write(scene.image.join("pages-1.img"), [9; PAGE_SIZE as usize]).unwrap();
}

/// A scene with two images: `img1` depends on `img0`.
fn chain() -> (Scene, Image, Image) {
    let scene = Scene::new();
    let first = scene.complete("img0");
    go_on(&scene, &first);
    let second = scene.complete("img1");
    (scene, Image::open(&first).unwrap(), Image::open(&second).unwrap())
}

/// All files of a folder with their contents.
fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = paths.map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    files.sort();
    files
}

fn flattened(image: &Image, to: Option<&Path>) -> Result<Image, FlattenError> {
    flatten(image, to, &mut |done, total| assert!(done <= total)).map(|path| Image::open(&path).unwrap())
}

#[track_caller]
fn is_whole(image: &Image) {
    let manifest = image.manifest();
    assert_eq!((manifest.ancestors.as_slice(), manifest.depth, manifest.present_bytes), (&[][..], 0, 8192));
    let options = VerifyOptions { full: true, pids: false, ..VerifyOptions::default() };
    assert_eq!(verify(image, &options), []);
    let dir = ImageDir::open(image.path()).unwrap();
    let vma = &dir.mm(PID).unwrap().vmas[2];
    assert_eq!(vma.area(), VmaStatus::REGULAR | VmaStatus::ANON_PRIVATE);
    assert!(dir.files().unwrap().get(FILE).is_none(), "the record of the file is left");
    let pages = fs::read(image.path().join("pages-1.img")).unwrap();
    assert_eq!(pages, [[7; PAGE_SIZE as usize], [9; PAGE_SIZE as usize]].concat());
}

#[test]
fn a_dependent_image_says_so() {
    let (_scene, first, second) = chain();
    let [ancestor] = &second.manifest().ancestors[..] else { panic!("{:?}", second.manifest().ancestors) };
    assert_eq!((ancestor.image.as_path(), ancestor.id), (first.path(), first.manifest().id));
    let [file] = &ancestor.files[..] else { panic!("{:?}", ancestor.files) };
    assert_eq!((file.name.as_str(), file.size, file.mapped_bytes), ("pages-1.img", 8192, 8192));
    assert_eq!((first.manifest().depth, second.manifest().depth), (0, 1));
    assert!(second.manifest().needed.iter().all(|file| !file.path.contains("pages-1.img")));
    assert_eq!(Users::of(first.path()).images, [second.path().canonicalize().unwrap()]);
    assert!(Users::of(second.path()).is_empty());
}

#[test]
fn a_dependent_image_becomes_whole_in_its_place() {
    let (scene, first, second) = chain();
    assert!(matches!(remove(first.path(), false).unwrap_err(), RemoveError::Needed { .. }));
    let whole = flattened(&second, None).unwrap();
    is_whole(&whole);
    assert_eq!(whole.path(), second.path());
    assert_ne!(whole.manifest().id, second.manifest().id);
    assert_eq!(whole.manifest().created_unix_ns, second.manifest().created_unix_ns);
    let place = first.path().canonicalize().unwrap();
    assert_eq!(remove(first.path(), false).unwrap(), place);
    is_whole(&whole);
    let again = flattened(&whole, None).unwrap();
    assert_eq!(again.manifest(), whole.manifest(), "what is whole is left alone");
    let names: Vec<_> = fs::read_dir(scene.path("")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().contains("partial")), "{names:?}");
}

#[test]
fn a_whole_copy_leaves_the_dependent_one_as_it_was() {
    let (scene, first, second) = chain();
    let before = contents(second.path());
    is_whole(&flattened(&second, Some(&scene.path("whole"))).unwrap());
    assert_eq!(contents(second.path()), before);
    let copy = flattened(&first, Some(&scene.path("copy"))).unwrap();
    assert_eq!(copy.manifest().files, first.manifest().files, "a whole image is copied");
    assert!(matches!(flattened(&second, Some(first.path())).unwrap_err(), FlattenError::Needed { .. }));
}

#[test]
fn a_damaged_chain_is_refused_and_stays() {
    let (_scene, first, second) = chain();
    let before = contents(second.path());
    let mut pages = fs::read(first.path().join("pages-1.img")).unwrap();
    pages[5000] ^= 1;
    fs::write(first.path().join("pages-1.img"), pages).unwrap();
    let error = flattened(&second, None).unwrap_err();
    assert!(error.is_of_the_image() && error.to_string().contains("other contents"), "{error}");
    remove(first.path(), true).unwrap();
    let error = flattened(&second, None).unwrap_err();
    assert!(error.to_string().contains("img0, which is gone"), "{error}");
    assert_eq!(contents(second.path()), before);
}

#[test]
fn an_image_that_others_depend_on_is_not_replaced_by_a_whole_one() {
    let (scene, _first, second) = chain();
    go_on(&scene, second.path());
    // Its one page is the second one; that what is mapped ends early does not matter here.
    let third = Image::open(&scene.complete("img2")).unwrap();
    assert_eq!(third.manifest().depth, 2);
    let error = flattened(&second, None).unwrap_err();
    assert!(matches!(&error, FlattenError::Needed { users, .. } if users.images.len() == 1), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("--to")));
}

/// Memory that came later is in a later image: each part is taken from where it is.
#[test]
fn an_image_that_depends_on_two_becomes_whole() {
    let (scene, first, second) = chain();
    go_on(&scene, second.path());
    let dir = ImageDir::open(&scene.image).unwrap();
    let mut memory = dir.mm(PID).unwrap();
    let entries = dir.files().unwrap().entries().to_vec();
    // The first page is still where it was at the beginning, and has the id after.
    let mut early = entries.iter().find(|entry| entry.id == FILE).unwrap().clone();
    early.id = FILE + 1;
    let file = early.regular.as_mut().unwrap();
    (file.id, file.size) = (FILE + 1, Some(8192));
    file.name = first.path().join("pages-1.img").into_os_string().into_encoded_bytes();
    let mut later = memory.vmas[2].clone();
    (memory.vmas[2].end, memory.vmas[2].object) = (0x6000, (FILE + 1).into());
    later.start = 0x6000;
    memory.vmas.insert(3, later);
    for name in ["files.img".to_owned(), format!("mm-{PID}.img"), format!("pagemap-{PID}.img")] {
        fs::remove_file(scene.image.join(name)).unwrap();
    }
    let writer = ImageWriter::new(&scene.image);
    writer.files(entries.iter().chain([&early])).unwrap();
    writer.mm(PID, &memory).unwrap();
    writer.pagemap(PID, &Pagemap::of(1, []).unwrap()).unwrap();
    fs::write(scene.image.join("pages-1.img"), []).unwrap();

    let third = Image::open(&scene.complete("img2")).unwrap();
    let ancestors: Vec<_> = third.manifest().ancestors.iter().map(|a| a.image.as_path()).collect();
    assert_eq!((ancestors.as_slice(), third.manifest().depth), ([first.path(), second.path()].as_slice(), 2));
    let whole = flattened(&third, None).unwrap();
    for image in [&second, &first] {
        remove(image.path(), false).unwrap();
    }
    is_whole(&whole);
}

#[test]
fn what_cannot_be_written_again_without_loss_is_refused() {
    let (_scene, _first, second) = chain();
    let name = format!("mm-{PID}.img");
    let path = second.path().join(&name);
    let mut bytes = fs::read(&path).unwrap();
    // Field 200, a number, at the end of the one record.
    bytes.extend([0xc0, 0x0c, 0x01]);
    let length = u32::from_le_bytes(bytes[8..12].try_into().unwrap()) + 3;
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    let mut manifest = second.manifest().clone();
    let listed = manifest.files.iter_mut().find(|file| file.name == name).unwrap();
    (listed.size, listed.blake3) = (bytes.len() as u64, crate::image::digest::Digest::of(&bytes));
    fs::write(second.path().join(MANIFEST_NAME), manifest.to_bytes().unwrap()).unwrap();
    let before = contents(second.path());
    let error = flattened(&Image::open(second.path()).unwrap(), None).unwrap_err();
    assert!(matches!(error, FlattenError::Read(ReadError::UnknownField { .. })), "{error}");
    assert_eq!(contents(second.path()), before);
}
