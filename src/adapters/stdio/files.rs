//! Standard streams that are append-only files, out of the way for the moment of the dump.
//!
//! CRIU opens such a file by its path at restore, and refuses when it is gone: a log that was tidied away, or an
//! image that was taken to another host. So it is not in the image, and is opened again by defrost. It must not
//! know streams of other kinds.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Mutex;

use super::{Footing, StdioError, Stream};
use crate::resource::{AtFreeze, Cycle, Keep, locked};
use crate::wake::Wake;

/// The streams that are such files, for one cycle at a time.
#[derive(Default)]
pub(super) struct Files {
    streams: Mutex<Vec<OnFile>>,
    trouble: Mutex<Option<StdioError>>,
}

struct OnFile {
    stream: Stream,
    path: PathBuf,
    own: Keep,
    /// Whether `/dev/null` is in its place.
    away: bool,
}

impl Files {
    /// Finds them, to be put out of the way when the dump starts.
    pub(super) fn find(&self, cycle: &Cycle) -> Result<(), StdioError> {
        let mut streams = locked(&self.streams);
        streams.clear();
        for stream in [Stream::Output, Stream::Error] {
            if let Footing::File(path) = stream.footing().map_err(|error| stream.failed(error))? {
                let own = stream.number().try_clone_to_owned().map_err(|error| stream.failed(error))?;
                streams.push(OnFile { stream, path, own: cycle.keep(own), away: false });
            }
        }
        Ok(())
    }

    /// Ends the cycle, and says what went wrong at its thaw.
    pub(super) fn settle(&self) -> Result<(), StdioError> {
        // What is left here was never put away.
        locked(&self.streams).clear();
        locked(&self.trouble).take().map_or(Ok(()), Err)
    }
}

impl AtFreeze for Files {
    fn freeze(&self) {
        for file in locked(&self.streams).iter_mut() {
            // One that stays can be dumped too; only its path must be there at restore.
            file.away = file.stream.open_null().is_ok_and(|null| file.stream.put(null).is_ok());
        }
    }

    fn thaw(&self, wake: &Wake) {
        for OnFile { stream, path, own, away } in std::mem::take(&mut *locked(&self.streams)) {
            if !away {
                continue;
            }
            let put = match (wake.restored(), own.take()) {
                (None, Some(own)) => stream.put(own).map_err(|error| stream.failed(error)),
                (None, None) => Err(StdioError::Lost { stream: stream.name() }),
                (Some(_), _) => reopen(stream, path),
            };
            if let Err(error) = put {
                locked(&self.trouble).get_or_insert(error);
            }
        }
    }
}

fn reopen(stream: Stream, path: PathBuf) -> Result<(), StdioError> {
    match File::options().append(true).create(true).open(&path) {
        Ok(file) => stream.put(file).map_err(|error| stream.failed(error)),
        Err(source) => Err(StdioError::Reopen { stream: stream.name(), path, source }),
    }
}
