//! Lines from a named pipe, so that `echo checkpoint ./img > FIFO` works. A FIFO has no way back: answers go to
//! the log.
//!
//! It is closed while a cycle runs, and opened again by its path afterwards. It must not know what a line says.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, lstat};
use nix::unistd::{geteuid, mkfifo};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::answer::Answer;
use super::error::ControlError;
use super::lines::{Lines, TooLong};
use super::request::{Request, RequestError};
use super::responder::Responder;
use super::stop::Source;
use crate::resource::{Cycle, HookError, locked};
use crate::wake::Wake;
use crate::{Context, Registration, Resource};

/// How much that lies unread in the pipe is taken over when it is closed, in bytes; more than a pipe holds
/// (pipe(7)), unless its owner made it larger.
const TAKEN_OVER: usize = 64 * 1024;

/// A FIFO that is read while no cycle runs.
pub(super) struct Fifo {
    path: PathBuf,
    /// An open pipe on its way to the task.
    slot: Mutex<Option<Receiver>>,
    /// Whether the task may hold the pipe. Each change wakes it.
    wanted: watch::Sender<bool>,
    /// Whether the task holds the pipe.
    held: watch::Sender<bool>,
    /// What was read before a restore was meant for the original.
    restored: AtomicBool,
    responder: Arc<Responder>,
    runtime: Handle,
}

impl Fifo {
    /// Opens the FIFO, making it if it is missing, registers it, and reads it until the task is aborted.
    pub(super) fn start(
        context: &Context,
        path: &Path,
        responder: Arc<Responder>,
    ) -> Result<(Registration, AbortHandle), ControlError> {
        let path = std::path::absolute(path).map_err(|source| FifoError::new(path, Fault::Io(source)))?;
        let fifo = Arc::new(Self {
            slot: Mutex::new(Some(receiver(&path)?)),
            path,
            wanted: watch::Sender::new(true),
            held: watch::Sender::new(false),
            restored: AtomicBool::new(false),
            responder,
            runtime: Handle::current(),
        });
        let task = tokio::spawn(Arc::clone(&fifo).read()).abort_handle();
        Ok((context.register("fifo", fifo), task))
    }

    async fn read(self: Arc<Self>) {
        let mut wanted = self.wanted.subscribe();
        let mut lines = Lines::default();
        loop {
            until(&mut wanted, true).await;
            if self.restored.swap(false, Ordering::SeqCst) {
                lines = Lines::default();
            }
            if let Some(pipe) = self.take() {
                self.read_pipe(pipe, &mut lines, &mut wanted).await;
            } else {
                // Nothing to read until the next cycle has ended.
                let _ = wanted.changed().await;
            }
        }
    }

    /// Takes the pipe and says so, in one step as `before_checkpoint` sees it.
    fn take(&self) -> Option<Receiver> {
        let mut slot = locked(&self.slot);
        let pipe = slot.take();
        if pipe.is_some() {
            self.held.send_replace(true);
        }
        pipe
    }

    /// Reads the pipe until it has to be closed.
    async fn read_pipe(&self, pipe: Receiver, lines: &mut Lines, wanted: &mut watch::Receiver<bool>) {
        let mut open = Some(pipe);
        let mut buffer = [0; 1024];
        while let Some(pipe) = &mut open {
            if let Some(line) = lines.next_line() {
                self.carry_out(line, &mut open, lines, wanted).await;
                continue;
            }
            tokio::select! {
                biased;
                () = until(wanted, false) => self.close(&mut open, lines),
                read = pipe.read(&mut buffer) => match read {
                    Ok(count) if count > 0 => lines.push(&buffer[..count]),
                    // It is open for writing here, too, so there is no end of file.
                    other => {
                        tracing::warn!("fifo {}: cannot be read any more: {other:?}", self.path.display());
                        self.close(&mut open, lines);
                    }
                },
            }
        }
    }

    /// Carries one line out. The pipe is closed meanwhile if the request turns out to be a cycle.
    async fn carry_out(
        &self,
        line: Result<Vec<u8>, TooLong>,
        open: &mut Option<Receiver>,
        lines: &mut Lines,
        wanted: &mut watch::Receiver<bool>,
    ) {
        let request =
            match line.map_err(|TooLong| RequestError::TooLong).and_then(|line| Request::parse(&line)) {
                Ok(request) => request,
                Err(error) => return Answer::of_request_error(&error).log("fifo"),
            };
        let mut answer = pin!(self.responder.respond(&request));
        let answer = tokio::select! {
            biased;
            answer = &mut answer => answer,
            () = until(wanted, false) => {
                self.close(open, lines);
                answer.await
            }
        };
        if let Some(answer) = answer {
            answer.log("fifo");
            self.responder.stop_after(&request, Source::Fifo);
        }
    }

