//! How a running server is told what to do: lines on its control socket, on standard input or a FIFO, and signals.
//!
//! One request a line, one answer a line, in plain words, so that `nc -U` and `echo` will do for a client:
//!
//! ```text
//! checkpoint DIR [leave-running]    ok: DIR is complete, 12.3 MiB in 140 ms; the server has ended
//! status [json]                     ok: echo, pid 12, ready, generation 1, instance …, up 3.2 s, 4 resources
//! resources [json]                  ok: 2 resources: web (tcp 127.0.0.1:80, 3 connections); …
//! audit [json]                      ok: nothing blocks a checkpoint
//! stop                              ok: the server is about to end
//! help
//! ```
//!
//! `checkpoint DIR no-sync leave-running` does not wait for the disk: such an image is good until the host is started
//! anew, and refused after that.
//!
//! What cannot be done is answered by `error: WHY; hint: WHAT TO DO`. [`Control`] is the server's end, [`Client`]
//! the other one, and [`resolve`] finds the socket of a server by its name or pid.
//!
//! ```no_run
//! use defrost::control::{Control, ControlOptions};
//!
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! let subject = defrost::Subject::new("echo")?;
//! let control = Control::start(&subject, ControlOptions::default())?;
//! // … the server registers its own resources behind it …
//! let origin = control.stopped().await;
//! # let _ = origin;
//! # Ok(())
//! # }
//! ```
//!
//! It must not know what the server does, how it was started, or how commands are typed. It prints nothing but
//! the answers to lines from standard input.

mod answer;
mod client;
mod connection;
mod error;
mod fifo;
mod findings;
mod follow;
mod lines;
mod name;
mod options;
mod pattern;
mod place;
mod request;
mod responder;
mod server;
mod signals;
mod status;
mod stdin;
mod stop;
mod target;

#[cfg(test)]
mod tests;

pub use answer::Answer;
pub use client::{ANSWER_LIMIT, Client, ClientError};
pub use error::ControlError;
pub use fifo::FifoError;
pub use lines::LINE_LIMIT;
pub use name::{NAME_LIMIT, Name, NameError};
pub use options::{ControlOptions, DEFAULT_IDLE_LIMIT, SocketPlace};
pub use pattern::{Pattern, PatternError};
pub use place::{PlaceError, folder, folders, socket_in, socket_path};
pub use request::{Request, RequestError};
pub use server::Control;
pub use status::{LastCheckpoint, ResourceStatus, State, Status};
pub use stop::{Source, StopOrigin};
pub use target::{Target, TargetError, resolve};
