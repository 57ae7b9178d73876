//! Tests of the comparison itself: that it sees what it is to see.

use criu_images::{Vma, VmaStatus};

use super::areas::{self, Original};
use super::explained::{TABLE, Values, explanation};
use super::fields::{Fields, add};

/// The tests by name.
pub const TESTS: &[(&str, fn())] = &[
    ("comparison::every_field_has_a_path", every_field_has_a_path),
    ("comparison::only_what_is_in_the_table_may_differ", only_what_is_in_the_table_may_differ),
    ("comparison::areas_are_cut_where_they_differ", areas_are_cut_where_they_differ),
];

fn every_field_has_a_path() {
    #[derive(Debug)]
    #[expect(dead_code, reason = "read by its debug text")]
    struct Inner {
        number: u32,
        list: Vec<u8>,
    }
    #[derive(Debug)]
    #[expect(dead_code, reason = "as above")]
    struct Outer {
        none: Option<u32>,
        plain: Option<u32>,
        some: Option<Inner>,
        all: Vec<Inner>,
        empty: Vec<u8>,
        text: &'static str,
    }
    let inner = |number| Inner { number, list: vec![1, 2] };
    let outer = Outer {
        none: None,
        plain: Some(3),
        some: Some(inner(1)),
        all: vec![inner(2), inner(3)],
        empty: Vec::new(),
        text: "a: b",
    };
    let mut fields = Fields::new();
    add(&mut fields, "top", &outer);
    let expected = [
        ("top.all.0.list", "1 2"),
        ("top.all.0.number", "2"),
        ("top.all.1.list", "1 2"),
        ("top.all.1.number", "3"),
        ("top.empty", "[]"),
        ("top.none", "None"),
        ("top.plain", "3"),
        ("top.some.list", "1 2"),
        ("top.some.number", "1"),
        ("top.text", "\"a: b\""),
    ];
    let found: Vec<(&str, &str)> =
        fields.iter().map(|(path, value)| (path.as_str(), value.as_str())).collect();
    assert_eq!(found, expected);
}

fn only_what_is_in_the_table_may_differ() {
    let explained = |path: &str, dumped: &str, criu: &str, instant: &str| {
        let [dumped, criu, instant] = [dumped, criu, instant].map(str::to_owned);
        let values = Values { dumped: Some(&dumped), criu: Some(&criu), instant: Some(&instant) };
        explanation(path, values).is_some()
    };
    assert!(explained("process.timers.real.value_sec", "1000", "999", "990"));
    assert!(!explained("process.timers.real.value_sec", "1000", "999", "0"));
    assert!(!explained("process.timers.real.interval_sec", "1", "1", "2"));
    assert!(explained("descriptor 7.timerfd.value_nsec", "1", "2", "3"));
    assert!(!explained("descriptor 7.timerfd.value_nsec.more", "1", "2", "3"));
    assert!(explained("process.personality", "40000", "0", "40000"));
    assert!(!explained("process.personality", "40000", "40000", "0"));
    assert!(explained("proc 7 FDSize", "", "128", "64"));
    assert!(!explained("proc 7 stat 38", "", "1", "2"));
    assert!(!explained("thread 7.registers.general.ax", "1", "1", "2"));
    assert!(TABLE.iter().all(|(pattern, _, reason)| !pattern.starts_with('*') && !reason.is_empty()));
}

fn areas_are_cut_where_they_differ() {
    let vma = |start: u64, protection: u32| Vma {
        start,
        end: start + 0x1000,
        prot: protection,
        status: VmaStatus::ANON_PRIVATE.bits(),
        flags: (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS).cast_unsigned(),
        ..Vma::default()
    };
    let pages = Vma {
        status: VmaStatus::FILE_PRIVATE.bits(),
        flags: libc::MAP_PRIVATE.cast_unsigned(),
        object: 5,
        offset: 0x7000,
        ..vma(0x2000, 3)
    };
    let path = |_| Some("/somewhere/img/pages-1.img".to_owned());
    let original = areas::of(&[vma(0x1000, 3), vma(0x2000, 3)], &path, None);
    let original = Original { areas: original, ledger: 0..0 };
    let again = [vma(0x1000, 3), pages, vma(0x3000, 1), vma(0x5000, 1)];
    let areas = areas::of(&again, &path, Some(&original));
    let places: Vec<(u64, u64)> = areas.iter().map(|area| (area.start, area.end)).collect();
    assert_eq!(places, [(0x1000, 0x3000), (0x3000, 0x4000), (0x5000, 0x6000)]);
}
