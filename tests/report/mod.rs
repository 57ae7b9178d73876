//! Made-up records, for what a benchmark could have found.

#![allow(unreachable_pub, reason = "a module of several test programs")]

use std::collections::BTreeMap;

use defrost::bench::record::{Answer, FORMAT, Host, Image, Kind, Memory, Phase, Record, Service, Start, Way};

/// Numbers that vary and are the same each time.
struct Noise(u64);

impl Noise {
    /// From 0 to 1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(self.0 >> 32).unwrap()) / f64::from(u32::MAX)
    }

    /// Somewhat more than this.
    fn around(&mut self, value: f64) -> f64 {
        let far = if self.next() > 0.9 { 0.4 } else { 0.08 };
        value * (1.0 + far * self.next())
    }
}

/// A record of echo servers of three sizes, on a day.
pub fn sample(day: u32, cores: u32) -> Record {
    let mut noise = Noise(u64::from(day * 64 + cores));
    Record {
        format: FORMAT,
        host: host(day, cores),
        services: [1, 256, 1024].map(|mib| echo(mib, &mut noise)).into(),
    }
}

fn host(day: u32, cores: u32) -> Host {
    Host {
        date: format!("2026-11-{day:02}T12:00:00Z"),
        kernel: "6.18.44".to_owned(),
        machine: "x86_64".to_owned(),
        cpu: "AMD EPYC".to_owned(),
        cores,
        memory_mib: 7944,
        load: [0.12, 0.3, 0.25],
        criu: Some("4.2.1".to_owned()),
        defrost: "0.1.0".to_owned(),
        commit: Some("0b2ae3283ebf".to_owned()),
        dirty: true,
        notes: BTreeMap::from([("python".to_owned(), "3.11.2".to_owned())]),
    }
}

fn echo(mib: u32, noise: &mut Noise) -> Service {
    let size = f64::from(mib);
    let ways = [
        ("floor", Kind::Floor, 0.35),
        ("cold", Kind::Cold, 1.7 + size * 0.86),
        ("criu", Kind::Criu, 10.0 + size * 0.56),
        ("defrost map", Kind::Defrost, 3.5 + size * 0.001),
        ("defrost copy", Kind::Defrost, 3.8 + size * 0.55),
    ];
    let way = |(name, kind, time): &(&str, Kind, f64)| way(name, *kind, *time, size, noise);
    Service {
        name: format!("echo, {mib} MiB"),
        question: "echo: a line, and the same line back".to_owned(),
        image: Some(image(mib)),
        rounds: 15,
        repeated: 2,
        ways: ways.iter().map(way).collect(),
    }
}

fn image(mib: u32) -> Image {
    let all = u64::from(mib) << 20;
    let files = ["libc.so.6", "defrost", "locale-archive"]
        .map(|name| (format!("file /usr/lib/x86_64-linux-gnu/{name}"), 90_000));
    Image {
        bytes: all + 3_000_000,
        resident: Some(all + 6_000_000),
        checkpoint: phases(&[
            ("quiesce", 0.8),
            ("audit", 0.6),
            ("dump", 40.0),
            ("hash the image", 12.0),
            ("fsync", 3.0),
        ]),
        mappings: [
            ("anonymous".to_owned(), all),
            ("heap".to_owned(), 1_300_000),
            ("stack".to_owned(), 40_000),
        ]
        .into_iter()
        .chain(files)
        .collect(),
    }
}

/// Phases that follow each other.
pub fn phases(parts: &[(&str, f64)]) -> Vec<Phase> {
    let mut began = 0.0;
    let phase = |&(name, took): &(&str, f64)| {
        let phase = Phase { name: name.to_owned(), began, took };
        began += took;
        phase
    };
    parts.iter().map(phase).collect()
}

fn way(name: &str, kind: Kind, time: f64, size: f64, noise: &mut Noise) -> Way {
    let restores = matches!(kind, Kind::Defrost | Kind::Criu);
    let mut start = || {
        let whole = noise.around(time);
        let parts = [
            ("spawn", 0.1),
            ("verify", 0.15),
            ("plan", 0.1),
            ("process", 0.2),
            ("memory", 0.25),
            ("hooks", 0.05),
        ];
        let parts = parts.map(|(name, share)| (name, share * whole));
        Start {
            answer: Some(Answer { connect: whole * 0.9, first_byte: whole * 0.98, whole }),
            attempts: 9,
            worst_gap: 0.2,
            others: 0.004,
            phases: if restores { phases(&parts) } else { Vec::new() },
            ..Start::default()
        }
    };
    let mut starts: Vec<Start> = (0..15).map(|_| start()).collect();
    if name == "criu" {
        let failure = "criu restore failed: pid 4711 is taken\nhint: end it".to_owned();
        starts[3] = Start { failure: Some(failure), ..Start::default() };
    }
    let first = if name == "defrost map" { 6.5 } else { 0.7 };
    let requests =
        |noise: &mut Noise| (0..1000).map(|at| noise.around(0.05 + first / f64::from(at + 1))).collect();
    let bytes = if name == "defrost map" { 6 << 20 } else { (size as u64 + 4) << 20 };
    let memory = |at: &str, bytes: u64| Memory {
        at: at.to_owned(),
        processes: 1,
        rss: bytes + 1_000_000,
        pss: bytes,
        anonymous: bytes,
    };
    Way {
        name: name.to_owned(),
        kind,
        command: vec!["defrost".to_owned(), "restore".to_owned(), "img".to_owned()],
        evicted: false,
        kerndat: (kind == Kind::Criu).then_some(true),
        clones: 1,
        starts,
        requests: if kind == Kind::Floor { Vec::new() } else { (0..5).map(|_| requests(noise)).collect() },
        memory: if kind == Kind::Floor {
            Vec::new()
        } else {
            vec![memory("started", bytes), memory("after 1000 requests", bytes + (2 << 20))]
        },
    }
}
