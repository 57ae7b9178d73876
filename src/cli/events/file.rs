//! The events of a file.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use super::super::failure::{FAILED, Failure, IMAGE};
use super::output::{Closed, Output};
use crate::events::stored::{Item, Loss, Once, Reader};

/// How often a file that is followed is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Shows what is in the file, and what is lost of it. The exit status tells of losses too, but not of a torn tail.
pub(super) fn list(path: &Path, follow: bool, output: &mut Output) -> Result<u8, Failure> {
    let shown = path.display();
    let failed = |error| Failure::plain(FAILED, format!("{shown}: {error}"));
    let mut reader = Reader::new(File::open(path).map_err(failed)?);
    let (mut once, mut any, mut status) = (Once::default(), false, 0);
    loop {
        match reader.next_item().map_err(failed)? {
            Some(Item::Event(event)) => {
                any = true;
                if once.is_new(&event) && output.show(&event).is_err() {
                    return Ok(status);
                }
            }
            Some(Item::Loss(loss)) => {
                if !any && loss.offset == 0 {
                    refuse_another_kind(path, &loss)?;
                }
                status = IMAGE;
                eprintln!("defrost: {shown}: {loss}");
            }
            None if follow => {
                if matches!(output.flush(), Err(Closed)) {
                    return Ok(status);
                }
                std::thread::sleep(LOOK_EVERY);
            }
            None => break,
        }
    }
    if let Some(torn) = reader.torn() {
        eprintln!(
            "defrost: {shown}: the last {} bytes are of a record that was not written to its end",
            torn.bytes
        );
    }
    Ok(status)
}

/// A file that begins with something else holds something else.
fn refuse_another_kind(path: &Path, loss: &Loss) -> Result<(), Failure> {
    let shown = path.display();
    if loss.is_of_other_version() {
        let hint = Some("read it with the defrost that wrote it");
        return Err(Failure::new(IMAGE, format!("{shown}: {}", loss.cause), hint));
    }
    match File::open(path).map(|file| begins_with_magic(&file)) {
        Ok(false) => {
            let hint = Some("give a file that defrost serve --events FILE wrote");
            Err(Failure::new(IMAGE, format!("{shown} is no file of events"), hint))
        }
        _ => Ok(()),
    }
}

fn begins_with_magic(mut file: &File) -> bool {
    use std::io::Read;
    let mut begin = [0; crate::events::stored::KIND.magic.len()];
    file.read_exact(&mut begin).is_ok() && begin == crate::events::stored::KIND.magic
}
