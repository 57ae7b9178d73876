//! Files that are read and written again are the same, byte for byte, or refused.

use std::fs;
use std::path::Path;

use criu_images::*;
use prost::Message;

use crate::image::{Image, PID, framing};
use crate::rich;

/// Reads a file of one folder strictly and writes it into another by these two; both must be equal.
#[track_caller]
fn same(from: &Path, name: &str, copy: impl Fn(&ImageDir, &ImageWriter)) {
    let to = tempfile::tempdir().unwrap();
    copy(&ImageDir::open(from).unwrap().strictly(), &ImageWriter::new(to.path()));
    assert!(fs::read(from.join(name)).unwrap() == fs::read(to.path().join(name)).unwrap(), "{name} differs");
}

#[test]
fn a_real_image_is_written_as_it_was_read() {
    let dir = rich::copy();
    let image = ImageDir::open(dir.path()).unwrap();
    for process in image.pstree().unwrap().iter().filter(|process| image.mm(process.pid).is_ok()) {
        let pid = process.pid;
        same(dir.path(), &format!("mm-{pid}.img"), |image, to| {
            to.mm(pid, &image.mm(pid).unwrap()).unwrap();
        });
        same(dir.path(), &format!("pagemap-{pid}.img"), |image, to| {
            let read = image.pagemap(pid).unwrap();
            let runs = read.extents().iter().map(|e| Run { vaddr: e.vaddr, pages: e.pages, flags: e.flags });
            let made = Pagemap::of(read.pages_id(), runs).unwrap();
            assert_eq!(made, read);
            to.pagemap(pid, &made).unwrap();
        });
    }
    same(dir.path(), "files.img", |image, to| to.files(image.files().unwrap().entries()).unwrap());
}

#[test]
fn a_written_file_is_its_owners_and_never_a_second_one() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let writer = ImageWriter::new(dir.path());
    writer.mm(PID, &Image::new().mm).unwrap();
    let meta = fs::metadata(dir.path().join(format!("mm-{PID}.img"))).unwrap();
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    let error = writer.mm(PID, &Image::new().mm).unwrap_err();
    assert!(error.to_string().starts_with("mm-10.img: cannot be written"), "{error}");
}

#[test]
fn what_would_be_lost_is_refused_by_who_will_write_it() {
    let dir = Image::new().write();
    let image = ImageDir::open(dir.path()).unwrap();
    for (name, unknown) in [(format!("mm-{PID}.img"), "200"), ("files.img".to_owned(), "200")] {
        let path = dir.path().join(&name);
        let mut bytes = fs::read(&path).unwrap();
        let (lengths, ends) = framing(&name, &bytes);
        // Field 200, a number, at the end of the last record.
        let field = [0xc0, 0x0c, 0x01];
        bytes.splice(ends[ends.len() - 1].., field);
        let at = lengths[lengths.len() - 1];
        let length = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) + 3;
        bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
        fs::write(&path, bytes).unwrap();
        let strict = image.clone().strictly();
        let (lax, strict) = if name == "files.img" {
            (image.files().map(drop), strict.files().map(drop))
        } else {
            (image.mm(PID).map(drop), strict.mm(PID).map(drop))
        };
        lax.unwrap();
        let error = strict.unwrap_err();
        assert!(
            matches!(&error, ReadError::UnknownField { field, .. } if field == unknown),
            "{name}: {error}"
        );
    }
}

#[test]
fn a_run_that_cannot_be_makes_no_map() {
    let run = |vaddr, pages| Run { vaddr, pages, flags: PageFlags::PRESENT };
    assert_eq!(Pagemap::of(1, [run(0x1000, 2), run(0x8000, 1)]).unwrap().present_bytes(), 3 * PAGE_SIZE);
    for wrong in [run(0x1000, 0), run(0x1001, 1), run(0x1000, u64::MAX)] {
        assert!(matches!(Pagemap::of(1, [wrong]), Err(WriteError::Invalid { .. })), "{wrong:?}");
    }
}

#[test]
fn a_record_that_would_not_be_read_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut memory = Image::new().mm;
    memory.saved_auxv = vec![u64::MAX; 4 << 20];
    assert!(memory.encoded_len() > MAX_RECORD as usize);
    let error = ImageWriter::new(dir.path()).mm(PID, &memory).unwrap_err();
    assert!(matches!(error, WriteError::TooLarge { .. }), "{error}");
    assert!(fs::read_dir(dir.path()).unwrap().next().is_none());
}
