use std::fs::File;
use std::io::{BufRead, BufReader, Write};

use super::*;
use crate::Subject;
use crate::engine::simulated::SimulatedEngine;
use crate::wake::{InstanceId, Params, Restored};

struct Pipes {
    context: Context,
    responder: Arc<Responder>,
    input: Option<File>,
    output: BufReader<File>,
    _registration: Registration,
}

impl Pipes {
    fn new() -> Self {
        let (input, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (read, output) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        let subject = Subject::builder("echo").engine(SimulatedEngine).build().unwrap();
        let context = subject.context().clone();
        let responder = Arc::new(Responder::new(subject));
        let copy_of = |end: OwnedFd| -> Opener { Box::new(move || end.try_clone()) };
        let registration =
            Stdin::start_with(&context, Arc::clone(&responder), copy_of(input), copy_of(output));
        let (input, output) = (Some(File::from(write)), BufReader::new(File::from(read)));
        Self { context, responder, input, output, _registration: registration.unwrap() }
    }

    fn send(&mut self, lines: &str) {
        self.input.as_mut().unwrap().write_all(lines.as_bytes()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    async fn quiesce(&self) {
        let runs = self.context.quiesce(&Cycle::new(true)).await;
        runs.into_iter().for_each(|run| run.outcome.unwrap());
    }

    async fn wake(&self, wake: &Wake) {
        let runs = self.context.wake(wake).await;
        runs.into_iter().for_each(|run| run.outcome.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_are_answered_around_cycles() {
    let mut pipes = Pipes::new();
    pipes.send("help\nnonsense\r\nhe");
    assert!(pipes.line().starts_with("ok: requests are "));
    assert!(pipes.line().starts_with("error: unknown request 'nonsense'"));
    for wake in [Wake::Resumed, Wake::Aborted] {
        pipes.quiesce().await;
        pipes.send("lp\nhe");
        pipes.wake(&wake).await;
        assert!(pipes.line().starts_with("ok: requests are "));
    }
    pipes.send("lp\nstop");
    assert!(pipes.line().starts_with("ok: requests are "));
    // The last line needs no newline.
    pipes.input = None;
    assert_eq!(pipes.line(), "ok: the server is about to end\n");
    assert_eq!(pipes.responder.stopped().await, crate::control::StopOrigin::Request(Source::Stdin));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_is_answered_before_the_next_line() {
    let mut pipes = Pipes::new();
    // Refused by the audit: the test holds the other ends of the pipes.
    pipes.send("checkpoint ./x leave-running\nhelp\ncheckpoint ./y\nhelp\n");
    for _ in 0..2 {
        let refused = pipes.line();
        assert!(refused.starts_with("error: no checkpoint (audit): "), "{refused}");
        assert!(pipes.line().starts_with("ok: requests are "));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_process_reads_no_more() {
    let mut pipes = Pipes::new();
    pipes.send("help\nst");
    assert!(pipes.line().starts_with("ok: requests are "));
    pipes.quiesce().await;
    let restored = Restored::new(1, Duration::ZERO, InstanceId::from_bytes([7; 16]), Params::default());
    pipes.wake(&Wake::Restored(restored)).await;
    pipes.quiesce().await;
    pipes.wake(&Wake::Resumed).await;
    pipes.send("op\nstop\n");
    let stopped = pipes.responder.stopped();
    assert!(tokio::time::timeout(Duration::from_millis(50), stopped).await.is_err());
}
