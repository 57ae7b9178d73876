//! Tier 2: memory that is filled on demand, and working sets, with the server that ships with defrost.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test says by a panic what is wrong")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod support;

use std::fs::{self, File};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::client::{get, requests};
use support::host::Done;
use support::process::{Running, end, gone, lives};
use support::server::{Dumped, NAME, info};
use support::{Host, Server, until, within};

const WARM: [&str; 2] = ["--warm-mib", "64"];
/// While something is recorded nothing is filled unasked: memory stays empty for as long as a test takes.
const EMPTY: &str = "--record=300";
const SET: &str = "working-set.bin";

/// A host that can fill memory on demand.
fn host(name: &str) -> Option<Host> {
    let host = Host::for_test(name)?;
    match defrost::engine::instant::pager::possible() {
        Ok(()) => Some(host),
        Err(reason) => {
            support::host::skip(name, &reason);
            None
        }
    }
}

fn dumped(host: &Host, arguments: &[&str]) -> Dumped {
    let server = Server::start(host, arguments);
    until("the warm-up", || get(server.http, "/readyz").0 == 200);
    server.checkpoint(host, "img")
}

/// `defrost restore img --engine instant`, in the foreground, with these further arguments.
fn restored(host: &Host, more: &[&str]) -> Running {
    let arguments = ["restore", "img", "--engine", "instant"];
    Running::start(host.defrost(arguments.iter().chain(more)).stderr(Stdio::piped()))
}

/// The processes of this test that have this name.
fn named(host: &Host, name: &str) -> Vec<i32> {
    let mark = format!("XDG_RUNTIME_DIR={}", host.folder().display());
    let all = fs::read_dir("/proc").unwrap();
    let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        comm.trim_end() == name && environment.split(|byte| *byte == 0).any(|text| text == mark.as_bytes())
    })
    .filter(|pid| lives(*pid))
    .collect()
}

fn pagers(host: &Host) -> Vec<i32> {
    ["defrost-pager", "defrost-keeper"].iter().flat_map(|name| named(host, name)).collect()
}

/// Waits until there is a process of this name.
#[track_caller]
fn one(host: &Host, name: &str) -> i32 {
    let mut found = None;
    until(name, || {
        found = named(host, name).first().copied();
        found.is_some()
    });
    found.unwrap()
}

fn kill_hard(pid: i32) {
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
}

/// Kills the server, which its supervisor tells by its status.
fn kill_under(supervisor: &mut Running, dumped: &Dumped) {
    kill_hard(dumped.pid);
    assert_eq!(supervisor.ended().code(), Some(128 + 9));
    gone(dumped.pid);
}

/// What a supervisor that has ended wrote to its standard error.
fn errors(supervisor: &mut Running) -> String {
    let mut text = String::new();
    std::io::Read::read_to_string(&mut supervisor.child().stderr.take().unwrap(), &mut text).unwrap();
    text
}

/// How many faults the process has had: proc_pid_stat(5), minor and major.
fn faults(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    fields[7].parse::<u64>().unwrap() + fields[9].parse::<u64>().unwrap()
}

#[test]
fn memory_is_right_whether_asked_for_or_filled() {
    let Some(host) = host("memory_is_right_whether_asked_for_or_filled") else { return };
    let dumped = dumped(&host, &WARM);
    for more in [&["--memory", "fault"][..], &["--memory", "fault", EMPTY]] {
        let mut supervisor = restored(&host, more);
        requests(dumped.echo, 100);
        assert_eq!(get(dumped.http, "/checksum").0, 200, "{more:?}");
        let filled = within(Duration::from_secs(1), || pagers(&host).is_empty());
        assert!(filled || more.contains(&EMPTY), "the pager has nothing left to do");
        assert_eq!(get(dumped.http, "/checksum").0, 200, "{more:?}");
        assert_eq!(info(dumped.http)["generation"], 1);
        kill_under(&mut supervisor, &dumped);
        until("the end of the pager", || pagers(&host).is_empty());
    }
}

#[test]
fn a_process_whose_pager_dies_ends_and_it_is_told() {
    let Some(host) = host("a_process_whose_pager_dies_ends_and_it_is_told") else { return };
    let dumped = dumped(&host, &WARM);
    for victim in ["defrost-pager", "defrost-keeper"] {
        for served in [0, 1, 2, 5, 10, 20, 50, 100, 150, 200] {
            let mut supervisor = restored(&host, &["--memory", "fault", EMPTY]);
            if served > 0 {
                requests(dumped.echo, served);
            }
            kill_hard(one(&host, victim));
            assert_eq!(supervisor.ended().code(), Some(1), "{victim} after {served}");
            let told = errors(&mut supervisor);
            // Before the process runs it is a restore that failed.
            let known = told.contains("its pager or the keeper of that was ended")
                || (served == 0 && told.contains("the process could not be restored"));
            assert!(known, "{victim} after {served}: {told}");
            gone(dumped.pid);
            until("the end of the other", || pagers(&host).is_empty());
        }
    }
}

