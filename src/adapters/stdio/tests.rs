//! The streams are those of a whole process, so each test runs itself again as a process of its own.

use std::process::{Child, Command, Output};

use super::*;
use crate::adapters::tests::{quiesce, restored, wake};

const CHILD: &str = "DEFROST_STDIO_TEST_CHILD";

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

fn again(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("adapters::stdio::tests::{test}"), "--nocapture", "--test-threads=1"]);
    command.env(CHILD, "1");
    command
}

fn run(command: &mut Command) -> Output {
    use std::process::Stdio;
    let child: Child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let output = child.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "the child failed:\n{out}\n{err}");
    assert!(out.contains("running 1 test"), "the child found no test of this name:\n{out}");
    output
}

fn target(number: u32) -> String {
    fs::read_link(format!("/proc/self/fd/{number}")).unwrap().display().to_string()
}

fn targets() -> [String; 3] {
    [target(0), target(1), target(2)]
}

fn say(text: &str) {
    let mut out = io::stdout();
    out.write_all(text.as_bytes()).unwrap();
    out.flush().unwrap();
}

#[test]
fn pipes_are_replaced_and_come_back() {
    if !is_child() {
        let output = run(&mut again("pipes_are_replaced_and_come_back"));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("[before][resumed]") && !text.contains("gap"), "{text}");
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let context = Context::new();
        let _stdio = Stdio::register(&context, None).unwrap();
        let own = targets();
        assert!(own.iter().all(|target| target.starts_with("pipe:")), "{own:?}");
        // Still in the buffer when the stream is replaced.
        io::stdout().write_all(b"[before]").unwrap();
        for end in [Wake::Aborted, Wake::Resumed] {
            let cycle = quiesce(&context).await;
            assert_eq!(targets(), [NULL; 3]);
            assert_eq!(cycle.kept().len(), 3);
            say("gap");
            wake(&context, &end).await;
            assert_eq!(targets(), own);
        }
        say("[resumed]");
        let cycle = quiesce(&context).await;
        cycle.kept().iter().for_each(|slot| drop(slot.take()));
        wake(&context, &restored(&[])).await;
        assert_eq!(targets(), [NULL; 3]);
        // All are fit now: the next cycle has nothing to replace.
        assert!(quiesce(&context).await.kept().is_empty());
        wake(&context, &Wake::Resumed).await;
        assert_eq!(targets(), [NULL; 3]);
    });
}

#[test]
fn output_goes_on_in_the_log() {
    if !is_child() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let output = run(again("output_goes_on_in_the_log").env("LOG", &log));
        assert!(String::from_utf8(output.stdout).unwrap().contains("[pipe]"));
        assert!(fs::read_to_string(log).unwrap().starts_with("[reopened]"));
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let log = PathBuf::from(std::env::var_os("LOG").unwrap());
        let context = Context::new();
        let _stdio = Stdio::register(&context, Some(&log)).unwrap();
        say("[pipe]");
        let cycle = quiesce(&context).await;
        let log = log.display().to_string();
        assert_eq!(targets(), [NULL, &log, &log]);
        cycle.kept().iter().for_each(|slot| drop(slot.take()));
        say("[gap]");
        wake(&context, &restored(&[])).await;
        say("[restored]");
        assert!(fs::read_to_string(&log).unwrap().contains("[gap][restored]"));
        // Append-only and at its path: it stays, but for the moment of the dump.
        for end in [Wake::Resumed, Wake::Aborted, restored(&[])] {
            let cycle = quiesce(&context).await;
            assert_eq!((targets(), cycle.kept().len()), ([NULL, &log, &log].map(str::to_owned), 2));
            cycle.freeze_hooks().iter().for_each(|hook| hook.freeze());
            assert_eq!(targets(), [NULL; 3]);
            if end.restored().is_some() {
                fs::remove_file(&log).unwrap();
            }
            cycle.freeze_hooks().iter().for_each(|hook| hook.thaw(&end));
            wake(&context, &end).await;
            assert_eq!(targets(), [NULL, &log, &log]);
        }
        say("[reopened]");
    });
}

#[test]
fn a_lost_stream_and_a_log_without_a_folder_are_told() {
    if !is_child() {
        run(&mut again("a_lost_stream_and_a_log_without_a_folder_are_told"));
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let context = Context::new();
        let stdio = Stdio::register(&context, None).unwrap();
        let cycle = quiesce(&context).await;
        cycle.kept().iter().for_each(|slot| drop(slot.take()));
        let text = crate::adapters::tests::failure(&context, &Wake::Resumed).await;
        assert!(text.contains("standard input was lost"), "{text}");
        drop(stdio);

        let _stdio = Stdio::register(&context, Some(Path::new("/nowhere/at/all/log"))).unwrap();
        let runs = context.quiesce(&Cycle::new(true)).await;
        let text = runs.into_iter().find_map(crate::context::HookRun::failure).unwrap().to_string();
        assert!(text.contains("/nowhere/at/all/log cannot be opened"), "{text}");
        wake(&context, &Wake::Aborted).await;
    });
}

#[test]
fn closed_streams_are_opened() {
    if !is_child() {
        run(&mut again("closed_streams_are_opened"));
        return;
    }
    let context = Context::new();
    nix::unistd::close(0).unwrap();
    nix::unistd::close(2).unwrap();
    let _stdio = Stdio::register(&context, None).unwrap();
    assert_eq!([target(0), target(2)], [NULL; 2]);
    assert!(target(1).starts_with("pipe:"));
    let flags = fcntl(Stream::Error.number(), FcntlArg::F_GETFD).unwrap();
    assert_eq!(flags, 0, "closed by an exec");
}
