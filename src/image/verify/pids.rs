//! Whether the process and thread numbers of the image are free. CRIU must give the same ones again, and its
//! own message on a taken one is `Can't fork for N: File exists`, of a thread `Unable to create a thread: -17`.
//!
//! A number that only a session still has, with neither process, thread nor group of it left, is not seen beforehand:
//! to find it all processes must be looked at. [`taker`] does, once a restore has failed.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::finding::{Class, Finding};
use super::{LIVE_GRACE, PAUSE};
use crate::image::machine::Machine;
use crate::image::manifest::Manifest;
use crate::image::process::{self, Holder};

/// Clocks are compared to this: starts are known to the tick, wall clocks are stepped.
const CLOCK_SLACK: Duration = Duration::from_secs(2);

const NAMESPACE: &str = "restore into a PID namespace of its own (--pid-namespace always)";

pub(super) fn check(manifest: &Manifest, here: &Machine, wait: Duration) -> Vec<Finding> {
    let begun = Instant::now();
    loop {
        let held = held(manifest);
        let patience =
            match held.values().any(|(holder, _)| holder.as_ref().is_none_or(|holder| !holder.zombie)) {
                true => wait.min(LIVE_GRACE),
                false => wait,
            };
        if held.is_empty() || begun.elapsed() >= patience {
            return held
                .into_values()
                .map(|(holder, taken)| finding(manifest, here, holder, &taken))
                .collect();
        }
        thread::sleep(PAUSE);
    }
}

/// Who has a number that a restore was just refused.
pub(super) fn taker(manifest: &Manifest, here: &Machine) -> Finding {
    if let Some(finding) = check(manifest, here, Duration::ZERO).into_iter().next() {
        return finding;
    }
    for number in wanted(manifest) {
        if let Some(holder) = process::of_session(number) {
            let Holder { pid, command, .. } = holder;
            let taken = numbers(manifest, &BTreeSet::from([number]));
            let what =
                format!("{taken} held by the session of process {pid} ({command}), whose leader is gone");
            return Finding::new(Class::Busy, what, format!("end process {pid}, or {NAMESPACE}"));
        }
    }
    let pid = manifest.processes.first().map_or(0, |process| process.pid);
    let what = format!("pid {pid}, or a thread id of it, was taken for a moment, by what is gone");
    Finding::new(Class::Busy, what, format!("try again, or {NAMESPACE}"))
}

/// Holders by pid, 0 for one that cannot be seen, each with the numbers it holds.
fn held(manifest: &Manifest) -> BTreeMap<u32, (Option<Holder>, BTreeSet<u32>)> {
    let mut held: BTreeMap<u32, (Option<Holder>, BTreeSet<u32>)> = BTreeMap::new();
    for number in wanted(manifest) {
        if !is_held(number) {
            continue;
        }
        let holder = process::holder(number);
        // One that ended between the two looks has nothing in /proc either, and holds nothing any more.
        if holder.is_some() || is_held(number) {
            let pid = holder.as_ref().map_or(0, |holder| holder.pid);
            held.entry(pid).or_insert_with(|| (holder, BTreeSet::new())).1.insert(number);
        }
    }
    held
}

fn is_held(number: u32) -> bool {
    process::exists(number) || process::is_group(number)
}

/// All numbers that a restore gives to somebody. A group or session that the dumped tree does not lead is not
/// made anew, but joined.
fn wanted(manifest: &Manifest) -> BTreeSet<u32> {
    manifest
        .processes
        .iter()
        .flat_map(|process| process.threads.iter().copied().chain([process.pid]))
        .filter(|number| *number != 0)
        .collect()
}

