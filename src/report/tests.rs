//! Pages of records that nobody would measure.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::{Run, runs};
use crate::bench::record::{Answer, FORMAT, Host, Image, Kind, Memory, Phase, Record, Service, Start, Way};

/// Times as a record could have them: JSON has no others than finite ones.
fn time() -> impl Strategy<Value = f64> + Clone {
    let odd = [0.0, -1.0, 1e-300, 1e300, f64::MAX, f64::MIN_POSITIVE].map(Just).to_vec();
    prop_oneof![3 => 0.0..2000.0, 1 => proptest::strategy::Union::new(odd)]
}

fn text() -> impl Strategy<Value = String> + Clone {
    prop_oneof![Just(String::new()), Just("<b onclick='x'>&\"</svg><script>".to_owned()), "[a-c ]{1,9}"]
}

fn phases() -> impl Strategy<Value = Vec<Phase>> {
    vec((text(), time(), time()).prop_map(|(name, began, took)| Phase { name, began, took }), 0..4)
}

prop_compose! {
    fn start()(
        answer in option::of((time(), time(), time())), failure in option::of(text()), others in time(), phases in phases(),
    ) -> Start {
        let answer = answer.map(|(connect, first_byte, whole)| Answer { connect, first_byte, whole });
        Start { answer, failure, others, worst_gap: others, phases, ..Start::default() }
    }
}

prop_compose! {
    fn way()(
        name in text(),
        kind in proptest::sample::select(vec![
            Kind::Cold, Kind::ColdLazy, Kind::Fork, Kind::Criu, Kind::Defrost, Kind::Floor,
        ]),
        starts in vec(start(), 0..4),
        requests in vec(vec(time(), 0..30), 0..3),
        pss in vec(any::<u64>(), 0..3),
        at in text(),
        clones in 0..3u32,
    ) -> Way {
        let memory = |pss: u64| Memory { at: at.clone(), processes: 1, rss: pss / 2, pss, anonymous: 0 };
        let memory = pss.into_iter().map(memory).collect();
        Way { name, kind, command: vec![at.clone()], evicted: false, kerndat: None, clones, starts, requests, memory }
    }
}

prop_compose! {
    fn service()(
        name in text(),
        question in text(),
        image in option::of((any::<u64>(), phases(), proptest::collection::btree_map(text(), any::<u64>(), 0..20))),
        rounds in any::<u32>(),
        repeated in any::<u32>(),
        ways in vec(way(), 0..4),
    ) -> Service {
        let image = image.map(|(bytes, checkpoint, mappings)| Image { bytes, resident: None, checkpoint, mappings });
        Service { name, question, image, rounds, repeated, ways }
    }
}

prop_compose! {
    fn record()(
        date in prop_oneof![Just("2026-11-30T10:00:00Z".to_owned()), Just("2026-12-01 10:00:00".to_owned()), text()],
        cpu in text(),
        memory_mib in any::<u64>(),
        services in vec(service(), 0..4),
    ) -> Record {
        Record { format: FORMAT, host: Host { date, cpu, memory_mib, ..Host::default() }, services }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_record_makes_a_page_that_cannot_be_drawn(records in vec(record(), 0..4)) {
        let named = |record| Run { name: "<i>.json".to_owned(), record };
        let all: Vec<Run> = records.into_iter().map(named).collect();
        let page = runs(&all);
        for wrong in ["NaN", "inf%", "inf ", "\"inf\"", "width=\"-", "<script", "<b ", "<i>"] {
            prop_assert!(!page.contains(wrong), "{wrong}: {page}");
        }
        prop_assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        prop_assert!(page.ends_with("</html>"));
    }
}
