//! Files that would take too much memory or time, if they were believed.

use std::fs::{self, File};

use criu_images::*;
use nix::sys::stat::Mode;

use crate::image::{Image, PID, put};

#[test]
fn a_file_beyond_the_limit_is_not_read() {
    let dir = Image::new().write();
    File::create(dir.path().join("files.img")).unwrap().set_len(MAX_FILE + 1).unwrap();
    let error = ImageDir::open(dir.path()).unwrap().files().unwrap_err();
    assert!(matches!(error, ReadError::TooLarge { size, .. } if size == MAX_FILE + 1));
}

#[test]
fn a_length_is_not_believed() {
    let dir = Image::new().write();
    let mut bytes = fs::read(dir.path().join("mm-10.img")).unwrap();
    bytes[8..12].copy_from_slice(&MAX_RECORD.to_le_bytes());
    fs::write(dir.path().join("mm-10.img"), bytes).unwrap();
    let error = ImageDir::open(dir.path()).unwrap().mm(PID).unwrap_err();
    assert!(
        matches!(error, ReadError::Cut { offset: 12, expected, .. } if expected == u64::from(MAX_RECORD))
    );
}

#[test]
fn a_record_of_very_many_empty_parts_is_refused_before_it_is_decoded() {
    let dir = Image::new().write();
    // Field 14, a mapping, of no bytes.
    let record = [0x72, 0].repeat(MAX_PARTS + 1);
    put(dir.path(), "mm-10.img", &[0x5456_4319, 0x5749_2820], &[record]);
    let error = ImageDir::open(dir.path()).unwrap().mm(PID).unwrap_err();
    assert!(matches!(error, ReadError::TooManyParts { limit: MAX_PARTS, .. }), "{error}");
}

#[test]
fn a_fifo_in_place_of_a_file_is_refused_without_waiting() {
    let dir = Image::new().write();
    let path = dir.path().join("core-10.img");
    fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
    let error = ImageDir::open(dir.path()).unwrap().core(PID).unwrap_err();
    assert_eq!(error.to_string(), "core-10.img: not a regular file");
}

#[test]
fn a_folder_in_place_of_a_pages_file_is_found() {
    let dir = Image::new().write();
    fs::remove_file(dir.path().join("pages-1.img")).unwrap();
    fs::create_dir(dir.path().join("pages-1.img")).unwrap();
    let report = verify(&ImageDir::open(dir.path()).unwrap());
    assert_eq!(report.findings[0].to_string(), "pages-1.img: not a regular file");
}

#[test]
fn a_file_with_another_number_of_records_is_refused() {
    let dir = Image::new().write();
    let folder = ImageDir::open(dir.path()).unwrap();
    let magics = [0x5456_4319, 0x5443_2030];
    put(dir.path(), "ids-10.img", &magics, &[]);
    let error = folder.ids(PID).unwrap_err();
    assert_eq!(error.to_string(), "ids-10.img: at byte 8: one record expected");
    let record = b"\x08\x01\x10\x02\x18\x03\x20\x04".to_vec();
    put(dir.path(), "ids-10.img", &magics, &[record.clone(), record]);
    let error = folder.ids(PID).unwrap_err();
    assert_eq!(error.to_string(), "ids-10.img: at byte 24: end of file expected");
}

#[test]
fn a_missing_required_field_is_refused_with_its_path() {
    let dir = Image::new().write();
    // Fields 1 to 3 of 4 that are required.
    put(dir.path(), "ids-10.img", &[0x5456_4319, 0x5443_2030], &[b"\x08\x01\x10\x02\x18\x03".to_vec()]);
    let error = ImageDir::open(dir.path()).unwrap().ids(PID).unwrap_err();
    assert_eq!(error.to_string(), "ids-10.img: at byte 12: task_kobj_ids_entry without required field 4");
}

#[test]
fn no_folder_is_an_error_that_names_the_path() {
    let error = ImageDir::open("/nonexistent/img").unwrap_err();
    assert!(error.to_string().starts_with("/nonexistent/img: not an image folder: "));
    assert_eq!(error.file(), None);
}
