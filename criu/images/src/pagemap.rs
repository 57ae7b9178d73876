//! Which pages of a process or of shared memory are in the image (`pagemap-PID.img`,
//! `pagemap-shmem-ID.img`) and where in `pages-N.img`. Knows nothing of what the pages are for.

use bitflags::bitflags;

use crate::write::WriteError;

/// Bytes in a page of a pages file. CRIU writes whole pages of the machine; on x86 these are 4096.
pub const PAGE_SIZE: u64 = 4096;

/// First record of a page map.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PagemapHead {
    /// Number of the `pages-N.img` with the contents.
    #[prost(uint32, required, tag = "1")]
    pub pages_id: u32,
}

/// A further record of a page map, as written; [`Extent`] is what it means.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PagemapEntry {
    /// Address of the first page, or offset in shared memory.
    #[prost(uint64, required, tag = "1")]
    pub vaddr: u64,
    /// Number of pages in images before CRIU 4.2, zero since.
    #[prost(uint32, required, tag = "2")]
    pub compat_nr_pages: u32,
    /// The pages are in the parent image; counts in old images without `flags`.
    #[prost(bool, optional, tag = "3")]
    pub in_parent: Option<bool>,
    /// [`PageFlags`] as a number.
    #[prost(uint32, optional, tag = "4")]
    pub flags: Option<u32>,
    /// Number of pages since CRIU 4.2.
    #[prost(uint64, optional, tag = "5")]
    pub nr_pages: Option<u64>,
}
bitflags! {
    /// Where the pages of an extent are, `PE_*` in CRIU's `pagemap.h`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct PageFlags: u32 {
        /// In the image that the link `parent` leads to.
        const PARENT = 1 << 0;
        /// May be restored on demand.
        const LAZY = 1 << 1;
        /// In the pages file.
        const PRESENT = 1 << 2;
    }
}

/// A run of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Address of the first page, or offset in shared memory; a multiple of [`PAGE_SIZE`].
    pub vaddr: u64,
    /// Number of pages, at least 1.
    pub pages: u64,
    /// Where they are.
    pub flags: PageFlags,
    /// Where the first page starts in the pages file, in bytes, if the pages are present.
    pub file_offset: Option<u64>,
}

impl Extent {
    /// Whether the pages are in the pages file of this image.
    #[must_use]
    pub fn is_present(&self) -> bool {
        self.flags.contains(PageFlags::PRESENT)
    }

    /// Whether the pages are in the parent image.
    #[must_use]
    pub fn is_in_parent(&self) -> bool {
        self.flags.contains(PageFlags::PARENT)
    }

    /// Whether the pages may be restored on demand.
    #[must_use]
    pub fn is_lazy(&self) -> bool {
        self.flags.contains(PageFlags::LAZY)
    }

    /// Length in bytes. An extent that was read ends inside the address space; others saturate.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.pages.saturating_mul(PAGE_SIZE)
    }

    /// Whether there is no page; never so in an extent that was read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages == 0
    }

    /// Byte after the last.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.vaddr.saturating_add(self.len())
    }
}

/// A run of pages for a map to come ([`Pagemap::of`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Address of the first page, or offset in shared memory; a multiple of [`PAGE_SIZE`].
    pub vaddr: u64,
    /// Number of pages.
    pub pages: u64,
    /// Where they are.
    pub flags: PageFlags,
}

impl Run {
    /// As CRIU writes it since 4.2.
    fn entry(self) -> PagemapEntry {
        let (flags, nr_pages) = (Some(self.flags.bits()), Some(self.pages));
        PagemapEntry { vaddr: self.vaddr, compat_nr_pages: 0, in_parent: None, flags, nr_pages }
    }
}

/// A page map as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pagemap {
    pages_id: u32,
    extents: Vec<Extent>,
    present_bytes: u64,
}

impl Pagemap {
    /// A map without extents over the file `pages-<pages_id>.img`.
    pub(crate) fn new(pages_id: u32) -> Self {
        Self { pages_id, extents: Vec::new(), present_bytes: 0 }
    }

    /// A map of these runs over the file `pages-<pages_id>.img`, in the order in which their pages are there.
    ///
    /// # Errors
    /// [`WriteError::Invalid`] for a run that cannot be: without pages, crooked, beyond the address space.
    pub fn of(pages_id: u32, runs: impl IntoIterator<Item = Run>) -> Result<Self, WriteError> {
        let mut map = Self::new(pages_id);
        for run in runs {
            map.push(&run.entry()).map_err(|what| WriteError::Invalid { file: map.pages_file(), what })?;
        }
        Ok(map)
    }

