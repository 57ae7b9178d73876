//! Old checkpoints leave a history, and with them the pages that no other one needs.
//!
//! An index goes first, its pages last, so that what still has its index is whole at every moment. A pack of which
//! less than half is needed is written anew.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;

use super::checkout;
use super::error::{HistoryError, Trouble, failed};
use super::folder::History;
use super::index::{Content, Index, Place, push};
use super::pack::{PAGE, Pack, Packer, Table, remove};
use crate::image;
use crate::image::digest::Digest;

/// What pruning has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// The checkpoints that are gone.
    pub removed: Vec<u64>,
    /// How many packs were removed or written anew.
    pub packs: usize,
}

impl History {
    /// Removes all checkpoints but the last `keep`, and what nothing needs any more. One that cannot be read does not
    /// count, and stays while an older one is kept. Plain images of checkpoints are removed, but for the last one's
    /// and those that somebody needs.
    ///
    /// # Errors
    /// [`HistoryError::InUse`], and `Io`: all checkpoints that are listed are whole.
    pub fn prune(&self, keep: usize) -> Result<Pruned, HistoryError> {
        let _writing = self.write()?;
        let numbers = self.numbers();
        let kept: Vec<Index> =
            numbers.iter().rev().filter_map(|number| self.index(*number).ok()).take(keep.max(1)).collect();
        let Some(oldest) = kept.last().map(|index| index.number) else { return Ok(Pruned::default()) };
        let mut pruned = Pruned::default();
        for number in numbers.into_iter().filter(|number| *number < oldest) {
            let path = self.index_path(number);
            fs::remove_file(&path).map_err(failed("remove", &path))?;
            pruned.removed.push(number);
        }
        if !pruned.removed.is_empty() {
            self.sync()?;
        }
        self.clear_checkouts(kept.first().map(|index| index.number));
        pruned.packs = self.prune_packs(kept)?;
        Ok(pruned)
    }

    /// Removes plain images of checkpoints, but for this one's and those that somebody needs.
    pub fn clear_checkouts(&self, but: Option<u64>) {
        for number in self.checkouts().into_iter().filter(|number| Some(*number) != but) {
            let path = self.checkout_path(number);
            // Whoever restores it at this moment does not need it yet.
            let Some(_taken) = checkout::take(&path) else { continue };
            match image::remove(&path, false) {
                Ok(_) | Err(image::RemoveError::Needed { .. }) => {}
                Err(error) => tracing::warn!("{}: {error}", self.path().display()),
            }
        }
    }

    fn prune_packs(&self, kept: Vec<Index>) -> Result<usize, HistoryError> {
        let mut live: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
        for extent in kept.iter().flat_map(Index::extents) {
            live.entry(extent.pack).or_default().extend(extent.places().map(|place| place.page));
        }
        let (mut removed, mut sparse) = (0, Vec::new());
        for pack in self.packs() {
            match live.get(&pack) {
                None => {
                    remove(self.path(), pack);
                    removed += 1;
                }
                Some(pages) => {
                    let all = Table::read(self.path(), pack).map(|table| table.digests.len());
                    if all.is_ok_and(|all| pages.len() * 2 < all) {
                        sparse.push(pack);
                    }
                }
            }
        }
        if sparse.is_empty() {
            return Ok(removed);
        }
        Ok(removed + self.write_anew(&sparse, &live, kept)?)
    }

    /// Copies what is needed of these packs into new ones, has the indices refer to them, and removes the old ones;
    /// says how many. A pack with a damaged page stays as it is, so that the damage keeps its place.
    fn write_anew(
        &self,
        sparse: &[u64],
        live: &BTreeMap<u64, BTreeSet<u32>>,
        kept: Vec<Index>,
    ) -> Result<usize, HistoryError> {
        let next = self.packs().last().map_or(1, |last| last + 1);
        let mut packer = Packer::new(self.path(), next);
        let (mut moved, mut done) = (HashMap::new(), BTreeSet::new());
        let mut copy = || {
            for number in sparse {
                if let Some(pages) = live.get(number).and_then(|pages| self.read_all(*number, pages)) {
                    for (page, bytes) in pages {
                        let place = packer.append(&bytes, Digest::of(&bytes))?;
                        moved.insert(Place { pack: *number, page }, place);
                    }
                    done.insert(*number);
                }
            }
            packer.finish()
        };
        if let Err(error) = copy() {
            packer.discard();
            return Err(error);
        }
        for mut index in kept {
            if index.extents().any(|extent| done.contains(&extent.pack)) {
                redirect(&mut index, &moved);
                self.write_index(&index)?;
            }
        }
        for number in &done {
            remove(self.path(), *number);
        }
        Ok(done.len())
    }

    /// These pages of a pack, which are less than half of it; none if one of them is damaged.
    fn read_all(&self, number: u64, pages: &BTreeSet<u32>) -> Option<Vec<(u32, [u8; PAGE])>> {
        let read = |pack: &Pack, page: u32| {
            let mut buffer = [0; PAGE];
            pack.read(page, &mut buffer).map(|()| (page, buffer)).map_err(Trouble::loss)
        };
        let all = Pack::open(self.path(), number)
            .and_then(|pack| pages.iter().map(|page| read(&pack, *page)).collect());
        all.inspect_err(|loss| tracing::warn!("{}: {loss}", self.path().display())).ok()
    }
}

fn redirect(index: &mut Index, moved: &HashMap<Place, Place>) {
    for file in &mut index.files {
        if let Content::Pages(extents) = &mut file.content {
            let mut fresh = Vec::new();
            for place in extents.iter().flat_map(|extent| extent.places()) {
                push(&mut fresh, moved.get(&place).copied().unwrap_or(place));
            }
            *extents = fresh;
        }
    }
}
