//! The instant engine, given a real image with damaged files: it plans, or says what speaks against that.
//!
//! `DEFROST_FUZZ_IMAGE` names an image of a defrost server's own that was made on this host.
#![no_main]

mod edits;

use std::sync::LazyLock;

use defrost::engine::instant::{MemoryMode, obstacles};
use defrost::image::Image;
use edits::Edited;
use libfuzzer_sys::fuzz_target;

static IMAGE: LazyLock<(Edited, Image)> = LazyLock::new(|| {
    let folder = std::env::var_os("DEFROST_FUZZ_IMAGE").expect("DEFROST_FUZZ_IMAGE names an image");
    let edited = Edited::copy_of(folder.as_ref());
    let image = Image::open(edited.path()).expect("a whole image");
    let against = obstacles(&image, MemoryMode::Map, true).expect("an image that can be read");
    assert_eq!(against, [""; 0], "the image itself can be restored here");
    (edited, image)
});

fuzz_target!(|data: &[u8]| {
    let (edited, image) = &*IMAGE;
    edited.with(data, |_| {
        for memory in [MemoryMode::Map, MemoryMode::Copy] {
            let _ = obstacles(image, memory, true);
        }
    });
});
