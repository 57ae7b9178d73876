//! Finds CRIU on this machine, and says why a place was not taken. Knows nothing of what CRIU is then used for.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::unistd::{User, getuid};

use crate::cache::{Key, VersionCache};
use crate::capture::Capture;
use crate::child::Guarded;
use crate::deadline::Deadline;
use crate::error::{Candidate, Defect, Error};
use crate::version::{FLOOR, Version};

/// The environment variable that names CRIU.
pub const ENVIRONMENT: &str = "DEFROST_CRIU";

/// How long `criu --version` may take. It takes 3 ms; a loaded machine or a cold disk may need a second.
const PROBE_LIMIT: Duration = Duration::from_secs(5);

/// Where CRIU finds `iptables` when the caller has no PATH.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A CRIU that started and is not too old.
///
/// That says little about what it can do here: CRIU 4.1.1 starts, passes `criu check`, and cannot dump a TCP socket on
/// kernels from 6.16 on. [`self_test`](crate::self_test) is the honest probe.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Criu {
    /// The program, or a wrapper that starts it; absolute.
    pub path: PathBuf,
    /// Its version.
    pub version: Version,
}

impl Criu {
    /// Looks for CRIU: `explicit`, then the environment variable [`ENVIRONMENT`], then `criu/bin/criu` in the private
    /// prefix (`$DEFROST_PREFIX`, or `defrost` in `$XDG_DATA_HOME` or `~/.local/share`), then the folders of PATH.
    ///
    /// # Errors
    /// One that was named and does not work is [`Error::TooOld`] or [`Error::Unusable`]: it is not replaced by another in
    /// silence. Otherwise [`Error::NotFound`], which says what was wrong with each.
    pub fn find(explicit: Option<&Path>) -> Result<Criu, Error> {
        Search::of_this_process(explicit).run()
    }

    /// CRIU at a known place.
    ///
    /// # Errors
    /// [`Error::TooOld`] or [`Error::Unusable`].
    pub fn at(path: &Path) -> Result<Criu, Error> {
        Search { named: Some(path.to_owned()), ..Search::of_this_process(None) }.run()
    }

    /// A command for this CRIU, with an environment of PATH and XDG_RUNTIME_DIR (where an unprivileged CRIU keeps what it
    /// knows of the kernel): nothing of the caller's steers it.
    pub(crate) fn command(&self) -> Command {
        command(&self.path)
    }
}

fn command(path: &Path) -> Command {
    let mut command = Command::new(path);
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.env("PATH", env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into()));
    if let Some(runtime) = env::var_os("XDG_RUNTIME_DIR") {
        command.env("XDG_RUNTIME_DIR", runtime);
    }
    command
}

/// Where to look.
#[derive(Debug, Clone)]
struct Search {
    /// By argument or environment; nothing else is then looked at.
    named: Option<PathBuf>,
    prefix: Option<PathBuf>,
    path: Option<OsString>,
    cache: Option<VersionCache>,
    limit: Duration,
}

impl Search {
    fn of_this_process(explicit: Option<&Path>) -> Search {
        let folder = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = || folder("HOME").or_else(|| User::from_uid(getuid()).ok().flatten().map(|user| user.dir));
        let data = || folder("XDG_DATA_HOME").or_else(|| home().map(|home| home.join(".local/share")));
        let runtime = folder("XDG_RUNTIME_DIR").filter(|runtime| runtime.is_absolute());
        Search {
            named: explicit.map(Path::to_owned).or_else(|| folder(ENVIRONMENT)),
            prefix: folder("DEFROST_PREFIX").or_else(|| data().map(|data| data.join("defrost"))),
            path: env::var_os("PATH"),
            cache: VersionCache::in_one_of(VersionCache::folders(runtime.as_deref())),
            limit: PROBE_LIMIT,
        }
    }

    fn run(&self) -> Result<Criu, Error> {
        if let Some(path) = &self.named {
            return self.probe(path).map_err(|Candidate { path, defect }| match defect {
                Defect::Old(found) => Error::TooOld { path, found },
                defect => Error::Unusable { path, defect },
            });
        }
        let mut tried = Vec::new();
        for path in self.places() {
            match self.probe(&path) {
                Ok(criu) => return Ok(criu),
                Err(candidate) => tried.push(candidate),
            }
        }
        // Folders of PATH without CRIU are not worth a word; the prefix is, as it tells where one can be put.
        let prefix = self.prefixed();
        tried.retain(|one| !matches!(one.defect, Defect::Missing) || Some(&one.path) == prefix.as_ref());
        Err(Error::NotFound { tried })
    }

    fn prefixed(&self) -> Option<PathBuf> {
        self.prefix.as_ref().map(|prefix| absolute(&prefix.join("criu/bin/criu")))
    }

    fn places(&self) -> Vec<PathBuf> {
        let path = self.path.iter().flat_map(env::split_paths).filter(|folder| folder.is_absolute());
        self.prefixed().into_iter().chain(path.map(|folder| folder.join("criu"))).collect()
    }

    fn probe(&self, path: &Path) -> Result<Criu, Candidate> {
        let path = absolute(path);
        match self.version(&path) {
            Ok(version) => Ok(Criu { path, version }),
            Err(defect) => Err(Candidate { path, defect }),
        }
    }

    fn version(&self, path: &Path) -> Result<Version, Defect> {
        let data = fs::metadata(path).map_err(|_| Defect::Missing)?;
        if !data.is_file() || data.permissions().mode() & 0o111 == 0 {
            return Err(Defect::NotExecutable);
        }
        let remembered = self.cache.as_ref().zip(Key::of(path));
        let version = match remembered.as_ref().and_then(|(cache, key)| cache.get(key)) {
            Some(version) => version,
            None => {
                let version = ask(path, self.limit)?;
                if let Some((cache, key)) = remembered {
                    cache.put(&key, version);
                }
                version
            }
        };
        if version < FLOOR { Err(Defect::Old(version)) } else { Ok(version) }
    }
}

/// CRIU is started in other working folders than the caller's.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn ask(path: &Path, limit: Duration) -> Result<Version, Defect> {
    let output = Capture::new().map_err(Defect::Start)?;
    let stdout = output.stdio().map_err(Defect::Start)?;
    let mut child = Guarded::spawn(command(path).arg("--version").stdout(stdout)).map_err(Defect::Start)?;
    match child.wait(&Deadline::after(limit)) {
        Ok(None) => Err(Defect::Hung(limit)),
        Ok(Some(status)) if !status.success() => Err(Defect::Ended(status)),
        // When something else has reaped it, its output still counts.
        Ok(Some(_)) | Err(_) => Version::from_output(&output.text()).ok_or(Defect::NoVersion),
    }
}

#[cfg(test)]
mod tests;
