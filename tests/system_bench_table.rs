//! The tables that `scripts/bench` prints of a record, beside what the record says.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test says by a panic what is wrong")]

mod support;

use std::path::Path;
use std::process::Command;

use defrost::bench::record::{
    Answer, FORMAT, Host as RecordHost, Image, Kind, Memory, Record, Service, Start, Way,
};
use support::host::Done;

/// A way whose starts took exactly this long.
fn timed(name: &str, kind: Kind, whole: f64) -> Way {
    let answer = Some(Answer { connect: whole, first_byte: whole, whole });
    let starts = vec![Start { answer, ..Start::default() }; 3];
    let (name, command) = (name.to_owned(), vec![name.to_owned()]);
    let (requests, memory) = (Vec::new(), Vec::new());
    Way { name, kind, command, evicted: false, kerndat: None, clones: 1, starts, requests, memory }
}

/// The break-even is a line through the sizes: CRIU takes 10 ms and 0.5 ms per MiB here, mapping 4 ms at any size.
#[test]
fn the_break_even_is_that_of_the_samples() {
    let service = |mib: u32| {
        let bytes = u64::from(mib) << 20;
        let size = f64::from(mib);
        Service {
            name: format!("echo, {mib} MiB"),
            question: "ready?".to_owned(),
            image: Some(Image { bytes, ..Image::default() }),
            rounds: 3,
            repeated: 0,
            ways: vec![
                timed("empty", Kind::Cold, 2.0),
                timed("cold", Kind::Cold, 2.0 + 0.9 * size),
                timed("fork", Kind::Fork, 5.0),
                timed("criu", Kind::Criu, 10.0 + 0.5 * size),
                timed("defrost map", Kind::Defrost, 4.0),
            ],
        }
    };
    let mut clones = timed("defrost map, 4 clones", Kind::Defrost, 7.0);
    let at = "started".to_owned();
    clones.clones = 4;
    clones.memory = vec![Memory { at, processes: 8, rss: 8 << 20, pss: 4 << 20, anonymous: 0 }];
    let highlight = Service { name: "highlight".to_owned(), ways: vec![clones], ..service(1) };
    let services = vec![service(1), service(256), highlight];
    let record = Record { format: FORMAT, host: RecordHost::default(), services };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");
    let mut json = serde_json::to_value(&record).unwrap();
    // What the scripts measure beside the starts does not keep anybody from reading the record.
    json["beside"] =
        serde_json::json!({"idle": {"seconds": 2.0, "cpu_ticks": 0, "switches_per_second": 0.5}});
    std::fs::write(&path, json.to_string()).unwrap();
    assert_eq!(Record::read(&path).unwrap(), record);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/bench");
    let done = Done::of(Command::new(script).arg("--table").arg(&path));
    assert_eq!(done.status, 0, "{done:?}");
    for part in [
        "by CRIU 8, 136 and 520 ms (0.50 ms more per MiB)",
        "by mapping 2, 2 and 2 ms (0.00 ms more per MiB)",
        "from 20 MiB on by CRIU, from 2 MiB on by mapping",
        "faster than `criu restore`: 3 times at 1 MiB, 34 times at 256 MiB",
        "warm: echo, 1 MiB: 5.0 ms; 4.0 ms by `defrost restore`. echo, 256 MiB: 5.0 ms; 4.0 ms",
        "clones of the service \"highlight\" are all ready after 7 ms by mapping",
        "**A waiting server** used 0 ticks",
    ] {
        assert!(done.out.contains(part), "no `{part}` in {}", done.out);
    }
}
