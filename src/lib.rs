//! defrost makes a warmed-up server start instantly: it is started and warmed once, puts its listeners, files and
//! connections down in order, CRIU dumps it, and from then on it is restored, already warm, in milliseconds.
//!
//! A server takes part with three lines: the start-up rules first thing in `main`, an [`App`] (its context, standard
//! streams and control socket), and an adapter in the place of each listener or file:
//!
//! ```no_run
//! use defrost::adapters::TcpListener;
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//!     defrost::init()?;
//!     tokio::runtime::Runtime::new()?.block_on(async {
//!         let app = defrost::App::start("echo")?;
//!         let listener = TcpListener::bind(app.context(), "echo", "127.0.0.1:7777")?;
//!         loop {
//!             let (mut stream, _) = tokio::select! {
//!                 accepted = listener.accept() => accepted?,
//!                 _ = app.stopped() => return Ok(()),
//!             };
//!             tokio::spawn(async move {
//!                 let mut buffer = [0; 4096];
//!                 while let Ok(count @ 1..) = stream.read(&mut buffer).await {
//!                     if stream.write_all(&buffer[..count]).await.is_err() {
//!                         break;
//!                     }
//!                 }
//!             });
//!         }
//!     })
//! }
//! ```
//!
//! `defrost checkpoint echo ./img` then dumps it, and `criu restore -D ./img` or `defrost restore ./img` brings it
//! back, as often as wanted.
//!
//! # What linking it changes
//!
//! On x86-64 Linux a program that links this library calls its [`madvise`](sys::discard::madvise) and
//! [`mremap`](sys::remap::mremap) instead of the C library's, and so does its allocator. They are the plain system
//! calls, until the process has been restored by mapping its image; then they see to it that memory which is given
//! back shows zeros, as anonymous memory does, and not the image. Code that makes these system calls without the C
//! library (the crate rustix, a Go runtime in the process) is not covered: [`sys::discard`] says more. Such a server
//! is to be restored with `--memory copy`.
//!
//! # The map
//!
//! Dependencies point downwards, and a test says so.
//!
//! | module | what |
//! |---|---|
//! | [`cli`] | the `defrost` command (feature `cli`) |
//! | [`report`] | records of benchmarks and images as pages (feature `cli`) |
//! | [`mod@bench`] | how long a start takes, in every way to start a service (feature `cli`) |
//! | [`load`] | many clients of a line echo that check every answer (feature `cli`) |
//! | [`sleepsort`] | the test of timers, and what time does in a restored process (feature `cli`) |
//! | [`server`] | the server that ships with it (feature `cli`) |
//! | [`app`] | the usual set-up of a server in one call |
//! | [`startup`] | what must happen first thing in `main` |
//! | [`control`] | how a checkpoint is asked for: socket, standard input, FIFO, signals |
//! | [`adapters`] | listeners, files, standard streams and generators that take part by themselves |
//! | [`history`] | checkpoints of one server, one after the other, stored by content |
//! | [`supervise`] | the parent's side: run, restore, clones, namespaces, signals, exit status |
//! | [`checkpoint`] | one cycle inside this process: quiesce, audit, dump, wake |
//! | [`engine`] | what dumps and restores |
//! | [`events`] | what happened, for people and programs |
//! | [`context`], [`resource`], [`wake`] | the contract and the ordered registry |
//! | [`audit`] | what would prevent a checkpoint, by name |
//! | [`image`] | the image folder: manifest, completeness, verification, dependence, working set |
//! | [`sys`] | every unsafe line |
//!
//! The way of a checkpoint: `control` → [`Subject::checkpoint`] → `checkpoint::cycle` (hooks) → `checkpoint::job` (audit)
//! → [`engine::criu`] → [`engine::helper`], a process outside of the dumped tree, which completes the image.
//!
//! The way of a restore: `cli::restore` → [`mod@image::verify`] → [`supervise::restore`], or [`supervise::clones`] in
//! namespaces → [`engine::auto`] → `engine::instant` (plan → start → the restorer of the crate `criu-restorer`), or else
//! [`engine::criu`]; the restored process continues in `checkpoint::job`, learns from [`engine::channel`] what it was
//! given, and wakes its resources.

#![deny(unsafe_code)]

pub mod adapters;
pub mod app;
pub mod audit;
#[cfg(feature = "cli")]
pub mod bench;
pub mod checkpoint;
#[cfg(feature = "cli")]
pub mod cli;
pub mod context;
pub mod control;
pub mod engine;
pub mod events;
pub mod history;
pub mod image;
#[cfg(feature = "cli")]
pub mod load;
#[cfg(feature = "cli")]
pub mod report;
pub mod resource;
#[cfg(feature = "cli")]
pub mod server;
#[cfg(feature = "cli")]
pub mod sleepsort;
pub mod startup;
pub mod supervise;
pub mod sys;
pub mod wake;

pub use app::App;
pub use checkpoint::Subject;
pub use context::{Context, Registration};
pub use resource::{Blocking, BlockingResource, Cycle, Resource};
pub use startup::init;
pub use wake::Wake;
