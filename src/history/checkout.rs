//! A checkpoint of a history as a plain image again, which plain `criu restore` takes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use super::error::{HistoryError, Trouble, failed};
use super::folder::History;
use super::index::{Content, Index, StoredFile};
use super::pack::{PAGE, Pack};
use crate::image::{self, Class, Image, Manifest, Partial, Users, VerifyOptions, verify};

/// A checkpoint as an image within its history.
#[derive(Debug)]
pub struct CheckedOut {
    /// The image.
    pub image: Image,
    /// Has it stay.
    pub held: Held,
}

/// No pruning removes the image as long as this lives, even if nobody needs it yet. The kernel ends it with the process.
#[derive(Debug)]
#[must_use]
pub struct Held(#[expect(dead_code, reason = "held, not read")] Flock<File>);

/// How many pages are read at once.
const PIECE: u32 = 256;

impl History {
    /// Writes a checkpoint into this folder as an image that depends on nothing. It gets its name when it is
    /// complete, in the place of an image of that name which nobody needs. Returns where it is.
    ///
    /// # Errors
    /// [`HistoryError::Unknown`], [`HistoryError::Damaged`] with the first thing that is wrong, and others; what lay
    /// there before still lies there.
    pub fn checkout(&self, number: u64, target: &Path) -> Result<PathBuf, HistoryError> {
        self.write_out(number, target, true)
    }

    /// `last`: whether it is to be on disk, which a checkpoint of an earlier boot is in any case.
    fn write_out(&self, number: u64, target: &Path, last: bool) -> Result<PathBuf, HistoryError> {
        let (index, packs) = self.settled(number, |index| self.open_packs(index))?;
        let manifest = Manifest::from_bytes(&index.manifest)
            .map_err(|error| self.told(number, Trouble::loss(error.to_string())))?;
        let users = Users::of(target);
        if !users.is_empty() {
            return Err(HistoryError::Needed { target: target.to_owned(), users });
        }
        let begun = Partial::create(target)?;
        // Locked from here on, so that nobody sweeps it away.
        let partial = Partial::reopen(begun.path(), target)?;
        let written = index.files.iter().try_for_each(|file| write(partial.path(), file, &packs));
        let written = written.map_err(|trouble| self.told(number, trouble));
        let durable = last || !manifest.machine.is_of_this_boot();
        let manifest = Manifest { durable, ..manifest };
        match written.and_then(|()| Ok(partial.complete(&manifest)?)) {
            Ok(path) => Ok(path),
            Err(error) => {
                // What cannot be removed now is swept by the next checkout of this name.
                let _ = partial.discard(None);
                Err(error)
            }
        }
    }

    /// A checkpoint as an image within the history, which is made if it is not there, or is not whole any more. It stays
    /// until a later pruning that finds neither a process nor an image that needs it, nor a [`CheckedOut`] of it. It is
    /// left to the kernel to put it on disk, as what it is made of is there.
    ///
    /// # Errors
    /// As [`History::checkout`].
    pub fn checked_out(&self, number: u64) -> Result<CheckedOut, HistoryError> {
        let path = self.checkout_path(number);
        let index = self.index(number)?;
        let held = || Ok(CheckedOut { held: hold(&path)?, image: Image::open(&path)? });
        let is_whole = |it: &CheckedOut| it.image.manifest().id == index.id && is_whole(&it.image);
        let there = || held().ok().filter(is_whole);
        if let Some(it) = there() {
            return Ok(it);
        }
        let _writing = self.write()?;
        // Somebody else may have had the same idea.
        if let Some(it) = there() {
            return Ok(it);
        }
        self.write_out(number, &path, false)?;
        held()
    }

    /// Reads what belongs to the index of a checkpoint. What is missing is a loss only if the index is still the same
    /// afterwards: a pruning moves or removes it first.
    fn settled<T>(
        &self,
        number: u64,
        read: impl Fn(&Index) -> Result<T, Trouble>,
    ) -> Result<(Index, T), HistoryError> {
        let mut index = self.index(number)?;
        loop {
            let trouble = match read(&index) {
                Ok(found) => return Ok((index, found)),
                Err(trouble) => trouble,
            };
            let now = self.index(number)?;
            if now == index {
                return Err(self.told(number, trouble));
            }
            index = now;
        }
    }

    /// What is wrong with a checkpoint.
    fn told(&self, number: u64, trouble: Trouble) -> HistoryError {
        match trouble {
            Trouble::Loss(losses) => HistoryError::Damaged { dir: self.path().to_owned(), number, losses },
            Trouble::Of(error) => error,
        }
    }

    /// All packs that a checkpoint needs, opened: from here on pruning does no harm.
    fn open_packs(&self, index: &Index) -> Result<HashMap<u64, Pack>, Trouble> {
        let mut packs = HashMap::new();
        for extent in index.extents() {
            if let Entry::Vacant(vacant) = packs.entry(extent.pack) {
                vacant.insert(Pack::open(self.path(), extent.pack)?);
            }
        }
        Ok(packs)
    }
}

/// Has a folder stay.
fn hold(folder: &Path) -> Result<Held, HistoryError> {
    let failed = |source| failed("hold", folder)(source);
    let file = File::open(folder).map_err(failed)?;
    let held = Flock::lock(file, FlockArg::LockSharedNonblock).map_err(|(_, errno)| failed(errno.into()))?;
    // It may have been removed, or replaced, before it was held.
    let (own, named) = (held.metadata().map_err(failed)?, fs::metadata(folder).map_err(failed)?);
    if (own.dev(), own.ino()) == (named.dev(), named.ino()) {
        return Ok(Held(held));
    }
    Err(failed(ErrorKind::NotFound.into()))
}

/// Keeps others from a folder, unless somebody holds it.
pub(super) fn take(folder: &Path) -> Option<Flock<File>> {
    Flock::lock(File::open(folder).ok()?, FlockArg::LockExclusiveNonblock).ok()
}

/// Whether nothing of the image itself is missing or changed, whatever it needs beside itself.
fn is_whole(image: &Image) -> bool {
    let options = VerifyOptions { pids: false, ports: false, copies: 0, ..VerifyOptions::default() };
    verify(image, &options).iter().all(|finding| finding.class != Class::Damaged)
}

fn write(folder: &Path, file: &StoredFile, packs: &HashMap<u64, Pack>) -> Result<(), Trouble> {
    if !is_plain(&file.name) {
        return Err(Trouble::loss(format!("{:?} is no name of a file", file.name)));
    }
    let path = folder.join(&file.name);
    let mut options = OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(0o600).open(&path);
    let mut out = opened.map_err(|error| Trouble::Of(failed("create", &path)(error)))?;
    match &file.content {
        Content::Whole(bytes) => put(&mut out, bytes, &path),
        Content::Pages(_) => pages(file, packs, &mut |bytes| put(&mut out, bytes, &path)),
    }
}

fn put(out: &mut File, bytes: &[u8], path: &Path) -> Result<(), Trouble> {
    out.write_all(bytes).map_err(|error| Trouble::Of(failed("write", path)(error)))
}

/// Names come from a file: they must not lead out of the folder.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0'])
}

