//! What signals ask for: SIGTERM and SIGINT an end, SIGUSR2 a checkpoint.
//!
//! A handler only writes a byte to a socket pair of the process's own, which goes through a dump as it is. It must
//! not know how a request is carried out.

use std::io;
use std::sync::Arc;

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;
use tokio::net::UnixStream;
use tokio::task::AbortHandle;

use super::options::ControlOptions;
use super::pattern::Pattern;
use super::responder::{Responder, order};
use super::stop::StopOrigin;

/// The signals to be caught, and what is done at SIGUSR2.
pub(super) struct Signals {
    numbers: Vec<i32>,
    pattern: Option<Pattern>,
    leave_running: bool,
}

type Delivery = SignalDelivery<UnixStream, SignalOnly>;

impl Signals {
    /// What the options choose; `None` when they choose no signal.
    pub(super) fn chosen(options: &ControlOptions, pattern: Option<Pattern>) -> Option<Self> {
        let mut numbers = Vec::new();
        if options.stop_on_signals {
            numbers.extend([SIGTERM, SIGINT]);
        }
        if options.checkpoint_on_signal {
            numbers.push(SIGUSR2);
        }
        let leave_running = options.checkpoint_leaves_running;
        (!numbers.is_empty()).then_some(Self { numbers, pattern, leave_running })
    }

    /// Catches them until the task is aborted. Their default actions do not come back then: the process ignores
    /// them.
    pub(super) fn start(self, responder: Arc<Responder>) -> io::Result<AbortHandle> {
        let (read, write) = std::os::unix::net::UnixStream::pair()?;
        read.set_nonblocking(true)?;
        // The handler of a signal writes to it, and must never wait.
        write.set_nonblocking(true)?;
        let delivery =
            SignalDelivery::with_pipe(UnixStream::from_std(read)?, write, SignalOnly, &self.numbers)?;
        Ok(tokio::spawn(self.watch(delivery, responder)).abort_handle())
    }

    async fn watch(self, mut delivery: Delivery, responder: Arc<Responder>) {
        loop {
            if let Err(error) = readable(delivery.get_read()).await {
                tracing::error!("signals are no longer watched: {error}");
                return;
            }
            let mut arrived: Vec<i32> = delivery.pending().collect();
            arrived.sort_unstable();
            for signal in arrived {
                match signal {
                    SIGTERM => responder.request_stop(StopOrigin::Terminate),
                    SIGINT => responder.request_stop(StopOrigin::Interrupt),
                    _ => self.checkpoint(&responder),
                }
            }
        }
    }

    /// Runs a checkpoint beside the watch: a SIGTERM must not wait for it.
    fn checkpoint(&self, responder: &Arc<Responder>) {
        let Some(pattern) = &self.pattern else {
            tracing::warn!("SIGUSR2: no checkpoint, for no folder was set (checkpoint_to, --checkpoint-to)");
            return;
        };
        let responder = Arc::clone(responder);
        let dir = pattern.expand(responder.subject().identity().generation);
        let leave_running = self.leave_running;
        tokio::spawn(async move {
            let order = order(&dir, leave_running, true);
            let Some(answer) = responder.checkpoint(order).await.answer else { return };
            answer.log("SIGUSR2");
        });
    }
}

/// Waits for a byte, and takes all that are there, so that the runtime waits for the next one. A signal is noted
/// before its byte is written: one that comes now is found with the others, or makes the socket readable again.
async fn readable(socket: &UnixStream) -> io::Result<()> {
    socket.readable().await?;
    let mut bytes = [0; 64];
    loop {
        match socket.try_read(&mut bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
