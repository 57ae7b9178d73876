//! Each thing that can be wrong with an image as a whole, made wrong on purpose.

use std::fs;

use criu_images::*;

use crate::image::{FILES_ID, Image, PID, SHARED, THREAD, ZOMBIE, put, run, vma};

#[test]
fn a_whole_image_has_no_findings() {
    let report = Image::new().verify();
    assert!(report.is_ok(), "{:#?}", report.findings);
    assert_eq!((report.processes, report.threads, report.present_bytes), (2, 3, 4 * PAGE_SIZE));
    assert_eq!(report.parent, None);
}

#[test]
fn every_missing_file_is_found_at_once_and_has_a_remedy() {
    let dir = Image::new().write();
    let gone = ["core-11.img", "ids-10.img", "mm-10.img", "pages-2.img", "fs-10.img", "ghost-file-1a.img"];
    for name in gone {
        fs::remove_file(dir.path().join(name)).unwrap();
    }
    let report = verify(&ImageDir::open(dir.path()).unwrap());
    // Without the memory, a memfd still names the shared page map.
    for name in gone {
        let text = format!("{name}: file is missing");
        assert!(report.findings.iter().any(|f| f.to_string() == text), "{name}: {:#?}", report.findings);
    }
    assert_eq!(report.findings.len(), gone.len(), "{:#?}", report.findings);
    assert!(report.findings.iter().all(|f| f.remedy().contains("make a new checkpoint")));
}

#[test]
fn an_empty_folder_is_an_image_without_anything() {
    let dir = tempfile::tempdir().unwrap();
    let findings = verify(&ImageDir::open(dir.path()).unwrap()).findings;
    let files: Vec<_> = findings.iter().map(Finding::file).collect();
    assert_eq!(files, ["inventory.img", "files.img", "pstree.img"]);
}

#[test]
fn a_short_pages_file_is_found_by_its_size() {
    let mut image = Image::new();
    image.pages[0].1 = 2;
    let report = image.verify();
    assert_eq!(report.findings[0].to_string(), "pages-1.img: 8192 bytes where pagemap-10.img needs 12288");
    assert!(report.findings[0].remedy().contains("CRIU would hang"));
    image.pages[0].1 = 4;
    assert_eq!(image.findings(), ["pages-1.img: 16384 bytes where pagemap-10.img needs 12288"]);
}

#[test]
fn the_pages_file_of_shared_memory_is_measured_too() {
    let mut image = Image::new();
    image.shared_pagemap.1[0] = run(0, 2, 4);
    assert_eq!(image.findings(), ["pages-2.img: 4096 bytes where pagemap-shmem-77.img needs 8192"]);
}

#[test]
fn pages_that_are_not_present_take_no_room() {
    let mut image = Image::new();
    image.pagemap.1.push(run(0x7000, 1, 2));
    assert_eq!(image.findings(), [""; 0]);
}

#[test]
fn page_maps_that_cannot_be_are_found() {
    let mut image = Image::new();
    image.shared_pagemap.0.pages_id = 1;
    image.pagemap.1[1] = run(0x3000, 1, 4);
    image.pages[0].1 = 3;
    assert_eq!(
        image.findings(),
        [
            "pagemap-10.img: page 0x3000 is given twice",
            "pagemap-shmem-77.img: names pages-1.img, as another page map does",
            "pages-1.img: 12288 bytes where pagemap-shmem-77.img needs 4096",
        ]
    );
    let mut image = Image::new();
    image.pagemap.1[1] = run(0x8000, 2, 4);
    image.pages[0].1 = 4;
    assert_eq!(image.findings(), ["pagemap-10.img: page 0x9000 is in no mapping"]);
}

#[test]
fn pages_in_a_parent_need_one() {
    let mut image = Image::new();
    image.pagemap.1.push(run(0x7000, 1, 1));
    let missing = "pagemap-10.img: some pages are in a parent image and there is none";
    assert_eq!(image.findings(), [missing]);
    let dir = image.write();
    std::os::unix::fs::symlink("../", dir.path().join("parent")).unwrap();
    let report = verify(&ImageDir::open(dir.path()).unwrap());
    assert!(report.is_ok(), "{:#?}", report.findings);
    assert_eq!(report.parent, Some(dir.path().join("../")));
    fs::remove_file(dir.path().join("parent")).unwrap();
    std::os::unix::fs::symlink("nowhere", dir.path().join("parent")).unwrap();
    assert_eq!(verify(&ImageDir::open(dir.path()).unwrap()).findings.len(), 1);
}

#[test]
fn references_to_files_that_are_not_there_are_found() {
    let mut image = Image::new();
    image.fdinfo[1].id = 0x99;
    image.mm.exe_file_id = 0x98;
    image.mm.vmas[0].object = 0x97;
    image.fs.cwd_id = 0x96;
    image.remaps[0].file_id = 0x95;
    assert_eq!(
        image.findings(),
        [
            "remap-fpath.img: unlinked file: no file 0x95 in files.img",
            "fs-10.img: working folder: no file 0x96 in files.img",
            "mm-10.img: executable: no file 0x98 in files.img",
            "mm-10.img: mapping at 0x1000: no file 0x97 in files.img",
            "fdinfo-2.img: descriptor 3: no file 0x99 in files.img",
        ]
    );
}

#[test]
fn references_to_files_of_another_kind_are_found() {
    let mut image = Image::new();
    image.fdinfo[0].kind = FileKind::Pipe as i32;
    image.fdinfo[1].kind = 99;
    image.mm.exe_file_id = 3;
    assert_eq!(
        image.findings(),
        [
            "mm-10.img: executable: file 0x3 is of kind inet socket, file was expected",
            "fdinfo-2.img: descriptor 0: file 0x2 is of kind file, pipe was expected",
            "fdinfo-2.img: descriptor 3: file 0x3 is of kind inet socket, unknown was expected",
        ]
    );
}

