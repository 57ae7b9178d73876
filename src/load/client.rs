//! One client: its messages, its connection, and what it does when that ends.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::LoadOptions;
use super::tally::{Tally, Trouble};

/// The pause before another attempt to connect, at first.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// And at the longest: a restore takes a few milliseconds, and nobody may be restoring.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// How long the end of a connection may take after the last answer.
const END: Duration = Duration::from_secs(5);

/// What all clients share.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) address: std::net::SocketAddr,
    pub(super) start: Instant,
    /// Seats for those who connect and have no answer yet.
    pub(super) arriving: Semaphore,
    pub(super) tally: Arc<Tally>,
    pub(super) options: LoadOptions,
}

/// A connection, counted while it is there.
struct Connection<'a> {
    stream: TcpStream,
    /// Until its first answer.
    arriving: Option<SemaphorePermit<'a>>,
    tally: &'a Tally,
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.tally.closed();
    }
}

/// Sends all messages of one client, and ends early when one of them is lost.
pub(super) async fn run(plan: Arc<Plan>, client: u32) {
    let options = &plan.options;
    let mut waited = Duration::ZERO;
    let mut state = Client { plan: &plan, connection: None, connected: false };
    for message in 0..options.messages {
        let due = options.pace.due(plan.start, options.clients, options.seed, (client, message));
        if let Some(due) = due {
            waited += due.saturating_duration_since(Instant::now());
            sleep_until(due).await;
            plan.tally.waited(waited);
        }
        let began = due.filter(|_| options.pace.is_schedule()).unwrap_or_else(Instant::now);
        let stamp = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        let line = format!("{stamp} client {client} message {message}\n");
        match state.exchange(line.as_bytes()).await {
            Ok(()) => plan.tally.answer(began.elapsed()),
            Err(trouble) => {
                plan.tally.error(trouble);
                // Whatever else comes on that connection belongs to nothing.
                state.connection = None;
                if trouble != Trouble::Wrong {
                    return;
                }
            }
        }
    }
    state.finish().await;
}

struct Client<'a> {
    plan: &'a Plan,
    connection: Option<Connection<'a>>,
    /// Whether it has had a connection.
    connected: bool,
}

impl<'a> Client<'a> {
    /// Has one line answered, on this connection or, where that is asked for, on another.
    async fn exchange(&mut self, line: &[u8]) -> Result<(), Trouble> {
        let deadline = Instant::now() + self.plan.options.limit;
        let mut pause = SHORTEST_PAUSE;
        let mut interruptions = Vec::new();
        let (mut attempts, mut sent_before) = (0, false);
        loop {
            let mut sent = false;
            let tried =
                timeout_at(deadline, self.attempt(line, &mut sent)).await.unwrap_or(Err(Trouble::Late));
            if sent && sent_before {
                self.plan.tally.resent();
            }
            sent_before |= sent;
            let trouble = match tried {
                Ok(()) => {
                    interruptions.into_iter().for_each(|trouble| self.plan.tally.made_good(trouble));
                    return Ok(());
                }
                Err(trouble) => trouble,
            };
            let may_pass = matches!(trouble, Trouble::Refused | Trouble::Closed | Trouble::Reset);
            if !self.plan.options.through_checkpoint || !may_pass {
                return Err(trouble);
            }
            interruptions.push(trouble);
            self.connection = None;
            attempts += 1;
            // The first time it is a connection of old that has ended, and there may well be a server.
            if attempts > 1 {
                if Instant::now() + pause >= deadline {
                    // What has kept it from an answer until now.
                    return Err(trouble);
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    /// One attempt; says whether the line may have reached the server.
    async fn attempt(&mut self, line: &[u8], sent: &mut bool) -> Result<(), Trouble> {
        if self.connection.is_none() {
            self.connection = Some(self.connect().await?);
        }
        let Some(connection) = &mut self.connection else { return Err(Trouble::Other) };
        *sent = true;
        connection.stream.write_all(line).await.map_err(|error| Trouble::of(&error))?;
        // One more than there should be.
        let mut answer = Vec::with_capacity(line.len() + 1);
        while answer.len() < line.len() {
            match connection.stream.read_buf(&mut answer).await {
                Ok(0) => return Err(Trouble::Closed),
                Ok(_) if line.starts_with(&answer) => {}
                Ok(_) => return Err(Trouble::Wrong),
                Err(error) => return Err(Trouble::of(&error)),
            }
        }
        connection.arriving = None;
        Ok(())
    }

    async fn connect(&mut self) -> Result<Connection<'a>, Trouble> {
        // Nobody closes the semaphore.
        let arriving = self.plan.arriving.acquire().await.ok();
        let stream = TcpStream::connect(self.plan.address).await.map_err(|error| Trouble::of(&error))?;
        // A line is one segment, and the next is sent when it is answered.
        let _ = stream.set_nodelay(true);
        let tally = &*self.plan.tally;
        tally.opened();
        if std::mem::replace(&mut self.connected, true) {
            tally.reconnected();
        }
        Ok(Connection { stream, arriving, tally })
    }

    /// Ends the connection, on which nothing more than the answers must have come.
    async fn finish(self) {
        let Some(mut connection) = self.connection else { return };
        let ended = async {
            let _ = connection.stream.shutdown().await;
            connection.stream.read(&mut [0; 8]).await
        };
        if let Ok(Ok(1..)) = tokio::time::timeout(END, ended).await {
            self.plan.tally.error(Trouble::Wrong);
        }
    }
}
