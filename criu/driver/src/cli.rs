//! CRIU by its command line, for where RPC is not wanted. Knows no message.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use command_fds::CommandFdExt;

use crate::child::Guarded;
use crate::error::{Error, Operation, Problem};
use crate::evidence::Evidence;
use crate::find::Criu;
use crate::folder::private_folder;
use crate::lineage::{Lineage, MARK};
use crate::options::{DumpOptions, DumpTarget, RestoreOptions};
use crate::swrk::{inherited, no_descriptor};
use crate::transport::{Restored, Transport};

/// The number of the first inherited descriptor.
const FIRST_INHERITED: i32 = 3;

/// CRIU by its command line.
#[derive(Debug, Clone)]
pub struct Cli {
    criu: Criu,
}

impl Cli {
    /// With this CRIU.
    #[must_use]
    pub fn new(criu: Criu) -> Cli {
        Cli { criu }
    }

    fn command(&self, verb: &str, evidence: &Evidence) -> Result<Command, Error> {
        let mut command = self.criu.command();
        command.args(["--no-default-config", verb]).stderr(evidence.output()?);
        Ok(command)
    }

    fn spawn(&self, command: &mut Command) -> Result<Guarded, Error> {
        Guarded::spawn(command).map_err(|source| Error::Spawn { program: self.criu.path.clone(), source })
    }
}

impl Transport for Cli {
    fn dump(&self, options: &DumpOptions, limit: Duration) -> Result<(), Error> {
        let operation = Operation::Dump;
        if options.target == DumpTarget::Requester {
            return Err(Error::Protocol { operation, problem: Problem::Target });
        }
        let evidence = Evidence::new(operation, options.log_path())?;
        let mut command = self.command("dump", &evidence)?;
        let mut child = self.spawn(command.args(options.to_arguments()))?;
        evidence.verdict(&mut child, limit)
    }

    fn restore(&self, options: &RestoreOptions, limit: Duration) -> Result<Restored, Error> {
        let operation = Operation::Restore;
        let evidence = Evidence::new(operation, options.log_path())?;
        let lineage = Lineage::before(options.images.path());
        let private = private_folder("criu-pid.")?;
        let pidfile = private.path().join("pid");
        let mut command = self.command("restore", &evidence)?;
        command.args(options.to_arguments(&pidfile, FIRST_INHERITED)).env(MARK, lineage.mark());
        let mappings = inherited(&options.inherit_fd, FIRST_INHERITED)?;
        command.fd_mappings(mappings).map_err(|collision| no_descriptor(std::io::Error::other(collision)))?;
        let mut child = self.spawn(&mut command)?;
        let failure = match evidence.verdict(&mut child, limit) {
            Ok(()) => match read_pid(&pidfile) {
                Some(pid) => return Ok(Restored { pid }),
                None => Error::Protocol { operation, problem: Problem::Incomplete("pid") },
            },
            Err(failure) => failure,
        };
        Err(lineage.clean_up(child, failure))
    }
}

fn read_pid(pidfile: &Path) -> Option<i32> {
    fs::read_to_string(pidfile).ok()?.trim().parse().ok()
}
