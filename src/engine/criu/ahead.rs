//! Has the programs of a dump in memory before the server is quiesced: CRIU with its libraries, and the helper.
//!
//! They are run while the server stands still. Where they come from a disk, that was two to seven times as long as
//! otherwise: CRIU of Debian alone has more than twenty libraries. All of it is advice. What cannot be read here is
//! read by the dump itself, which says so if it cannot either.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use criu_driver::Criu;
use procfs::process::MMapPath;
use rustix::fs::{Advice, fadvise};

use crate::engine::helper::start::is_own_executable;
use crate::resource::locked;

/// How long CRIU may take to start.
const START: Duration = Duration::from_secs(5);
/// The most that is read of one file, in bytes. A program's code is smaller; its debug information is not read.
const LIMIT: u64 = 64 << 20;
/// How much is read at once.
const PIECE: usize = 256 << 10;

/// The files of the CRIU that was used last.
static FILES: Mutex<Option<(PathBuf, Vec<PathBuf>)>> = Mutex::new(None);

/// Reads them, which is a matter of milliseconds if they are in memory already.
pub(super) fn read(criu: &Criu) {
    let own = if is_own_executable() { own_program() } else { Ok(Vec::new()) };
    let own = own.unwrap_or_else(|error| {
        tracing::debug!("the own program is not read ahead: {error}");
        Vec::new()
    });
    let parts: Vec<_> = files_of(criu).iter().filter_map(Part::whole).chain(own).collect();
    // All are asked for before the first is waited for.
    for part in &parts {
        let length = std::num::NonZeroU64::new(part.length);
        let _ = fadvise(&part.file, part.from, length, Advice::WillNeed);
    }
    let mut piece = vec![0; PIECE];
    for part in parts {
        if let Err(error) = part.read(&mut piece) {
            tracing::debug!("not read ahead: {error}");
        }
    }
}

/// Found out once for each CRIU.
fn files_of(criu: &Criu) -> Vec<PathBuf> {
    let mut known = locked(&FILES);
    if let Some((path, files)) = &*known
        && *path == criu.path
    {
        return files.clone();
    }
    match criu.files(START) {
        Ok(files) => known.insert((criu.path.clone(), files)).1.clone(),
        Err(error) => {
            tracing::debug!("criu is not read ahead: {error}");
            Vec::new()
        }
    }
}

/// A part of a file.
struct Part {
    file: File,
    from: u64,
    length: u64,
}

impl Part {
    fn whole(path: &PathBuf) -> Option<Self> {
        let file = File::open(path).ok()?;
        let length = file.metadata().ok().filter(std::fs::Metadata::is_file)?.len().min(LIMIT);
        Some(Self { file, from: 0, length })
    }

    fn read(mut self, piece: &mut [u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.from))?;
        let mut rest = self.file.take(self.length);
        while rest.read(piece)? > 0 {}
        Ok(())
    }
}

/// What the loader has mapped of this program, which may have lost its name.
fn own_program() -> procfs::ProcResult<Vec<Part>> {
    let process = procfs::process::Process::myself()?;
    let path = process.exe()?;
    let maps = process.maps()?;
    let mapped = maps.iter().filter(|map| matches!(&map.pathname, MMapPath::Path(found) if *found == path));
    let parts = mapped.map(|map| {
        let length = (map.address.1 - map.address.0).min(LIMIT);
        Ok(Part { file: File::open("/proc/self/exe")?, from: map.offset, length })
    });
    Ok(parts.collect::<io::Result<_>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_program_is_found_and_read() {
        let parts = own_program().unwrap();
        assert!(parts.iter().any(|part| part.from == 0), "its first page is mapped");
        let total: u64 = parts.iter().map(|part| part.length).sum();
        assert!(total > 0);
        let mut piece = vec![0; PIECE];
        parts.into_iter().for_each(|part| part.read(&mut piece).unwrap());
    }

    #[test]
    fn what_is_not_there_is_left_out() {
        assert!(Part::whole(&"/no/such/file".into()).is_none());
        assert!(Part::whole(&"/".into()).is_none());
    }
}
