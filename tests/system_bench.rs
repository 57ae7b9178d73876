//! Tier 2: `defrost bench startup` on a small server, and what it does with commands and images that fail.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test says by a panic what is wrong")]

mod support;

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use defrost::bench::caches::KERNDAT;
use defrost::bench::kin;
use defrost::bench::record::{Kind, Record, SPAWN, Way};
use defrost::bench::started::Started;
use defrost::bench::usage::Usage;
use nix::sys::signal::Signal;
use support::client::free_port;
use support::host::{DEFROST, Done};
use support::process::Running;
use support::{Host, apart::nothing_is_left};

/// `bench startup` with a record.
fn bench(host: &Host, arguments: &[&str]) -> (Done, Record) {
    let always =
        ["bench", "startup", "--rounds", "2", "--quiet", "1", "--json", "run.json", "--name", "small"];
    let done = host.run(always.iter().chain(arguments));
    let record = Record::read(&host.path("run.json")).unwrap_or_else(|error| panic!("{error}: {done:?}"));
    (done, record)
}

fn way<'a>(record: &'a Record, name: &str) -> &'a Way {
    let ways = &record.services[0].ways;
    ways.iter()
        .find(|way| way.name == name)
        .unwrap_or_else(|| panic!("no way {name} among {:?}", names(record)))
}

fn names(record: &Record) -> Vec<&str> {
    record.services[0].ways.iter().map(|way| way.name.as_str()).collect()
}

#[track_caller]
fn all_came_up(way: &Way) {
    for start in &way.starts {
        let answer = start.answer.unwrap_or_else(|| panic!("{}: {start:?}", way.name));
        assert!(
            answer.connect > 0.0 && answer.connect <= answer.first_byte && answer.first_byte <= answer.whole
        );
        assert!((0.0..=1.0).contains(&start.others));
    }
    assert_eq!(way.starts.len(), 2, "{}", way.name);
}

/// Why all starts of it failed.
#[track_caller]
fn failure(way: &Way) -> &str {
    assert!(way.starts.iter().all(|start| start.answer.is_none() && start.failure.is_some()), "{way:?}");
    way.starts[0].failure.as_deref().unwrap()
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}/readyz")
}

fn server(port: u16, more: &str) -> String {
    format!("{DEFROST} serve --name bench --http 127.0.0.1:{port} {more}")
}

/// An image `img` of what this command starts.
#[track_caller]
fn checkpoint(host: &Host, port: u16, cold: &str) {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec {cold} > /dev/null 2>&1")]);
    let mut original = Running::start(&mut host.at_home(command));
    support::until("readiness", || support::client::get(port, "/readyz").0 == 200);
    host.run(["checkpoint", "bench", "img"]).worked();
    original.ended();
}

