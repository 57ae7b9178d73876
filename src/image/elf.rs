//! The GNU build-id of a program or library.
//!
//! Reads the headers and the note only, not the file. This module must not know what the id is compared with.

use std::fs::File;

use object::Endianness;
use object::elf::{ELF_NOTE_GNU, FileHeader64, NT_GNU_BUILD_ID};
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader};

/// Longest note segment that is read, in bytes; real ones have some hundred.
const NOTES_LIMIT: u64 = 64 << 10;

/// The build-id in hex; none if the file is no 64-bit ELF file or has no such note.
pub(super) fn build_id(file: &File) -> Option<String> {
    let data = ReadCache::new(file);
    let header = FileHeader64::<Endianness>::parse(&data).ok()?;
    let endian = header.endian().ok()?;
    for segment in header.program_headers(endian, &data).ok()? {
        if segment.p_filesz(endian) > NOTES_LIMIT {
            continue;
        }
        let Ok(Some(mut notes)) = segment.notes(endian, &data) else { continue };
        while let Ok(Some(note)) = notes.next() {
            if note.name() == ELF_NOTE_GNU && note.n_type(endian) == NT_GNU_BUILD_ID {
                return Some(hex(note.desc()));
            }
        }
    }
    None
}

/// Bytes as lower-case hex digits.
fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_has_one_and_a_text_has_none() {
        // The loader maps the C library into every test binary: take its path from there.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let library = maps
            .lines()
            .find_map(|line| line.find("/").map(|at| &line[at..]).filter(|p| p.contains("libc.so")));
        if let Some(path) = library {
            let id = build_id(&File::open(path).unwrap()).unwrap();
            assert!(id.len() >= 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
        }
        assert_eq!(build_id(&File::open(file!().replace("src/image/elf.rs", "Cargo.toml")).unwrap()), None);
    }

    #[test]
    fn a_cut_file_gives_none_or_the_id_and_never_more() {
        use std::io::Write;
        let whole = std::fs::read("/proc/self/exe").unwrap();
        for len in (0..4096.min(whole.len())).step_by(7) {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&whole[..len]).unwrap();
            let _ = build_id(&file);
        }
    }
}
