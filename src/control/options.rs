//! What a server lets itself be told, and by which ways.

use std::path::PathBuf;
use std::time::Duration;

/// How long a client may say nothing before its connection is closed, unless the options say otherwise.
pub const DEFAULT_IDLE_LIMIT: Duration = Duration::from_secs(60);

/// The ways by which a server can be told what to do.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ControlOptions {
    /// Where the control socket is.
    pub socket: SocketPlace,
    /// Whether lines are read from standard input. Answers go to standard output. A restored process reads no
    /// more from it. Where [`Stdio`](crate::adapters::Stdio) is used, register that before.
    pub stdin: bool,
    /// A FIFO to read lines from; it is made if it is missing, with mode 0600. A FIFO has no way back: answers go
    /// to the log.
    pub fifo: Option<PathBuf>,
    /// Where SIGUSR2 checkpoints to, as a [`Pattern`](super::Pattern): `./img-%g`. A relative one is taken from
    /// where the server was started.
    pub checkpoint_to: Option<String>,
    /// Whether the process goes on after a checkpoint by SIGUSR2.
    pub checkpoint_leaves_running: bool,
    /// Whether SIGUSR2 asks for a checkpoint. Without a `checkpoint_to` it then says in the log what is missing;
    /// without this it ends the process, as signal(7) has it.
    pub checkpoint_on_signal: bool,
    /// Whether SIGTERM and SIGINT complete [`Control::stopped`](super::Control::stopped) instead of ending the
    /// process.
    pub stop_on_signals: bool,
    /// How long a client of the socket may say nothing before its connection is closed.
    pub idle_limit: Duration,
}

/// Where the control socket is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketPlace {
    /// `NAME.sock` in the [folder of the user](super::folder), after the subject's name.
    #[default]
    Default,
    /// At this path. Its folder must be there, and safe from others.
    Path(PathBuf),
    /// There is none.
    None,
}

impl Default for ControlOptions {
    /// The socket at its usual place, and the signals.
    fn default() -> Self {
        Self {
            socket: SocketPlace::Default,
            stdin: false,
            fifo: None,
            checkpoint_to: None,
            checkpoint_leaves_running: false,
            checkpoint_on_signal: true,
            stop_on_signals: true,
            idle_limit: DEFAULT_IDLE_LIMIT,
        }
    }
}
