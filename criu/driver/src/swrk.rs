//! Starts CRIU as a worker for one connection (`criu swrk FD`), never as a service. Knows no request.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use command_fds::{CommandFdExt, FdMapping};

use crate::child::{DYING, Guarded};
use crate::deadline::Deadline;
use crate::error::{Error, Operation, Problem};
use crate::evidence::Evidence;
use crate::find::Criu;
use crate::options::{DumpOptions, InheritFd};
use crate::rpc::Connection;

/// The number of the connection in the worker.
const CONNECTION: RawFd = 3;

/// The number of the first inherited descriptor in the worker.
pub(crate) const FIRST_INHERITED: RawFd = 4;

/// The command for a worker at the other end of a [`Connection`], with `folder` as its working folder, which is where
/// the options look for the images. No configuration file counts, the environment is PATH and XDG_RUNTIME_DIR, and the
/// standard streams are `/dev/null`.
///
/// The command owns `connection`: drop it after the spawn, or the requester never notices the worker's end. For a
/// self-dump the worker must not be a descendant of the requester.
///
/// # Errors
/// [`Error::Protocol`] if `connection` could not be handed on.
pub fn swrk_command(criu: &Criu, connection: OwnedFd, folder: &Path) -> Result<Command, Error> {
    command_with(criu, connection, folder, &[])
}

/// Runs the worker of a self-dump until it ends: for the process outside the dumped tree that the requester has given its
/// `connection`. Of `options` only the images folder and the log count; the rest is in the requester's request.
///
/// `Ok` means that the images are complete. The requester has then been killed, or has its answer.
///
/// # Errors
/// In each case no worker is left, and the requester goes on and reads a refusal or the end of the connection.
/// [`Error::Failed`] with the cause from the log, [`Error::Deadline`], [`Error::Died`], [`Error::Folder`],
/// [`Error::Spawn`].
pub fn serve_self_dump(
    criu: &Criu,
    connection: OwnedFd,
    options: &DumpOptions,
    limit: Duration,
) -> Result<(), Error> {
    let folder = options.images.path();
    check_folder(folder)?;
    let evidence = Evidence::new(Operation::SelfDump, options.log_path())?;
    let mut command = swrk_command(criu, connection, folder)?;
    let child = Guarded::spawn(command.process_group(0).stderr(evidence.output()?));
    // With the command goes this process's copy of the connection.
    drop(command);
    let mut child = child.map_err(|source| Error::Spawn { program: criu.path.clone(), source })?;
    let verdict = evidence.verdict(&mut child, limit);
    if verdict.is_err() {
        // CRIU probes the kernel with children that stop themselves. Killed just then, it leaves one behind, whose copy
        // of the connection would keep the requester waiting for an answer.
        child.kill_group();
    }
    verdict
}

/// A missing working folder would look as if the program were missing.
fn check_folder(folder: &Path) -> Result<(), Error> {
    let opened = std::fs::read_dir(folder);
    opened.map(drop).map_err(|source| Error::Folder { path: folder.to_owned(), source })
}

fn command_with(
    criu: &Criu,
    connection: OwnedFd,
    folder: &Path,
    inherit: &[InheritFd],
) -> Result<Command, Error> {
    let mut command = criu.command();
    command.args(["--no-default-config", "swrk", &CONNECTION.to_string()]).current_dir(folder);
    let mut mappings = vec![FdMapping { parent_fd: connection, child_fd: CONNECTION }];
    mappings.extend(inherited(inherit, FIRST_INHERITED)?);
    command.fd_mappings(mappings).map_err(|collision| no_descriptor(io::Error::other(collision)))?;
    Ok(command)
}

/// A worker that is a child of this process: killed and reaped on drop.
#[derive(Debug)]
pub struct Swrk {
    child: Guarded,
    connection: Connection,
}

impl Swrk {
    /// Starts a worker in `folder`.
    ///
    /// # Errors
    /// [`Error::Folder`], [`Error::Spawn`], or [`Error::Protocol`] when there are no descriptors left.
    pub fn spawn(criu: &Criu, folder: &Path) -> Result<Swrk, Error> {
        Swrk::spawn_with(criu, folder, &[], |_| {})
    }

    /// The same with inherited descriptors, and `adjust` for the rest of the command.
    pub(crate) fn spawn_with(
        criu: &Criu,
        folder: &Path,
        inherit: &[InheritFd],
        adjust: impl FnOnce(&mut Command),
    ) -> Result<Swrk, Error> {
        check_folder(folder)?;
        let (mut connection, worker) = Connection::pair()?;
        let mut command = command_with(criu, worker, folder, inherit)?;
        adjust(&mut command);
        let child = Guarded::spawn(&mut command)
            .map_err(|source| Error::Spawn { program: criu.path.clone(), source })?;
        // With the command goes this process's copy of the worker's end.
        drop(command);
        connection.watch(child.exit().map_err(no_descriptor)?);
        Ok(Swrk { child, connection })
    }

    /// To ask it for one thing: CRIU serves a single request on a connection.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// How it has ended, where it does so shortly.
    pub(crate) fn ending(&mut self) -> Option<ExitStatus> {
        self.child.wait(&Deadline::after(DYING)).ok().flatten()
    }

    /// The process alone.
    pub(crate) fn into_child(self) -> Guarded {
        self.child
    }
}

/// Duplicates of the descriptors, for a command that gets them from `first` on.
pub(crate) fn inherited(inherit: &[InheritFd], first: RawFd) -> Result<Vec<FdMapping>, Error> {
    let duplicate = |(inherit, child_fd): (&InheritFd, RawFd)| {
        inherit.fd.try_clone().map(|parent_fd| FdMapping { parent_fd, child_fd })
    };
    let mappings: Result<Vec<_>, _> = inherit.iter().zip(first..).map(duplicate).collect();
    mappings.map_err(no_descriptor)
}

pub(crate) fn no_descriptor(source: io::Error) -> Error {
    Error::Protocol { operation: Operation::Start, problem: Problem::Descriptor(source) }
}
