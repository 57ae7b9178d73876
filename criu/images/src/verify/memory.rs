//! Mappings, page maps and pages files.

use std::collections::BTreeSet;

use super::Check;
use crate::files::FileKind;
use crate::finding::Finding;
use crate::memory::{Memory, Vma, VmaStatus};
use crate::pagemap::{Extent, Pagemap};

impl Check<'_> {
    /// Checks memory and page map of a process. Returns the shared memory it maps.
    pub(super) fn memory(&mut self, pid: u32) -> BTreeSet<u64> {
        let memory = self.read(self.dir.mm(pid));
        let map = self.read(self.dir.pagemap(pid));
        if let Some(memory) = &memory {
            self.mappings(&format!("mm-{pid}.img"), memory);
        }
        if let Some(map) = &map {
            let file = format!("pagemap-{pid}.img");
            self.pages(&file, map);
            if let Some(memory) = &memory {
                self.inside(&file, map, &memory.vmas);
            }
        }
        memory.iter().flat_map(|m| &m.vmas).filter_map(Vma::shared_memory_id).collect()
    }

    /// Checks the page maps of shared memory: that of mappings, and that of memfds.
    pub(super) fn shared_memory(&mut self, mapped: BTreeSet<u64>) {
        let mut ids = mapped;
        // Errors of this file were found with the file table. CRIU dumps no pages of an empty memfd.
        let memfds = self.dir.memfds().unwrap_or_default();
        ids.extend(memfds.iter().filter(|m| m.size > 0).map(|m| u64::from(m.shared_memory_id)));
        for id in ids {
            if let Some(map) = self.read(self.dir.shared_pagemap(id)) {
                self.pages(&format!("pagemap-shmem-{id}.img"), &map);
            }
        }
    }

    fn mappings(&mut self, file: &str, memory: &Memory) {
        self.refer(file, "executable", memory.exe_file_id, &[FileKind::Regular]);
        let mut end = 0;
        for vma in &memory.vmas {
            let start = vma.start;
            // A guard lies inside the mapping before it.
            if !vma.area().contains(VmaStatus::GUARD) {
                if vma.is_empty() || start < end {
                    self.find(Finding::Mapping { file: file.to_owned(), start });
                }
                end = end.max(vma.end);
            }
            if let Some(id) = vma.file_id() {
                let kinds = [FileKind::Regular, FileKind::Memfd, FileKind::External];
                self.refer(file, &format!("mapping at {start:#x}"), id, &kinds);
            }
        }
    }

    fn pages(&mut self, file: &str, map: &Pagemap) {
        self.report.present_bytes = self.report.present_bytes.saturating_add(map.present_bytes());
        let pages = map.pages_file();
        if !self.pages.insert(map.pages_id()) {
            self.find(Finding::PagesShared { file: file.to_owned(), pages: pages.clone() });
        }
        if map.needs_parent() && !self.has_parent() {
            self.find(Finding::NoParent { file: file.to_owned() });
        }
        if let Some(address) = given_twice(map.extents()) {
            self.find(Finding::PagesTwice { file: file.to_owned(), address });
        }
        let expected = map.present_bytes();
        if let Some(found) = self.read(self.dir.size(&pages))
            && found != expected
        {
            let pagemap = file.to_owned();
            self.find(Finding::PagesSize { file: pages, pagemap, expected, found });
        }
    }

    /// Pages outside of all mappings are reported once, by the first.
    fn inside(&mut self, file: &str, map: &Pagemap, vmas: &[Vma]) {
        // Ends ascend like starts only without guards, which lie inside the mapping before them.
        let mappings = vmas.iter().filter(|vma| !vma.area().contains(VmaStatus::GUARD));
        let mut areas: Vec<(u64, u64)> = mappings.map(|v| (v.start, v.end)).collect();
        areas.sort_unstable();
        let outside = map.extents().iter().find_map(|extent| first_outside(extent, &areas));
        if let Some(address) = outside {
            self.find(Finding::PagesOutside { file: file.to_owned(), address });
        }
    }
}

/// First byte of an extent that is in no area. Areas are sorted; an extent may span several.
fn first_outside(extent: &Extent, areas: &[(u64, u64)]) -> Option<u64> {
    let mut address = extent.vaddr;
    let mut next = areas.partition_point(|(_, end)| *end <= address);
    while address < extent.end() {
        match areas.get(next) {
            Some((start, end)) if *start <= address => address = address.max(*end),
            _ => return Some(address),
        }
        next += 1;
    }
    None
}

/// First address that two extents cover.
fn given_twice(extents: &[Extent]) -> Option<u64> {
    let mut ranges: Vec<(u64, u64)> = extents.iter().map(|e| (e.vaddr, e.end())).collect();
    ranges.sort_unstable();
    ranges.windows(2).find(|pair| pair[1].0 < pair[0].1).map(|pair| pair[1].0)
}
