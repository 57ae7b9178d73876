//! Memory files and shared memory: content, seals, who shares what with whom.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};

use super::scene::Scene;

const PAGE: usize = 4096;

/// A mapping that is never unmapped.
#[derive(Clone, Copy)]
struct Mapping {
    start: *mut u8,
    len: usize,
}

impl Mapping {
    fn new(len: usize, prot: i32, flags: i32, file: Option<BorrowedFd<'_>>) -> Self {
        let fd = file.map_or(-1, |file| file.as_raw_fd());
        // SAFETY: the kernel chooses a free place.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, fd, 0) };
        assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Self { start: start.cast(), len }
    }

    fn shared(len: usize, prot: i32, file: &File) -> Self {
        use std::os::fd::AsFd;
        Self::new(len, prot, libc::MAP_SHARED, Some(file.as_fd()))
    }

    #[track_caller]
    fn at(&self, offset: usize) -> u8 {
        assert!(offset < self.len);
        // SAFETY: it is mapped, and may be read.
        unsafe { self.start.wrapping_add(offset).read_volatile() }
    }

    #[track_caller]
    fn put(&self, offset: usize, byte: u8) {
        assert!(offset < self.len);
        // SAFETY: it is mapped, and may be written to.
        unsafe { self.start.wrapping_add(offset).write_volatile(byte) }
    }

    fn allow_writing(&self) -> std::io::Result<()> {
        // SAFETY: nothing depends on the mapping being read-only.
        let result =
            unsafe { libc::mprotect(self.start.cast(), self.len, libc::PROT_READ | libc::PROT_WRITE) };
        if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }
}

const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn memfd(name: &str, flags: MemfdFlags) -> File {
    memfd_create(name, MemfdFlags::CLOEXEC | flags).unwrap().into()
}

pub fn set(scene: &mut Scene) {
    content(scene);
    seals(scene);
    sharing(scene);
    anonymous(scene);
    files(scene);
}

fn content(scene: &mut Scene) {
    let mut file = memfd("content", MemfdFlags::empty());
    file.set_len(20_001).unwrap();
    file.write_all_at(b"hello", 3 * PAGE as u64 + 5).unwrap();
    file.write_all_at(b"end", 19_998).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o640)).unwrap();
    file.seek(SeekFrom::Start(3 * PAGE as u64 + 7)).unwrap();
    let empty = memfd("empty", MemfdFlags::empty());
    scene.add("memfd_content", move || {
        let mut rest = String::new();
        file.read_to_string(&mut rest).unwrap();
        assert!(rest.starts_with("llo\0") && rest.ends_with("\0end"), "{rest:?}");
        let meta = file.metadata().unwrap();
        assert_eq!((meta.len(), meta.mode() & 0o7777), (20_001, 0o640));
        let mut start = [1; PAGE];
        file.read_exact_at(&mut start, 0).unwrap();
        assert_eq!(start, [0; PAGE], "nothing was written there");
        let meta = empty.metadata().unwrap();
        assert_eq!((meta.len(), meta.mode() & 0o7777), (0, 0o777));
    });
}

/// A memory file that nobody can change, and who looks at it.
pub fn set_sealed(scene: &mut Scene) {
    let sealed = memfd("sealed", MemfdFlags::ALLOW_SEALING);
    (&sealed).write_all(&[7; 2 * PAGE]).unwrap();
    let wanted = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW;
    fcntl_add_seals(&sealed, wanted).unwrap();
    let view = Mapping::shared(2 * PAGE, libc::PROT_READ, &sealed);
    scene.add("memfd_sealed", move || {
        assert_eq!(fcntl_get_seals(&sealed).unwrap(), wanted);
        assert_eq!((view.at(0), view.at(2 * PAGE - 1)), (7, 7));
        assert!(view.allow_writing().is_err());
    });
}

