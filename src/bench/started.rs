//! One command that was started in a session of its own, and all that came of it, until it is gone.
//!
//! It must not know what it is asked, or how long it took.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::kin;
use super::record::Kind;
use crate::sys::process::in_own_session;

/// How long after the end of a command that has left nothing behind that is believed.
const BELIEVED: Duration = Duration::from_millis(50);
/// How often the end of a command is looked for.
const LOOK: Duration = Duration::from_micros(200);
/// How much of what a command said is kept, in bytes.
const SAID: u64 = 64 << 10;
/// How many of the last lines of it are shown.
const SHOWN: usize = 3;
/// How long killed processes may take to be gone.
const GONE: Duration = Duration::from_secs(30);

/// A command that runs, or has ended and left processes behind.
#[derive(Debug)]
pub struct Started {
    kind: Kind,
    /// When it was about to be spawned.
    pub began: Instant,
    child: Child,
    ended: Option<(ExitStatus, Instant)>,
    before: BTreeSet<i32>,
    forked: Option<i32>,
    folder: PathBuf,
}

impl Started {
    /// Starts it without input; what it says goes to files in `folder`.
    ///
    /// # Errors
    /// Those of fork and exec; nothing is left behind then.
    pub fn spawn(kind: Kind, command: &[String], folder: &Path) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let before = kin::descendants().into_keys().collect();
        let mut prepared = Command::new(program);
        prepared.args(arguments).stdin(Stdio::null());
        prepared.stdout(fresh(folder, "out")?).stderr(fresh(folder, "err")?);
        in_own_session(&mut prepared);
        let began = Instant::now();
        let child = prepared.spawn()?;
        let folder = folder.to_owned();
        Ok(Self { kind, began, child, ended: None, before, forked: None, folder })
    }

    /// Why there will be no answer, if that is plain: the command failed, or has ended and left nothing that could.
    pub fn is_over(&mut self) -> Option<String> {
        let (status, when) = self.look()?;
        if !status.success() {
            return Some(format!("the command failed before the answer ({status}){}", self.tail()));
        }
        let over = self.kind != Kind::Fork && when.elapsed() > BELIEVED && self.living().is_empty();
        over.then(|| format!("the command ended before the answer, and left no process{}", self.tail()))
    }

    fn look(&mut self) -> Option<(ExitStatus, Instant)> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten().map(|status| (status, Instant::now()));
        }
        self.ended
    }

    /// Waits for the end of a command that leaves the service to itself, and sees that it worked. `over` says when
    /// nobody wants to wait any longer.
    ///
    /// # Errors
    /// That it failed, did not end, or what `over` says.
    pub fn finish(&mut self, limit: Duration, over: &dyn Fn() -> Option<String>) -> Result<(), String> {
        if !matches!(self.kind, Kind::Criu | Kind::Defrost | Kind::Fork) {
            return Ok(());
        }
        let deadline = Instant::now() + limit;
        let status = loop {
            match self.look() {
                Some((status, _)) => break status,
                None if Instant::now() > deadline => {
                    return Err(format!("the command did not end within {limit:?}{}", self.tail()));
                }
                None => over().map_or(Ok(()), Err)?,
            }
            std::thread::sleep(LOOK);
        };
        if !status.success() {
            return Err(format!("the command failed ({status}){}", self.tail()));
        }
        if self.kind == Kind::Fork {
            let said = self.said("out");
            let pid = said.lines().last().and_then(|line| line.trim().parse().ok());
            self.forked = Some(pid.ok_or("the command did not print the pid of the forked process")?);
        }
        Ok(())
    }

    /// The processes that live because of it. A command that only starts others is one of them while it runs.
    #[must_use]
    pub fn living(&self) -> Vec<i32> {
        let own = kin::descendants().into_iter().filter(|(pid, lives)| *lives && !self.before.contains(pid));
        own.map(|(pid, _)| pid).chain(self.forked).collect()
    }

    /// What those that are no child of this process have used of the processors.
    #[must_use]
    pub fn worked_elsewhere(&self) -> Duration {
        self.forked.map_or(Duration::ZERO, kin::worked)
    }

    /// Ends all of it, the command too, and waits until it is gone.
    ///
    /// # Errors
    /// What is still there.
    pub fn end(self) -> Result<(), String> {
        let more: Vec<i32> = self.forked.into_iter().collect();
        kin::end_all(&self.before, &more, GONE)
            .map_err(|left| format!("processes {left:?} were killed, and are still there after {GONE:?}"))
    }

    /// What the command said to `out` or `err`, up to a limit.
    #[must_use]
    pub fn said(&self, to: &str) -> String {
        let mut text = Vec::new();
        let read = File::open(self.folder.join(to)).and_then(|mut file| {
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(SAID)))?;
            file.take(SAID).read_to_end(&mut text)
        });
        if read.is_ok() { String::from_utf8_lossy(&text).into_owned() } else { String::new() }
    }

    /// The last lines of its errors, as a part of a sentence.
    fn tail(&self) -> String {
        let said = self.said("err");
        let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
        if lines.is_empty() {
            return String::new();
        }
        format!(": {}", lines[lines.len().saturating_sub(SHOWN)..].join("; "))
    }
}

fn fresh(folder: &Path, name: &str) -> io::Result<File> {
    let path = folder.join(name);
    // A new file each time: what an earlier one left behind may still write to its own.
    let _ = std::fs::remove_file(&path);
    OpenOptions::new().append(true).create_new(true).open(path)
}
