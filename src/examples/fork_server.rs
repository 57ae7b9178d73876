//! A warm parent of the server that ships with defrost: it warms up once, and forks a server for each connection to
//! its control port, which is told the pid. The usual way to start a server fast without a checkpoint, and what the
//! benchmarks compare restores with.
//!
//! ```text
//! fork_server --control 127.0.0.1:7000 --http 127.0.0.1:8080 --warm-mib 256
//! exec 3<>/dev/tcp/127.0.0.1/7000; read -r pid <&3     in bash: starts one
//! ```
//!
//! It is not the same as a restore:
//! - The parent has to live, on the same host, and costs its memory for as long; an image is a folder that can be
//!   copied, and outlives a reboot.
//! - Threads do not survive a fork, so all of the warm-up has to be done before there is a runtime, and what a server
//!   holds by its threads, such as connections and tasks, cannot be warm.
//! - Each child has the layout of the parent's addresses, and whatever was random in its memory. A restored process has
//!   that in common with its original, but its resources are told of the restore and can draw anew.
//! - What the parent opened is open in the child too.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a command")]

use std::error::Error;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use defrost::Subject;
use defrost::server::{Server, ServerOptions, WarmOptions, Warmed};
use defrost::sys::process::{Fork, fork};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// Most worker threads of a child: as many as `defrost serve` has.
const MOST_WORKERS: usize = 4;
/// How long the threads of the warm-up may take to leave the kernel.
const THREADS: Duration = Duration::from_secs(5);

/// Warms up, and forks a server for each connection to the control port
#[derive(Debug, Parser)]
struct Arguments {
    /// A server is forked for each connection to this address, and its pid is the answer
    #[arg(long, value_name = "HOST:PORT")]
    control: SocketAddr,
    /// Where each of them serves HTTP; 0 takes a free port
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<String>,
    /// Where each of them echoes lines
    #[arg(long, value_name = "HOST:PORT")]
    echo: Option<String>,
    /// Fill this much memory
    #[arg(long, value_name = "N")]
    warm_mib: Option<u32>,
    /// Highlight source text, without a cache, with the patterns of these grammars compiled: `all`, `common`, or
    /// LANG,LANG
    #[cfg(feature = "highlight")]
    #[arg(long, value_name = "WHICH")]
    highlight: Option<defrost::server::highlight::Warm>,
}

fn main() -> ExitCode {
    let Err(error) = parent(&Arguments::parse()) else { return ExitCode::SUCCESS };
    eprintln!("fork_server: {error}");
    ExitCode::FAILURE
}

fn options(arguments: &Arguments) -> ServerOptions {
    ServerOptions {
        echo: arguments.echo.clone(),
        http: arguments.http.clone(),
        warm: arguments.warm_mib.map(WarmOptions::new),
        #[cfg(feature = "highlight")]
        highlight: arguments.highlight.clone().map(|warm| {
            let usual = defrost::server::highlight::HighlightOptions::default();
            defrost::server::highlight::HighlightOptions { warm, cache: 0, ..usual }
        }),
        ..ServerOptions::default()
    }
}

/// Returns in each child that has ended its service; the parent goes on until it is ended.
fn parent(arguments: &Arguments) -> Outcome {
    let options = options(arguments);
    let warmed = Warmed::of(&options)?;
    // A child that ends is reaped when the kernel says so, between two connections.
    let mut ends = SigSet::empty();
    ends.add(Signal::SIGCHLD);
    ends.thread_block()?;
    let ended = SignalFd::with_flags(&ends, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    let listener = TcpListener::bind(arguments.control)?;
    println!("control on port {}", listener.local_addr()?.port());
    loop {
        let mut ready = [listener.as_fd(), ended.as_fd()].map(|one| PollFd::new(one, PollFlags::POLLIN));
        poll(&mut ready, PollTimeout::NONE)?;
        let [connected, has_ended] = ready.map(|one| one.any().unwrap_or(false));
        if has_ended {
            while ended.read_signal()?.is_some() {}
            reap()?;
        }
        if !connected {
            continue;
        }
        let (client, _) = listener.accept()?;
        match fork_when_alone() {
            Ok(Fork::Parent(child)) => tell(client, &child.to_string()),
            Ok(Fork::Child) => {
                drop((listener, ended, client));
                ends.thread_unblock()?;
                return serve(options, warmed);
            }
            // This parent goes on, and may do better next time.
            Err(error) => tell(client, &format!("error: {error}")),
        }
    }
}

/// A thread that was joined may be seen for a moment more.
fn fork_when_alone() -> io::Result<Fork> {
    let end = Instant::now() + THREADS;
    loop {
        match fork() {
            Err(error) if error.kind() == io::ErrorKind::Unsupported && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(1));
            }
            done => return done,
        }
    }
}

/// Who asked may have gone, which is no reason to end.
fn tell(mut client: TcpStream, text: &str) {
    let _ = client.write_all(format!("{text}\n").as_bytes());
}

fn reap() -> nix::Result<()> {
    loop {
        match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) | Err(nix::errno::Errno::ECHILD) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The server, by the code of `defrost serve`, until it is ended.
fn serve(options: ServerOptions, warmed: Warmed) -> Outcome {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(cores.min(MOST_WORKERS)).enable_all().build()?;
    runtime.block_on(async {
        let subject = Subject::new("forked")?;
        let _server = Server::start_warmed(options, warmed, &subject)?;
        std::future::pending::<Outcome>().await
    })
}
