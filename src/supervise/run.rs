//! `defrost run`: any server, started under a supervisor.

use std::ffi::OsString;
use std::io;
use std::process::Command;

use super::attend::{Ending, attend, become_subreaper};
use super::guard::Guard;
use super::signals::Signals;
use super::subject::Supervised;
use crate::sys::process::{self, Fork};

/// The variable that hands a server the name that its control socket shall have.
pub const NAME_VARIABLE: &str = "DEFROST_NAME";

/// The lowest pid that a supervised process may have: CRIU's own processes take low ones in a fresh pid
/// namespace, and collide with those of the image (CRaC uses 128 too).
pub(crate) const LOWEST_PID: i32 = 128;

/// What to start.
#[derive(Debug)]
pub struct Launch {
    /// The program: a path, or a name to be found in `PATH`.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// The name for its control socket, if it shall not be its own choice.
    pub name: Option<String>,
}

/// Why nothing was started, or how supervising broke off.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The program could not be started; nothing runs.
    #[error("{program} could not be started: {source}")]
    Start {
        /// The program as it was given.
        program: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A system call of the supervisor's failed.
    #[error("the supervisor failed: {0}")]
    Supervisor(#[from] io::Error),
}

/// Starts the program in a session of its own and attends it until it has ended. The caller must have one
/// thread.
///
/// # Errors
/// [`RunError`]; after `Start` nothing runs.
pub fn run(launch: &Launch) -> Result<Ending, RunError> {
    become_subreaper()?;
    pass_low_pids()?;
    let mut signals = Signals::watch()?;
    let supervised = start(launch)?;
    let guard = guard_of(&supervised)?;
    Ok(attend(&mut signals, &supervised, guard)?)
}

/// Starts the program in a session of its own.
pub(super) fn start(launch: &Launch) -> Result<Supervised, RunError> {
    let mut command = Command::new(&launch.program);
    command.args(&launch.arguments);
    if let Some(name) = &launch.name {
        command.env(NAME_VARIABLE, name);
    }
    let child = process::in_own_session(&mut command).spawn().map_err(|source| RunError::Start {
        program: launch.program.to_string_lossy().into_owned(),
        source,
    })?;
    Ok(Supervised::new(child.id().cast_signed())?)
}

/// A guard, unless this is process 1: when that dies, the kernel ends its whole namespace.
pub(super) fn guard_of(supervised: &Supervised) -> io::Result<Option<Guard>> {
    if std::process::id() == 1 { Ok(None) } else { Guard::start(supervised).map(Some) }
}

/// Uses up the lowest pids of a fresh pid namespace.
pub(super) fn pass_low_pids() -> io::Result<()> {
    if std::process::id().cast_signed() >= LOWEST_PID {
        return Ok(());
    }
    // At most that many: each fork takes a pid.
    for _ in 0..LOWEST_PID {
        match process::fork()? {
            Fork::Child => process::exit_now(0),
            Fork::Parent(pid) => {
                nix::sys::wait::waitpid(pid, None)?;
                if pid.as_raw() >= LOWEST_PID - 1 {
                    break;
                }
            }
        }
    }
    Ok(())
}
