//! The engine that drives CRIU: a self-dump by RPC, and a restore, by RPC or by CRIU's command line, with the
//! process as the caller's own child.

mod ahead;
mod dump;
mod restore;
mod wakeup;
mod work;

use std::path::Path;

use criu_driver::Criu;

use super::{
    Dump, DumpError, DumpOrder, Engine, EngineName, Prepared, RestoreError, RestoreOrder, RestoredProcess,
};
use crate::image::Users;
use crate::image::folder::Partial;

/// Dumps and restores by CRIU.
#[derive(Debug, Clone)]
pub struct CriuEngine {
    criu: Option<std::path::PathBuf>,
    transport: Transport,
}

/// How CRIU is told what to restore. A self-dump is always by RPC: it is the answer that returns twice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Transport {
    /// By messages to `criu swrk`.
    #[default]
    Rpc,
    /// By the arguments of `criu restore`.
    Cli,
}

impl CriuEngine {
    /// With this CRIU, or with the one that `criu_driver` finds: `DEFROST_CRIU`, the private prefix, `PATH`. It
    /// is looked for when it is needed.
    #[must_use]
    pub fn new(criu: Option<std::path::PathBuf>) -> Self {
        Self { criu, transport: Transport::default() }
    }

    /// The same, told by this transport.
    #[must_use]
    pub fn by(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    fn find(&self) -> Result<Criu, criu_driver::Error> {
        Criu::find(self.criu.as_deref())
    }
}

impl Engine for CriuEngine {
    fn name(&self) -> EngineName {
        EngineName::Criu
    }

    fn prepare(&self, target: &Path) -> Result<Prepared, DumpError> {
        let criu = self.find()?;
        if maps_files_of(target) {
            return Err(DumpError::InUse { target: target.to_owned() });
        }
        let users = Users::of(target);
        if !users.is_empty() {
            return Err(DumpError::Needed { target: target.to_owned(), users });
        }
        let partial = Partial::create(target)?;
        ahead::read(&criu);
        Ok(Prepared::Folder(partial))
    }

    fn dump(&self, prepared: Prepared, order: DumpOrder) -> Dump {
        dump::dump(self, prepared, order)
    }

    fn restore(&self, order: &RestoreOrder<'_>) -> Result<RestoredProcess, RestoreError> {
        restore::restore(self, order)
    }
}

/// Whether memory of this process is mapped from files in this folder, as after a restore by the instant engine. A
/// folder that cannot be looked at is none of them.
fn maps_files_of(folder: &Path) -> bool {
    let Ok(folder) = folder.canonicalize() else { return false };
    let maps = procfs::process::Process::myself().and_then(|process| process.maps());
    maps.is_ok_and(|maps| {
        maps.iter().any(|map| match &map.pathname {
            procfs::process::MMapPath::Path(path) => path.parent() == Some(&folder),
            _ => false,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_a_mapped_file_is_known() {
        let program = std::env::current_exe().unwrap();
        assert!(maps_files_of(program.parent().unwrap()));
        assert!(!maps_files_of(tempfile::tempdir().unwrap().path()));
        assert!(!maps_files_of("/no/such/folder".as_ref()));
    }
}