#[test]
fn every_way_is_timed_and_nothing_is_left() {
    let Some(host) = Host::for_test("every_way_is_timed_and_nothing_is_left") else { return };
    let port = free_port();
    let (cold, empty) = (server(port, "--warm-mib 4"), format!("empty={}", server(port, "")));
    checkpoint(&host, port, &cold);
    let (done, record) = bench(
        &host,
        &[
            "--url",
            &url(port),
            "--expect",
            "ready",
            "--cold",
            &cold,
            "--cold",
            &empty,
            "--image",
            "img",
            "--evict",
            "--no-kerndat",
            "--clones=2",
            "--clone-ways=defrost-criu,map",
            "--requests=20",
            "--followed=1",
            "--commit",
            "abc-dirty",
        ],
    );
    assert_eq!(done.status, 0, "{done:?}");
    let service = &record.services[0];
    for way in &service.ways {
        all_came_up(way);
        assert_eq!(way.requests.iter().map(Vec::len).collect::<Vec<_>>(), [20], "{}", way.name);
        assert_eq!(way.memory.len(), 2, "{}", way.name);
        assert!(way.memory.iter().all(|memory| memory.pss > 0 && memory.rss >= memory.pss), "{way:?}");
    }
    for name in [
        "cold",
        "criu",
        "criu, evicted",
        "defrost criu, 2 clones",
        "defrost map",
        "defrost map, 2 clones",
        "defrost fault",
        "defrost copy",
    ] {
        way(&record, name);
    }
    assert!(!names(&record).contains(&"defrost fault, 2 clones"), "{:?}", names(&record));
    // CRIU keeps its cache on a tmpfs only.
    let without = names(&record).contains(&"criu, no kerndat");
    assert_eq!(without, Path::new(KERNDAT).exists(), "{}", done.err);
    assert!(without || done.err.contains("keeps no cache"), "{}", done.err);
    let map = way(&record, "defrost map");
    let parts = &map.starts[0].phases;
    assert!(map.kind == Kind::Defrost && parts[0].name == SPAWN && parts[0].took > 0.0, "{map:?}");
    for part in ["verify it", "plan", "make its memory and threads", "wake", "run after_restore of http"] {
        assert!(parts.iter().any(|told| told.name == part), "{part}: {parts:?}");
    }
    assert!(parts.windows(2).all(|pair| pair[0].began <= pair[1].began), "{parts:?}");
    assert!(way(&record, "defrost map, 2 clones").memory[0].processes >= 2);
    assert!(
        service.image.as_ref().is_some_and(|image| image.bytes > 4 << 20 && !image.checkpoint.is_empty())
    );
    assert!(record.host.dirty && record.host.commit.as_deref() == Some("abc") && record.host.criu.is_some());
    assert!(done.out.contains("Break-even") && done.out.contains("| defrost map "), "{}", done.out);
    nothing_is_left(&host);
    // The record of one run is what another is compared with.
    std::fs::rename(host.path("run.json"), host.path("old.json")).unwrap();
    let (done, _) =
        bench(&host, &["--url", &url(port), "--image", "img", "--ways", "map", "--compare", "old.json"]);
    assert!(done.status == 0 && done.out.contains("then ms"), "{done:?}");
}

#[test]
fn what_fails_is_told_and_the_others_are_measured() {
    let Some(host) = Host::for_test("what_fails_is_told_and_the_others_are_measured") else { return };
    let port = free_port();
    std::fs::create_dir(host.path("broken")).unwrap();
    let good = server(port, "");
    let (done, record) = bench(
        &host,
        &[
            "--url",
            &url(port),
            "--expect",
            "ready",
            "--deadline",
            "4",
            "--cold",
            &good,
            "--cold",
            "silent=sleep 60",
            "--cold",
            "early=sh -c 'echo no luck >&2; exit 7'",
            "--cold",
            "gone=true",
            "--cold",
            "missing=/no/such/program",
            "--cold",
            &format!("warming={}", server(port, "--warm-mib 2048 --warm-rounds 1000")),
            "--image",
            "broken",
            "--ways",
            "criu,map",
        ],
    );
    assert_eq!(done.status, 1, "{done:?}");
    all_came_up(way(&record, "cold"));
    assert!(failure(way(&record, "silent")).contains("no correct answer within 4 s"));
    let early = failure(way(&record, "early"));
    assert!(early.contains("exit status: 7") && early.contains("no luck"), "{early}");
    assert!(failure(way(&record, "gone")).contains("left no process"));
    assert!(failure(way(&record, "missing")).contains("could not be started"));
    let warming = failure(way(&record, "warming"));
    assert!(warming.contains("status 503"), "{warming}");
    assert!(way(&record, "warming").starts[1].failure.as_ref().unwrap().contains("not started again"));
    let criu = failure(way(&record, "criu"));
    assert!(criu.contains("command failed") && criu.contains("Error (criu/"), "{criu}");
    assert!(failure(way(&record, "defrost map")).contains("not a complete image"));
    assert!(done.out.contains("silent failed 2 of 2 times"), "{}", done.out);
    nothing_is_left(&host);
}

/// The server's second answer never comes.
const SILENT_THEN: &str = "
import socket, time
listener = socket.create_server(('127.0.0.1', PORT))
kept = []
while True:
    client, _ = listener.accept()
    client.recv(100)
    if not kept:
        client.sendall(b'hello')
    kept.append(client)
    if len(kept) == 2:
        open('asked-twice', 'w').close()
";