#[test]
fn file_records_that_restore_nothing_are_found() {
    let mut image = Image::new();
    image.files[1].regular = None;
    image.files[2].inet.as_mut().unwrap().id = 9;
    let twice = image.files[5].clone();
    image.files.push(twice);
    image.memfds[0].inode_id = 8;
    assert_eq!(
        image.findings(),
        [
            "files.img: file 0x2: without the part that its kind has",
            "files.img: file 0x3: its part has another id",
            "files.img: file 0x6: given twice",
            "files.img: file 0x5: no memory for it in memfd.img",
        ]
    );
}

#[test]
fn a_descriptor_number_given_twice_is_found() {
    let mut image = Image::new();
    image.fdinfo[1].fd = 0;
    assert_eq!(image.findings(), ["fdinfo-2.img: descriptor 0 is given twice"]);
}

#[test]
fn another_machine_is_found_in_each_core() {
    let mut image = Image::new();
    image.core_mut(PID).machine = Machine::S390 as i32;
    image.core_mut(THREAD).machine = 99;
    let host = Machine::host();
    assert_eq!(
        image.findings(),
        [
            format!("core-10.img: for machine s390, this one is {host}"),
            format!("core-11.img: for machine unknown, this one is {host}"),
        ]
    );
}

#[test]
fn cores_without_their_parts_are_found() {
    let mut image = Image::new();
    image.core_mut(PID).thread = None;
    image.core_mut(THREAD).thread_info = None;
    image.core_mut(ZOMBIE).task = None;
    let findings = image.findings();
    assert_eq!(findings[0], "core-10.img: without a thread's state");
    assert_eq!(findings[1], "core-11.img: without registers");
    assert_eq!(findings[2], "core-12.img: without a known process state");
}

#[test]
fn trees_that_cannot_be_are_found() {
    let mut image = Image::new();
    image.pstree.reverse();
    image.pstree[1].threads = vec![THREAD, THREAD];
    assert_eq!(
        image.findings(),
        [
            "pstree.img: process 12: its parent is not listed before it",
            "pstree.img: process 10: a second root",
            "pstree.img: process 10: its leader is not among its threads",
            "pstree.img: process 10: has a thread that is listed twice",
        ]
    );
    image.pstree.clear();
    assert_eq!(image.findings(), ["pstree.img: no process in it"]);
}

#[test]
fn mappings_that_overlap_are_found_and_guards_are_not() {
    let mut image = Image::new();
    image.mm.vmas[1].start = 0x2000;
    image.mm.vmas.push(vma(0xc000, 0xd000, VmaStatus::GUARD, 0));
    assert_eq!(
        image.findings(),
        ["mm-10.img: mapping at 0x2000 is empty or does not follow the one before it"]
    );
}

#[test]
fn pages_behind_a_guard_are_in_its_mapping() {
    let mut image = Image::new();
    image.mm.vmas.insert(2, vma(0x4000, 0x5000, VmaStatus::GUARD, 0));
    assert_eq!(image.findings(), [""; 0]);
}

#[test]
fn other_layouts_are_found() {
    let mut image = Image::new();
    image.inventory.img_version = 1;
    image.inventory.fdinfo_per_id = None;
    assert_eq!(
        image.findings(),
        [
            "inventory.img: image version 1 where 2 was expected",
            "inventory.img: descriptor tables are stored by pid",
        ]
    );
}

#[test]
fn unknown_fields_are_passed_over_but_not_in_page_maps() {
    let image = Image::new();
    let dir = image.write();
    let core = {
        let mut bytes = prost::Message::encode_to_vec(&image.cores[0].1);
        bytes.extend(b"\xf8\x06\x01");
        bytes
    };
    put(dir.path(), "core-10.img", &[0x5456_4319, 0x5505_3847], &[core]);
    let folder = ImageDir::open(dir.path()).unwrap();
    assert!(verify(&folder).is_ok());

    // What compressed images have: field 6, the size of the compressed pages.
    let entry = b"\x08\x80\x40\x10\x00\x20\x04\x28\x01\x30\x07".to_vec();
    put(dir.path(), "pagemap-10.img", &[0x5456_4319, 0x5608_4025], &[b"\x08\x01".to_vec(), entry]);
    let error = folder.pagemap(PID).unwrap_err();
    assert_eq!(error.to_string(), "pagemap-10.img: at byte 18: pagemap_entry with unknown field 6");
    assert!(error.hint().contains("later CRIU"));
}

#[test]
fn accessors_lead_from_records_to_paths_and_addresses() {
    let dir = Image::new().write();
    let folder = ImageDir::open(dir.path()).unwrap();
    let files = folder.files().unwrap();
    let listeners: Vec<_> = files.listeners().map(|l| l.address.to_string()).collect();
    assert_eq!(listeners, ["127.0.0.1:8080", "[::1]:8081"]);
    assert_eq!(files.connections().count(), 0);
    let mm = folder.mm(PID).unwrap();
    let mapped: Vec<_> =
        mm.mapped_files(&files).map(|m| (m.path().to_owned(), m.size(), m.vma.start)).collect();
    assert_eq!(mapped, [("/srv/app".into(), Some(9000), 0x1000)]);
    assert_eq!(folder.fdinfo(FILES_ID).unwrap().len(), 3);
    assert_eq!(folder.shared_pagemap(SHARED).unwrap().pages_file(), "pages-2.img");
    assert_eq!(folder.cpuinfo().unwrap(), None);
}
