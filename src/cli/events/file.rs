//! The events of a file, and of what takes its place while it is followed.

use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use super::super::failure::{FAILED, Failure, IMAGE};
use super::output::{Closed, Output};
use crate::events::stored::{Item, Loss, Once, RECORD_LIMIT, Reader};
use crate::image::record::RecordError;

/// How often a file that is followed is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Shows what is in the file, and in an `older` one before it if that is there, and tells what is lost of them. The
/// exit status tells of losses too, but not of a torn tail.
///
/// One that is followed is followed by its name: when it was moved away and there is a new one, the rest of the old one
/// is shown, then the new one; when it was truncated, it is read from its beginning again.
pub(super) fn list(
    path: &Path,
    older: Option<&Path>,
    follow: bool,
    output: &mut Output,
) -> Result<u8, Failure> {
    let mut listing = Listing { path, output, once: Once::default(), status: 0 };
    let mut piece = Piece::open(path).map_err(|error| failed(path, error))?;
    refuse_another_kind(path)?;
    if let Some(Ok(mut old)) = older.map(Piece::open).filter(|old| !is_same(old.as_ref().ok(), &piece)) {
        if listing.read(&mut old)?.is_break() {
            return Ok(listing.status);
        }
        listing.tell_torn(&old);
    }
    while listing.read(&mut piece)?.is_continue() {
        if !follow {
            listing.tell_torn(&piece);
            break;
        }
        if matches!(listing.output.flush(), Err(Closed)) {
            break;
        }
        std::thread::sleep(LOOK_EVERY);
        if let Some(next) = listing.successor(&mut piece)? {
            piece = next;
        }
    }
    Ok(listing.status)
}

/// One file, which keeps being the same when its name becomes another's.
struct Piece {
    file: File,
    reader: Reader<File>,
    /// An event was found in it.
    any: bool,
}

impl Piece {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let reader = Reader::new(file.try_clone()?);
        Ok(Self { file, reader, any: false })
    }

    fn is_truncated(&self) -> bool {
        self.file.metadata().is_ok_and(|meta| meta.len() < self.reader.position())
    }

    /// Whether the path names another file by now. One that names none may name it again.
    fn is_replaced(&self, path: &Path) -> bool {
        let (Ok(new), Ok(own)) = (fs::metadata(path), self.file.metadata()) else { return false };
        (new.dev(), new.ino()) != (own.dev(), own.ino())
    }
}

fn is_same(one: Option<&Piece>, other: &Piece) -> bool {
    let id = |piece: &Piece| piece.file.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
    one.and_then(id) == id(other)
}

struct Listing<'a> {
    path: &'a Path,
    output: &'a mut Output,
    once: Once,
    status: u8,
}

impl Listing<'_> {
    /// Shows what there is by now. Breaks when nobody reads any more.
    fn read(&mut self, piece: &mut Piece) -> Result<ControlFlow<()>, Failure> {
        while let Some(item) = piece.reader.next_item().map_err(|error| failed(self.path, error))? {
            match item {
                Item::Event(event) => {
                    piece.any = true;
                    if self.once.is_new(&event) && self.output.show(&event).is_err() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                Item::Loss(loss) => {
                    if !piece.any && loss.is_of_other_version() {
                        let hint = Some("read it with the defrost that wrote it");
                        let text = format!("{}: {}", self.path.display(), loss.cause);
                        return Err(Failure::new(IMAGE, text, hint));
                    }
                    self.status = IMAGE;
                    note!("defrost: {}: {loss}", self.path.display());
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn tell_torn(&self, piece: &Piece) {
        let Some(torn) = piece.reader.torn() else { return };
        note!(
            "defrost: {}: the last {} bytes are of a record that was not written to its end",
            self.path.display(),
            torn.bytes
        );
    }

    /// What is to be read from now on, if it is another file or the same one from its beginning.
    fn successor(&mut self, piece: &mut Piece) -> Result<Option<Piece>, Failure> {
        let what = if piece.is_truncated() {
            "was truncated: reading it from its beginning"
        } else if piece.is_replaced(self.path) {
            // Who wrote to the old one may have been in the middle of it.
            std::thread::sleep(LOOK_EVERY);
            if self.read(piece)?.is_break() {
                return Ok(None);
            }
            self.tell_torn(piece);
            "was replaced: reading the new one"
        } else {
            return Ok(None);
        };
        match Piece::open(self.path) {
            Ok(next) => {
                note!("defrost: {} {what}", self.path.display());
                Ok(Some(next))
            }
            // Gone again, or about to be made.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(self.path, error)),
        }
    }
}

fn failed(path: &Path, error: io::Error) -> Failure {
    Failure::plain(FAILED, format!("{}: {error}", path.display()))
}

/// A file that neither begins with an event nor has one where its first ones would be holds something else. It may be
/// long, so that it is not searched as a whole.
fn refuse_another_kind(path: &Path) -> Result<(), Failure> {
    let file = File::open(path).map_err(|error| failed(path, error))?;
    let mut reader = Reader::new(file.take(2 * RECORD_LIMIT as u64));
    let first = reader.next_item().map_err(|error| failed(path, error))?;
    let Some(Item::Loss(Loss { cause: RecordError::Magic { .. }, .. })) = first else { return Ok(()) };
    while let Some(item) = reader.next_item().map_err(|error| failed(path, error))? {
        if matches!(item, Item::Event(_)) {
            return Ok(());
        }
    }
    let hint = Some("give a file that defrost serve --events FILE wrote");
    Err(Failure::new(IMAGE, format!("{} is no file of events", path.display()), hint))
}