    /// The records that say this: what follows the head in a page map.
    pub(crate) fn entries(&self) -> impl Iterator<Item = PagemapEntry> + '_ {
        self.extents
            .iter()
            .map(|extent| Run { vaddr: extent.vaddr, pages: extent.pages, flags: extent.flags }.entry())
    }

    /// Adds what a record says. Says what is wrong with it otherwise.
    pub(crate) fn push(&mut self, entry: &PagemapEntry) -> Result<(), &'static str> {
        let pages = entry.nr_pages.unwrap_or(u64::from(entry.compat_nr_pages));
        let flags = match (entry.flags, entry.in_parent) {
            (Some(bits), _) => PageFlags::from_bits(bits).ok_or("unknown page flags")?,
            (None, Some(true)) => PageFlags::PARENT,
            (None, _) => PageFlags::PRESENT,
        };
        if pages == 0 {
            return Err("an extent without pages");
        }
        if !entry.vaddr.is_multiple_of(PAGE_SIZE) {
            return Err("an address that is no multiple of the page size");
        }
        let len = pages.checked_mul(PAGE_SIZE).ok_or("more pages than an address space has")?;
        entry.vaddr.checked_add(len).ok_or("an extent beyond the address space")?;
        let mut file_offset = None;
        if flags.contains(PageFlags::PRESENT) {
            file_offset = Some(self.present_bytes);
            self.present_bytes =
                self.present_bytes.checked_add(len).ok_or("more pages than a file can hold")?;
        }
        self.extents.push(Extent { vaddr: entry.vaddr, pages, flags, file_offset });
        Ok(())
    }

    /// Number of the pages file.
    #[must_use]
    pub fn pages_id(&self) -> u32 {
        self.pages_id
    }

    /// Name of the pages file.
    #[must_use]
    pub fn pages_file(&self) -> String {
        format!("pages-{}.img", self.pages_id)
    }

    /// Extents in the order of the pages file. Addresses ascend in every image seen so far, but
    /// nothing here depends on it.
    #[must_use]
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Bytes that the pages file has to have.
    #[must_use]
    pub fn present_bytes(&self) -> u64 {
        self.present_bytes
    }

    /// Whether some pages are in the parent image.
    #[must_use]
    pub fn needs_parent(&self) -> bool {
        self.extents.iter().any(Extent::is_in_parent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(vaddr: u64, nr_pages: Option<u64>, flags: Option<u32>) -> PagemapEntry {
        PagemapEntry { vaddr, compat_nr_pages: 3, in_parent: None, flags, nr_pages }
    }

    #[test]
    fn offsets_count_present_pages_only() {
        let mut map = Pagemap::new(1);
        map.push(&entry(0x1000, Some(2), Some(4))).unwrap();
        map.push(&entry(0x3000, Some(5), Some(1))).unwrap();
        map.push(&entry(0x9000, Some(1), Some(6))).unwrap();
        let offsets: Vec<_> = map.extents().iter().map(|e| e.file_offset).collect();
        assert_eq!(offsets, [Some(0), None, Some(0x2000)]);
        assert_eq!(map.present_bytes(), 0x3000);
        assert!(map.needs_parent());
    }

    #[test]
    fn old_records_count_in_the_old_field_and_are_present() {
        let mut map = Pagemap::new(1);
        map.push(&entry(0x1000, None, None)).unwrap();
        assert_eq!((map.extents()[0].pages, map.extents()[0].is_present()), (3, true));
        let parent = PagemapEntry { in_parent: Some(true), ..entry(0x9000, None, None) };
        map.push(&parent).unwrap();
        assert!(map.extents()[1].is_in_parent() && !map.extents()[1].is_present());
    }

    #[test]
    fn extents_that_cannot_be_are_refused() {
        let mut map = Pagemap::new(1);
        assert!(map.push(&entry(0x1000, Some(0), Some(4))).is_err());
        assert!(map.push(&entry(0x1001, Some(1), Some(4))).is_err());
        assert!(map.push(&entry(0x1000, Some(1), Some(8))).is_err());
        assert!(map.push(&entry(0x1000, Some(u64::MAX), Some(4))).is_err());
        assert!(map.push(&entry(u64::MAX - 0xfff, Some(1), Some(4))).is_err());
        assert!(map.extents().is_empty());
    }
}
