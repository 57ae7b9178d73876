//! The ways to ask, and resources outside of tokio.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use defrost::checkpoint::{Outcome, Request};
use defrost::resource::HookError;
use defrost::{Blocking, BlockingResource, Cycle, Wake};

use crate::fixture::{Act, Bench, in_runtime};

#[derive(Default)]
struct Plain {
    calls: Mutex<Vec<String>>,
}

impl BlockingResource for Plain {
    fn before_checkpoint(&self, cycle: &Cycle) -> Result<(), HookError> {
        self.calls.lock().unwrap().push(format!("before, leave running {}", cycle.leave_running()));
        Ok(())
    }

    fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        self.calls.lock().unwrap().push(wake.to_string());
        Ok(())
    }
}

pub fn blocking_resources_take_part() {
    in_runtime(async {
        let bench = Bench::new();
        let plain = Arc::new(Plain::default());
        let blocking = Arc::new(Blocking::new(Arc::clone(&plain)));
        let held = bench.subject.context().register("plain", blocking);
        bench.works().await;
        assert_eq!(*plain.calls.lock().unwrap(), ["before, leave running false", "resumed"]);
        drop(held);
    });
}

pub fn the_blocking_variant_works_without_a_runtime() {
    let mut bench = Bench::new();
    bench.add("a", Act::Work, Act::Work);
    let outcome = bench.subject.checkpoint_restore_blocking("unused");
    assert!(matches!(outcome, Ok(Outcome::Resumed { .. })), "{outcome:?}");
    assert_eq!(bench.log(), ["before a", "resumed a"]);
}

pub fn the_blocking_variant_is_refused_within_a_runtime() {
    in_runtime(async {
        let bench = Bench::new();
        let error = bench.subject.checkpoint_restore_blocking("unused").unwrap_err();
        assert!(error.to_string().contains("within a tokio runtime"), "{error}");
    });
}

pub fn the_answer_comes_back() {
    in_runtime(async {
        let bench = Bench::new();
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut request = Request::new("unused".as_ref());
        request.answer = Some(near.into());
        let finished = bench.subject.checkpoint(request).await;
        assert!(finished.outcome.is_ok());
        let answer = finished.answer.expect("the connection comes back");
        UnixStream::from(answer).write_all(b"ok").unwrap();
        let mut text = [0; 2];
        far.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"ok");
    });
}

pub fn a_dropped_request_does_not_stop_the_cycle() {
    in_runtime(async {
        let mut bench = Bench::new();
        bench.add("slow", Act::Hang, Act::Work);
        let subject = bench.subject.clone();
        let asked = tokio::time::timeout(Duration::from_millis(50), subject.checkpoint_restore("unused"));
        assert!(asked.await.is_err(), "the request is dropped in the middle");
        let limit = Instant::now() + Duration::from_secs(10);
        while subject.is_checkpointing() {
            assert!(Instant::now() < limit, "the cycle never ended");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(bench.log(), ["before slow", "aborted slow"]);
        assert!(subject.is_ready());
    });
}
