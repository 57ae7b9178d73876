//! What is done with a kind: one image, restored in every way, looked at, dumped again, compared.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::areas::Original;
use super::explained::{Values, explanation};
use super::fields::Fields;
use super::halt::Halted;
use super::pages::{self, Contents};
use super::{Kind, play, portrait, state};
use crate::support::Host;
use crate::support::process::{Running, gone};

/// The instant engine's ways to bring memory back.
const MODES: &[&str] = &["map", "copy", "fault"];
/// The most differences in memory that are told.
const TOLD: usize = 20;

/// A test: all engines and modes on one image.
pub fn compare_engines(kind: &Kind) {
    let Some(host) = Host::for_test(kind.name) else { return };
    let pid = dumped(&host, kind);
    let image = host.path(play::IMAGE);
    let original = state::original(&image, pid.unsigned_abs());
    let fields = state::read(&image, pid.unsigned_abs(), &original);
    let criu = Again::of(&host, "criu", Halted::by_criu(&host, &image, pid), &original);
    for mode in MODES {
        match (Halted::by_instant(&host, &image, pid, mode), kind.refused) {
            (Ok(halted), []) => {
                let instant = Again::of(&host, mode, halted, &original);
                if !kind.restless {
                    instant.is_as(&criu, &fields, &original);
                }
            }
            (Ok(_), [reason, ..]) => panic!("{mode}: it was restored, and expected was `{reason}`"),
            (Err(said), reasons) => {
                let expected = !reasons.is_empty() && reasons.iter().all(|reason| said.contains(reason));
                assert!(expected, "{mode}: {said}");
            }
        }
    }
}

/// Runs the subject until it has dumped itself; gives its pid, which is free then.
#[track_caller]
fn dumped(host: &Host, kind: &Kind) -> i32 {
    let mut command = host.at_home(Command::new(std::env::current_exe().unwrap()));
    command.env(play::VARIABLE, kind.name);
    let err = fs::File::create(host.path("subject.err")).unwrap();
    let mut original = Running::start(command.stdout(Stdio::null()).stderr(err));
    let pid = original.pid();
    let status = original.ended();
    let said = |name: &str| fs::read_to_string(host.path(name)).unwrap_or_default();
    assert_eq!(status.signal(), Some(9), "{status}: {}{}", said(play::VERDICT), said("subject.err"));
    gone(pid);
    pid
}

/// A process that was restored, dumped again before it ran, and then found itself whole.
struct Again {
    way: String,
    pid: u32,
    image: PathBuf,
    fields: Fields,
}

impl Again {
    /// Does all of that.
    #[track_caller]
    fn of(host: &Host, way: &str, halted: Halted, original: &Original) -> Self {
        let pid = halted.pid;
        let image = host.path(way);
        let mut fields = Fields::new();
        portrait::add(&mut fields, pid, &original.ledger);
        halted.dump(host, &image);
        halted.go_on();
        let verdict = host.path(play::VERDICT);
        let said = fs::read_to_string(&verdict).unwrap_or_default();
        let _ = fs::remove_file(&verdict);
        assert_eq!(said, play::WHOLE, "restored by {way}");
        fields.extend(state::read(&image, pid.unsigned_abs(), original));
        Self { way: way.to_owned(), pid: pid.unsigned_abs(), image, fields }
    }

    /// Compares it with the one that CRIU has restored, field by field and page by page.
    #[track_caller]
    fn is_as(&self, criu: &Self, dumped: &Fields, original: &Original) {
        let keys: BTreeSet<&String> = criu.fields.keys().chain(self.fields.keys()).collect();
        let mut differences = Vec::new();
        for key in keys {
            let values =
                Values { dumped: dumped.get(key), criu: criu.fields.get(key), instant: self.fields.get(key) };
            if values.criu != values.instant && explanation(key, values).is_none() {
                differences.push(format!("{key}: {values:?}"));
            }
        }
        let mut dead = pages::dead_ranges(&criu.image, self.pid);
        dead.push(original.ledger.clone());
        let mut contents = [criu, self].map(|again| Contents::open(&again.image, again.pid));
        let [one, other] = &mut contents;
        let (memory, pages) = pages::compare(one, other, &dead);
        differences.extend(memory.into_iter().take(TOLD));
        assert!(pages > 10, "only {pages} pages were compared");
        assert!(differences.is_empty(), "restored by {}:\n{}", self.way, differences.join("\n"));
    }
}
