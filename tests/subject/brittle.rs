//! Restored processes that do not become ready.

use std::fs;
use std::net::TcpListener;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use defrost::resource::HookError;
use defrost::{Resource, Subject, Wake};

use super::role::Role;
use super::stage::{Image, Stage, gone};
use crate::support::host::Done;
use crate::support::process::{lives, state};

/// Does not come back in a restored process, or keeps others from it.
struct Pool(Role, Mutex<Option<TcpListener>>);

#[async_trait]
impl Resource for Pool {
    async fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        match self.0.option("fault") {
            Some("hook") if wake.restored().is_some() => Err("the database is not there".into()),
            Some("port") if wake.restored().is_some() => {
                // The listener wakes after this.
                let port: u16 = self.0.diary.read("listening", 1).parse()?;
                *self.1.lock().unwrap() = Some(TcpListener::bind(("127.0.0.1", port))?);
                Ok(())
            }
            Some("hang") if wake.restored().is_some() => std::future::pending().await,
            _ => Ok(()),
        }
    }

    fn deadline(&self) -> Duration {
        Duration::from_secs(if self.0.option("fault") == Some("hang") { 20 } else { 10 })
    }
}

pub fn program(role: Role) {
    Role::run(async move {
        let mut builder = Subject::builder("brittle");
        if role.option("stay").is_some() {
            builder = builder.stay_when_restore_fails();
        }
        let probed = role.clone();
        builder = builder.ready_probe(move || {
            let broken = probed.option("fault") == Some("probe");
            async move { if broken { Err("the cache is empty".into()) } else { Ok(()) } }
        });
        let stand = role.open_as(builder);
        stand.register("pool", Pool(role, Mutex::default()));
        stand.serve().await;
    });
}

fn image_with(stage: &Stage, options: &[&str]) -> Image {
    stage.start("brittle", options).checkpoint(stage, "img")
}

/// The error reaches whoever restored it, in the foreground or waiting, and the process is gone.
pub fn a_failing_hook_is_told_and_ends_it(stage: &Stage) {
    let image = image_with(stage, &["fault=hook"]);
    for more in [&[][..], &["--wait-ready"]] {
        let text = stage.restore_fails(&image, more);
        assert!(text.contains("not ready") && text.contains("the database is not there"), "{text}");
        assert!(text.contains("pool") && text.contains("hint: "), "{text}");
    }
    let mut criu = stage.host.plain_restore(&image.path);
    stage.facts(3);
    criu.ended();
    gone(image.pid);
}

pub fn a_failing_probe_is_told_and_ends_it(stage: &Stage) {
    let image = image_with(stage, &["fault=probe"]);
    for more in [&[][..], &["--wait-ready"]] {
        let text = stage.restore_fails(&image, more);
        assert!(text.contains("readiness: the cache is empty"), "{text}");
    }
}

/// A port that is free when the image is verified, and taken when the listener wakes.
pub fn a_port_taken_after_verification_is_told(stage: &Stage) {
    let image = image_with(stage, &["fault=port"]);
    let text = stage.restore_fails(&image, &[]);
    let taken = format!("tcp 127.0.0.1:{} is in use by another socket", image.port);
    assert!(text.contains(&taken) && text.contains("echo"), "{text}");
}

/// One that is told to stay lives on, and whoever waited for it is told so.
pub fn one_that_is_told_to_stays(stage: &Stage) {
    let image = image_with(stage, &["fault=hook", "stay=yes"]);
    let done = Done::of(&mut stage.restoring(&image, &["--wait-ready"]));
    let text = done.failed(1);
    assert!(text.contains(&format!("process {} stays", image.pid)), "{text}");
    assert!(lives(image.pid));
    assert!(
        crate::support::client::answers_within(image.port, super::stage::SOON),
        "what works goes on working"
    );
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(image.pid), nix::sys::signal::Signal::SIGKILL);
    gone(image.pid);
}

/// One that takes too long is killed.
pub fn one_that_hangs_is_killed(stage: &Stage) {
    let image = image_with(stage, &["fault=hang"]);
    let text = stage.restore_fails(&image, &["--wait-ready", "--ready-timeout", "2"]);
    assert!(text.contains("not ready within 2s and was killed"), "{text}");
}

/// `--fallback` starts the server cold, in the foreground, whatever went wrong.
pub fn a_fallback_starts_cold(stage: &Stage) {
    for options in [["fault=hook"], ["fault=probe"]] {
        let image = image_with(stage, &options);
        let cold = stage.host.path("cold");
        let command = format!("echo $$ > {}; exit 7", cold.display());
        let done = Done::of(&mut stage.restoring(&image, &["--fallback", &command]));
        assert_eq!(done.status, 7, "{done:?}");
        assert!(done.err.contains("not ready") && done.err.contains("starting cold instead"), "{done:?}");
        assert_eq!(state(image.pid), None);
        fs::remove_file(cold).unwrap();
    }
    let done = Done::of(&mut stage.host.defrost(["restore", "nowhere", "--fallback", "exit 9"]));
    assert_eq!(done.status, 9, "{done:?}");
}
