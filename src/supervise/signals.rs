//! The signals that a supervisor forwards, as something that can be polled.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

/// What is handed on to the supervised process. Not among them: SIGKILL and SIGSTOP, which nobody can catch;
/// SIGCHLD, the supervisor's own; SIGPIPE and the signals of faults, which concern the one who caused them.
const FORWARDED: [Signal; 11] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGWINCH,
    Signal::SIGIO,
    Signal::SIGCONT,
    Signal::SIGTSTP,
];

/// How long after it was asked to end a server may still end by that.
const SURVIVED: Duration = Duration::from_secs(300);

fn watched() -> impl Iterator<Item = Signal> {
    FORWARDED.into_iter().chain([Signal::SIGCHLD])
}

/// All watched signals held back, so that none is lost or fatal between a fork and the first [`Signals`].
/// Dropping it lets them through.
#[derive(Debug)]
pub struct HeldBack {
    before: SigSet,
}

impl HeldBack {
    /// Blocks them in this thread, which must be the only one.
    ///
    /// # Errors
    /// The kernel's own.
    pub fn new() -> io::Result<Self> {
        let set: SigSet = watched().collect();
        Ok(Self { before: set.thread_swap_mask(SigmaskHow::SIG_BLOCK)? })
    }
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        // Restoring a mask that the kernel gave out cannot fail.
        let _ = self.before.thread_set_mask();
    }
}

/// The signals that have arrived, in a queue whose descriptor can be polled.
pub struct Signals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
    asked_to_end: Option<(Signal, Instant)>,
}

impl std::fmt::Debug for Signals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signals")
    }
}

fn delivery(signals: impl IntoIterator<Item = Signal>) -> io::Result<SignalDelivery<UnixStream, SignalOnly>> {
    let (read, write) = UnixStream::pair()?;
    read.set_nonblocking(true)?;
    write.set_nonblocking(true)?;
    let numbers = signals.into_iter().map(|signal| signal as i32);
    SignalDelivery::with_pipe(read, write, SignalOnly, numbers)
}

impl Signals {
    /// Takes the forwarded signals and SIGCHLD over from their default actions, for the rest of the process's
    /// life. Programs that it starts get the default actions back by exec.
    ///
    /// # Errors
    /// The kernel's own.
    pub fn watch() -> io::Result<Self> {
        Ok(Self { delivery: delivery(watched())?, asked_to_end: None })
    }

    /// In a forked process: lets go of what the parent watches, before its descriptors are closed here, since handlers
    /// write to them. What arrives is lost until there is another [`Signals`].
    ///
    /// # Errors
    /// The kernel's own; nothing has changed then.
    pub(super) fn leave(&mut self) -> io::Result<()> {
        self.delivery = delivery(None)?;
        Ok(())
    }

    /// The signals that have arrived since the last call.
    pub fn arrived(&mut self) -> Vec<Signal> {
        let arrived: Vec<Signal> =
            self.delivery.pending().filter_map(|number| Signal::try_from(number).ok()).collect();
        let asks = |signal: &&Signal| matches!(signal, Signal::SIGTERM | Signal::SIGINT);
        if let Some(signal) = arrived.iter().find(asks) {
            self.asked_to_end = Some((*signal, Instant::now()));
        }
        arrived
    }

    /// Whether one of those that have arrived asked for an end. One that was survived for five minutes asked for
    /// something else.
    pub fn asked_to_end(&self) -> bool {
        self.asked_to_end.is_some_and(|(_, at)| at.elapsed() < SURVIVED)
    }

    /// The last that has arrived by now that asked for an end.
    pub(super) fn end_signal(&mut self) -> Option<Signal> {
        self.arrived();
        self.asked_to_end.map(|(signal, _)| signal)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.delivery.get_read().as_fd()
    }
}
