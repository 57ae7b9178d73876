//! The two ways to drive CRIU behind one trait, and the better of them: RPC. Knows no message.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use crate::error::{Error, Operation, Problem};
use crate::evidence::Evidence;
use crate::find::Criu;
use crate::lineage::{Lineage, MARK};
use crate::message::Features;
use crate::options::{DumpOptions, RestoreOptions, open_work_folder};
use crate::rpc::OnNotify;
use crate::swrk::{FIRST_INHERITED, Swrk};
use crate::version::Version;

/// A tree that has been restored and runs.
///
/// With [`RestoreOptions::sibling`] its root is a child of this process, which must reap it (waitpid) and gets its real
/// exit status. Nothing else in this process may reap children at random meanwhile. SIGCHLD is not touched; where it is
/// ignored, the kernel reaps the child and the status is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// The root of the tree.
    pub pid: i32,
}

/// A way to have CRIU dump and restore.
pub trait Transport {
    /// Dumps another process within `limit`.
    ///
    /// # Errors
    /// The target goes on in every case, and no CRIU is left: CRIU that is late is killed, which leaves its target as it
    /// was.
    fn dump(&self, options: &DumpOptions, limit: Duration) -> Result<(), Error>;

    /// Restores within `limit`.
    ///
    /// # Errors
    /// No process of the image and no CRIU is left, unless the error is [`Error::LeftAlive`].
    fn restore(&self, options: &RestoreOptions, limit: Duration) -> Result<Restored, Error>;
}

/// CRIU by RPC, with a worker for each request.
#[derive(Debug, Clone)]
pub struct Rpc {
    criu: Criu,
}

impl Rpc {
    /// With this CRIU.
    #[must_use]
    pub fn new(criu: Criu) -> Rpc {
        Rpc { criu }
    }

    /// Asks the worker for its version.
    ///
    /// # Errors
    /// [`Error::Spawn`], [`Error::Deadline`], [`Error::Died`], [`Error::Protocol`].
    pub fn version(&self, limit: Duration) -> Result<Version, Error> {
        self.ask(|swrk| swrk.connection().version(limit))
    }

    /// Whether CRIU finds what it needs at least in this kernel. Takes 15 to 30 ms, and proves little: see
    /// [`self_test`](crate::self_test).
    ///
    /// # Errors
    /// As [`Rpc::version`].
    pub fn check(&self, limit: Duration) -> Result<bool, Error> {
        self.ask(|swrk| swrk.connection().check(limit))
    }

    /// Optional features of this kernel.
    ///
    /// # Errors
    /// As [`Rpc::version`].
    pub fn features(&self, limit: Duration) -> Result<Features, Error> {
        self.ask(|swrk| swrk.connection().feature_check(limit))
    }

    /// [`Transport::dump`] with somebody who answers CRIU's notify messages.
    ///
    /// # Errors
    /// As [`Transport::dump`].
    pub fn dump_with(
        &self,
        options: &DumpOptions,
        limit: Duration,
        on_notify: Option<OnNotify<'_>>,
    ) -> Result<(), Error> {
        let evidence = Evidence::new(Operation::Dump, options.log_path())?;
        let work = open_work_folder(options.work_folder.as_deref())?;
        let output = evidence.output()?;
        let mut swrk = Swrk::spawn_with(&self.criu, options.images.path(), &[], |command| {
            command.stderr(output);
        })?;
        let work = work.as_ref().map(AsFd::as_fd);
        match swrk.connection().dump(options, work, limit, on_notify) {
            Ok(response) if response.success => {
                swrk.ending();
                Ok(())
            }
            Ok(response) => {
                swrk.ending();
                Err(evidence.failed(Some(&response)))
            }
            Err(error) => Err(explain(error, &mut swrk, &evidence)),
        }
    }

    /// [`Transport::restore`] with somebody who answers CRIU's notify messages.
    ///
    /// # Errors
    /// As [`Transport::restore`].
    pub fn restore_with(
        &self,
        options: &RestoreOptions,
        limit: Duration,
        on_notify: Option<OnNotify<'_>>,
    ) -> Result<Restored, Error> {
        let operation = Operation::Restore;
        let evidence = Evidence::new(operation, options.log_path())?;
        let lineage = Lineage::before(options.images.path());
        let work = open_work_folder(options.work_folder.as_deref())?;
        let output = evidence.output()?;
        let mut swrk = Swrk::spawn_with(&self.criu, options.images.path(), &options.inherit_fd, |command| {
            command.stderr(output).env(MARK, lineage.mark());
        })?;
        let work = work.as_ref().map(AsFd::as_fd);
        let answer = swrk.connection().restore(options, work, FIRST_INHERITED, limit, on_notify);
        let failure = match answer {
            Ok(response) if response.success => match response.restore {
                Some(answer) => {
                    swrk.ending();
                    return Ok(Restored { pid: answer.pid });
                }
                None => Error::Protocol { operation, problem: Problem::Incomplete("pid") },
            },
            Ok(response) => {
                swrk.ending();
                evidence.failed(Some(&response))
            }
            Err(error) => explain(error, &mut swrk, &evidence),
        };
        Err(lineage.clean_up(swrk.into_child(), failure))
    }

    fn ask<T>(&self, question: impl FnOnce(&Swrk) -> Result<T, Error>) -> Result<T, Error> {
        let mut swrk = Swrk::spawn(&self.criu, Path::new("/"))?;
        let answer = question(&swrk);
        match answer {
            Err(Error::Died { operation, cause, .. }) => {
                Err(Error::Died { operation, status: swrk.ending(), cause })
            }
            answer => answer,
        }
    }
}

impl Transport for Rpc {
    fn dump(&self, options: &DumpOptions, limit: Duration) -> Result<(), Error> {
        self.dump_with(options, limit, None)
    }

    fn restore(&self, options: &RestoreOptions, limit: Duration) -> Result<Restored, Error> {
        self.restore_with(options, limit, None)
    }
}

/// Adds what is known of the end of a worker that gave no answer.
fn explain(error: Error, swrk: &mut Swrk, evidence: &Evidence) -> Error {
    match error {
        Error::Died { .. } => evidence.died(swrk.ending()),
        error => error,
    }
}

#[cfg(test)]
mod tests;
