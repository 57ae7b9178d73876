//! Checkpoints of a running server, one after the other, asked for by its control socket.
//!
//! It must not know how the server was started, nor what happens when it ends: whoever does, ends this.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use super::error::HistoryError;
use super::folder::History;
use super::index::Index;
use super::schedule::{REMEMBERED, Schedule};
use crate::control::{Client, ClientError, Request, Status, Target, TargetError, resolve};
use crate::events::Draft;
use crate::events::event::micros;
use crate::image::{Image, ImageError, Manifest};

/// How long a server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// How long it may take over a question.
const QUESTION: Duration = Duration::from_secs(10);
/// How long a checkpoint may take: about a second for each gigabyte, and the drain of connections.
const CHECKPOINT: Duration = Duration::from_secs(300);
/// How long it may take to complete an image whose server has ended.
const COMPLETED: Duration = Duration::from_secs(10);
/// How soon a stop is heard of that comes between a look at it and the pause; another one interrupts that.
const TICK: Duration = Duration::from_millis(200);
/// How often it is looked for an image.
const LOOK: Duration = Duration::from_millis(10);
/// After this many failures in a row it is told loudly.
const LOUD: u32 = 3;
/// A server that has no first checkpoint after this time, or after an interval if that is longer, may never have one:
/// this is told once.
const UNPROTECTED: Duration = Duration::from_secs(10);

/// What is kept of which server.
#[derive(Debug)]
pub struct Keep {
    /// Where to.
    pub history: History,
    /// The server's pid.
    pub pid: i32,
    /// How old the last complete checkpoint may become: what is lost in a crash.
    pub every: Duration,
    /// How many checkpoints stay.
    pub keep: usize,
}

/// Why there is no new checkpoint. The server goes on, unless it had ended before, and so does the history.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeepError {
    /// It has no control socket, or none yet.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// It is not ready: what it has warmed up so far is nothing to go back to.
    #[error("the server is not ready yet")]
    NotReady,
    /// It did not answer.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// It refused, or the dump failed.
    #[error("{text}")]
    Refused {
        /// In its words.
        text: String,
        /// What to do about it.
        hint: Option<String>,
    },
    /// The image could not be stored.
    #[error("the checkpoint was made and could not be stored: {0}")]
    History(#[from] HistoryError),
    /// What the server made is no image.
    #[error("the checkpoint was made and cannot be opened: {0}")]
    Image(#[from] ImageError),
    /// What is in its place cannot be moved.
    #[error("cannot move {} to {}: {source}", from.display(), to.display())]
    Move {
        /// From where.
        from: PathBuf,
        /// To where.
        to: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
}

impl KeepError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Target(error) => error.hint(),
            Self::Client(error) => error.hint().map(str::to_owned),
            Self::Refused { hint, .. } => hint.clone(),
            Self::History(error) => error.hint(),
            Self::Image(error) => error.hint(),
            Self::NotReady | Self::Move { .. } => None,
        }
    }

    /// Whether it is about a server that has only just begun.
    fn is_early(&self) -> bool {
        matches!(self, Self::Target(_) | Self::NotReady)
    }
}

