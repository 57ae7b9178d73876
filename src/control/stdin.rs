//! Lines from standard input, for a server in the foreground: answers go to standard output.
//!
//! Standard input may be a terminal or a pipe that other processes read, too, so it is never made non-blocking: a
//! thread waits for it with poll(2). The thread ends before a dump, and starts again unless the process is a
//! restored one, whose standard input is nobody's. It must not know what a line says.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;
use tokio::runtime::Handle;

use super::answer::Answer;
use super::lines::{Lines, TooLong};
use super::request::{Request, RequestError};
use super::responder::{Responder, order};
use super::stop::Source;
use crate::resource::{Blocking, BlockingResource, Cycle, HookError, locked};
use crate::sys::descriptors::copy_of_standard;
use crate::wake::Wake;
use crate::{Context, Registration};

/// How long whoever reads the answers may take. What does not fit then is lost.
const WRITE_LIMIT: Duration = Duration::from_secs(1);

/// How much is written at once: a pipe that poll(2) calls writable takes that much without blocking (PIPE_BUF of
/// pipe(7)).
const WRITTEN_AT_ONCE: usize = 4096;

/// Opens an end of the conversation. Called at each start, since a cycle may have replaced what it leads to.
type Opener = Box<dyn Fn() -> io::Result<OwnedFd> + Send + Sync>;

/// A source of lines that is read while no cycle runs, and where their answers go.
pub(super) struct Stdin {
    input: Opener,
    output: Opener,
    responder: Arc<Responder>,
    runtime: Handle,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    reader: Option<Reader>,
    /// What was read and not carried out; while the reader runs, it has that.
    lines: Lines,
    /// A cycle runs.
    quiesced: bool,
    /// A checkpoint that was asked for here runs: what follows it waits.
    busy: bool,
    /// There will be no more lines.
    over: bool,
}

/// A running thread. Dropping `_wake` ends it.
struct Reader {
    thread: JoinHandle<()>,
    _wake: OwnedFd,
}

impl Reader {
    /// Ends the thread and waits for that: it is in poll(2), or answers a line.
    fn end(self) {
        let Self { thread, _wake: wake } = self;
        drop(wake);
        // A panic was reported by the thread itself; its lines are lost.
        let _ = thread.join();
    }
}

impl Stdin {
    /// Registers standard input and starts to read it. A standard input that is closed counts as ended.
    pub(super) fn start(context: &Context, responder: Arc<Responder>) -> io::Result<Registration> {
        let open =
            |number| move || copy_of_standard(number).ok_or_else(|| io::ErrorKind::NotConnected.into());
        Self::start_with(context, responder, Box::new(open(0)), Box::new(open(1)))
    }

    fn start_with(
        context: &Context,
        responder: Arc<Responder>,
        input: Opener,
        output: Opener,
    ) -> io::Result<Registration> {
        let stdin =
            Arc::new(Self { input, output, responder, runtime: Handle::current(), state: Mutex::default() });
        stdin.go_on()?;
        Ok(context.register("stdin", Arc::new(Blocking::new(Arc::new(Reading(stdin))))))
    }