#[test]
fn a_detached_process_and_its_pager_do_not_outlive_each_other() {
    let Some(host) = host("a_detached_process_and_its_pager_do_not_outlive_each_other") else { return };
    let dumped = dumped(&host, &WARM);
    let arguments = ["restore", "img", "--engine", "instant", "--memory", "fault", "--detach", EMPTY];
    for victim in ["defrost-pager", "defrost-keeper"] {
        host.run(arguments).worked();
        requests(dumped.echo, 1);
        kill_hard(one(&host, victim));
        gone(dumped.pid);
        until("the end of the other", || pagers(&host).is_empty());
    }
    host.run(arguments).worked();
    requests(dumped.echo, 1);
    end(dumped.pid);
    until("the end of the pager", || pagers(&host).is_empty());
}

#[test]
fn a_supervisor_that_is_killed_leaves_no_pager() {
    let Some(host) = host("a_supervisor_that_is_killed_leaves_no_pager") else { return };
    let dumped = dumped(&host, &WARM);
    let mut supervisor = restored(&host, &["--memory", "fault", EMPTY]);
    requests(dumped.echo, 1);
    supervisor.signal(Signal::SIGKILL);
    supervisor.ended();
    gone(dumped.pid);
    until("the end of the pager", || pagers(&host).is_empty());
}

#[test]
fn a_hundred_restores_leave_no_pager_behind() {
    let Some(host) = host("a_hundred_restores_leave_no_pager_behind") else { return };
    let dumped = dumped(&host, &["--warm-mib", "8"]);
    for _ in 0..100 {
        let mut supervisor = restored(&host, &["--memory", "fault"]);
        requests(dumped.echo, 1);
        kill_under(&mut supervisor, &dumped);
    }
    until("the end of all pagers", || pagers(&host).is_empty());
}

#[test]
fn an_image_is_not_replaced_while_memory_is_filled_from_it() {
    let Some(host) = host("an_image_is_not_replaced_while_memory_is_filled_from_it") else { return };
    let dumped = dumped(&host, &WARM);
    let mut supervisor = restored(&host, &["--memory", "fault", EMPTY]);
    requests(dumped.echo, 1);
    let told = host.run(["checkpoint", NAME, "img"]).failed(1);
    assert!(told.contains("cannot be replaced") && told.contains("when its pager ends"), "{told}");
    assert_eq!(get(dumped.http, "/checksum").0, 200);
    kill_under(&mut supervisor, &dumped);
}

#[test]
fn a_dump_waits_until_the_memory_is_whole() {
    let Some(host) = host("a_dump_waits_until_the_memory_is_whole") else { return };
    let dumped = dumped(&host, &WARM);
    // Recording keeps the memory empty for a second; the dump comes in the middle of that.
    let mut supervisor = restored(&host, &["--memory", "fault", "--record=1"]);
    requests(dumped.echo, 1);
    host.run(["checkpoint", NAME, "img2"]).worked();
    assert_eq!(supervisor.ended().code(), Some(0));
    let copied = ["restore", "img2", "--engine", "instant", "--memory", "copy"];
    let mut supervisor = Running::start(&mut host.defrost(copied));
    requests(dumped.echo, 1);
    assert_eq!(get(dumped.http, "/checksum").0, 200);
    assert_eq!(info(dumped.http)["generation"], 2);
    kill_under(&mut supervisor, &dumped);
}

/// Records what `/checksum` touches, under this mode.
fn record(host: &Host, dumped: &Dumped, memory: &str) {
    let mut supervisor = restored(host, &["--memory", memory, "--record=1"]);
    requests(dumped.echo, 1);
    assert_eq!(get(dumped.http, "/checksum").0, 200);
    until("the working set", || host.path("img").join(SET).exists());
    kill_under(&mut supervisor, dumped);
}

/// Has the page cache forget a file; whether it did.
fn evict(file: &File) -> bool {
    file.sync_all().unwrap();
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    !defrost::sys::cache::is_cached(file).unwrap_or(false)
}

