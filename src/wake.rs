//! How a cycle ended, as every resource is told: the same process went on, or a new one was restored.
//!
//! Plain values. This module must not know resources, engines or how the values travelled here.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How a cycle ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Wake {
    /// This is a new process, restored from the image. The original, and perhaps other clones, may live too.
    Restored(Restored),
    /// The dump is done and this same process goes on.
    Resumed,
    /// There is no dump: something failed, and this same process goes on.
    Aborted,
}

impl Wake {
    /// The facts of the restore, if this is a restored process.
    #[must_use]
    pub fn restored(&self) -> Option<&Restored> {
        match self {
            Self::Restored(restored) => Some(restored),
            Self::Resumed | Self::Aborted => None,
        }
    }
}

impl fmt::Display for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Restored(_) => "restored",
            Self::Resumed => "resumed",
            Self::Aborted => "aborted",
        })
    }
}

/// What a restored process knows of its restore.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Restored {
    /// How often this state has been restored: 1 for the first restore of an original, one more for the
    /// restore of a checkpoint of a restored process.
    pub generation: u64,
    /// Wall-clock time between the dump and this restore; zero when the clock went back in between.
    pub suspended_for: Duration,
    /// The identity of this restore, fresh from the kernel: no two restores share one.
    pub instance: InstanceId,
    /// What the one who restored handed over; empty after a plain `criu restore`.
    pub params: Arc<Params>,
    /// What brought the process back, as the one who restored said; `None` after a plain `criu restore`.
    pub origin: Option<Arc<Origin>>,
}

impl Restored {
    /// The facts of one restore.
    #[must_use]
    pub fn new(generation: u64, suspended_for: Duration, instance: InstanceId, params: Params) -> Self {
        Self { generation, suspended_for, instance, params: Arc::new(params), origin: None }
    }

    /// The same, with what brought the process back.
    #[must_use]
    pub fn brought_by(mut self, origin: Option<Origin>) -> Self {
        self.origin = origin.map(Arc::new);
        self
    }
}

/// What brought a process back from its image, and why that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The engine by its name: `instant` or `criu`.
    pub engine: String,
    /// Why this engine: a phrase.
    pub reason: String,
    /// How memory came back, where the engine has a choice: `map`, `fault` or `copy`.
    pub memory: Option<String>,
    /// Why in this way: a phrase; empty without a choice.
    pub memory_reason: String,
    /// What made the restore necessary, when it was not asked for: which crash, and which checkpoint came back; a
    /// phrase.
    pub cause: Option<String>,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "engine {} ({})", self.engine, self.reason)?;
        match &self.memory {
            Some(memory) => write!(f, ", memory by {memory} ({})", self.memory_reason),
            None => Ok(()),
        }
    }
}

/// Values given at restore. They are never written into the process environment, which other threads may
/// be reading.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Params {
    /// The arguments after `--` of `defrost restore DIR -- ARGS`.
    pub args: Vec<String>,
    /// `--env K=V`.
    pub env: BTreeMap<String, String>,
    /// `--set NAME=VALUE`; among them the overrides `NAME.listen=ADDR`, and `NAME.share=yes`.
    pub settings: BTreeMap<String, String>,
}

impl Params {
    /// The address that the listener registered as `name` shall bind instead of its own, if one was given
    /// by `NAME.listen=ADDR`.
    #[must_use]
    pub fn listen(&self, name: &str) -> Option<&str> {
        self.settings.get(&listen_setting(name)).map(String::as_str)
    }

    /// Whether the listener registered as `name` shall share its port with others that do so too
    /// (`SO_REUSEPORT`): by `NAME.share=yes`.
    #[must_use]
    pub fn shares(&self, name: &str) -> bool {
        self.settings.get(&share_setting(name)).is_some_and(|value| value == "yes")
    }
}

/// The setting that gives a listener its address.
pub(crate) fn listen_setting(name: &str) -> String {
    format!("{name}.listen")
}

/// The setting that has a listener share its port.
pub(crate) fn share_setting(name: &str) -> String {
    format!("{name}.share")
}

/// 128 random bits of the kernel that name one running instance: the original, or one restore.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InstanceId([u8; 16]);

impl InstanceId {
    /// The id made of these random bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The 16 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InstanceId({self})")
    }
}