#[test]
fn an_interrupt_ends_it_at_once_and_keeps_the_whole_rounds() {
    let Some(host) = Host::for_test("an_interrupt_ends_it_at_once_and_keeps_the_whole_rounds") else {
        return;
    };
    let port = free_port();
    std::fs::write(host.path("silent.py"), SILENT_THEN.replace("PORT", &port.to_string())).unwrap();
    for (signal, more) in
        [(Signal::SIGINT, &["--requests", "9"][..]), (Signal::SIGTERM, &["--rounds", "9999"])]
    {
        let mut command = Command::new(DEFROST);
        let address = format!("127.0.0.1:{port}");
        command.args(["bench", "startup", "--connect", &address, "--send", "x", "--expect", "hello"]);
        command.args([
            "--cold",
            "python3 silent.py",
            "--quiet",
            "1",
            "--json",
            "run.json",
            "--deadline",
            "600",
        ]);
        command.args(more);
        let mut bench = Running::start(&mut host.at_home(command));
        if more.contains(&"--requests") {
            support::until("a request that is not answered", || host.path("asked-twice").exists());
        } else {
            std::thread::sleep(Duration::from_secs(3));
        }
        let began = Instant::now();
        bench.signal(signal);
        assert_eq!(bench.ended().code(), Some(1));
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
        let record = Record::read(&host.path("run.json")).unwrap();
        let cold = way(&record, "cold");
        assert!(cold.starts.iter().all(|start| start.failure.is_none()), "{cold:?}");
        nothing_is_left(&host);
        std::fs::remove_file(host.path("run.json")).unwrap();
    }
}

#[test]
fn a_failure_in_a_round_that_is_not_kept_is_told_too() {
    let Some(host) = Host::for_test("a_failure_in_a_round_that_is_not_kept_is_told_too") else { return };
    let port = free_port();
    // The first start of each way only fills caches.
    let cold = format!("test -e been || {{ touch been; exit 3; }}; exec {}", server(port, ""));
    let (done, record) = bench(&host, &["--url", &url(port), "--cold", &cold]);
    all_came_up(way(&record, "cold"));
    assert!(done.status == 1 && done.err.contains("cold failed: the command failed"), "{done:?}");
    nothing_is_left(&host);
}

#[test]
fn a_taken_port_is_told() {
    let Some(host) = Host::for_test("a_taken_port_is_told") else { return };
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = holder.local_addr().unwrap().to_string();
    let line = ["--connect", &address, "--send", r"hello\n", "--expect", r"hello\n"];
    let (done, record) = bench(&host, &[&line[..], &["--cold", "sleep 60"]].concat());
    assert_eq!(done.status, 1);
    assert!(failure(way(&record, "cold")).contains("is taken"), "{record:?}");
}

#[test]
fn a_line_protocol_and_a_fork_are_measured() {
    let Some(host) = Host::for_test("a_line_protocol_and_a_fork_are_measured") else { return };
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let line = ["--connect", &address, "--send", r"hello\n", "--expect", r"hello\n", "--requests", "5"];
    // In the place of a warm parent: something that starts the server where nobody waits for it.
    let echo = format!("{DEFROST} serve --name bench --echo {address}");
    let fork = format!("setsid -f sh -c 'echo $$ > pid; exec {echo}' > /dev/null 2>&1; sleep 0.5; cat pid");
    let (done, record) =
        bench(&host, &[&line[..], &["--cold-lazy", &format!("lazy={echo}"), "--fork", &fork]].concat());
    assert_eq!(done.status, 0, "{done:?}");
    all_came_up(way(&record, "lazy"));
    all_came_up(way(&record, "fork"));
    assert_eq!(way(&record, "fork").kind, Kind::Fork);
    nothing_is_left(&host);
}

/// Set where one test runs in a process of its own: what that has used is told for all of it.
const ALONE: &str = "DEFROST_TEST_ALONE";

/// Most of what a restore in clones uses is used in their pid namespaces.
#[test]
fn what_a_start_used_in_a_namespace_is_no_load_of_others() {
    let name = "what_a_start_used_in_a_namespace_is_no_load_of_others";
    if std::env::var_os(ALONE).is_some() {
        return works_in_a_namespace();
    }
    let Some(_host) = Host::for_test(name) else { return };
    // That is.
    let _other = Running::start(Command::new("sh").args(["-c", "while :; do :; done"]));
    let alone = std::env::current_exe().unwrap();
    let done = Done::of(Command::new(alone).args(["--exact", name, "--nocapture"]).env(ALONE, "1"));
    assert_eq!(done.status, 0, "{done:?}");
}

