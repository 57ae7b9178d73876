//! The folder where control sockets lie, and who may write there. It must not know what is said on them.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

use super::name::Name;

/// The folder's own name.
const FOLDER: &str = "defrost";

/// What follows a server's name in its socket's.
const SUFFIX: &str = ".sock";

/// The folder for control sockets, made if it is missing, for its owner only: `$XDG_RUNTIME_DIR/defrost`; or
/// where there is none `/run/defrost` for root, or `/tmp/defrost-UID`.
///
/// # Errors
/// [`PlaceError`]. A folder that others could write to is never used.
pub fn folder() -> Result<PathBuf, PlaceError> {
    first_of(&candidates(&Surroundings::current()))
}

/// The path of a server's control socket; its folder is made if it is missing.
///
/// # Errors
/// As [`folder`].
pub fn socket_path(name: &Name) -> Result<PathBuf, PlaceError> {
    Ok(socket_in(&folder()?, name))
}

/// The path of a server's control socket in a folder.
#[must_use]
pub fn socket_in(folder: &Path, name: &Name) -> PathBuf {
    folder.join(format!("{name}{SUFFIX}"))
}

/// The path that a clone takes when its original's is taken: `echo.sock` becomes `echo-01234567.sock`.
pub(super) fn beside(socket: &Path, mark: &str) -> PathBuf {
    let stem = socket.file_stem().unwrap_or_default();
    let mut name = stem.to_owned();
    name.push("-");
    name.push(mark);
    if let Some(extension) = socket.extension() {
        name.push(".");
        name.push(extension);
    }
    socket.with_file_name(name)
}

