//! What a process says of itself. It must not know how it is asked.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Subject;
use crate::wake::Origin;

/// How many resources an answer lists; the rest is counted.
pub(super) const MOST_LISTED: usize = 1000;

/// Who a process is and how it is, as the answer to `status json` has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Status {
    /// Its name.
    pub name: String,
    /// Its pid, as it sees itself, or as the one who asks does.
    pub pid: u32,
    /// Its pid as it sees itself, where that is in another pid namespace than the one who asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_inside: Option<u32>,
    /// Whether it serves.
    pub ready: bool,
    /// The same in more detail.
    pub state: State,
    /// The identity of this instance: 32 hexadecimal digits.
    pub instance: String,
    /// How often its state has been restored.
    pub generation: u64,
    /// Milliseconds since the cold start, without the time spent in images where the engine allows for that.
    pub uptime_ms: u64,
    /// Milliseconds since the last restore, if there was one.
    pub since_restore_ms: Option<u64>,
    /// What is registered, in order of registration; at most 1,000 of them.
    pub resources: Vec<ResourceStatus>,
    /// How many are registered.
    pub resource_count: usize,
    /// What dumps it: `criu` or `simulated`.
    pub engine: String,
    /// What restored it, as that said itself; `None` in an original, and after a plain `criu restore`.
    pub restored_by: Option<Origin>,
    /// The last checkpoint that was asked for by a line or a signal, unless this process was restored from it.
    pub last_checkpoint: Option<LastCheckpoint>,
}

/// Whether a process serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum State {
    /// It serves.
    Ready,
    /// It does not, being warmed up, or after a cycle that left something down.
    NotReady,
    /// A cycle runs.
    Checkpointing,
}

/// One registered resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ResourceStatus {
    /// The name that it was registered under.
    pub name: String,
    /// What it says of itself.
    pub description: String,
}

/// A checkpoint that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LastCheckpoint {
    /// Whether there is an image.
    pub ok: bool,
    /// What the one who asked was told.
    pub text: String,
    /// How long ago it ended, in milliseconds.
    pub ago_ms: u64,
}

impl Status {
    /// The status of a process right now.
    #[must_use]
    pub fn of(subject: &Subject, last_checkpoint: Option<LastCheckpoint>) -> Self {
        let identity = subject.identity();
        let resources = subject.context().resources();
        let listed = resources.iter().take(MOST_LISTED).map(|resource| ResourceStatus {
            name: resource.name.clone(),
            description: resource.description.clone(),
        });
        let ready = subject.is_ready();
        Self {
            name: subject.name().to_owned(),
            pid: std::process::id(),
            pid_inside: None,
            ready,
            state: match (subject.is_checkpointing(), ready) {
                (true, false) => State::Checkpointing,
                (_, true) => State::Ready,
                (false, false) => State::NotReady,
            },
            instance: identity.instance.to_string(),
            generation: identity.generation,
            uptime_ms: milliseconds(identity.uptime()),
            since_restore_ms: identity.since_restore().map(milliseconds),
            resources: listed.collect(),
            resource_count: resources.len(),
            engine: subject.engine().to_string(),
            restored_by: subject.last_restore().and_then(|restored| restored.origin.as_deref().cloned()),
            last_checkpoint,
        }
    }

    /// As it is seen by somebody for whom it has this pid.
    #[must_use]
    pub fn seen_as(mut self, pid: u32) -> Self {
        if pid != self.pid {
            self.pid_inside = Some(std::mem::replace(&mut self.pid, pid));
        }
        self
    }

    /// The resources in words.
    pub(super) fn resources_in_words(&self) -> String {
        let mut text = counted(self.resource_count, "resource");
        for (index, ResourceStatus { name, description }) in self.resources.iter().enumerate() {
            text.push_str(if index == 0 { ": " } else { "; " });
            text.push_str(name);
            if !description.is_empty() {
                text.push_str(&format!(" ({description})"));
            }
        }
        text
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready => "ready",
            Self::NotReady => "not ready",
            Self::Checkpointing => "checkpointing",
        })
    }
}

impl fmt::Display for Status {
    /// One line of plain words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, pid, state, generation, instance, .. } = self;
        write!(f, "{name}, pid {pid}")?;
        if let Some(inside) = self.pid_inside {
            write!(f, " ({inside} in its own namespace)")?;
        }
        write!(f, ", {state}, generation {generation}, instance {instance}")?;
        write!(f, ", up {}", Elapsed(self.uptime_ms))?;
        if let Some(since) = self.since_restore_ms {
            write!(f, ", restored {} ago", Elapsed(since))?;
            if let Some(origin) = &self.restored_by {
                write!(f, " by {origin}")?;
            }
        }
        write!(f, ", {}", counted(self.resource_count, "resource"))
    }
}

/// `1 thing`, `2 things`.
pub(super) fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

pub(super) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds, as people say them.
struct Elapsed(u64);

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0 / 1000;
        match seconds {
            0..100 => write!(f, "{seconds}.{} s", self.0 % 1000 / 100),
            100..7200 => write!(f, "{} min", seconds / 60),
            _ => write!(f, "{} h {} min", seconds / 3600, seconds % 3600 / 60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_as_people_say_them() {
        let told = |milliseconds| Elapsed(milliseconds).to_string();
        assert_eq!(told(3_250), "3.2 s");
        assert_eq!(told(99_999), "99.9 s");
        assert_eq!(told(125_000), "2 min");
        assert_eq!(told(7_380_000), "2 h 3 min");
    }

    #[test]
    fn a_status_is_one_line() {
        let subject = Subject::new("echo").unwrap();
        let mut status = Status::of(&subject, None);
        assert_eq!((status.state, status.resource_count), (State::Ready, 0));
        status.pid = 12;
        status.instance = "abc".to_owned();
        status.uptime_ms = 3200;
        assert_eq!(
            status.to_string(),
            "echo, pid 12, ready, generation 0, instance abc, up 3.2 s, 0 resources"
        );
        status.since_restore_ms = Some(1100);
        assert!(status.to_string().ends_with("up 3.2 s, restored 1.1 s ago, 0 resources"));
        status.restored_by = Some(Origin {
            engine: "instant".to_owned(),
            reason: "it can restore the image".to_owned(),
            memory: Some("map".to_owned()),
            memory_reason: "it was asked for".to_owned(),
            cause: None,
        });
        let told = "restored 1.1 s ago by engine instant (it can restore the image), \
                    memory by map (it was asked for), 0 resources";
        assert!(status.to_string().ends_with(told), "{status}");
        subject.set_ready(false);
        assert_eq!(Status::of(&subject, None).state, State::NotReady);
    }
}
