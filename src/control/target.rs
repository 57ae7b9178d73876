//! Which server a command means: a name, a pid or a socket, and the way from there to the socket.
//!
//! It must not know what the server is then asked.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::client::{Client, ClientError};
use super::name::{Name, NameError};
use super::place::{self, PlaceError};
use crate::engine::INIT_NAME;

/// How long a server may take to accept a connection when its pid is asked for. The kernel answers for it, so
/// only a full queue makes this wait.
const GLANCE: Duration = Duration::from_millis(200);

/// How many names an error lists.
const LISTED: usize = 20;

/// A server, as a command names it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// By its name.
    Name(Name),
    /// By its pid, or its supervisor's.
    Pid(i32),
    /// By the path of its socket.
    Socket(PathBuf),
}

impl Target {
    /// Reads what was typed: anything with a slash in it is a socket's path, a number is a pid, everything else
    /// a name.
    ///
    /// # Errors
    /// [`TargetError::Name`] when it can be none of these, [`TargetError::NoProcess`] for a number that is too
    /// large.
    pub fn parse(text: &OsStr) -> Result<Self, TargetError> {
        if text.as_encoded_bytes().contains(&b'/') {
            return Ok(Self::Socket(text.into()));
        }
        let text = text.to_string_lossy();
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            let pid = text.parse().ok().filter(|pid| *pid > 0);
            return pid.map(Self::Pid).ok_or_else(|| TargetError::NoProcess { pid: text.into_owned() });
        }
        Ok(Self::Name(Name::of_clone_too(&text)?))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Pid(pid) => write!(f, "pid {pid}"),
            Self::Socket(path) => path.display().fmt(f),
        }
    }
}

/// The control socket of a target, on which somebody listens at this moment.
///
/// # Errors
/// [`TargetError`], which says what there is instead.
pub fn resolve(target: &Target) -> Result<PathBuf, TargetError> {
    if let Target::Socket(path) = target {
        Client::connect(path, GLANCE).map(drop).or_else(busy_is_fine)?;
        return Ok(path.clone());
    }
    let folders = place::folders()?;
    match target {
        Target::Name(name) => by_name(name, &folders),
        Target::Pid(pid) => by_pid(*pid, &folders),
        Target::Socket(path) => Ok(path.clone()),
    }
}

fn busy_is_fine(error: ClientError) -> Result<(), ClientError> {
    if matches!(error, ClientError::Late { .. }) { Ok(()) } else { Err(error) }
}

fn by_name(name: &Name, folders: &[PathBuf]) -> Result<PathBuf, TargetError> {
    let mut ended = None;
    for path in folders.iter().map(|folder| place::socket_in(folder, name)) {
        match Client::connect(&path, GLANCE).map(drop).or_else(busy_is_fine) {
            Ok(()) => return Ok(path),
            Err(ClientError::NotThere { .. }) => {}
            Err(error) => ended = Some(error),
        }
    }
    if let Some(error) = ended {
        return Err(error.into());
    }
    let known = live(folders).into_iter().map(|server| server.name.to_string()).collect();
    Err(TargetError::UnknownName { name: name.to_string(), known })
}

fn by_pid(pid: i32, folders: &[PathBuf]) -> Result<PathBuf, TargetError> {
    let servers = live(folders);
    // The supervisor's pid is what a shell's `$!` holds, so it stands for its only server, too.
    let own = servers.iter().find(|server| server.pid == Some(pid));
    let supervised = || servers.iter().find(|server| server.pid.and_then(parent_of) == Some(pid));
    let housed = || {
        let mut housed = servers.iter().filter(|server| server.pid.and_then(beyond_init) == Some(pid));
        housed.next().filter(|_| housed.next().is_none())
    };
    if let Some(server) = own.or_else(supervised).or_else(housed) {
        return Ok(server.path.clone());
    }
    match stat_of(pid) {
        None => Err(TargetError::NoProcess { pid: pid.to_string() }),
        // Dead, and not yet waited for by its parent (proc_pid_stat(5)).
        Some(stat) if "ZX".contains(stat.state) => Err(TargetError::Ended { pid, command: stat.comm }),
        Some(stat) => Err(TargetError::NotAware { pid, command: stat.comm }),
    }
}

fn stat_of(pid: i32) -> Option<procfs::process::Stat> {
    procfs::process::Process::new(pid).ok()?.stat().ok()
}

fn parent_of(pid: i32) -> Option<i32> {
    stat_of(pid).map(|stat| stat.ppid)
}

/// Who watches over a process in a pid namespace of its own, of which only process 1 is between them.
fn beyond_init(pid: i32) -> Option<i32> {
    let init = stat_of(parent_of(pid)?)?;
    (init.comm == INIT_NAME).then_some(init.ppid)
}

/// A server that listens.
struct Live {
    name: Name,
    path: PathBuf,
    /// `None` when it is in a pid namespace out of sight.
    pid: Option<i32>,
}

