//! Images cut at every length, with every bit flipped, and of arbitrary bytes: an error or a value,
//! never a panic.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use criu_images::*;
use proptest::prelude::*;

use crate::image::{Image, PID, framing, names, put, read};
use crate::rich;

fn cut_everywhere(dir: &Path, names: &[String], verified: bool) {
    let folder = ImageDir::open(dir).unwrap();
    for name in names {
        let whole = fs::read(dir.join(name)).unwrap();
        let (_, ends) = framing(name, &whole);
        let file = File::options().write(true).open(dir.join(name)).unwrap();
        for length in (0..whole.len()).rev() {
            file.set_len(length as u64).unwrap();
            let Err(error) = read(dir, name).unwrap() else {
                // A cut between two records shows only in what the records mean.
                assert!(ends.contains(&length), "{name} cut to {length}");
                continue;
            };
            assert_eq!(error.file(), Some(name.as_str()));
            assert!(error.offset().is_some_and(|o| o <= length as u64), "{error}");
            assert!(!verified || !verify(&folder).is_ok(), "{name} cut to {length}");
        }
        fs::write(dir.join(name), &whole).unwrap();
    }
}

/// Flips one bit after the other, `step` bits apart, and says in which byte and whether the file
/// could not be read.
fn flip_everywhere(dir: &Path, names: &[String], step: usize, mut each: impl FnMut(&str, usize, bool)) {
    for name in names {
        let bytes = fs::read(dir.join(name)).unwrap();
        let file = File::options().write(true).open(dir.join(name)).unwrap();
        for bit in (0..bytes.len() * 8).step_by(step) {
            let byte = bit / 8;
            file.write_all_at(&[bytes[byte] ^ 1 << (bit % 8)], byte as u64).unwrap();
            each(name, byte, read(dir, name).unwrap().is_err());
            file.write_all_at(&[bytes[byte]], byte as u64).unwrap();
        }
    }
}

#[test]
fn a_file_cut_at_any_length_is_an_error_that_verification_finds() {
    let dir = Image::new().write();
    let names = names(dir.path());
    assert_eq!(names.len(), 14);
    cut_everywhere(dir.path(), &names, true);
}

#[test]
fn a_real_file_cut_at_any_length_is_an_error() {
    let dir = rich::copy();
    cut_everywhere(dir.path(), &names(dir.path()), false);
}

#[test]
fn a_flipped_bit_in_a_magic_number_or_length_is_found() {
    let dir = Image::new().write();
    let folder = ImageDir::open(dir.path()).unwrap();
    let names = names(dir.path());
    let framed: Vec<Vec<usize>> =
        names.iter().map(|n| framing(n, &fs::read(dir.path().join(n)).unwrap()).0).collect();
    flip_everywhere(dir.path(), &names, 1, |name, byte, _| {
        let words = &framed[names.iter().position(|n| n == name).unwrap()];
        if words.iter().any(|word| (*word..word + 4).contains(&byte)) {
            assert!(!verify(&folder).is_ok(), "{name}, byte {byte}");
        }
    });
}

#[test]
fn a_flipped_bit_in_a_page_map_is_found_but_for_harmless_ones() {
    let dir = Image::new().write();
    let folder = ImageDir::open(dir.path()).unwrap();
    let before = folder.pagemap(PID).unwrap();
    let sizes = |map: &Pagemap| (map.pages_id(), map.present_bytes());
    flip_everywhere(dir.path(), &[format!("pagemap-{PID}.img")], 1, |name, byte, _| {
        // What passes says of the same pages file that it has the same size.
        if verify(&folder).is_ok() {
            assert_eq!(sizes(&folder.pagemap(PID).unwrap()), sizes(&before), "{name}, byte {byte}");
        }
    });
}

#[test]
fn a_flipped_bit_in_a_real_file_is_an_error_or_another_value() {
    let dir = rich::copy();
    let (mut errors, mut flips) = (0, 0);
    // Eleven bits on is another bit of the next byte or the one after it, each in turn.
    flip_everywhere(dir.path(), &names(dir.path()), 11, |_, _, error| {
        flips += 1;
        errors += usize::from(error);
    });
    // Most flips change a value to another one, which only a checksum can tell.
    assert!(flips > 15_000 && errors > flips / 20, "{errors} of {flips}");
}

const KINDS: [(&str, &[u32]); 8] = [
    ("inventory.img", &[0x5831_3116]),
    ("pstree.img", &[0x5456_4319, 0x5027_3030]),
    ("core-10.img", &[0x5456_4319, 0x5505_3847]),
    ("mm-10.img", &[0x5456_4319, 0x5749_2820]),
    ("pagemap-10.img", &[0x5456_4319, 0x5608_4025]),
    ("files.img", &[0x5456_4319, 0x5630_3138]),
    ("fdinfo-2.img", &[0x5456_4319, 0x5621_3732]),
    ("stats-dump", &[0x5510_5940, 0x5709_3306]),
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn arbitrary_files_are_read_or_refused(
        kind in 0..KINDS.len(),
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(KINDS[kind].0), bytes).unwrap();
        let _ = read(dir.path(), KINDS[kind].0);
        let report = verify(&ImageDir::open(dir.path()).unwrap());
        prop_assert!(!report.is_ok());
    }

    #[test]
    fn arbitrary_records_are_read_or_refused(
        kind in 0..KINDS.len(),
        records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..5),
    ) {
        let dir = Image::new().write();
        put(dir.path(), KINDS[kind].0, KINDS[kind].1, &records);
        let _ = read(dir.path(), KINDS[kind].0);
        let _ = verify(&ImageDir::open(dir.path()).unwrap());
    }

    #[test]
    fn damage_in_several_places_is_survived(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let dir = Image::new().write();
        let names = names(dir.path());
        for (file, place, value) in damage {
            let path = dir.path().join(file.get(&names));
            let mut bytes = fs::read(&path).unwrap();
            let at = place.index(bytes.len());
            bytes[at] = value;
            fs::write(&path, bytes).unwrap();
        }
        let _ = verify(&ImageDir::open(dir.path()).unwrap());
        for name in &names {
            let _ = read(dir.path(), name);
        }
    }
}
