//! Cycles that succeed and signals that are caught, in a process of its own each: the audit of the test's own
//! process would find its surroundings, and a handler of a signal belongs to all tests at once.

use std::io::Write;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, raise};

use super::*;
use crate::sys::process::in_own_session;

/// Names the test that the new process is there for.
const INNER: &str = "DEFROST_CONTROL_TEST";

/// Runs the calling test again in a process of its own, and gives what that has printed. In that process it is
/// `None`, and the process is one that the audit finds no fault with.
fn in_own_process(test: &str, input: &[u8]) -> Option<String> {
    if std::env::var_os(INNER).is_some() {
        crate::sys::descriptors::close_inherited(None).unwrap();
        return None;
    }
    let mut output = tempfile::NamedTempFile::new().unwrap();
    let appended = std::fs::OpenOptions::new().append(true).open(output.path()).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("control::tests::whole::{test}"), "--nocapture"]).env(INNER, "1");
    command.stdin(Stdio::piped()).stdout(appended.try_clone().unwrap()).stderr(appended);
    let mut child = in_own_session(&mut command).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input).unwrap();
    let status = child.wait().unwrap();
    drop(stdin);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut output, &mut text).unwrap();
    assert!(status.success(), "{text}");
    Some(text)
}

#[test]
fn a_checkpoint_is_answered_where_the_process_goes_on() {
    if in_own_process("a_checkpoint_is_answered_where_the_process_goes_on", b"").is_none() {
        run(async {
            let server = Server::start(|_| {});
            let _stdio = crate::adapters::Stdio::register(server.subject.context(), None).unwrap();
            let mut talk = server.connect().await;
            for line in ["checkpoint ./img leave-running", "checkpoint ./img"] {
                let answer = talk.ask(line).await;
                assert!(answer.starts_with("ok: every hook passed"), "{answer}");
                assert!(talk.ask("status").await.contains(", ready, "));
            }
            // Its other end is closed in a cycle that it did not ask for, and the audit would find this one.
            drop(talk);
            // By a process that is no child of this one, which the audit would find.
            let script = r"printf 'checkpoint ./img leave-running\nstop\n' > fifo";
            let mut echo = Command::new("sh");
            echo.args(["-c", script]).current_dir(server.folder.path());
            crate::sys::process::spawn_detached(&mut echo).unwrap();
            assert_eq!(server.stopped().await, StopOrigin::Request(Source::Fifo));
            let last = server.last_checkpoint().await;
            assert!(last.ok, "{last:?}");
        });
    }
}

#[test]
fn standard_input_is_read_around_checkpoints() {
    let input = b"checkpoint ./img leave-running\nnonsense\ncheckpoint ./img\nstop\n";
    let Some(output) = in_own_process("standard_input_is_read_around_checkpoints", input) else {
        return run(async {
            let subject = Subject::builder("echo").engine(SimulatedEngine).build().unwrap();
            let _stdio = crate::adapters::Stdio::register(subject.context(), None).unwrap();
            let options =
                ControlOptions { socket: SocketPlace::None, stdin: true, ..ControlOptions::default() };
            let control = Control::start(&subject, options).unwrap();
            let origin = timeout(AMPLE, control.stopped()).await.unwrap();
            assert_eq!(origin, StopOrigin::Request(Source::Stdin));
        });
    };
    let answers: Vec<&str> =
        output.lines().filter(|line| line.starts_with("ok: ") || line.starts_with("error: ")).collect();
    let starts =
        ["ok: every hook passed", "error: unknown request 'nonsense'", "ok: every hook", "ok: the server is"];
    assert_eq!(answers.len(), starts.len(), "{output}");
    assert!(answers.iter().zip(starts).all(|(answer, start)| answer.starts_with(start)), "{output}");
}

#[test]
fn signals_ask_for_checkpoints_and_for_the_end() {
    if in_own_process("signals_ask_for_checkpoints_and_for_the_end", b"").is_none() {
        run(async {
            let server = Server::start(|options| {
                options.checkpoint_to = Some("./img-%p-%g".to_owned());
                options.checkpoint_on_signal = true;
                options.stop_on_signals = true;
            });
            let _stdio = crate::adapters::Stdio::register(server.subject.context(), None).unwrap();
            let woken = Arc::new(Woken(Semaphore::new(0)));
            server.subject.context().register("woken", Arc::clone(&woken) as _).forever();
            for _ in 0..3 {
                raise(Signal::SIGUSR2).unwrap();
                // No client of this process's own may be there before the audit is over.
                timeout(AMPLE, woken.0.acquire()).await.unwrap().unwrap().forget();
                while server.subject.is_checkpointing() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                let last = server.last_checkpoint().await;
                assert!(last.ok, "{last:?}");
            }
            server.cycle(&restored()).await;
            raise(Signal::SIGINT).unwrap();
            assert_eq!(server.stopped().await, StopOrigin::Interrupt);
        });
    }
}

struct Woken(Semaphore);

#[async_trait]
impl Resource for Woken {
    async fn after_restore(&self, _wake: &Wake) -> Result<(), HookError> {
        self.0.add_permits(1);
        Ok(())
    }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(test);
}
