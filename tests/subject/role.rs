//! The subject's side: what every server of these tests has in common.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use defrost::adapters::{Stdio, TcpListener};
use defrost::checkpoint::SubjectBuilder;
use defrost::control::{Control, ControlOptions, SocketPlace};
use defrost::resource::HookError;
use defrost::{Cycle, Resource, Subject, Wake};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::diary::Diary;

/// The variable that makes this program a subject, and says which.
pub const VARIABLE: &str = "DEFROST_TEST_SUBJECT";
/// Files in the folder that a subject is started in.
pub const DIARY: &str = "diary";
pub const SOCKET: &str = "control.sock";

/// What a subject was started with.
#[derive(Clone, Debug)]
pub struct Role {
    pub diary: Diary,
    pub folder: PathBuf,
    options: BTreeMap<String, String>,
}

impl Role {
    /// The options of the command line, `NAME=VALUE` each.
    pub fn of_this_process() -> Self {
        let folder = std::env::current_dir().unwrap();
        let split = |argument: String| {
            argument.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
        };
        let options = std::env::args().skip(1).filter_map(split).collect();
        Self { diary: Diary(folder.join(DIARY)), folder, options }
    }

    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.get(name).map(String::as_str)
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        self.option(name).map(|value| value.parse().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Runs a program of tasks to its end.
    pub fn run(program: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap()
            .block_on(program);
    }

    /// Opens an echo server with the usual name and a control socket.
    pub fn open(&self) -> Stand {
        self.open_as(Subject::builder("subject"))
    }

    /// As [`Role::open`], with choices.
    pub fn open_as(&self, builder: SubjectBuilder) -> Stand {
        let subject = builder.build().unwrap();
        let mut options = ControlOptions::default();
        options.socket = SocketPlace::Path(self.path(SOCKET));
        let control = Control::start(&subject, options).unwrap();
        let context = subject.context();
        let witness = Witness { diary: self.diary.clone(), of_the_quiesce: true };
        context.register("first", Arc::new(witness)).forever();
        let stdio = Stdio::register(context, None).unwrap();
        Stand { role: self.clone(), subject, control, _stdio: stdio }
    }
}

/// A server that is being set up.
pub struct Stand {
    pub role: Role,
    pub subject: Subject,
    control: Control,
    _stdio: Stdio,
}

impl Stand {
    /// Registers a resource for as long as the process lives.
    pub fn register(&self, name: &str, resource: impl Resource) {
        self.subject.context().register(name, Arc::new(resource)).forever();
    }

    /// Echoes until it is told to stop. What is registered before wakes before.
    pub async fn serve(self) {
        let listener = TcpListener::bind(self.subject.context(), "echo", "127.0.0.1:0").unwrap();
        let Self { role, control, .. } = &self;
        self.register("last", Witness { diary: role.diary.clone(), of_the_quiesce: false });
        role.diary.note("listening", listener.local_addr().port());
        role.diary.note("started", std::process::id());
        let echo = async {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    let mut buffer = [0; 4096];
                    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                        if stream.write_all(&buffer[..count]).await.is_err() {
                            break;
                        }
                    }
                });
            }
        };
        tokio::select! {
            () = echo => {}
            _ = control.stopped() => role.diary.note("stopped", std::process::id()),
        }
    }
}

/// Writes the turns of a cycle down: that everything is quiesced, or that everything is awake.
struct Witness {
    diary: Diary,
    of_the_quiesce: bool,
}

#[async_trait]
impl Resource for Witness {
    async fn before_checkpoint(&self, _: &Cycle) -> Result<(), HookError> {
        if self.of_the_quiesce {
            self.diary.note("quiesced", std::process::id());
        }
        Ok(())
    }

    async fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        if !self.of_the_quiesce {
            match wake {
                Wake::Restored(restored) => self.diary.note("restored", Facts::of(restored)),
                other => self.diary.note(&other.to_string(), std::process::id()),
            }
        }
        Ok(())
    }
}

/// The facts of a restore as a line of the diary.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Facts {
    pub generation: u64,
    pub instance: String,
    pub suspended_for: Duration,
    pub params: defrost::wake::Params,
}

impl Facts {
    pub fn of(restored: &defrost::wake::Restored) -> Self {
        Self {
            generation: restored.generation,
            instance: restored.instance.to_string(),
            suspended_for: restored.suspended_for,
            params: (*restored.params).clone(),
        }
    }
}

impl std::fmt::Display for Facts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&serde_json::to_string(self).unwrap())
    }
}
