//! The files that a CRIU consists of, for who wants them in memory before it is needed. Knows no dump.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use crate::child::Guarded;
use crate::error::{Error, Operation, Problem};
use crate::find::Criu;
use crate::rpc::Connection;
use crate::swrk::no_descriptor;

impl Criu {
    /// The program and its libraries, as the loader has mapped them into a worker, which is started for that and ended.
    /// It takes some milliseconds, more where they come from a disk. The worker is started without a copy of this
    /// process's page tables, so that it costs the same in a large process.
    ///
    /// # Errors
    /// [`Error::Spawn`], [`Error::Deadline`], [`Error::Died`], [`Error::Protocol`]. No worker is left.
    pub fn files(&self, limit: Duration) -> Result<Vec<PathBuf>, Error> {
        let (mut connection, worker) = Connection::pair()?;
        let mut command = self.command();
        // As standard input: another number would take a fork.
        command.args(["--no-default-config", "swrk", "0"]).stdin(Stdio::from(worker));
        let child = Guarded::spawn(&mut command)
            .map_err(|source| Error::Spawn { program: self.path.clone(), source })?;
        // With the command goes this process's copy of the worker's end.
        drop(command);
        connection.watch(child.exit().map_err(no_descriptor)?);
        connection.stay(limit)?;
        let maps = fs::read_to_string(format!("/proc/{}/maps", child.pid())).map_err(unreadable)?;
        Ok(mapped(&maps))
    }
}

fn unreadable(source: io::Error) -> Error {
    Error::Protocol { operation: Operation::Version, problem: Problem::Socket(source) }
}

/// The files in a proc_pid_maps(5), each once.
fn mapped(maps: &str) -> Vec<PathBuf> {
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| PathBuf::from(&line[at..])));
    paths.collect::<BTreeSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_counts_once_and_memory_does_not() {
        let maps = "7f0-7f1 r--p 00000000 fe:00 12    /usr/sbin/criu\n\
                    7f1-7f2 r-xp 00001000 fe:00 12    /usr/sbin/criu\n\
                    7f2-7f3 rw-p 00000000 00:00 0 \n\
                    7f3-7f4 r--p 00000000 fe:00 13    /usr/lib/a lib.so\n\
                    7ff-800 rw-p 00000000 00:00 0     [stack]\n";
        assert_eq!(mapped(maps), ["/usr/lib/a lib.so", "/usr/sbin/criu"].map(PathBuf::from));
    }
}
