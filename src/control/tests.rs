//! Control as a server's users see it. Cycles end with an error here, by a hook that fails: the audit would find
//! the test's own surroundings in the way. Those that succeed run in a process of their own, in `whole`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::*;
use crate::engine::simulated::SimulatedEngine;
use crate::resource::{Cycle, HookError};
use crate::wake::{InstanceId, Params, Restored, Wake};
use crate::{Resource, Subject};

mod fifo;
mod socket;
mod whole;

const AMPLE: Duration = Duration::from_secs(30);

/// A controlled subject in a folder of its own.
struct Server {
    folder: TempDir,
    subject: Subject,
    control: Control,
}

impl Server {
    fn start(change: impl FnOnce(&mut ControlOptions)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let subject = Subject::builder("echo").engine(SimulatedEngine).build().unwrap();
        let socket = SocketPlace::Path(folder.path().join("echo.sock"));
        let fifo = Some(folder.path().join("fifo"));
        let mut options = ControlOptions { socket, fifo, ..without_signals() };
        change(&mut options);
        let control = Control::start(&subject, options).unwrap();
        Self { folder, subject, control }
    }

    /// Registers a resource whose `before_checkpoint` waits for a permit and then fails.
    fn stubborn(&self, permits: usize) -> Arc<Stubborn> {
        let stubborn = Arc::new(Stubborn { permits: Semaphore::new(permits), asked: Semaphore::new(0) });
        self.subject.context().register("stubborn", Arc::clone(&stubborn) as _).forever();
        stubborn
    }

    fn socket(&self) -> PathBuf {
        self.control.socket().unwrap()
    }

    async fn connect(&self) -> Talk {
        Talk(BufReader::new(UnixStream::connect(self.socket()).await.unwrap()))
    }

    /// The last checkpoint, as soon as there is one.
    async fn last_checkpoint(&self) -> LastCheckpoint {
        let told = async {
            loop {
                let answer = self.connect().await.ask("status json").await;
                let status: Option<Status> = serde_json::from_str(&answer).ok();
                if let Some(last) = status.and_then(|status| status.last_checkpoint) {
                    return last;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(AMPLE, told).await.unwrap()
    }

    /// One cycle around everything that is registered, without the audit.
    async fn cycle(&self, wake: &Wake) {
        let runs = self.subject.context().quiesce(&Cycle::new(true)).await;
        runs.into_iter().for_each(|run| run.outcome.unwrap());
        let runs = self.subject.context().wake(wake).await;
        runs.into_iter().for_each(|run| run.outcome.unwrap());
    }

    async fn stopped(&self) -> StopOrigin {
        timeout(AMPLE, self.control.stopped()).await.unwrap()
    }
}

/// A handler of a signal would belong to all tests at once.
fn without_signals() -> ControlOptions {
    ControlOptions { stop_on_signals: false, checkpoint_on_signal: false, ..ControlOptions::default() }
}

fn restored() -> Wake {
    Wake::Restored(Restored::new(1, Duration::ZERO, InstanceId::from_bytes([7; 16]), Params::default()))
}

struct Stubborn {
    permits: Semaphore,
    asked: Semaphore,
}

#[async_trait]
impl Resource for Stubborn {
    async fn before_checkpoint(&self, _cycle: &Cycle) -> Result<(), HookError> {
        self.asked.add_permits(1);
        self.permits.acquire().await?.forget();
        Err("it will not".into())
    }
}

const WILL_NOT: &str = "error: no checkpoint (quiesce): stubborn: before_checkpoint failed: it will not; the server \
                        goes on; hint: mend what stubborn complains of and ask again";

/// A client, line by line.
struct Talk(BufReader<UnixStream>);

impl Talk {
    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // A cycle may have closed it just now; then there is no answer either.
        let _ = self.0.get_mut().write_all(bytes.as_ref()).await;
    }

    /// The next line; empty at the end of the connection.
    async fn line(&mut self) -> String {
        let mut line = Vec::new();
        let read = timeout(AMPLE, self.0.read_until(b'\n', &mut line)).await.expect("no answer");
        // A connection that was reset has ended, too.
        read.unwrap_or_default();
        String::from_utf8(line).unwrap().trim_end().to_owned()
    }

    async fn ask(&mut self, line: &str) -> String {
        self.send(format!("{line}\n")).await;
        self.line().await
    }
}