impl Keep {
    /// Makes checkpoints until `stop` is set: one that is being stored then is finished first. One that fails is
    /// told, and tried again after a tenth of the interval, then ever more rarely. The first is due within half an
    /// interval of the last that there is, so that a server which is restored again and again is checkpointed all the
    /// same. `tell` gets each as an event.
    pub fn run(&self, stop: &AtomicBool, tell: &mut dyn FnMut(Draft)) {
        let mut failures = 0;
        let mut was_there = false;
        let start = Instant::now();
        let mut doubtful = Some(start + self.every.max(UNPROTECTED));
        let (mut schedule, mut next) = self.schedule(start);
        while self.sleep(next, stop) {
            let begun = Instant::now();
            let made = self.once(stop);
            let now = Instant::now();
            let took = now - begun;
            match made {
                Ok(index) => {
                    let late = schedule.complete(begun, now);
                    if !late.is_zero() {
                        self.tell_late(index.number, late);
                    }
                    tell(about(&index, took, late));
                    // Leaving old ones takes from the time that the server has to itself, not from the next one's.
                    next = schedule.next(now);
                    self.prune(tell);
                    (failures, was_there) = (0, true);
                }
                Err(error) if error.is_early() && !was_there => {
                    tracing::debug!("no checkpoint yet: {error}");
                    next = schedule.not_yet(now);
                    if doubtful.take_if(|doubtful| now > *doubtful).is_some() {
                        tell(none(&error, 1, now - start));
                        tell_unprotected(&error);
                    }
                }
                // The server has ended, and is about to be restored.
                Err(error) if stop.load(Ordering::Relaxed) => {
                    tracing::info!("no checkpoint: {error}");
                    tell(none(&error, failures + 1, took));
                    next = begun;
                }
                Err(error) => {
                    failures += 1;
                    tell(none(&error, failures, took));
                    next = schedule.again(failures, now);
                    self.tell(&error, failures, next - now);
                }
            }
        }
        // As large as the server, perhaps.
        self.history.clear_incoming();
    }

    /// How this life of the server begins, by what there is of earlier ones.
    fn schedule(&self, now: Instant) -> (Schedule, Instant) {
        let numbers = self.history.numbers();
        let latest = numbers.iter().rev().take(REMEMBERED);
        let latest: Vec<Index> = latest.filter_map(|number| self.history.index(*number).ok()).collect();
        let took = latest.iter().filter(|index| index.took_us > 0);
        let schedule = Schedule::new(self.every, now, took.map(|index| Duration::from_micros(index.took_us)));
        let age = latest.first().map(|last| {
            let manifest = Manifest::from_bytes(&last.manifest);
            let taken = manifest.map_or(last.created_unix_ns, |manifest| manifest.taken_unix_ns());
            let taken = SystemTime::UNIX_EPOCH + Duration::from_nanos(taken);
            SystemTime::now().duration_since(taken).unwrap_or_default()
        });
        let first = schedule.first(age);
        (schedule, first)
    }

