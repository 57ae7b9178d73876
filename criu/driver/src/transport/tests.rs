//! Both transports against scripts that stand for a CRIU at its worst.

use super::*;
use crate::cli::Cli;
use crate::log::CauseKind;
use crate::options::DumpTarget;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

const LIMIT: Duration = Duration::from_secs(20);

/// A folder for the images with a script in it.
struct Stage {
    folder: tempfile::TempDir,
    criu: Criu,
}

impl Stage {
    fn new(body: &str) -> Stage {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("criu");
        // Written by another process: one that forks meanwhile in this one would keep it open (ETXTBSY).
        let write = r#"printf '#!/bin/sh\n%s\n' "$2" > "$1" && chmod 755 "$1""#;
        let status = Command::new("sh").args(["-c", write, "sh"]).arg(&path).arg(body).status().unwrap();
        assert!(status.success());
        Stage { folder, criu: Criu { path, version: crate::version::FLOOR } }
    }

    fn images(&self) -> &Path {
        self.folder.path()
    }

    fn dump(&self, transport: &dyn Transport, limit: Duration) -> Error {
        let options = DumpOptions::new(self.images(), DumpTarget::Pid(i32::MAX));
        transport.dump(&options, limit).unwrap_err()
    }

    fn restore(&self, transport: &dyn Transport, limit: Duration) -> Error {
        transport.restore(&RestoreOptions::new(self.images()), limit).unwrap_err()
    }

    fn both(&self) -> [Box<dyn Transport>; 2] {
        [Box::new(Rpc::new(self.criu.clone())), Box::new(Cli::new(self.criu.clone()))]
    }

    fn written(&self, name: &str) -> String {
        fs::read_to_string(self.images().join(name)).unwrap()
    }
}

fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(PathBuf::from("/proc").join(pid.trim()).join("stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" Z"))
}

#[test]
fn one_that_crashes_has_died() {
    let stage = Stage::new("kill -SEGV $$");
    for transport in stage.both() {
        for error in [stage.dump(&*transport, LIMIT), stage.restore(&*transport, LIMIT)] {
            assert!(matches!(&error, Error::Died { status: Some(_), .. }), "{error}");
            assert!(error.to_string().contains("signal: 11"), "{error}");
        }
    }
    let error = Rpc::new(stage.criu.clone()).version(LIMIT).unwrap_err();
    assert!(matches!(error, Error::Died { status: Some(_), .. }), "{error}");
}

#[test]
fn one_that_is_killed_has_died_though_another_holds_its_connection() {
    let stage = Stage::new("sleep 60 & echo $! > child; kill -KILL $$");
    let error = stage.restore(&Rpc::new(stage.criu.clone()), LIMIT);
    assert!(matches!(&error, Error::Died { status: Some(_), .. }), "{error}");
    assert!(!is_alive(&stage.written("child")));
}

#[test]
fn what_it_says_before_it_has_a_log_is_the_cause() {
    let stage =
        Stage::new("echo \"Error (criu/util.c:9): CRIU needs to have the CAP_SYS_ADMIN\" >&2; exit 1");
    let [rpc, cli] = stage.both();
    let error = stage.restore(&*rpc, LIMIT);
    let Error::Died { cause: Some(cause), .. } = &error else { panic!("{error}") };
    assert_eq!(cause.kind, CauseKind::Capabilities);
    assert!(error.hint().unwrap().contains("root"));
    let error = stage.restore(&*cli, LIMIT);
    assert!(
        matches!(&error, Error::Failed { cause, log_path: None, .. } if cause.kind == CauseKind::Capabilities),
        "{error}"
    );
}

#[test]
fn one_that_hangs_is_killed_with_all_that_it_started() {
    let start = Instant::now();
    let stage = Stage::new("sleep 60 & echo $! > child; echo $$ > worker; wait");
    // The command line starts in the caller's folder, so only the worker can write there.
    let rpc = Rpc::new(stage.criu.clone());
    let error = stage.restore(&rpc, Duration::from_millis(500));
    assert!(matches!(error, Error::Deadline { operation: Operation::Restore, .. }), "{error}");
    assert!(!is_alive(&stage.written("worker")) && !is_alive(&stage.written("child")));

    let stage = Stage::new("exec sleep 60");
    for transport in stage.both() {
        for error in [
            stage.dump(&*transport, Duration::from_millis(100)),
            stage.restore(&*transport, Duration::from_millis(100)),
        ] {
            assert!(matches!(error, Error::Deadline { .. }), "{error}");
        }
    }
    assert!(start.elapsed() < LIMIT, "no one waits for the sleepers");
}

#[test]
fn a_success_without_a_pid_is_none() {
    let stage = Stage::new("exit 0");
    let [rpc, cli] = stage.both();
    assert!(matches!(stage.restore(&*rpc, LIMIT), Error::Died { .. }));
    let error = stage.restore(&*cli, LIMIT);
    assert!(matches!(error, Error::Protocol { problem: Problem::Incomplete("pid"), .. }), "{error}");
}

#[test]
fn one_that_cannot_be_started_is_named() {
    let mut stage = Stage::new("exit 0");
    stage.criu.path = stage.images().join("none");
    for transport in stage.both() {
        let error = stage.dump(&*transport, LIMIT);
        assert!(matches!(&error, Error::Spawn { program, .. } if *program == stage.criu.path), "{error}");
    }
}

#[test]
fn nothing_of_the_caller_steers_it() {
    let stage =
        Stage::new("echo \"$@\" > \"$(dirname \"$0\")/args\"; env > \"$(dirname \"$0\")/env\"; exit 1");
    let [rpc, cli] = stage.both();
    let _ = stage.restore(&*rpc, LIMIT);
    assert_eq!(stage.written("args"), "--no-default-config swrk 3\n");
    assert!(!stage.written("env").contains("CARGO") && !stage.written("env").contains("HOME="));
    let _ = stage.dump(&*cli, LIMIT);
    assert!(stage.written("args").starts_with("--no-default-config dump --images-dir /"));
}