fn works_in_a_namespace() {
    kin::adopt_orphans().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let usage = Usage::start();
    // The first process of the namespace reaps nobody, as a server need not. The other one keeps what it reads, so that
    // its end takes longer than that of the first.
    let works = "(head -c 400M /dev/zero; exec sleep 1000) | tail & exec sleep 1000";
    let command = ["unshare", "--pid", "--fork", "sh", "-c", works].map(str::to_owned);
    let started = Started::spawn(Kind::Cold, &command, folder.path()).unwrap();
    let (enough, end) = (Duration::from_millis(150), Instant::now() + Duration::from_secs(60));
    while started.living().into_iter().map(kin::worked).sum::<Duration>() < enough {
        assert!(Instant::now() < end, "it does not work: {}", started.said("err"));
        std::thread::sleep(Duration::from_millis(10));
    }
    started.end().unwrap();
    assert!(usage.own() >= enough, "only {:?} is known of", usage.own());
    let others = usage.others(Duration::ZERO);
    assert!(others > 0.02, "the others took {others}");
}

#[test]
fn a_warm_parent_is_measured() {
    let Some(host) = Host::for_test("a_warm_parent_is_measured") else { return };
    let example = Path::new(DEFROST).parent().unwrap().join("examples/fork_server");
    assert!(example.exists(), "build the examples first: cargo build --examples");
    let (port, control) = (free_port(), free_port());
    let mut parent = Command::new(example);
    parent.args(["--warm-mib", "4", "--http", &format!("127.0.0.1:{port}")]);
    parent.args(["--control", &format!("127.0.0.1:{control}")]).stdout(std::process::Stdio::null());
    let parent = Running::start(&mut host.at_home(parent));
    support::until("a warm parent", || TcpListener::bind(("127.0.0.1", control)).is_err());
    let fork = format!("bash -c 'exec 3<>/dev/tcp/127.0.0.1/{control}; read -r pid <&3; echo $pid'");
    let checksum = format!("http://127.0.0.1:{port}/checksum");
    let requests = ["--requests", "3", "--then", &checksum];
    let asked = url(port);
    let (done, record) =
        bench(&host, &[&["--url", &asked, "--expect", "ready", "--fork", &fork][..], &requests].concat());
    assert_eq!(done.status, 0, "{done:?}");
    let fork = way(&record, "fork");
    all_came_up(fork);
    assert!(fork.memory.iter().all(|memory| memory.processes == 1 && memory.rss > 4 << 20), "{fork:?}");
    // It shares what was warm with its parent, which reaps it.
    assert!(fork.memory[0].pss < fork.memory[0].rss - (1 << 20), "{fork:?}");
    assert!(support::process::children(parent.pid()).is_empty());
}

#[test]
fn a_slip_is_refused_before_anything_is_started() {
    let Some(host) = Host::for_test("a_slip_is_refused_before_anything_is_started") else { return };
    let started = host.path("started");
    let cold = format!("touch {}", started.display());
    let asked = ["bench", "startup", "--url", "http://127.0.0.1:1/"];
    std::fs::write(host.path("other.json"), "{\"format\": 2}").unwrap();
    for (more, status) in [
        (&["--cold", &cold, "--cold", &cold][..], 2),
        (&["--cold", &cold, "--expect", "sha256:12"], 2),
        (&["--cold", &cold, "--expect", "@/no/such/file"], 2),
        (&["--cold", &cold, "--compare", "/no/such/file"], 2),
        (&["--cold", &cold, "--compare", "other.json"], 2),
        (&["--cold", &cold, "--json", "/no/such/folder/run.json"], 2),
        (&["--cold", &cold, "--json", "."], 2),
        (&["--cold", &cold, "--header", "no header"], 2),
        (&["--cold", &cold, "--status", "1000"], 2),
        (&["--cold", &cold, "--image", "/no/such/image"], 4),
        (&["--cold", "'"], 2),
        (&["--cold", &cold, "--image", "/", "--clones", "2", "--clone-ways", "criu"], 2),
        (&["--image", "/", "--ways", "map", "--clones", "2", "--clone-ways", "map,fault"], 2),
        (&[], 2),
    ] {
        let done = host.run(asked.iter().chain(more));
        assert_eq!(done.status, status, "{more:?}: {done:?}");
    }
    assert!(!Path::new(&started).exists());
}