fn finding(manifest: &Manifest, here: &Machine, holder: Option<Holder>, taken: &BTreeSet<u32>) -> Finding {
    let taken = numbers(manifest, taken);
    let Some(holder) = holder else {
        let what = format!(
            "{taken} held by what /proc does not show: a group whose leader is gone, or a hidden process"
        );
        return Finding::new(Class::Busy, what, format!("end the processes of that group, or {NAMESPACE}"));
    };
    let Holder { pid, command, zombie, parent, .. } = &holder;
    let (who, remedy) = match relation(manifest, here, &holder) {
        _ if *zombie => (
            format!("dead process {pid} ({command}), which its parent {parent} has not collected"),
            match parent {
                1 => format!("try again when the init process has collected it, or {NAMESPACE}"),
                parent => format!("let process {parent} collect its children or end it, or {NAMESPACE}"),
            },
        ),
        Relation::Itself => (
            format!("process {pid} ({command}), which is the restore itself"),
            format!("try again, it has another pid then, or {NAMESPACE}"),
        ),
        Relation::Original => (
            format!("the original, which still runs: process {pid} ({command})"),
            format!("stop it (kill {pid}), or {NAMESPACE}"),
        ),
        Relation::Sibling => (
            format!(
                "process {pid} ({command}), which runs the same program: perhaps restored from this image"
            ),
            format!("stop it (kill {pid}), or {NAMESPACE}"),
        ),
        Relation::Stranger => {
            (format!("process {pid} ({command})"), format!("wait for its end, or {NAMESPACE}"))
        }
    };
    Finding::new(Class::Busy, format!("{taken} held by {who}"), remedy)
}

/// `pid 7 is`, `thread id 8 is`, `pid 7 and 3 more numbers are`.
fn numbers(manifest: &Manifest, taken: &BTreeSet<u32>) -> String {
    let is_pid = |number: &&u32| manifest.processes.iter().any(|process| process.pid == **number);
    let (kind, first) = match taken.iter().find(is_pid) {
        Some(pid) => ("pid", *pid),
        None => ("thread id", taken.first().copied().unwrap_or(0)),
    };
    match taken.len() {
        0 | 1 => format!("{kind} {first} is"),
        2 => format!("{kind} {first} and 1 more number are"),
        more => format!("{kind} {first} and {} more numbers are", more - 1),
    }
}

enum Relation {
    Itself,
    Original,
    Sibling,
    Stranger,
}

