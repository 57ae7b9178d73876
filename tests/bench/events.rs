//! What recording an event costs: off, a small one, a request as the server records it, and all of it while a reader
//! follows.

#![allow(clippy::unwrap_used, clippy::significant_drop_tightening, reason = "a benchmark may panic")]
#![allow(missing_docs, reason = "the macros define functions of their own")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use defrost::events::{Draft, Recorder, Typed};

struct PageView {
    path: String,
    referrer: String,
}

impl Typed for PageView {
    const NAME: &'static str = "page.view";
    const LABEL: &'static str = "a page was viewed";
    const FIELDS: &'static [&'static str] = &["path", "referrer"];

    fn fields(self, draft: Draft) -> Draft {
        draft.with("path", self.path).with("referrer", self.referrer)
    }
}

fn small(n: u64) -> Draft {
    Draft::new("bench.small").with("n", n)
}

fn request(n: u64) -> Draft {
    let draft = Draft::new("request").label("a request was answered").with("method", "GET");
    draft.with("path", format!("/page/{n}")).with("status", 200_u16).with("took_us", n).with("bytes", n)
}

fn recording(c: &mut Criterion) {
    let mut group = c.benchmark_group("events");
    let off = Recorder::off();
    group.bench_function("off", |b| b.iter(|| off.record(|| small(black_box(1)))));
    // The ring is full after some thousands, so that an old event goes with each new one.
    let on = Recorder::default();
    group.bench_function("small", |b| b.iter(|| on.record(|| small(black_box(1)))));
    group.bench_function("request", |b| b.iter(|| on.record(|| request(black_box(1234)))));
    let views = on.register::<PageView>().unwrap();
    let view =
        || PageView { path: black_box("/motd").to_owned(), referrer: black_box("http://a/").to_owned() };
    group.bench_function("page view", |b| b.iter(|| views.record(view)));
    let text = "a log line of the usual length, with some words in it";
    group.bench_function("log line", |b| {
        b.iter(|| {
            on.record(|| Draft::new("log").with("level", "INFO").message(black_box(text).to_owned()));
        });
    });
    group.finish();
}

fn contended(c: &mut Criterion) {
    let on = Recorder::default();
    let (reader, stop) = (on.clone(), std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)));
    let stopped = std::sync::Arc::clone(&stop);
    let reading = std::thread::spawn(move || {
        let mut next = 0;
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            next = reader.read(next, 64).next;
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    });
    c.bench_function("events/small, with a reader", |b| b.iter(|| on.record(|| small(black_box(1)))));
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    reading.join().unwrap();
}

criterion_group!(benches, recording, contended);
criterion_main!(benches);
