//! Order, failures, deadlines and rollback.

use defrost::checkpoint::Phase;

use crate::fixture::{Act, Bench, in_runtime};

pub fn hooks_run_in_reverse_order_and_back() {
    in_runtime(async {
        let mut bench = Bench::new();
        for name in ["a", "b", "c"] {
            bench.add(name, Act::Work, Act::Work);
        }
        for _ in 0..2 {
            bench.works().await;
            let expected = ["before c", "before b", "before a", "resumed a", "resumed b", "resumed c"];
            assert_eq!(bench.log(), expected);
        }
    });
}

pub fn every_failure_is_kept_and_everything_is_woken() {
    in_runtime(async {
        let mut bench = Bench::new();
        bench.add("a", Act::Fail("a is stuck"), Act::Work);
        bench.add("b", Act::Work, Act::Work);
        bench.add("c", Act::Fail("c is stuck"), Act::Work);
        let error = bench.fails().await;
        assert_eq!(error.phase, Phase::Quiesce);
        let text = error.to_string();
        let expected = "no checkpoint (quiesce): c: before_checkpoint failed: c is stuck; \
                        a: before_checkpoint failed: a is stuck; the server goes on";
        assert_eq!(text, expected);
        let expected = ["before c", "before b", "before a", "aborted a", "aborted b", "aborted c"];
        assert_eq!(bench.log(), expected);
        assert!(bench.subject.is_ready());
    });
}

pub fn a_late_hook_is_stopped_and_named() {
    in_runtime(async {
        let mut bench = Bench::new();
        bench.add("pool", Act::Hang, Act::Work);
        let error = bench.fails().await;
        assert!(error.to_string().contains("pool: before_checkpoint did not return within 200ms"), "{error}");
        assert_eq!(error.hints(), ["look at what pool waits for, or give it a longer deadline"]);
        assert_eq!(bench.log(), ["before pool", "aborted pool"]);
    });
}

pub fn a_hook_that_blocks_its_thread_is_late_too() {
    in_runtime(async {
        let mut bench = Bench::new();
        bench.add("native", Act::Block, Act::Work);
        let error = bench.fails().await;
        assert!(
            error.to_string().contains("native: before_checkpoint did not return within 200ms"),
            "{error}"
        );
    });
}

pub fn a_hook_that_panics_fails() {
    in_runtime(async {
        let mut bench = Bench::new();
        bench.add("shaky", Act::Panic, Act::Work);
        let error = bench.fails().await;
        assert!(error.to_string().contains("shaky: before_checkpoint panicked: as it was told"), "{error}");
    });
}

pub fn a_failing_rollback_is_told_beside_the_cause() {
    in_runtime(async {
        let mut bench = Bench::new();
        bench.add("db", Act::Work, Act::Fail("no route"));
        bench.add("c", Act::Fail("c is stuck"), Act::Work);
        let error = bench.fails().await;
        let text = error.to_string();
        assert!(
            text.ends_with("; the server goes on, but not all of it: db: after_restore failed: no route"),
            "{text}"
        );
        assert!(!bench.subject.is_ready());
    });
}