fn live(folders: &[PathBuf]) -> Vec<Live> {
    let names_in = |folder: &PathBuf| -> Vec<Live> {
        place::names_in(folder).into_iter().filter_map(|name| Live::look(folder, name)).collect()
    };
    folders.iter().flat_map(names_in).collect()
}

impl Live {
    fn look(folder: &Path, name: Name) -> Option<Self> {
        let path = place::socket_in(folder, &name);
        let client = Client::connect(&path, GLANCE).ok()?;
        Some(Self { name, path, pid: client.peer_pid() })
    }
}

/// Why a target leads to no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// No server of that name runs.
    #[error("no server is named {name}: {}", Known(known))]
    UnknownName {
        /// The name.
        name: String,
        /// The names of those that run.
        known: Vec<String>,
    },
    /// There is no such process.
    #[error("process {pid} does not exist")]
    NoProcess {
        /// The number as it was given.
        pid: String,
    },
    /// The process has ended, and its parent has not waited for it yet.
    #[error("process {pid} ({command}) has ended")]
    Ended {
        /// Its pid.
        pid: i32,
        /// Its name.
        command: String,
    },
    /// The process lives, and has no control socket.
    #[error(
        "process {pid} ({command}) has no control socket: it is not defrost-aware, or belongs to somebody else"
    )]
    NotAware {
        /// Its pid.
        pid: i32,
        /// Its name.
        command: String,
    },
    /// It can be no name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The socket does not lead anywhere.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The folder of the sockets is not safe.
    #[error(transparent)]
    Place(#[from] PlaceError),
}

impl TargetError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownName { .. } => {
                Some("give one of these names, a pid, or the path of a socket".into())
            }
            Self::NoProcess { .. } | Self::Ended { .. } => None,
            Self::NotAware { pid, .. } => {
                Some(format!("have it use the defrost library, or dump it as it is: criu dump --tree {pid}"))
            }
            Self::Name(error) => Some(error.hint().to_owned()),
            Self::Client(error) => error.hint().map(str::to_owned),
            Self::Place(error) => Some(error.hint()),
        }
    }
}

struct Known<'a>(&'a [String]);

impl fmt::Display for Known<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none runs here");
        }
        write!(f, "there is {}", self.0[..self.0.len().min(LISTED)].join(", "))?;
        if let Some(more @ 1..) = self.0.len().checked_sub(LISTED) {
            write!(f, " and {more} more")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn parsed(text: &str) -> Result<Target, TargetError> {
        Target::parse(OsStr::new(text))
    }

    fn own_pid() -> i32 {
        std::process::id().cast_signed()
    }

    #[test]
    fn what_is_typed_is_told_apart() {
        assert_eq!(parsed("echo").unwrap(), Target::Name(Name::new("echo").unwrap()));
        assert_eq!(parsed("4711").unwrap(), Target::Pid(4711));
        assert_eq!(parsed("./x").unwrap(), Target::Socket("./x".into()));
        assert!(matches!(parsed("0"), Err(TargetError::NoProcess { .. })));
        assert!(matches!(parsed("99999999999"), Err(TargetError::NoProcess { .. })));
        assert!(matches!(parsed(""), Err(TargetError::Name(_))));
        assert!(matches!(parsed("a b"), Err(TargetError::Name(_))));
    }

    #[test]
    fn a_server_is_found_by_name_and_pid() {
        let folder = tempfile::tempdir().unwrap();
        let folders = [folder.path().join("missing"), folder.path().to_owned()];
        let path = folder.path().join("echo.sock");
        let _live = UnixListener::bind(&path).unwrap();
        drop(UnixListener::bind(folder.path().join("old.sock")).unwrap());
        let name = |text| Name::new(text).unwrap();
        assert_eq!(by_name(&name("echo"), &folders).unwrap(), path);
        assert_eq!(by_pid(own_pid(), &folders).unwrap(), path);
        assert_eq!(by_pid(parent_of(own_pid()).unwrap(), &folders).unwrap(), path);
        let error = by_name(&name("ecco"), &folders).unwrap_err().to_string();
        assert_eq!(error, "no server is named ecco: there is echo");
        let error = by_name(&name("old"), &folders).unwrap_err().to_string();
        assert!(error.ends_with("old.sock: the server has ended"), "{error}");
        assert_eq!(resolve(&Target::Socket(path.clone())).unwrap(), path);
    }

    #[test]
    fn a_pid_without_a_server_is_explained() {
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        let pid = ended.id().cast_signed();
        let said = || by_pid(pid, &[]).unwrap_err().to_string();
        let has_ended = |said: String| {
            let is_zombie = said == format!("process {pid} (true) has ended");
            assert!(is_zombie || said.contains("has no control socket"), "{said}");
            is_zombie
        };
        while !has_ended(said()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        ended.wait().unwrap();
        let error = by_pid(pid, &[]).unwrap_err().to_string();
        assert_eq!(error, format!("process {pid} does not exist"));
        let error = by_pid(own_pid(), &[]).unwrap_err().to_string();
        assert!(error.contains("has no control socket: it is not defrost-aware"), "{error}");
    }
}
