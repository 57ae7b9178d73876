//! The message of the day: a file's text, cached for a while. It stands for whatever a server looks up and keeps.
//!
//! It must not know who asks for it.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::expiring::{Expiring, WallClock};
use crate::context::{Context, Registration};

/// The longest text, in bytes.
pub const MOTD_LIMIT: u64 = 64 * 1024;

/// Which file, and for how long its text is good.
#[derive(Debug, Clone)]
pub struct MotdOptions {
    /// The file. A relative path is taken from the current folder at the start.
    pub file: PathBuf,
    /// The greatest age of the cached text by wall time: time spent in an image counts.
    pub max_age: Duration,
}

/// The cached text, registered under the name `motd`.
#[derive(Debug)]
pub(super) struct Motd {
    path: PathBuf,
    text: Arc<Expiring<Vec<u8>>>,
    _registration: Registration,
}

impl Motd {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// The file cannot be read; nothing is registered then.
    pub(super) fn register(context: &Context, options: &MotdOptions, clock: WallClock) -> io::Result<Self> {
        let path = std::path::absolute(&options.file)?;
        let text = Arc::new(Expiring::new(options.max_age, clock));
        text.get_or_load(|| read(&path))?;
        let registration = context.register("motd", Arc::clone(&text) as _);
        Ok(Self { path, text, _registration: registration })
    }

    /// The text, from the file if the cached one has expired. Blocks then.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn text(&self) -> io::Result<Arc<Vec<u8>>> {
        self.text.get_or_load(|| read(&self.path))
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Opening a FIFO would wait for its writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut text = Vec::new();
    File::open(path)?.take(MOTD_LIMIT + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MOTD_LIMIT {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("longer than {MOTD_LIMIT} bytes")));
    }
    Ok(text)
}
