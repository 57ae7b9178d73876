//! One client of the control socket: who it is, what it asks, and how long it may take.
//!
//! It must not know how a request is carried out.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use nix::unistd::geteuid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::answer::Answer;
use super::follow::{follow, nothing_recorded};
use super::lines::{Lines, TooLong};
use super::request::{Request, RequestError};
use super::responder::{Responder, order};
use super::stop::Source;
use crate::adapters::{Connections, Peer, Tracked};
use crate::checkpoint;

/// How long a client may take to read an answer.
const WRITE_LIMIT: Duration = Duration::from_secs(5);

/// Refuses a client in one line, without waiting for it: an empty socket takes that much at once.
pub(super) fn refuse(stream: &Tracked<UnixStream>, answer: &Answer) {
    // One that has gone away already needs no answer.
    let _ = stream.get_ref().try_write(&answer.to_line());
}

/// Why a client must not be served, if so: only the same user and root may ask.
pub(super) fn stranger(stream: &Tracked<UnixStream>) -> Option<Answer> {
    let hint = ["run it as the user of this server, or as root".to_owned()];
    match stream.get_ref().peer_cred() {
        Ok(peer) if may_ask(peer.uid(), geteuid().as_raw()) => None,
        Ok(peer) => Some(Answer::error(format!("user {} may not control this server", peer.uid()), &hint)),
        Err(error) => {
            Some(Answer::error(format!("the user of this connection is not known: {error}"), &hint))
        }
    }
}

fn may_ask(user: u32, own: u32) -> bool {
    user == own || user == 0
}

/// A client that may be served.
pub(super) struct Connection {
    pub(super) responder: Arc<Responder>,
    pub(super) connections: Connections,
    pub(super) idle_limit: Duration,
}

/// What has been read of a client.
#[derive(Default)]
struct Inbox {
    lines: Lines,
    /// The client sends nothing more.
    ended: bool,
}

impl Connection {
    /// Answers the client until it ends, says nothing for too long, cannot be understood, or has to go for a
    /// cycle.
    pub(super) async fn serve(self, mut stream: Tracked<UnixStream>) {
        let mut inbox = Inbox::default();
        while let Some(line) = self.next_line(&mut stream, &mut inbox).await {
            let request =
                line.map_err(|TooLong| RequestError::TooLong).and_then(|line| Request::parse(&line));
            let (kept, answer) = match &request {
                Ok(Request::Checkpoint { dir, leave_running, durable }) => {
                    match self.checkpoint(stream, order(dir, *leave_running, *durable)).await {
                        Some(told) => told,
                        None => return,
                    }
                }
                Ok(Request::Follow { from }) if self.responder.subject().events().is_on() => {
                    let quiescing = stream.quiescing_handle();
                    follow(self.responder.subject().events(), *from, stream, quiescing.wait()).await;
                    return;
                }
                Ok(Request::Follow { .. }) => (stream, nothing_recorded()),
                Ok(request) => match self.responder.respond(request).await {
                    Some(answer) => (stream, answer),
                    None => return,
                },
                Err(error) => (stream, Answer::of_request_error(error)),
            };
            stream = kept;
            let sent = timeout(WRITE_LIMIT, stream.write_all(&answer.to_line())).await;
            if let Ok(request) = &request {
                self.responder.stop_after(request, Source::Socket);
            }
            // After an over-long line there is no telling where the next one begins.
            if !matches!(sent, Ok(Ok(()))) || request == Err(RequestError::TooLong) {
                return;
            }
        }
    }

    /// The next line; `None` when there will be none.
    async fn next_line(
        &self,
        stream: &mut Tracked<UnixStream>,
        inbox: &mut Inbox,
    ) -> Option<Result<Vec<u8>, TooLong>> {
        let quiescing = stream.quiescing_handle();
        let deadline = Instant::now() + self.idle_limit;
        let mut buffer = [0; 1024];
        loop {
            if quiescing.is_quiescing() {
                return None;
            }
            if let Some(line) = inbox.lines.next_line() {
                return Some(line);
            }
            if inbox.ended {
                return inbox.lines.last_line().map(Ok);
            }
            let read = tokio::select! {
                biased;
                () = quiescing.wait() => return None,
                read = timeout_at(deadline, stream.read(&mut buffer)) => read,
            };
            match read {
                Ok(Ok(0)) => inbox.ended = true,
                Ok(Ok(count)) => inbox.lines.push(&buffer[..count]),
                Ok(Err(_)) | Err(_) => return None,
            }
        }
    }

    /// Runs a checkpoint, and gives the connection back with what to say on it. `None` in a restored process, and
    /// when the connection was lost.
    ///
    /// The stream is given up at the moment when the cycle asks for it, and not before: a request that is refused
    /// because another cycle runs then leaves no descriptor behind in that one.
    async fn checkpoint(
        &self,
        stream: Tracked<UnixStream>,
        mut request: checkpoint::Request,
    ) -> Option<(Tracked<UnixStream>, Answer)> {
        if self.responder.is_checkpointing() {
            return Some((stream, Answer::already_running()));
        }
        let copy = match stream.as_fd().try_clone_to_owned() {
            Ok(copy) => copy,
            Err(error) => {
                let hint = ["look at the limit on descriptors".to_owned()];
                return Some((stream, Answer::error(format!("no checkpoint (request): {error}"), &hint)));
            }
        };
        let peer = stream.peer();
        let quiescing = stream.quiescing_handle();
        request.answer = Some(copy);
        let mut cycle = pin!(self.responder.checkpoint(request));
        let mut stream = Some(stream);
        let ended = tokio::select! {
            biased;
            ended = &mut cycle => ended,
            () = quiescing.wait() => {
                drop(stream.take());
                cycle.await
            }
        };
        let answer = ended.answer?;
        let stream = match stream {
            Some(stream) => stream,
            None => self.adopt(ended.connection?, peer).ok()?,
        };
        Some((stream, answer))
    }

    /// Takes up a connection that a cycle has given back.
    fn adopt(&self, descriptor: OwnedFd, peer: Peer) -> io::Result<Tracked<UnixStream>> {
        let stream = std::os::unix::net::UnixStream::from(descriptor);
        // It was, unless the helper's end changed it: tokio requires it.
        stream.set_nonblocking(true)?;
        Ok(self.connections.track(UnixStream::from_std(stream)?, peer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_user_and_root_may_ask() {
        assert!(may_ask(7, 7));
        assert!(may_ask(0, 7));
        assert!(!may_ask(7, 0));
        assert!(!may_ask(8, 7));
    }
}
