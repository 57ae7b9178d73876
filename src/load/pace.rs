//! When a client sends its messages.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng};
use tokio::time::Instant;

/// The longest wait before the first message of a client.
pub(super) const FIRST_WAIT: Duration = Duration::from_secs(1);

/// The longest wait between an answer and the next message.
pub(super) const NEXT_WAIT: Duration = Duration::from_secs(2);

/// When messages are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// After a random wait: up to one second before the first message, up to two before each other.
    Waits,
    /// As soon as the last one is answered.
    FullSpeed,
    /// So many a second, of all clients together, on a schedule that does not wait for slow answers. A message that its
    /// client sends late, because the one before it took too long, has its latency from when it was due.
    Rate(f64),
}

impl Pace {
    /// When `message` of `client` is due, both counted from 0. `None`: at once.
    pub(super) fn due(
        self,
        start: Instant,
        clients: u32,
        seed: u64,
        (client, message): (u32, u32),
    ) -> Option<Instant> {
        match self {
            Self::Waits => Some(Instant::now() + wait(seed, client, message)),
            Self::FullSpeed => None,
            Self::Rate(rate) => {
                let place = u64::from(message) * u64::from(clients) + u64::from(client);
                Some(start + Duration::from_secs_f64(place as f64 / rate))
            }
        }
    }

    /// Whether latency counts from when a message was due rather than from when it was sent.
    pub(super) fn is_schedule(self) -> bool {
        matches!(self, Self::Rate(_))
    }
}

/// How long a client waits before a message.
pub(super) fn wait(seed: u64, client: u32, message: u32) -> Duration {
    let longest = if message == 0 { FIRST_WAIT } else { NEXT_WAIT };
    // A generator for each wait, so that no client holds one: there are many.
    let mut random = StdRng::seed_from_u64(seed ^ (u64::from(client) << 32 | u64::from(message)));
    longest.mul_f64(random.random::<f64>())
}
