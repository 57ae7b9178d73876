//! Carries requests out and answers them, the same way wherever they came from.
//!
//! It must not know sockets, files or signals.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use tokio::sync::watch;

use super::answer::Answer;
use super::client::ANSWER_LIMIT;
use super::findings::Findings;
use super::request::Request;
use super::status::{LastCheckpoint, Status, counted, milliseconds};
use super::stop::{Source, StopOrigin};
use crate::Subject;
use crate::checkpoint::{self, Phase};
use crate::events::{Counts, Listing, Recorder};
use crate::resource::locked;

/// How long the events in an answer may be, in bytes; it stays well below the limit of an answer.
const LISTING_LIMIT: usize = ANSWER_LIMIT / 4 * 3;

/// What answers for one subject.
#[derive(Debug)]
pub(super) struct Responder {
    subject: Subject,
    stop: watch::Sender<Option<StopOrigin>>,
    last: Mutex<Option<Last>>,
}

#[derive(Debug)]
struct Last {
    answer: Answer,
    ended: Instant,
}

/// A checkpoint that has ended.
pub(super) struct Ended {
    /// What to tell the one who asked; `None` in a restored process, which owes no answer.
    pub(super) answer: Option<Answer>,
    /// Where to tell it, if that was handed over.
    pub(super) connection: Option<OwnedFd>,
}

impl Responder {
    pub(super) fn new(subject: Subject) -> Self {
        Self { subject, stop: watch::Sender::new(None), last: Mutex::default() }
    }

    /// Answers one request. `Stop` is only answered: whoever asked is told so before
    /// [`request_stop`](Self::request_stop) is called. A checkpoint is run to its end, and in a restored process
    /// gives `None`.
    pub(super) async fn respond(&self, request: &Request) -> Option<Answer> {
        Some(match request {
            Request::Checkpoint { dir, leave_running, durable } => {
                return self.checkpoint(order(dir, *leave_running, *durable)).await.answer;
            }
            Request::Status { json: true } => Answer::json(&self.status()),
            Request::Status { json: false } => Answer::ok(self.status().to_string()),
            Request::Resources { json: true } => {
                let Status { resources, resource_count, .. } = self.status();
                Answer::json(&serde_json::json!({ "resources": resources, "resource_count": resource_count }))
            }
            Request::Resources { json: false } => Answer::ok(self.status().resources_in_words()),
            Request::Audit { json } => self.audit(*json).await,
            Request::Events { json: true } => self.listing(),
            Request::Events { json: false } => Answer::ok(in_words(self.subject.events())),
            Request::Follow { .. } => {
                let hint = ["connect to it, as defrost events --follow does".to_owned()];
                Answer::error("events are followed over the control socket only", &hint)
            }
            Request::Stop => Answer::ok("the server is about to end"),
            Request::Help => Answer::ok(format!("requests are {}", Request::words())),
        })
    }

    /// Runs a checkpoint to its end.
    pub(super) async fn checkpoint(&self, request: checkpoint::Request) -> Ended {
        let finished = self.subject.checkpoint(request).await;
        let answer = Answer::of_checkpoint(&finished.outcome);
        // One that was refused at once says nothing of the one that runs, or ran.
        if !matches!(&finished.outcome, Err(error) if error.phase == Phase::Request) {
            *locked(&self.last) = answer.clone().map(|answer| Last { answer, ended: Instant::now() });
        }
        Ended { answer, connection: finished.answer }
    }

    /// Whether a checkpoint runs, so that another one would be refused.
    pub(super) fn is_checkpointing(&self) -> bool {
        self.subject.is_checkpointing()
    }

    pub(super) fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Says that the process shall end. The first to say so is remembered.
    pub(super) fn request_stop(&self, origin: StopOrigin) {
        self.stop.send_if_modified(|stop| {
            let first = stop.is_none();
            stop.get_or_insert(origin);
            first
        });
    }

    /// As [`request_stop`](Self::request_stop), if this is what was requested.
    pub(super) fn stop_after(&self, request: &Request, source: Source) {
        if *request == Request::Stop {
            self.request_stop(StopOrigin::Request(source));
        }
    }

    /// Completes when the process shall end.
    pub(super) async fn stopped(&self) -> StopOrigin {
        let mut stop = self.stop.subscribe();
        match stop.wait_for(Option::is_some).await.ok().and_then(|stop| *stop) {
            Some(origin) => origin,
            // The sender is this object's own, so the wait cannot fail.
            None => std::future::pending().await,
        }
    }

    fn status(&self) -> Status {
        let last = locked(&self.last).as_ref().map(|last| LastCheckpoint {
            ok: last.answer.ok,
            text: last.answer.text.clone(),
            ago_ms: milliseconds(last.ended.elapsed()),
        });
        Status::of(&self.subject, last)
    }

    fn listing(&self) -> Answer {
        Answer::json(&Listing::of(self.subject.events(), LISTING_LIMIT))
    }

    async fn audit(&self, json: bool) -> Answer {
        let subject = self.subject.clone();
        match tokio::task::spawn_blocking(move || Findings::of(&subject)).await {
            Ok(Ok(findings)) if json => Answer::json(&findings),
            Ok(Ok(findings)) => Answer::ok(findings.summary()),
            Ok(Err(error)) => {
                let hint = error.hint().map(str::to_owned);
                Answer::error(error.to_string(), hint.as_slice())
            }
            Err(error) => Answer::error(format!("the audit was broken off: {error}"), &[]),
        }
    }
}

/// What is asked for. Nobody is told the outcome if this process does not live to tell it.
pub(super) fn order(dir: &Path, leave_running: bool, durable: bool) -> checkpoint::Request {
    let mut request = checkpoint::Request::new(dir);
    (request.leave_running, request.durable) = (leave_running, durable);
    request
}

fn in_words(events: &Recorder) -> String {
    if !events.is_on() {
        return "no events are recorded".to_owned();
    }
    let Counts { kept, dropped, unwritten, .. } = events.counts();
    let kept = counted(usize::try_from(kept).unwrap_or(usize::MAX), "event");
    let unwritten =
        if unwritten > 0 { format!(", {unwritten} not written to the file") } else { String::new() };
    format!("{kept} kept, {dropped} dropped{unwritten}; send events json to see them")
}
