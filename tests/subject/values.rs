//! What a restored process is told: parameters, its identity, and how long it was away.

use std::collections::HashSet;
use std::fs;
use std::time::{Duration, Instant, SystemTime};

use super::role::Role;
use super::stage::Stage;
use crate::support::client::requests;
use crate::support::process::children;

/// How long it sleeps.
const SLEEP: Duration = Duration::from_secs(3);

pub fn program(role: Role) {
    Role::run(async move {
        let stand = role.open();
        let diary = role.diary.clone();
        if role.option("sleeps").is_some() {
            tokio::spawn(async move {
                let (started, at) = (Instant::now(), SystemTime::now());
                tokio::time::sleep(SLEEP).await;
                let by_the_wall = at.elapsed().unwrap_or_default().as_millis();
                diary.note("slept", format!("{} {by_the_wall}", started.elapsed().as_millis()));
            });
        }
        stand.serve().await;
    });
}

/// Case 16: what is given at restore arrives as values, and the environment stays what it was.
pub fn parameters_arrive_as_values(stage: &Stage) {
    let actor = stage.start("values", &[]);
    let environment = |pid: i32| fs::read(format!("/proc/{pid}/environ")).unwrap();
    let before = environment(actor.pid);
    let image = actor.checkpoint(stage, "img");
    let more = [
        "--env",
        "MODE=fast",
        "--set",
        "colour=a=b",
        "--set",
        "echo.listen=127.0.0.1:0",
        "--",
        "one",
        "--two",
    ];
    let (revived, facts) = stage.restore(&image, &more, 1);
    let params = &facts.params;
    assert_eq!(params.args, ["one", "--two"]);
    assert_eq!(params.env.get("MODE").map(String::as_str), Some("fast"));
    assert_eq!(params.settings.get("colour").map(String::as_str), Some("a=b"));
    assert_eq!(environment(revived.pid), before);
    let port = listening(revived.pid);
    assert_ne!(port, image.port);
    requests(port, 10);
    revived.end();
    // Nothing of it is left in the image.
    let (revived, facts) = stage.revive(&image, 2);
    assert_eq!(facts.params, defrost::wake::Params::default());
    requests(image.port, 10);
    revived.end();
    let text = stage.restore_fails(&image, &["--set", "echo.listen=nowhere"]);
    assert!(text.contains("echo.listen=nowhere is not an address") && text.contains("hint: "), "{text}");
}

/// The port on which a process listens.
#[track_caller]
fn listening(pid: i32) -> u16 {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let sockets: HashSet<String> =
        fds.filter_map(|fd| Some(fs::read_link(fd.ok()?.path()).ok()?.display().to_string())).collect();
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    // proc_pid_net(5): the local address is the second column, the state, 0A for listening, the fourth, the inode
    // the tenth.
    let found = table.lines().skip(1).find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let own = columns[3] == "0A" && sockets.contains(&format!("socket:[{}]", columns[9]));
        own.then(|| u16::from_str_radix(columns[1].split_once(':').unwrap().1, 16).unwrap())
    });
    found.unwrap_or_else(|| panic!("process {pid} listens nowhere"))
}

/// Each restore has an identity of its own, counts up, and knows how long it was away.
pub fn each_restore_knows_what_it_is(stage: &Stage) {
    const GAP: Duration = Duration::from_secs(1);
    let mut instances = HashSet::new();
    let mut image = stage.start("values", &[]).checkpoint(stage, "img0");
    let mut number = 0;
    for generation in 1..=3 {
        let dumped = Instant::now();
        std::thread::sleep(GAP);
        for by_command in [false, true] {
            number += 1;
            let (revived, facts) =
                if by_command { stage.restore(&image, &[], number) } else { stage.revive(&image, number) };
            assert_eq!(facts.generation, generation);
            assert!(instances.insert(facts.instance.clone()), "{} came twice", facts.instance);
            // The dump began before it was seen to be over, by what quiescing, writing and completing took.
            let most = dumped.elapsed() + Duration::from_secs(10);
            assert!((GAP..most).contains(&facts.suspended_for), "{:?}, {most:?}", facts.suspended_for);
            if by_command {
                image = stage.again(revived, image.port, &format!("img{generation}"));
            } else {
                revived.end();
            }
        }
    }
}

/// Case 18, as root: what was left of a sleep is slept after the restore. The wall clock goes on meanwhile.
pub fn a_sleep_goes_on_with_what_was_left(stage: &Stage) {
    const BEFORE: Duration = Duration::from_secs(1);
    const GAP: Duration = Duration::from_secs(4);
    let actor = stage.start("values", &["sleeps=yes"]);
    std::thread::sleep(BEFORE);
    let image = actor.checkpoint(stage, "img");
    std::thread::sleep(GAP);
    let restoring = Instant::now();
    let (revived, facts) = stage.revive(&image, 1);
    let slept = stage.diary.read("slept", 1);
    let after = restoring.elapsed();
    let (by_instant, by_the_wall) = slept.split_once(' ').unwrap();
    let milliseconds = |text: &str| Duration::from_millis(text.parse().unwrap());
    let (by_instant, by_the_wall) = (milliseconds(by_instant), milliseconds(by_the_wall));
    // Quiescing and restoring count for the process, too: up to a second of grace on a busy host.
    assert!(by_instant >= SLEEP && by_instant < SLEEP + Duration::from_secs(1), "{by_instant:?}");
    assert!(
        by_the_wall >= SLEEP + facts.suspended_for - Duration::from_millis(500),
        "{by_the_wall:?}, {facts:?}"
    );
    assert!(after > Duration::from_secs(1) && after < SLEEP, "it fired {after:?} after the restore began");
    revived.end();
    assert_eq!(children(std::process::id().cast_signed()), Vec::<i32>::new());
}