#[test]
fn what_was_touched_is_there_in_the_next_restore() {
    let Some(host) = host("what_was_touched_is_there_in_the_next_restore") else { return };
    let dumped = dumped(&host, &WARM);
    let set = host.path("img").join(SET);
    let pages = File::open(host.path("img").join("pages-1.img")).unwrap();
    for memory in ["map", "fault"] {
        record(&host, &dumped, memory);
        let faults = ["--no-prefetch", ""].map(|option| {
            let more = ["--memory", memory, option];
            let more = if option.is_empty() { &more[..2] } else { &more[..] };
            evict(&pages);
            let mut supervisor = restored(&host, more);
            requests(dumped.echo, 1);
            let before = faults(dumped.pid);
            assert_eq!(get(dumped.http, "/checksum").0, 200);
            let during = faults(dumped.pid) - before;
            kill_under(&mut supervisor, &dumped);
            assert_eq!(errors(&mut supervisor), "", "nothing is wrong with the set");
            during
        });
        // Filled on demand, all of it may have come by itself meanwhile; and of what is cached nothing is mapped at
        // once, as on a file system in memory.
        let all_cached = defrost::sys::cache::is_cached(&pages).unwrap_or(false);
        let fewer = faults[1] * 2 < faults[0];
        assert!(memory == "fault" || fewer || (all_cached && !evict(&pages)), "{memory}: {faults:?}");
        fs::remove_file(&set).unwrap();
    }
}

#[test]
fn a_working_set_is_no_part_of_the_image() {
    let Some(host) = host("a_working_set_is_no_part_of_the_image") else { return };
    let dumped = dumped(&host, &["--warm-mib", "8"]);
    record(&host, &dumped, "map");
    let set = host.path("img").join(SET);
    let criu = host.plain_restore(&dumped.image);
    requests(dumped.echo, 1);
    end(dumped.pid);
    drop(criu);
    let whole = fs::read(&set).unwrap();
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for (bytes, wrong) in [(&whole[..], false), (&flipped, true), (&whole[..9], true), (b"", true)] {
        fs::write(&set, bytes).unwrap();
        for memory in ["map", "fault"] {
            let mut supervisor = restored(&host, &["--memory", memory, "--verify", "full"]);
            requests(dumped.echo, 1);
            assert_eq!(get(dumped.http, "/checksum").0, 200);
            kill_under(&mut supervisor, &dumped);
            let told = errors(&mut supervisor);
            assert_eq!(told.contains("nothing is prefetched"), wrong, "{told}");
        }
    }
}

#[test]
fn nothing_is_recorded_of_what_is_copied() {
    let Some(host) = host("nothing_is_recorded_of_what_is_copied") else { return };
    let dumped = dumped(&host, &["--warm-mib", "4"]);
    let copied = ["restore", "img", "--engine", "instant", "--memory", "copy", "--record"];
    let told = host.run(copied).failed(1);
    assert!(told.contains("nothing to record"), "{told}");
    let told = host.run(["restore", "img", "--engine", "criu", "--record"]).failed(2);
    assert!(told.contains("instant engine"), "{told}");
    assert!(!lives(dumped.pid));
}

/// Restores, with these further arguments, from a copy of the image on a file system that is mounted noexec. Only the
/// command and what it restores see that.
fn from_noexec(host: &Host, more: &[&str]) -> Done {
    let script = r#"mount -t tmpfs -o noexec,mode=0700 none still && cp -a img still/ && exec "$@""#;
    let arguments = ["--verbose", "restore", "still/img", "--engine", "instant", "--detach"];
    let starter = ["unshare", "--mount", "sh", "-c", script, "sh"];
    Done::of(&mut host.defrost_by(&starter, arguments.iter().chain(more)))
}

#[test]
fn memory_that_may_become_executable_is_not_mapped_from_noexec() {
    let Some(host) = Host::for_test("memory_that_may_become_executable_is_not_mapped_from_noexec") else {
        return;
    };
    let dumped = dumped(&host, &["--warm-mib", "8"]);
    fs::create_dir(host.path("still")).unwrap();
    let told = from_noexec(&host, &["--memory", "map"]).failed(1);
    assert!(told.contains("mounted noexec") && told.contains("--memory copy"), "{told}");
    assert!(!lives(dumped.pid));
    for more in [&[][..], &["--memory", "copy"]] {
        let done = from_noexec(&host, more);
        let told = done.err.clone();
        done.worked();
        assert!(!more.is_empty() || told.contains("mounted noexec"), "{told}");
        requests(dumped.echo, 10);
        assert_eq!(get(dumped.http, "/checksum").0, 200);
        let smaps = fs::read_to_string(format!("/proc/{}/smaps", dumped.pid)).unwrap();
        let flags: Vec<&str> = smaps.lines().filter(|line| line.starts_with("VmFlags:")).collect();
        let never = flags.iter().filter(|line| line.contains(" wr ") && !line.contains(" me ")).count();
        assert_eq!(never, 0, "no memory that may be written is barred from ever being executed");
        end(dumped.pid);
    }
}
