//! Remembers the version of one program, since asking costs 3 ms of a restore that takes 10. Knows no search order.
//!
//! A failure here is never an error: the program is asked again. The folder is used only if nobody else can write it.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::geteuid;

use crate::version::Version;

/// The longest record: two numbers lines and a path.
const LIMIT: u64 = 8192;

/// Which file a version belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    path: PathBuf,
    stamp: String,
}

impl Key {
    /// Of the file as it is now; for a wrapper script, of the wrapper.
    pub(crate) fn of(path: &Path) -> Option<Key> {
        let data = fs::metadata(path).ok()?;
        let stamp =
            format!("{} {} {} {} {}", data.dev(), data.ino(), data.size(), data.mtime(), data.mtime_nsec());
        Some(Key { path: path.to_owned(), stamp })
    }

    /// The record: version, stamp, path, the last without end so that any byte may be in it.
    fn record(&self, version: &str) -> Vec<u8> {
        [version.as_bytes(), b"\n", self.stamp.as_bytes(), b"\n", self.path.as_os_str().as_bytes()].concat()
    }
}

/// This user as those outside of its user namespace know it, who share /tmp with it: root of the namespace must not
/// make a folder there under the name of theirs.
fn user_outside() -> u32 {
    let own = geteuid().as_raw();
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    outside(&map, own).unwrap_or(own)
}

/// Looks a user up in /proc/PID/uid_map: first inside, first outside, how many, a line for each range
/// (user_namespaces(7)).
fn outside(map: &str, user: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_whitespace().map_while(|number| number.parse::<u32>().ok());
        let (inside, outside, count) = (numbers.next()?, numbers.next()?, numbers.next()?);
        let place = user.checked_sub(inside).filter(|place| *place < count)?;
        outside.checked_add(place)
    })
}

/// One remembered version.
#[derive(Debug, Clone)]
pub(crate) struct VersionCache {
    folder: PathBuf,
}

impl VersionCache {
    /// In the first of `folders` that belongs to this user alone, or can be made so.
    pub(crate) fn in_one_of(folders: impl IntoIterator<Item = PathBuf>) -> Option<VersionCache> {
        folders.into_iter().find(|folder| prepare(folder)).map(|folder| VersionCache { folder })
    }

    /// Where the cache of this user may be.
    pub(crate) fn folders(runtime: Option<&Path>) -> Vec<PathBuf> {
        let shared = PathBuf::from(format!("/tmp/defrost-{}", user_outside()));
        runtime
            .map(|runtime| runtime.join("defrost"))
            .into_iter()
            .chain(["/run/defrost".into(), shared])
            .collect()
    }

    /// What was stored for `key`, if that was the last thing stored.
    pub(crate) fn get(&self, key: &Key) -> Option<Version> {
        let file =
            OpenOptions::new().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(self.file()).ok()?;
        let mut record = Vec::new();
        file.take(LIMIT).read_to_end(&mut record).ok()?;
        let end = record.iter().position(|&byte| byte == b'\n')?;
        let version = std::str::from_utf8(&record[..end]).ok()?;
        (record == key.record(version)).then(|| Version::parse(version)).flatten()
    }

    /// Stores it beside the old one and renames, so that a reader never sees half a record.
    pub(crate) fn put(&self, key: &Key, version: Version) {
        let new = self.folder.join(format!("criu-version.{}", std::process::id()));
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(OFlag::O_NOFOLLOW.bits())
            .open(&new)
            .and_then(|mut file| file.write_all(&key.record(&version.to_string())))
            .and_then(|()| fs::rename(&new, self.file()));
        if written.is_err() {
            // Nothing more can be done: the next start asks the program again.
            let _ = fs::remove_file(&new);
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.join("criu-version")
    }
}

/// Makes the folder if it is not there. `false` when others could write it, or put a link in its place.
fn prepare(folder: &Path) -> bool {
    // Fails where it exists already, which the look at it decides.
    let _ = DirBuilder::new().mode(0o700).create(folder);
    fs::symlink_metadata(folder)
        .is_ok_and(|data| data.is_dir() && data.uid() == geteuid().as_raw() && data.mode() & 0o022 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_known_outside_by_another_name() {
        assert_eq!(outside("         0          0 4294967295\n", 7), Some(7));
        assert_eq!(outside("0 65534 1\n", 0), Some(65534));
        assert_eq!(outside("0 1000 1\n1 100000 65536\n", 5), Some(100_004));
        assert_eq!(outside("0 1000 1\n", 5), None);
        assert_eq!(outside("", 5), None);
    }
    use std::os::unix::fs::{PermissionsExt, symlink};
    use tempfile::TempDir;

    fn cache(folder: &TempDir) -> VersionCache {
        VersionCache::in_one_of([folder.path().join("c")]).unwrap()
    }

    #[test]
    fn remembers_until_the_file_changes() {
        let folder = TempDir::new().unwrap();
        let program = folder.path().join("criu\n\n");
        fs::write(&program, "1").unwrap();
        let key = Key::of(&program).unwrap();
        let version = Version::parse("4.2.1").unwrap();
        assert_eq!(cache(&folder).get(&key), None);
        cache(&folder).put(&key, version);
        assert_eq!(cache(&folder).get(&key), Some(version));
        fs::write(&program, "22").unwrap();
        assert_eq!(cache(&folder).get(&Key::of(&program).unwrap()), None);
    }

    #[test]
    fn garbage_is_no_version() {
        let folder = TempDir::new().unwrap();
        let key = Key::of(folder.path()).unwrap();
        for record in [b"".to_vec(), b"\n".to_vec(), vec![0xff; 20_000], key.record("four")] {
            fs::write(cache(&folder).file(), record).unwrap();
            assert_eq!(cache(&folder).get(&key), None);
        }
    }

    #[test]
    fn refuses_a_folder_of_others() {
        let folder = TempDir::new().unwrap();
        let open = folder.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        let link = folder.path().join("link");
        symlink(folder.path(), &link).unwrap();
        assert!(VersionCache::in_one_of([open, link, "/nowhere/at/all".into()]).is_none());
    }
}
