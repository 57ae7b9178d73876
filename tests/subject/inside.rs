//! Checkpoints that a server asks of itself: each one comes back in another process, and knows in which.

use std::os::unix::process::ExitStatusExt;

use defrost::checkpoint::{CheckpointError, Outcome, Request};
use defrost::{Subject, Wake};

use super::role::{Facts, Role};
use super::stage::{Image, Stage, gone};
use crate::support::client::requests;
use crate::support::process::Running;

/// What a cycle came to, as a line of the diary.
fn words(outcome: Result<Outcome, CheckpointError>) -> String {
    match outcome {
        Ok(Outcome::Resumed { image, failures }) => {
            assert!(failures.is_empty(), "{failures:?}");
            format!("resumed {}", image.image.unwrap().display())
        }
        Ok(Outcome::Restored { restored, failures }) => {
            assert!(failures.is_empty(), "{failures:?}");
            format!("restored {}", Facts::of(&restored).generation)
        }
        Ok(_) => "something new".to_owned(),
        Err(error) => format!("failed {error}"),
    }
}

pub fn program(role: Role) {
    if role.option("blocking").is_some() {
        return without_a_runtime(&role);
    }
    Role::run(async move {
        let stand = role.open();
        let subject = stand.subject.clone();
        let serving = tokio::spawn(stand.serve());
        // Everything that serves is registered once it says that it has started.
        tokio::task::spawn_blocking({
            let diary = role.diary.clone();
            move || diary.read("started", 1)
        })
        .await
        .unwrap();
        let memory = "what was warm before".to_owned();
        let outcome = match role.option("leave-running") {
            Some(_) => subject.checkpoint(Request::new("img".as_ref()).leave_running()).await.outcome,
            None => subject.checkpoint_restore("img").await,
        };
        role.diary.note("outcome", format!("{}, {memory}", words(outcome)));
        serving.await.unwrap();
    });
}

/// A program of threads.
fn without_a_runtime(role: &Role) {
    let subject = Subject::new("threads").unwrap();
    let diary = role.diary.clone();
    let told = Told(diary.clone());
    subject
        .context()
        .register("told", std::sync::Arc::new(defrost::Blocking::new(std::sync::Arc::new(told))))
        .forever();
    diary.note("started", std::process::id());
    let outcome = subject.checkpoint_restore_blocking("img");
    diary.note("outcome", words(outcome));
}

struct Told(super::diary::Diary);

impl defrost::BlockingResource for Told {
    fn after_restore(&self, wake: &Wake) -> Result<(), defrost::resource::HookError> {
        self.0.note("told", wake);
        Ok(())
    }
}

/// Asked for from within the process itself, the image is complete when it has ended.
pub fn a_checkpoint_from_inside_ends_and_comes_back(stage: &Stage) {
    let mut actor = stage.start("inside", &[]);
    let status = actor.process.ended();
    assert_eq!(status.signal(), Some(9), "its helper ends it: {status}");
    let image = Image { path: stage.host.path("img"), pid: actor.pid, port: actor.port };
    assert_eq!(stage.diary.texts("outcome"), [""; 0], "the original never goes on");
    for number in 1..=2 {
        let (revived, _) = stage.revive(&image, number);
        assert_eq!(stage.diary.read("outcome", number), "restored 1, what was warm before");
        requests(image.port, 10);
        revived.end();
    }
}

/// The same call returns in two processes, and tells them apart.
pub fn a_checkpoint_from_inside_goes_on_and_comes_back(stage: &Stage) {
    let actor = stage.start("inside", &["leave-running=yes"]);
    let folder = stage.host.path("img");
    let resumed = format!("resumed {}, what was warm before", folder.display());
    assert_eq!(stage.diary.read("outcome", 1), resumed);
    requests(actor.port, 10);
    let image = Image { path: folder, pid: actor.pid, port: actor.port };
    assert_eq!(actor.stop().code(), Some(0));
    let (revived, _) = stage.revive(&image, 1);
    assert_eq!(stage.diary.read("outcome", 2), "restored 1, what was warm before");
    requests(image.port, 10);
    revived.end();
}

pub fn a_program_without_a_runtime_checkpoints_itself(stage: &Stage) {
    let mut original = Running::start(&mut stage.command("inside", &["blocking=yes"]));
    let pid = original.pid();
    assert_eq!(original.ended().signal(), Some(9));
    gone(pid);
    for number in 1..=2 {
        let mut criu = stage.host.plain_restore(&stage.host.path("img"));
        assert_eq!(stage.diary.read("told", number), "restored");
        assert_eq!(stage.diary.read("outcome", number), "restored 1");
        criu.ended();
        gone(pid);
    }
}