    /// Whether this moment has come without a stop.
    fn sleep(&self, until: Instant, stop: &AtomicBool) -> bool {
        while !stop.load(Ordering::Relaxed) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            // Unlike a sleep, it ends with a signal.
            let pause = rustix::time::Timespec { tv_sec: 0, tv_nsec: left.min(TICK).as_nanos() as i64 };
            let _ = rustix::event::poll(&mut [], Some(&pause));
        }
        false
    }

    /// Makes one checkpoint. When the server ends meanwhile, what was dumped of it is stored if it is
    /// completed before `stop` is set.
    ///
    /// # Errors
    /// [`KeepError`]: the server goes on, and all earlier checkpoints are there.
    pub fn once(&self, stop: &AtomicBool) -> Result<Index, KeepError> {
        let begun = Instant::now();
        self.history.clear_incoming();
        let taken = self.take(begun, stop);
        if taken.is_err() {
            self.make_room();
        }
        let index = taken?;
        // Why an earlier one failed.
        let _ = std::fs::remove_file(self.history.failed_log());
        tracing::info!(
            number = index.number,
            image_bytes = index.image_bytes,
            written_bytes = index.written_bytes,
            pause_ms = index.pause_us / 1000,
            "checkpoint {} is complete: {} MiB, {} KiB of them new, in {} ms",
            index.number,
            index.image_bytes >> 20,
            index.written_bytes >> 10,
            begun.elapsed().as_millis(),
        );
        Ok(index)
    }

    fn prune(&self, tell: &mut dyn FnMut(Draft)) {
        let draft = Draft::new("history.prune").label("old checkpoints left");
        match self.history.prune(self.keep) {
            Ok(pruned) if pruned.removed.is_empty() => {}
            Ok(pruned) => tell(draft.with("removed", pruned.removed.len()).with("packs", pruned.packs)),
            Err(error) => {
                tracing::warn!("old checkpoints stay: {error}");
                tell(draft.message(error.to_string()));
            }
        }
    }

    fn take(&self, begun: Instant, stop: &AtomicBool) -> Result<Index, KeepError> {
        let incoming = self.history.incoming();
        let socket = resolve(&Target::Pid(self.pid))?;
        let status = Client::inquire(&socket, b"status json", QUESTION)?;
        let ready = serde_json::from_str::<Status>(&status.text).is_ok_and(|status| status.ready);
        if !ready {
            return Err(KeepError::NotReady);
        }
        // What is new of it is put on disk when it is stored: no need to put all of it there.
        let request = Request::Checkpoint { dir: incoming.clone(), leave_running: true, durable: false };
        match Client::connect(&socket, CONNECT)?.request(&request.to_line(), CHECKPOINT) {
            Ok(answer) if answer.ok => {}
            Ok(answer) => return Err(KeepError::Refused { text: answer.text, hint: answer.hint }),
            // It has ended; what was dumped of it may be about to be completed.
            Err(ClientError::Closed { .. }) if self.arrives(stop) => {}
            Err(error) => return Err(error.into()),
        }
        let index = self.history.add_begun(&incoming, begun)?;
        self.leave_checked_out(&index)?;
        Ok(index)
    }

    /// Waits for an image that is completed without the server.
    fn arrives(&self, stop: &AtomicBool) -> bool {
        let deadline = Instant::now() + COMPLETED;
        loop {
            // Looked at in this order: the image may be completed in between. Whoever says stop has seen the end of
            // all that the server has left behind.
            let pending = self.history.has_begun_incoming() && !stop.load(Ordering::Relaxed);
            if Image::open(&self.history.incoming()).is_ok() {
                return true;
            }
            if !pending || Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The image is there already: the next restore need not put it together.
    fn leave_checked_out(&self, index: &Index) -> Result<(), KeepError> {
        let (from, to) = (self.history.incoming(), self.history.checkout_path(index.number));
        debug_assert_eq!(Image::open(&from)?.manifest().id, index.id);
        std::fs::rename(&from, &to).map_err(|source| KeepError::Move { from, to, source })
    }

    /// A full disk: what can be made again goes, so that the next attempt has more room.
    fn make_room(&self) {
        self.history.clear_incoming();
        let last = self.history.numbers().last().copied();
        self.history.clear_checkouts(last);
    }

    fn tell_late(&self, number: u64, late: Duration) {
        let every = self.every;
        tracing::warn!(
            "checkpoint {number} came {late:.1?} too late: a crash just before it would have lost more than {every:?}; a \
             longer interval leaves more room"
        );
    }

    fn tell(&self, error: &KeepError, failures: u32, wait: Duration) {
        let last = self.history.complete().last().map_or("there is none yet".to_owned(), ToString::to_string);
        let hint = error.hint().map(|hint| format!("; hint: {hint}")).unwrap_or_default();
        if failures < LOUD {
            tracing::warn!(
                "no checkpoint: {error}{hint}; the server goes on, the last complete one: {last}, next try in {wait:.1?}"
            );
        } else {
            tracing::error!(
                "NO CHECKPOINT for {failures} times in a row: {error}{hint}; the server goes on unprotected, the last \
                 complete one: {last}, next try in {wait:.1?}"
            );
        }
    }
}

fn tell_unprotected(error: &KeepError) {
    let hint = error.hint().map(|hint| format!("; hint: {hint}")).unwrap_or_default();
    tracing::warn!("no checkpoint yet: {error}{hint}; the server is unprotected as long as that is so");
}

fn event(ok: bool, took: Duration) -> Draft {
    Draft::new("history.checkpoint").label("a checkpoint as it goes").with("ok", ok).took(took)
}

fn about(index: &Index, took: Duration, late: Duration) -> Draft {
    let draft = event(true, took).with("number", index.number).with("pause_us", index.pause_us);
    let draft = draft.with("memory_bytes", index.memory_bytes).with("image_bytes", index.image_bytes);
    let draft = draft.with("written_bytes", index.written_bytes);
    draft.with_some("late_us", Some(micros(late)).filter(|late| *late > 0))
}

fn none(error: &KeepError, row: u32, took: Duration) -> Draft {
    event(false, took).with("row", row).message(error.to_string())
}
