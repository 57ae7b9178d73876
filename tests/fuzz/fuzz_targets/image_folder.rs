//! A whole image with damaged files: verification finds what is wrong, and comes to an end.
#![no_main]

mod edits;

use std::sync::LazyLock;

use criu_images::{ImageDir, verify};
use edits::Edited;
use libfuzzer_sys::fuzz_target;

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../criu/images/tests/fixtures/rich");

static IMAGE: LazyLock<Edited> = LazyLock::new(|| Edited::copy_of(FIXTURE.as_ref()));

fuzz_target!(|data: &[u8]| {
    IMAGE.with(data, |folder| {
        let image = ImageDir::open(folder).expect("a folder");
        for finding in &verify(&image).findings {
            let _ = (finding.to_string(), finding.remedy());
        }
    });
});