/// The folders where sockets of this user may lie: also one that this process would not choose for itself, since
/// the server may have been started from another kind of session. None is made.
///
/// # Errors
/// A folder that others could write to.
pub fn folders() -> Result<Vec<PathBuf>, PlaceError> {
    let surroundings = Surroundings::current();
    let mut found = candidates(&surroundings);
    let session = Path::new("/run/user").join(surroundings.user.to_string()).join(FOLDER);
    if !found.contains(&session) {
        found.push(session);
    }
    let mut usable = Vec::new();
    for folder in found {
        match examine(&folder, surroundings.user) {
            Ok(()) => usable.push(folder),
            // In /tmp anybody can take a name. What is somebody else's holds no server of this user.
            Err(PlaceError::Unusable { .. } | PlaceError::Foreign { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(usable)
}

/// The names of the sockets in a folder, in alphabetical order.
pub(super) fn names_in(folder: &Path) -> Vec<Name> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let name_of = |entry: io::Result<fs::DirEntry>| {
        let file = entry.ok()?.file_name();
        Name::of_clone_too(file.to_str()?.strip_suffix(SUFFIX)?).ok()
    };
    let mut names: Vec<Name> = entries.filter_map(name_of).collect();
    names.sort();
    names
}

/// What the choice of the folder depends on.
struct Surroundings {
    runtime: Option<PathBuf>,
    user: u32,
}

impl Surroundings {
    fn current() -> Self {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        Self { runtime, user: geteuid().as_raw() }
    }
}

fn candidates(surroundings: &Surroundings) -> Vec<PathBuf> {
    let mut candidates = Vec::new();
    // A relative one is to be ignored, says the XDG base directory specification.
    if let Some(runtime) = surroundings.runtime.as_deref().filter(|path| path.is_absolute()) {
        candidates.push(runtime.join(FOLDER));
    }
    if surroundings.user == 0 {
        candidates.push(Path::new("/run").join(FOLDER));
    }
    candidates.push(PathBuf::from(format!("/tmp/{FOLDER}-{}", surroundings.user)));
    candidates
}

/// The first that can be had. One that others could write to ends the search: going on would hide it.
fn first_of(candidates: &[PathBuf]) -> Result<PathBuf, PlaceError> {
    let mut last = None;
    for folder in candidates {
        match make(folder) {
            Ok(()) => return Ok(folder.clone()),
            Err(error @ PlaceError::Unusable { .. }) => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(last
        .unwrap_or(PlaceError::Unusable { folder: PathBuf::new(), source: io::ErrorKind::NotFound.into() }))
}

fn make(folder: &Path) -> Result<(), PlaceError> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(PlaceError::Unusable { folder: folder.to_owned(), source: error })
        }
        _ => examine(folder, geteuid().as_raw()),
    }
}

/// Whether a folder is there and safe. The last part of the path is never followed as a link: in `/tmp` anybody
/// could have put one there.
fn examine(folder: &Path, user: u32) -> Result<(), PlaceError> {
    let folder = folder.to_owned();
    let found = match fs::symlink_metadata(&folder) {
        Ok(found) => found,
        Err(source) => return Err(PlaceError::Unusable { folder, source }),
    };
    if !found.is_dir() {
        return Err(PlaceError::NotAFolder { folder });
    }
    if found.uid() != user {
        return Err(PlaceError::Foreign { folder, owner: found.uid() });
    }
    let mode = found.permissions().mode() & 0o7777;
    if mode & 0o022 != 0 {
        return Err(PlaceError::Writable { folder, mode });
    }
    Ok(())
}

/// There is no safe folder for control sockets. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// It is not there and cannot be made, or cannot be looked at.
    #[error("the socket folder {} cannot be used: {source}", folder.display())]
    Unusable {
        /// Which.
        folder: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// Something else has its name.
    #[error("{} is not a folder", folder.display())]
    NotAFolder {
        /// The path.
        folder: PathBuf,
    },
    /// It belongs to somebody else, who could put other sockets there.
    #[error("the socket folder {} belongs to user {owner}", folder.display())]
    Foreign {
        /// Which.
        folder: PathBuf,
        /// The owner's id.
        owner: u32,
    },
    /// Others could put sockets there.
    #[error("the socket folder {} can be written by others (mode {mode:04o})", folder.display())]
    Writable {
        /// Which.
        folder: PathBuf,
        /// Its permissions.
        mode: u32,
    },
}

impl PlaceError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Unusable { .. } => {
                "set XDG_RUNTIME_DIR to a folder of your own, or give the socket a path".into()
            }
            Self::NotAFolder { folder } | Self::Foreign { folder, .. } => {
                format!("remove {}, or set XDG_RUNTIME_DIR to a folder of your own", folder.display())
            }
            Self::Writable { folder, .. } => format!("run chmod 700 {}", folder.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    fn chosen(runtime: Option<&str>, user: u32) -> Vec<String> {
        let surroundings = Surroundings { runtime: runtime.map(PathBuf::from), user };
        candidates(&surroundings).iter().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn the_folder_is_chosen_by_session_and_user() {
        assert_eq!(chosen(Some("/run/user/7"), 7), ["/run/user/7/defrost", "/tmp/defrost-7"]);
        assert_eq!(chosen(None, 0), ["/run/defrost", "/tmp/defrost-0"]);
        assert_eq!(chosen(Some("relative"), 7), ["/tmp/defrost-7"]);
    }

    #[test]
    fn a_missing_folder_is_made_for_its_owner_only() {
        let root = tempfile::tempdir().unwrap();
        let (gone, there) = (root.path().join("gone/defrost"), root.path().join("defrost"));
        assert_eq!(first_of(&[gone, there.clone()]).unwrap(), there);
        assert_eq!(fs::metadata(&there).unwrap().permissions().mode() & 0o7777, 0o700);
        assert_eq!(first_of(std::slice::from_ref(&there)).unwrap(), there);
        assert!(
            first_of(&[root.path().join("gone/defrost")]).unwrap_err().to_string().contains("cannot be used")
        );
    }

    #[test]
    fn an_unsafe_folder_is_refused_with_its_reason() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("defrost");
        let refused = |folder: &Path| first_of(&[folder.to_owned(), root.path().join("other")]).unwrap_err();
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o770)).unwrap();
        assert!(refused(&folder).to_string().ends_with("can be written by others (mode 0770)"));
        fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
        let link = root.path().join("link");
        symlink(&folder, &link).unwrap();
        assert!(refused(&link).to_string().ends_with("is not a folder"));
        if geteuid().is_root() {
            chown(&folder, Some(7), None).unwrap();
            assert!(refused(&folder).to_string().ends_with("belongs to user 7"));
        }
    }

    #[test]
    fn sockets_are_named_after_their_servers() {
        let folder = tempfile::tempdir().unwrap();
        let path = socket_in(folder.path(), &Name::new("echo").unwrap());
        assert_eq!(path.file_name().unwrap(), "echo.sock");
        assert_eq!(beside(&path, "01234567").file_name().unwrap(), "echo-01234567.sock");
        assert_eq!(beside(Path::new("/x/plain"), "01"), Path::new("/x/plain-01"));
        for file in ["b.sock", "a.sock", "a-01234567.sock", "note.txt", ".sock"] {
            fs::write(folder.path().join(file), "").unwrap();
        }
        let names: Vec<_> = names_in(folder.path()).into_iter().map(|name| name.to_string()).collect();
        assert_eq!(names, ["a", "a-01234567", "b"]);
    }
}
