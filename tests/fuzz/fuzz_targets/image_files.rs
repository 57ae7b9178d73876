//! One image file of any content, under every name: each reader gives a value or an error.
#![no_main]

#[allow(dead_code, reason = "shared with other targets")]
mod edits;

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::LazyLock;

use criu_images::ImageDir;
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

const NAMES: [&str; 16] = [
    "inventory.img",
    "pstree.img",
    "core-1.img",
    "ids-1.img",
    "mm-1.img",
    "pagemap-1.img",
    "pagemap-shmem-1.img",
    "files.img",
    "fdinfo-1.img",
    "fs-1.img",
    "timens-0.img",
    "cpuinfo.img",
    "memfd.img",
    "tty-info.img",
    "remap-fpath.img",
    "pipes-data.img",
];

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = edits::memory_folder();
    for name in NAMES.iter().chain(&["stats-dump", "stats-restore"]) {
        symlink("data", folder.path().join(name)).expect("a link");
    }
    folder
});

fuzz_target!(|data: &[u8]| {
    fs::write(FOLDER.path().join("data"), data).expect("a file");
    let image = ImageDir::open(FOLDER.path()).expect("a folder");
    let _ = (image.inventory(), image.pstree(), image.core(1), image.ids(1), image.mm(1), image.files());
    let _ = (image.fdinfo(1), image.fs(1), image.timens(), image.cpuinfo(), image.memfds());
    let _ = (image.terminals(), image.remaps(), image.pipes_data(), image.stats_dump());
    let _ = image.stats_restore();
    for map in [image.pagemap(1), image.shared_pagemap(1)].into_iter().flatten() {
        let _ = (map.extents().len(), map.present_bytes());
    }
});
