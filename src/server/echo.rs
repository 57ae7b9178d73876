//! The line echo: each line comes back as it was sent.
//!
//! It must not know where its connections come from, nor why one has to finish.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::adapters::{Quiescing, Tracked};

/// The longest line, in bytes with its newline.
pub const LINE_LIMIT: usize = 64 * 1024;

/// How long a connection may be silent.
const IDLE_LIMIT: Duration = Duration::from_secs(600);

/// How long a peer may take to receive an answer.
const WRITE_LIMIT: Duration = Duration::from_secs(30);

/// How much is still answered, in bytes, of what has already arrived when the connection has to finish.
const LAST_WORDS: usize = 1 << 20;

/// Room for this many bytes is made before each read.
const READ: usize = 8 * 1024;

/// Serves one connection to its end.
pub(super) async fn serve(stream: Tracked<TcpStream>) {
    let quiescing = stream.quiescing_handle();
    let peer = stream.peer();
    if let Err(error) = converse(stream, &quiescing).await {
        tracing::debug!("echo to {peer} ended: {error}");
    }
}

/// Answers line by line until the peer closes, or until it shall finish and stands at the end of a line. What
/// has arrived by then is answered too: closing a socket with unread data resets it, and the peer can lose the
/// answers it has not read yet (RFC 2525, 2.17).
async fn converse(mut stream: Tracked<TcpStream>, quiescing: &Quiescing) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(READ);
    let mut last_words = 0;
    loop {
        let whole = buffer.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if whole > 0 {
            write(&mut stream, &buffer[..whole]).await?;
            buffer.drain(..whole);
        }
        if buffer.len() >= LINE_LIMIT {
            return Err(io::Error::other(format!("a line is longer than {LINE_LIMIT} bytes")));
        }
        buffer.reserve(READ);
        let finishing = quiescing.is_quiescing();
        let read = if !finishing {
            tokio::select! {
                read = stream.read_buf(&mut buffer) => read?,
                () = quiescing.wait() => continue,
                () = tokio::time::sleep(IDLE_LIMIT) => {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "nothing came for too long"));
                }
            }
        } else if buffer.is_empty() {
            match arrived(&stream, &mut buffer)? {
                Some(read) if last_words < LAST_WORDS => read,
                _ => break,
            }
        } else {
            // Within a line. Whoever has asked to finish shuts the stream down when this takes too long.
            timeout(IDLE_LIMIT, stream.read_buf(&mut buffer)).await??
        };
        if read == 0 {
            // What the peer did not end by a newline, as `cat` would.
            write(&mut stream, &buffer).await?;
            break;
        }
        last_words += if finishing { read } else { 0 };
    }
    stream.shutdown().await
}

async fn write<S: AsyncWrite + Unpin>(stream: &mut S, data: &[u8]) -> io::Result<()> {
    timeout(WRITE_LIMIT, stream.write_all(data)).await?
}

/// Reads what is there already; `None` if nothing is. The kernel is asked itself: the runtime may not have heard
/// yet of what has just arrived.
fn arrived(stream: &Tracked<TcpStream>, buffer: &mut Vec<u8>) -> io::Result<Option<usize>> {
    let mut chunk = [0; READ];
    match rustix::net::recv(stream, &mut chunk, rustix::net::RecvFlags::DONTWAIT) {
        Ok((_, count)) => {
            buffer.extend_from_slice(&chunk[..count]);
            Ok(Some(count))
        }
        Err(rustix::io::Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