/// A process that runs the dumped program under the dumped number, and did so before the image was complete,
/// on the same boot, is the one that was dumped, if that was to go on.
fn relation(manifest: &Manifest, here: &Machine, holder: &Holder) -> Relation {
    if holder.pid == std::process::id() {
        return Relation::Itself;
    }
    let same_program =
        holder.exe.as_ref().is_some_and(|exe| exe.as_os_str() == manifest.subject.exe.as_str());
    if !same_program || manifest.machine.boot_id != here.boot_id {
        return Relation::Stranger;
    }
    let created = SystemTime::UNIX_EPOCH + Duration::from_nanos(manifest.created_unix_ns);
    match holder.started {
        Some(started) if manifest.subject.leave_running && started <= created + CLOCK_SLACK => {
            Relation::Original
        }
        _ => Relation::Sibling,
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::image::manifest::ProcessRecord;
    use crate::image::manifest::tests::manifest;

    struct Process(Child);

    impl Process {
        fn start() -> Self {
            Self(Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap())
        }
    }

    impl Drop for Process {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn image_of(numbers: &[u32]) -> Manifest {
        let pid = numbers[0];
        let threads = numbers.to_vec();
        let process = ProcessRecord { pid, group: pid, session: pid, threads, ..ProcessRecord::default() };
        Manifest { processes: vec![process], ..manifest() }
    }

    fn only(findings: Vec<Finding>) -> Finding {
        let [finding] = <[Finding; 1]>::try_from(findings).unwrap();
        assert_eq!(finding.class, Class::Busy, "{finding:?}");
        finding
    }

    fn here() -> Machine {
        Machine { boot_id: "this".into(), ..Machine::default() }
    }

    /// Above any pid_max.
    const FREE: u32 = 0x7fff_fff0;

    #[test]
    fn free_numbers_are_found_free_at_once() {
        let begun = Instant::now();
        assert_eq!(check(&image_of(&[FREE, FREE + 1]), &here(), Duration::from_secs(3)), []);
        assert!(begun.elapsed() < Duration::from_secs(1));
    }

    #[test]
    fn a_live_stranger_is_named_with_its_command_line() {
        let process = Process::start();
        let pid = process.0.id();
        let finding = only(check(&image_of(&[pid, FREE]), &here(), Duration::ZERO));
        assert_eq!(finding.what, format!("pid {pid} is held by process {pid} (sleep 60)"));
        assert!(finding.remedy.contains("PID namespace"), "{finding:?}");
    }

    #[test]
    fn a_thread_of_somebody_holds_a_number_too() {
        let own = std::process::id();
        let tid = nix::unistd::gettid().as_raw().unsigned_abs();
        let finding = only(check(&image_of(&[FREE, tid]), &here(), Duration::ZERO));
        assert!(
            finding.what.starts_with(&format!("thread id {tid} is held by process {own} (")),
            "{finding}"
        );
    }

    #[test]
    fn the_original_and_a_restored_copy_are_known() {
        let process = Process::start();
        let pid = process.0.id();
        let mut image = image_of(&[pid, std::process::id()]);
        image.machine.boot_id = "this".into();
        image.created_unix_ns = u64::MAX / 2;
        image.subject.leave_running = true;
        image.subject.exe = process::holder(pid).unwrap().exe.unwrap().to_str().unwrap().into();

        let findings = check(&image, &here(), Duration::ZERO);
        assert_eq!(findings.len(), 2, "{findings:?}");
        let what = format!("pid {pid} is held by the original, which still runs: process {pid} (sleep 60)");
        assert!(findings.iter().any(|finding| finding.what == what), "{findings:?}");
        assert!(findings.iter().any(|finding| finding.remedy.starts_with(&format!("stop it (kill {pid})"))));

        // Restored right after the dump that ended the original, or some time after one that did not.
        for (leave_running, created) in [(false, u64::MAX / 2), (true, 0)] {
            image.subject.leave_running = leave_running;
            image.created_unix_ns = created;
            let findings = check(&image, &here(), Duration::ZERO);
            assert!(findings.iter().any(|finding| finding.what.contains("perhaps restored")), "{findings:?}");
            assert!(
                findings.iter().any(|finding| finding.what.contains("the restore itself")),
                "{findings:?}"
            );
        }

        image.machine.boot_id = "another".into();
        let findings = check(&image, &here(), Duration::ZERO);
        assert!(findings.iter().all(|finding| !finding.what.contains("original")), "{findings:?}");
    }

    #[test]
    fn a_zombie_is_told_after_the_wait() {
        let mut process = Process::start();
        let pid = process.0.id();
        process.0.kill().unwrap();
        let finding = only(check(&image_of(&[pid]), &here(), Duration::from_millis(300)));
        let own = std::process::id();
        let what = format!(
            "pid {pid} is held by dead process {pid} ([sleep]), which its parent {own} has not collected"
        );
        assert_eq!(finding.what, what);
    }

    #[test]
    fn a_zombie_that_is_collected_in_time_is_no_finding() {
        let mut process = Process::start();
        let image = image_of(&[process.0.id()]);
        process.0.kill().unwrap();
        let collector = thread::spawn(move || {
            thread::sleep(Duration::from_millis(200));
            process.0.wait().unwrap();
        });
        assert_eq!(check(&image, &here(), Duration::from_secs(10)), []);
        collector.join().unwrap();
    }

    #[test]
    fn one_holder_of_many_numbers_is_one_finding() {
        let shown = |taken: &[u32]| numbers(&image_of(&[7, 8, 9]), &taken.iter().copied().collect());
        assert_eq!(shown(&[7]), "pid 7 is");
        assert_eq!(shown(&[8]), "thread id 8 is");
        assert_eq!(shown(&[7, 9]), "pid 7 and 1 more number are");
        assert_eq!(shown(&[7, 8, 9]), "pid 7 and 2 more numbers are");
    }
}
