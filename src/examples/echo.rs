//! A line echo that goes through a checkpoint: all that a server has to do for it.
//!
//! ```text
//! echo serve 127.0.0.1:7777      answers each line by itself
//! echo checkpoint ./img          has it dump itself into ./img, and end
//! criu restore -D ./img          brings it back, as often as wanted
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a command")]

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use defrost::App;
use defrost::adapters::{TcpListener, Tracked};
use defrost::control::{Client, Target, resolve};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["checkpoint", dir] => checkpoint(dir.as_ref()),
        _ => serve(&words),
    };
    let Err(error) = done else { return ExitCode::SUCCESS };
    eprintln!("echo: {error}");
    ExitCode::FAILURE
}

fn serve(words: &[&str]) -> Outcome {
    // Before anything else: a checkpoint starts this program once more, without arguments, as its helper.
    defrost::init()?;
    let address = match words {
        ["serve"] => "127.0.0.1:7777",
        ["serve", address] => address,
        _ => return Err("usage: echo serve [ADDR] | echo checkpoint DIR".into()),
    };
    tokio::runtime::Runtime::new()?.block_on(async {
        // Its context, standard streams and control socket.
        let app = App::start("echo")?;
        let listener = TcpListener::bind(app.context(), "echo", address)?;
        println!("listening on port {}", listener.local_addr().port());
        loop {
            tokio::select! {
                // Waits through a checkpoint, and goes on in each restored process.
                accepted = listener.accept() => drop(tokio::spawn(answer(accepted?.0))),
                _ = app.stopped() => return Ok(()),
            }
        }
    })
}

/// Answers line by line. When a checkpoint comes, reading ends by end of file, so there is nothing to do for it.
async fn answer(stream: Tracked<TcpStream>) -> std::io::Result<()> {
    let (mut stream, mut line) = (BufReader::new(stream), Vec::new());
    while (&mut stream).take(65_536).read_until(b'\n', &mut line).await? > 0 {
        stream.get_mut().write_all(&line).await?;
        line.clear();
    }
    Ok(())
}

fn checkpoint(dir: &Path) -> Outcome {
    let socket = resolve(&Target::parse("echo".as_ref())?)?;
    let mut client = Client::connect(&socket, Duration::from_secs(5))?;
    let request = format!("checkpoint {}", std::path::absolute(dir)?.display());
    let answer = client.request(request.as_bytes(), Duration::from_secs(120))?;
    if !answer.ok {
        return Err(answer.text.into());
    }
    println!("{}", answer.text);
    Ok(())
}
