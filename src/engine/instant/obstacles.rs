//! What speaks against restoring an image by this engine, found out without starting anything.

use std::fs::File;

use criu_images::ImageDir;

use super::plan::{Wanted, plan};
use super::source::Source;
use super::support::{self, Reasons};
use super::{MemoryMode, proc_self};
use crate::engine::RestoreError;
use crate::image::Image;

/// Reasons why [`InstantEngine`](super::InstantEngine) would not restore this image here; none if it would try. What
/// belongs to the image as a whole comes first, and the rest only if nothing speaks against that.
/// `stays` says whether the restored process would keep its parent. Starts and changes nothing.
///
/// # Errors
/// [`RestoreError::Image`] for a file that cannot be read, [`RestoreError::Start`] for the kernel's own.
pub fn obstacles(image: &Image, memory: MemoryMode, stays: bool) -> Result<Vec<String>, RestoreError> {
    let mut reasons = Reasons::default();
    support::image(image, &mut reasons);
    if !reasons.is_empty() {
        return Ok(reasons.into_vec());
    }
    let folder = ImageDir::open(image.path())?.with(image.contents());
    let Some(source) = Source::read(folder, &mut reasons)? else { return Ok(reasons.into_vec()) };
    support::process(&source, stays, &mut reasons);
    proc_self::writes(&source.task, &mut reasons);
    let subject = &image.manifest().subject;
    let given: Vec<u64> = [subject.parameter_pipe, subject.report_pipe].into_iter().flatten().collect();
    let failed = |source| RestoreError::Start { step: "planning".to_owned(), source };
    // Stands for what the restorer would report to; the plan is thrown away.
    let report = File::open("/dev/null").map_err(failed)?;
    let wanted = Wanted { memory, pages: &[], record: None };
    plan(&source, image.manifest(), &wanted, &report, &given, &mut reasons).map_err(failed)?;
    Ok(reasons.into_vec())
}