    /// Starts a reader, unless there is one or must be none now.
    fn go_on(self: &Arc<Self>) -> io::Result<()> {
        let mut state = locked(&self.state);
        if state.quiesced || state.busy || state.over || state.reader.is_some() {
            return Ok(());
        }
        let input = match (self.input)() {
            Ok(input) => input,
            Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                state.over = true;
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let (woken, wake) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let stdin = Arc::clone(self);
        let lines = std::mem::take(&mut state.lines);
        let thread = std::thread::Builder::new().name("defrost-stdin".into());
        let thread = thread.spawn(move || stdin.read(&input, &woken, lines))?;
        state.reader = Some(Reader { thread, _wake: wake });
        Ok(())
    }

    /// The thread: reads lines and answers them until it is woken, the input ends, or a checkpoint is asked for.
    fn read(self: &Arc<Self>, input: &OwnedFd, woken: &OwnedFd, mut lines: Lines) {
        let mut ended = false;
        loop {
            let line = match lines.next_line() {
                None if ended => lines.last_line().map(Ok),
                line => line,
            };
            match line {
                Some(line) => {
                    if let Some(checkpoint) = self.answer(line) {
                        return self.hand_over(checkpoint, lines);
                    }
                }
                None if ended => break,
                None => match next(input, woken) {
                    Ok(Next::Bytes(bytes)) => lines.push(&bytes),
                    Ok(Next::Ended) => ended = true,
                    Ok(Next::Woken) => break,
                    Err(error) => {
                        tracing::warn!("standard input: cannot be read any more: {error}");
                        ended = true;
                    }
                },
            }
        }
        let mut state = locked(&self.state);
        state.lines = lines;
        state.over |= ended;
    }

    /// Answers a line, unless it asks for a checkpoint, which it then returns: the thread cannot wait for it,
    /// since the cycle waits for the thread.
    fn answer(&self, line: Result<Vec<u8>, TooLong>) -> Option<Request> {
        let request = line.map_err(|TooLong| RequestError::TooLong).and_then(|line| Request::parse(&line));
        let answer = match &request {
            Ok(Request::Checkpoint { .. }) if self.responder.is_checkpointing() => {
                Some(Answer::already_running())
            }
            Ok(Request::Checkpoint { .. }) => return request.ok(),
            Ok(request) => self.runtime.block_on(self.responder.respond(request)),
            Err(error) => Some(Answer::of_request_error(error)),
        };
        if let Some(answer) = answer {
            self.tell(&answer);
        }
        if let Ok(request) = &request {
            self.responder.stop_after(request, Source::Stdin);
        }
        None
    }

    /// The thread's last act: leaves the checkpoint to the runtime.
    fn hand_over(self: &Arc<Self>, checkpoint: Request, lines: Lines) {
        let mut state = locked(&self.state);
        state.lines = lines;
        state.busy = true;
        drop(state);
        let stdin = Arc::clone(self);
        self.runtime.spawn(async move { stdin.checkpoint(checkpoint).await });
    }

    async fn checkpoint(self: Arc<Self>, request: Request) {
        if let Request::Checkpoint { dir, leave_running, durable } = &request {
            let mut order = order(dir, *leave_running, *durable);
            order.answer = (self.output)().ok();
            let answer = self.responder.checkpoint(order).await.answer;
            if let Some(answer) = answer {
                let stdin = Arc::clone(&self);
                // Writing may wait a moment for the reader of the answers.
                let _ = tokio::task::spawn_blocking(move || stdin.tell(&answer)).await;
            }
        }
        let reader = {
            let mut state = locked(&self.state);
            state.busy = false;
            // Its thread has ended with `hand_over`; a new one that a cycle has started is not there while busy.
            state.reader.take()
        };
        if let Some(reader) = reader {
            reader.end();
        }
        if let Err(error) = self.go_on() {
            tracing::warn!("standard input: is no longer read: {error}");
        }
    }

    /// Writes an answer to the output. A reader of it that is gone or does not read is no concern of a request's.
    fn tell(&self, answer: &Answer) {
        if let Ok(output) = (self.output)() {
            let _ = write(&output, &answer.to_line());
        }
    }
}

/// What comes next from the input.
enum Next {
    Bytes(Vec<u8>),
    Ended,
    Woken,
}

/// Waits until there is something to read, or until the other end of `woken` is closed.
fn next(input: &OwnedFd, woken: &OwnedFd) -> io::Result<Next> {
    loop {
        let mut waiting = [PollFd::new(woken, PollFlags::IN), PollFd::new(input, PollFlags::IN)];
        // Without a limit of time: there is always one who holds the other end, and who closes it to end this.
        match rustix::event::poll(&mut waiting, None) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
            Ok(_) if !waiting[0].revents().is_empty() => return Ok(Next::Woken),
            Ok(_) => {}
        }
        let mut buffer = vec![0; 1024];
        match rustix::io::read(input, &mut buffer) {
            Ok(0) => return Ok(Next::Ended),
            Ok(count) => {
                buffer.truncate(count);
                return Ok(Next::Bytes(buffer));
            }
            // Another process that shares the input has taken it, or made it non-blocking.
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn write(output: impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    let output: BorrowedFd<'_> = output.as_fd();
    let limit = Timespec { tv_sec: WRITE_LIMIT.as_secs().cast_signed(), tv_nsec: 0 };
    while !bytes.is_empty() {
        let mut waiting = [PollFd::new(&output, PollFlags::OUT)];
        if rustix::event::poll(&mut waiting, Some(&limit))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let count = rustix::io::write(output, &bytes[..bytes.len().min(WRITTEN_AT_ONCE)])?;
        bytes = &bytes[count..];
    }
    Ok(())
}

/// The part of it that takes part in cycles.
struct Reading(Arc<Stdin>);

impl BlockingResource for Reading {
    fn before_checkpoint(&self, _cycle: &Cycle) -> Result<(), HookError> {
        let reader = {
            let mut state = locked(&self.0.state);
            state.quiesced = true;
            state.reader.take()
        };
        if let Some(reader) = reader {
            reader.end();
        }
        Ok(())
    }

    fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        let mut state = locked(&self.0.state);
        state.quiesced = false;
        if wake.restored().is_some() {
            // What the original had read was meant for the original.
            state.lines = Lines::default();
            state.over = true;
        }
        drop(state);
        Ok(self.0.go_on()?)
    }

    fn describe(&self) -> String {
        "lines from standard input".to_owned()
    }
}

impl Drop for Reading {
    /// Unregistered: nothing is read any more.
    fn drop(&mut self) {
        let reader = {
            let mut state = locked(&self.0.state);
            state.over = true;
            state.reader.take()
        };
        // Not waited for: it may be what drops this.
        drop(reader);
    }
}

#[cfg(test)]
mod tests;
