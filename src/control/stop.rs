//! Who asked the process to end. It must not know what the process then does.

use std::fmt;

/// Where the wish to end the process came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopOrigin {
    /// The line `stop`, at this source.
    Request(Source),
    /// SIGTERM.
    Terminate,
    /// SIGINT, such as by Ctrl-C.
    Interrupt,
    /// The program itself.
    Program,
}

/// Where lines come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The control socket.
    Socket,
    /// Standard input.
    Stdin,
    /// The FIFO.
    Fifo,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Socket => "the control socket",
            Self::Stdin => "standard input",
            Self::Fifo => "the fifo",
        })
    }
}

impl fmt::Display for StopOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(source) => write!(f, "a request at {source}"),
            Self::Terminate => f.write_str("SIGTERM"),
            Self::Interrupt => f.write_str("SIGINT"),
            Self::Program => f.write_str("the program itself"),
        }
    }
}
