//! One HTTP/1 connection, from its first byte to its end.
//!
//! It must not know what is served on it.

use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::adapters::Tracked;

/// How long a connection may take to send a request's head, which it may begin by waiting for it: so it is also
/// how long a kept connection may be idle.
const HEAD_LIMIT: Duration = Duration::from_secs(30);

/// The longest head of a request, in bytes, and with it what is buffered. hyper wants 8 KiB at least.
const HEAD_SIZE_LIMIT: usize = 16 * 1024;

/// After this a connection takes no more requests, so that a client who never reads is rid of in the end.
const AGE_LIMIT: Duration = Duration::from_secs(600);

/// How long the last request of such a connection may take. When a cycle or a stop ends it, whoever drains the
/// connections has a limit of his own, and a shorter one.
const LAST_REQUEST_LIMIT: Duration = Duration::from_secs(60);

/// Serves one connection. When it shall finish, the request that it is at is answered, an idle one is closed.
pub(super) async fn serve(stream: Tracked<TcpStream>, router: Router) {
    let (quiescing, peer) = (stream.quiescing_handle(), stream.peer());
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT).max_buf_size(HEAD_SIZE_LIMIT);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => Ok(ended),
        () = quiescing.wait() => {
            connection.as_mut().graceful_shutdown();
            timeout(LAST_REQUEST_LIMIT, connection).await
        }
        () = sleep(AGE_LIMIT) => {
            connection.as_mut().graceful_shutdown();
            timeout(LAST_REQUEST_LIMIT, connection).await
        }
    };
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("http to {peer} ended: {error}"),
        Err(_) => tracing::debug!("http to {peer} was cut off: its last request took too long"),
    }
}
