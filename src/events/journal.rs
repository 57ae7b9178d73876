//! A file of events for a process without an async runtime, such as a supervisor: each is written as it is recorded.
//!
//! Several processes may share the file. It must not know what the events mean. It does log, so what it is given must
//! not come from the log.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use super::append::{Appender, EventFileError};
use super::event::Draft;
use super::recorder::{Limits, Recorder};
use crate::sys::random;
use crate::wake::InstanceId;

/// What is kept in memory while the file cannot be written.
const KEPT: Limits = Limits { events: 256, bytes: 256 << 10 };
/// A longer file becomes `FILE.1`, and a new one is begun, in bytes.
const LONGEST: u64 = 8 << 20;
/// Another one may be at the file for a moment: so often it is tried.
const ATTEMPTS: u32 = 5;
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// Writes events to a file, each at once, in the calling thread.
///
/// A full disk, a folder that is gone or a file that holds something else never stops the caller: it is told by one
/// log line, the last events stay in memory, and each further event tries again. What could not be kept is counted in
/// an event `events.lost`.
#[derive(Debug)]
pub struct Journal {
    recorder: Recorder,
    end: Appender,
    /// The file could not be written at the last attempt, and that was told.
    troubled: bool,
}

impl Journal {
    /// Of the file at this absolute path, which is opened at the first event, and created for the owner alone.
    #[must_use]
    pub fn at(path: PathBuf) -> Self {
        let recorder = Recorder::new(KEPT);
        // Without random bytes of the kernel, which there always are, two writers could be taken for one.
        recorder.set_origin(InstanceId::from_bytes(random::fresh().unwrap_or_default()), 0);
        Self { recorder, end: Appender::new(path).at_most(LONGEST), troubled: false }
    }

    /// Records and writes. Takes at most some hundredths of a second, as long as the disk answers.
    pub fn tell(&mut self, draft: Draft) {
        self.recorder.record(|| draft);
        match self.write() {
            Ok(()) => self.troubled = false,
            Err(_) if self.troubled => {}
            Err(error) => {
                let hint = error.hint().map(|hint| format!("; hint: {hint}")).unwrap_or_default();
                tracing::warn!("the record of events cannot be written: {error}; all else goes on{hint}");
                self.troubled = true;
            }
        }
    }

    fn write(&mut self) -> Result<(), EventFileError> {
        for _ in 1..ATTEMPTS {
            match self.end.write(&self.recorder) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
                other => return other,
            }
        }
        self.end.write(&self.recorder)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::Path;

    use super::*;
    use crate::events::stored::{Item, Reader};

    fn names(path: &Path) -> Vec<String> {
        let mut reader = Reader::new(File::open(path).unwrap());
        let items = std::iter::from_fn(|| reader.next_item().unwrap());
        items
            .map(|item| match item {
                Item::Event(event) => event.name.into_owned(),
                Item::Loss(loss) => loss.to_string(),
            })
            .collect()
    }

    #[test]
    fn each_is_written_at_once_and_by_several() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events");
        let (mut one, mut other) = (Journal::at(path.clone()), Journal::at(path.clone()));
        for journal in [&mut one, &mut other] {
            journal.tell(Draft::new("told"));
        }
        one.tell(Draft::new("last"));
        assert_eq!(names(&path), ["told", "told", "last"]);
        assert_ne!(one.recorder.read(0, 1).events[0].origin, other.recorder.read(0, 1).events[0].origin);
    }

    #[test]
    fn what_cannot_be_written_stays_and_follows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("later/events");
        let mut journal = Journal::at(path.clone());
        (0..KEPT.events + 3).for_each(|_| journal.tell(Draft::new("early")));
        assert!(journal.troubled);
        fs::create_dir(path.parent().unwrap()).unwrap();
        journal.tell(Draft::new("late"));
        let names = names(&path);
        assert_eq!((names[0].as_str(), names.last().unwrap().as_str()), ("events.lost", "late"));
        assert_eq!(names.len(), KEPT.events + 1);
        assert!(!journal.troubled);
    }

    #[test]
    fn a_long_file_gives_way_to_a_new_one_for_all_its_writers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events");
        let (mut one, mut other) = (Journal::at(path.clone()), Journal::at(path.clone()));
        for journal in [&mut one, &mut other] {
            journal.end = Appender::new(path.clone()).at_most(300);
        }
        for _ in 0..6 {
            one.tell(Draft::new("one"));
            other.tell(Draft::new("other"));
        }
        let (old, new) = (names(&folder.path().join("events.1")), names(&path));
        assert!(old.len() >= 2 && !new.is_empty() && new.len() <= 5, "{old:?} {new:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