fn seals(scene: &mut Scene) {
    let sealed = memfd("sealed", MemfdFlags::ALLOW_SEALING);
    (&sealed).write_all(&[7; 2 * PAGE]).unwrap();
    let wanted = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::SEAL;
    fcntl_add_seals(&sealed, wanted).unwrap();
    let unsealable = memfd("unsealable", MemfdFlags::empty());
    let later = memfd("later", MemfdFlags::ALLOW_SEALING);
    later.set_len(PAGE as u64).unwrap();
    let writer = Mapping::shared(PAGE, BOTH, &later);
    fcntl_add_seals(&later, SealFlags::FUTURE_WRITE).unwrap();
    scene.add("memfd_seals", move || {
        assert_eq!(fcntl_get_seals(&sealed).unwrap(), wanted);
        assert_eq!(sealed.write_at(b"x", 0).unwrap_err().raw_os_error(), Some(libc::EPERM));
        assert_eq!(fcntl_get_seals(&unsealable).unwrap(), SealFlags::SEAL);
        assert_eq!(fcntl_get_seals(&later).unwrap(), SealFlags::FUTURE_WRITE);
        writer.put(0, 9);
        let mut byte = [0];
        later.read_exact_at(&mut byte, 0).unwrap();
        assert_eq!(byte, [9], "who had it mapped still writes");
    });
}

fn sharing(scene: &mut Scene) {
    let file = memfd("shared", MemfdFlags::empty());
    file.set_len(4 * PAGE as u64).unwrap();
    let (one, two) = (Mapping::shared(4 * PAGE, BOTH, &file), Mapping::shared(2 * PAGE, BOTH, &file));
    for page in 0..4 {
        one.put(page * PAGE, u8::try_from(page).unwrap() + 1);
    }
    let private = Mapping::new(4 * PAGE, BOTH, libc::MAP_PRIVATE, Some(std::os::fd::AsFd::as_fd(&file)));
    private.put(PAGE, 99);
    let mut reader = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    reader.seek(SeekFrom::Start(PAGE as u64)).unwrap();
    let mut same = reader.try_clone().unwrap();
    // Its descriptor is closed; the mapping is all that keeps it.
    let lone = Mapping::shared(PAGE, BOTH, &{
        let lone = memfd("lone", MemfdFlags::empty());
        lone.set_len(PAGE as u64).unwrap();
        lone
    });
    lone.put(17, 17);
    scene.add("memfd_sharing", move || {
        assert_eq!([one.at(0), two.at(PAGE), one.at(3 * PAGE)], [1, 2, 4]);
        one.put(5, 55);
        let mut bytes = [0; 6];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!((two.at(5), bytes[5]), (55, 55), "one object");
        assert_eq!((private.at(0), private.at(PAGE), one.at(PAGE)), (1, 99, 2));
        assert!(reader.write(b"x").is_err(), "it was opened for reading");
        let mut byte = [0];
        reader.read_exact(&mut byte).unwrap();
        assert_eq!(same.stream_position().unwrap(), PAGE as u64 + 1, "a duplicate has the same position");
        same.read_exact(&mut byte).unwrap();
        assert_eq!(lone.at(17), 17);
    });
}

fn anonymous(scene: &mut Scene) {
    let area = Mapping::new(64 * PAGE, BOTH, libc::MAP_SHARED | libc::MAP_ANONYMOUS, None);
    for page in (0..64).step_by(3) {
        area.put(page * PAGE, u8::try_from(page).unwrap() + 1);
    }
    scene.add("anonymous_shared", move || {
        for page in 0..64 {
            let expected = if page % 3 == 0 { u8::try_from(page).unwrap() + 1 } else { 0 };
            assert_eq!(area.at(page * PAGE), expected, "page {page}");
        }
        // SAFETY: the child writes one byte and ends.
        match unsafe { libc::fork() } {
            0 => {
                area.put(1, 77);
                // SAFETY: it ends the child without running anything of the parent's.
                unsafe { libc::_exit(0) }
            }
            child => nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(child), None).unwrap(),
        };
        assert_eq!(area.at(1), 77, "a child shares it");
    });
}

fn files(scene: &mut Scene) {
    let path = scene.folder.join("mapped");
    fs::write(&path, [3; 2 * PAGE]).unwrap();
    let (writer, reader) =
        (File::options().read(true).write(true).open(&path).unwrap(), File::open(&path).unwrap());
    let one = Mapping::shared(2 * PAGE, BOTH, &writer);
    let two = Mapping::shared(PAGE, libc::PROT_READ, &reader);
    drop((writer, reader));
    one.put(9, 4);
    scene.add("shared_file", move || {
        assert_eq!((one.at(9), two.at(9), one.at(10)), (4, 4, 3));
        let byte = one.at(11) + 1;
        one.put(11, byte);
        assert_eq!((two.at(11), fs::read(&path).unwrap()[11]), (byte, byte));
        // The file outlives the process: as it was, for the next restore.
        one.put(11, 3);
        let refused = two.allow_writing().unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EACCES), "its descriptor could only read");
    });
}