/// Hands out the contents of a file, verified, piece by piece.
fn pages(
    file: &StoredFile,
    packs: &HashMap<u64, Pack>,
    out: &mut dyn FnMut(&[u8]) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    let Content::Pages(extents) = &file.content else { return Ok(()) };
    let mut buffer = vec![0; PIECE as usize * PAGE];
    let mut left = file.size;
    for extent in extents {
        let pack = packs.get(&extent.pack);
        let pack = pack.ok_or_else(|| Trouble::loss(format!("pack {} is missing", extent.pack)))?;
        let (mut first, mut count) = (extent.first, extent.count);
        while count > 0 {
            let some = count.min(PIECE);
            let piece = &mut buffer[..some as usize * PAGE];
            pack.read(first, piece).map_err(Trouble::loss)?;
            let length = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
            out(&piece[..length])?;
            left -= length as u64;
            (first, count) = (first.saturating_add(some), count - some);
        }
    }
    if left == 0 {
        return Ok(());
    }
    Err(Trouble::loss(format!("{} lacks its last {left} bytes", file.name)))
}

impl History {
    /// All that is wrong with a checkpoint; nothing if it can be had. With `contents`, every page is read, otherwise
    /// only what is needed to find it.
    ///
    /// # Errors
    /// [`HistoryError::Unknown`]; `Io` and `NotPrivate` where nobody can say whether anything is wrong.
    pub fn losses(&self, number: u64, contents: bool) -> Result<Vec<String>, HistoryError> {
        let whole = |index: &Index| match self.losses_of(index, contents)? {
            losses if losses.is_empty() => Ok(()),
            losses => Err(Trouble::Loss(losses)),
        };
        match self.settled(number, whole) {
            Ok(_) => Ok(Vec::new()),
            Err(HistoryError::Damaged { losses, .. }) => Ok(losses),
            Err(error) => Err(error),
        }
    }

    fn losses_of(&self, index: &Index, contents: bool) -> Result<Vec<String>, Trouble> {
        let mut losses = Vec::new();
        if let Err(error) = Manifest::from_bytes(&index.manifest) {
            losses.push(error.to_string());
        }
        let mut packs = HashMap::new();
        let mut used: Vec<u64> = index.extents().map(|extent| extent.pack).collect();
        used.sort_unstable();
        used.dedup();
        for pack in used {
            match Pack::open(self.path(), pack) {
                Ok(opened) => drop(packs.insert(pack, opened)),
                Err(Trouble::Loss(more)) => losses.extend(more),
                Err(error) => return Err(error),
            }
        }
        if let Some(extent) = index.extents().find(|extent| {
            packs
                .get(&extent.pack)
                .is_some_and(|pack| extent.first.saturating_add(extent.count) > pack.pages())
        }) {
            losses.push(format!("pack {} is too short", extent.pack));
        }
        if contents && losses.is_empty() {
            for file in &index.files {
                if let Err(loss) = pages(file, &packs, &mut |_| Ok(())) {
                    losses.push(format!("{}: {loss}", file.name));
                }
            }
        }
        Ok(losses)
    }

    /// The checkpoints that can be had as far as one can see without reading their pages, ascending.
    #[must_use]
    pub fn complete(&self) -> Vec<u64> {
        self.numbers()
            .into_iter()
            .filter(|number| self.losses(*number, false).is_ok_and(|losses| losses.is_empty()))
            .collect()
    }

    /// Removes what is left of an image that was not stored, or not completed by anybody who lives.
    pub fn clear_incoming(&self) {
        let _ = fs::remove_dir_all(self.incoming());
        image::folder::sweep(&self.incoming());
    }
}