    /// Takes over what lies in the pipe, which would be lost with it, and closes it.
    fn close(&self, open: &mut Option<Receiver>, lines: &mut Lines) {
        if let Some(pipe) = open.take() {
            let mut buffer = [0; 4096];
            let mut taken = 0;
            while let Ok(count @ 1..) = pipe.try_read(&mut buffer) {
                lines.push(&buffer[..count]);
                taken += count;
                if taken >= TAKEN_OVER {
                    break;
                }
            }
        }
        self.held.send_replace(false);
    }
}

#[async_trait]
impl Resource for Fifo {
    async fn before_checkpoint(&self, _cycle: &Cycle) -> Result<(), HookError> {
        self.wanted.send_replace(false);
        drop(locked(&self.slot).take());
        until(&mut self.held.subscribe(), false).await;
        Ok(())
    }

    async fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        if wake.restored().is_some() {
            self.restored.store(true, Ordering::SeqCst);
        }
        let pipe = {
            let _runtime = self.runtime.enter();
            receiver(&self.path)?
        };
        *locked(&self.slot) = Some(pipe);
        self.wanted.send_replace(true);
        Ok(())
    }

    fn describe(&self) -> String {
        format!("fifo {}", self.path.display())
    }
}

/// Waits for this value. The sender lives as long as the FIFO, so the wait itself cannot fail.
async fn until(told: &mut watch::Receiver<bool>, value: bool) {
    let _ = told.wait_for(|now| *now == value).await;
}

/// The FIFO as the runtime reads it. To be called within one.
fn receiver(path: &Path) -> Result<Receiver, FifoError> {
    let opened = open_fifo(path).map_err(|fault| FifoError::new(path, fault))?;
    Receiver::from_owned_fd(opened).map_err(|source| FifoError::new(path, Fault::Io(source)))
}

fn open_fifo(path: &Path) -> Result<OwnedFd, Fault> {
    match mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    // Looked at before it is opened as well: opening a device may set it going.
    examine(&lstat(path)?)?;
    // Open for writing too, a FIFO has no end of file when its writers come and go (fifo(7)).
    let flags = OFlag::O_RDWR | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let opened = open(path, flags, Mode::empty())?;
    examine(&fstat(&opened)?)?;
    Ok(opened)
}

fn examine(found: &FileStat) -> Result<(), Fault> {
    let kind = SFlag::from_bits_truncate(found.st_mode & SFlag::S_IFMT.bits());
    if kind != SFlag::S_IFIFO {
        return Err(Fault::NotAFifo);
    }
    if found.st_uid != geteuid().as_raw() {
        return Err(Fault::Foreign(found.st_uid));
    }
    let mode = found.st_mode & 0o7777;
    if mode & 0o022 != 0 {
        return Err(Fault::Writable(mode));
    }
    Ok(())
}

/// A FIFO that cannot be read for requests. Its file, if there is one, was not touched.
#[derive(Debug, thiserror::Error)]
#[error("the fifo {} {fault}", path.display())]
pub struct FifoError {
    path: PathBuf,
    #[source]
    fault: Fault,
}

impl FifoError {
    fn new(path: &Path, fault: Fault) -> Self {
        Self { path: path.to_owned(), fault }
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self.fault {
            Fault::NotAFifo => "remove the file, or give the fifo another path",
            Fault::Foreign(_) => "give the fifo another path: whoever owns it could ask for anything",
            Fault::Writable(_) => "take the others' right to write away: chmod 600",
            Fault::Io(_) => "give the fifo a path in a folder of your own",
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("is a file of another kind")]
    NotAFifo,
    #[error("belongs to user {0}")]
    Foreign(u32),
    #[error("can be written by others (mode {0:04o})")]
    Writable(u32),
    #[error("cannot be opened: {0}")]
    Io(#[source] io::Error),
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_fifo_is_made_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("requests");
        drop(open_fifo(&path).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        drop(open_fifo(&path).unwrap());
    }

    #[test]
    fn an_unsafe_fifo_is_refused_with_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |name: &str| {
            let path = folder.path().join(name);
            let fault = open_fifo(&path).unwrap_err();
            FifoError::new(&path, fault).to_string()
        };
        fs::write(folder.path().join("file"), "").unwrap();
        assert!(refused("file").ends_with("file is a file of another kind"));
        drop(open_fifo(&folder.path().join("open")).unwrap());
        fs::set_permissions(folder.path().join("open"), Permissions::from_mode(0o622)).unwrap();
        assert!(refused("open").ends_with("can be written by others (mode 0622)"));
        std::os::unix::fs::symlink(folder.path().join("open"), folder.path().join("link")).unwrap();
        assert!(refused("link").ends_with("is a file of another kind"));
        assert!(refused("missing/x").contains("cannot be opened"));
    }
}
