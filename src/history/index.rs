//! What is stored about one checkpoint: its small files whole, and of its large ones where each page lies.
//!
//! It must not know how files are found, nor how packs are read.

use serde::{Deserialize, Serialize};

use crate::image::manifest::ImageId;
use crate::image::record::Kind;

/// Magic and format of an index.
pub(super) const INDEX: Kind = Kind { magic: *b"DEFRHIST", version: 2 };

/// One checkpoint of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    /// Its number: 1 for the first that the history ever had; none is given twice.
    pub number: u64,
    /// The identity of the image.
    pub id: ImageId,
    /// When the image was completed, in nanoseconds since the Unix epoch.
    pub created_unix_ns: u64,
    /// The server's name.
    pub server: String,
    /// How often its state had been restored up to then.
    pub generation: u64,
    /// For how long it did not serve, in microseconds: to quiesce, and for the dump.
    pub pause_us: u64,
    /// From its first step until it was stored, in microseconds. 0 if it was stored by hand.
    pub took_us: u64,
    /// Bytes of memory in the image.
    pub memory_bytes: u64,
    /// Bytes of the whole image.
    pub image_bytes: u64,
    /// Bytes that the history grew by when it was stored.
    pub written_bytes: u64,
    /// The image's manifest, as it is stored in its folder.
    pub(super) manifest: Vec<u8>,
    /// All its other files.
    pub(super) files: Vec<StoredFile>,
}

/// One file of the image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredFile {
    pub(super) name: String,
    /// In bytes.
    pub(super) size: u64,
    pub(super) content: Content,
}

/// The contents of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Content {
    /// Here.
    Whole(Vec<u8>),
    /// In packs, a page after the other. The last may be longer than what is left of the file.
    Pages(Vec<Extent>),
}

/// Pages that lie one after the other in one pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Extent {
    /// The number of the pack.
    pub(super) pack: u64,
    /// The first page.
    pub(super) first: u32,
    /// How many.
    pub(super) count: u32,
}

/// Where one page lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) pack: u64,
    pub(super) page: u32,
}

/// Adds a page to the end of a list, as a part of the last extent where it follows upon that.
pub(super) fn push(extents: &mut Vec<Extent>, place: Place) {
    match extents.last_mut() {
        Some(last) if last.pack == place.pack && last.first + last.count == place.page => last.count += 1,
        _ => extents.push(Extent { pack: place.pack, first: place.page, count: 1 }),
    }
}

impl Extent {
    /// Each page of it.
    pub(super) fn places(self) -> impl Iterator<Item = Place> {
        (self.first..self.first.saturating_add(self.count)).map(move |page| Place { pack: self.pack, page })
    }
}

impl Index {
    /// All extents of all files.
    pub(super) fn extents(&self) -> impl Iterator<Item = Extent> + '_ {
        self.files
            .iter()
            .flat_map(|file| match &file.content {
                Content::Whole(_) => [].iter(),
                Content::Pages(extents) => extents.iter(),
            })
            .copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_follow_each_other_are_one_extent() {
        let mut extents = Vec::new();
        for (pack, page) in [(1, 5), (1, 6), (1, 8), (2, 9), (2, 10)] {
            push(&mut extents, Place { pack, page });
        }
        let short: Vec<_> = extents.iter().map(|extent| (extent.pack, extent.first, extent.count)).collect();
        assert_eq!(short, [(1, 5, 2), (1, 8, 1), (2, 9, 2)]);
        assert_eq!(extents[2].places().last(), Some(Place { pack: 2, page: 10 }));
    }
}
