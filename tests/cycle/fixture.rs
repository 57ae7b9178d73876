//! A subject with recorders for resources.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use defrost::adapters::Stdio;
use defrost::checkpoint::{CheckpointError, Outcome};
use defrost::engine::simulated::SimulatedEngine;
use defrost::resource::HookError;
use defrost::{Cycle, Registration, Resource, Subject, Wake};

pub fn in_runtime<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test)
}

/// A subject with its standard streams in order, and the log that its recorders write.
pub struct Bench {
    pub subject: Subject,
    log: Arc<Mutex<Vec<String>>>,
    _stdio: Stdio,
    pub registrations: Vec<Registration>,
}

impl Bench {
    pub fn new() -> Self {
        let subject = Subject::builder("cycle").engine(SimulatedEngine).build().unwrap();
        let stdio = Stdio::register(subject.context(), None).unwrap();
        Self { subject, log: Arc::default(), _stdio: stdio, registrations: Vec::new() }
    }

    pub fn add(&mut self, name: &'static str, before: Act, after: Act) {
        let recorder = self.recorder(name, before, after);
        self.registrations.push(self.subject.context().register(name, recorder));
    }

    pub fn recorder(&self, name: &'static str, before: Act, after: Act) -> Arc<Recorder> {
        Arc::new(Recorder { name, log: Arc::clone(&self.log), before, after })
    }

    pub fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    pub async fn fails(&self) -> CheckpointError {
        self.subject.checkpoint_restore("unused").await.expect_err("the checkpoint should fail")
    }

    pub async fn works(&self) {
        match self.subject.checkpoint_restore("unused").await {
            Ok(Outcome::Resumed { failures, .. }) => assert!(failures.is_empty(), "{failures:?}"),
            other => panic!("{other:?}"),
        }
    }
}

#[derive(Clone, Copy)]
pub enum Act {
    Work,
    Fail(&'static str),
    Hang,
    Block,
    Panic,
}

impl Act {
    async fn perform(self) -> Result<(), HookError> {
        match self {
            Self::Work => Ok(()),
            Self::Fail(text) => Err(text.into()),
            Self::Hang => std::future::pending().await,
            Self::Block => {
                std::thread::sleep(Duration::from_millis(600));
                Ok(())
            }
            Self::Panic => panic!("as it was told"),
        }
    }
}

pub struct Recorder {
    name: &'static str,
    log: Arc<Mutex<Vec<String>>>,
    before: Act,
    after: Act,
}

#[async_trait]
impl Resource for Recorder {
    async fn before_checkpoint(&self, _: &Cycle) -> Result<(), HookError> {
        self.log.lock().unwrap().push(format!("before {}", self.name));
        self.before.perform().await
    }

    async fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        self.log.lock().unwrap().push(format!("{wake} {}", self.name));
        self.after.perform().await
    }

    fn deadline(&self) -> Duration {
        match self.before {
            Act::Hang | Act::Block => Duration::from_millis(200),
            Act::Work | Act::Fail(_) | Act::Panic => Duration::from_secs(10),
        }
    }
}
