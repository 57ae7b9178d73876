//! Processes that are killed in the middle of a checkpoint or a restore.
//!
//! The subject is large enough that the kills hit each stage: CRIU starting, freezing, writing memory, the helper
//! completing the folder.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use defrost::checkpoint::Request;
use defrost::control::ClientError;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::role::Role;
use super::stage::{Actor, Image, SOON, Stage, alone_within, gone};
use crate::support::client::{answers_within, requests};
use crate::support::process::{Running, children, lives, parent, state};
use crate::support::{PATIENCE, until, within};

const MIB: &str = "mib=200";
/// How a subject ends that was left with CRIU's code in place of its own: by a breakpoint, mostly.
const INFECTED: [i32; 4] =
    [Signal::SIGTRAP as i32, Signal::SIGSEGV as i32, Signal::SIGILL as i32, Signal::SIGBUS as i32];
/// From the moment when the victim is there to its end, in milliseconds.
const DELAYS: [u64; 7] = [0, 5, 10, 20, 50, 100, 200];

pub fn program(role: Role) {
    let size = usize::try_from(role.number("mib").unwrap()).unwrap() << 20;
    // No page is like another, nor zero.
    let mut memory = vec![1; size];
    for (page, number) in memory.chunks_mut(4096).zip(1_u64..) {
        page[..8].copy_from_slice(&number.to_ne_bytes());
    }
    Role::run(async move {
        let stand = role.open();
        let subject = stand.subject.clone();
        let serving = tokio::spawn(stand.serve());
        if let Some(seconds) = role.number("deadline") {
            let mut request = Request::new("img".as_ref());
            request.deadline = Duration::from_secs(seconds);
            let outcome = subject.checkpoint(request).await.outcome;
            role.diary.note("outcome", outcome.err().map(|error| error.to_string()).unwrap_or_default());
        }
        serving.await.unwrap();
        let whole = memory.chunks(4096).zip(1_u64..).all(|(page, number)| page[..8] == number.to_ne_bytes());
        role.diary.note("memory", if whole { "whole" } else { "damaged" });
    });
}

fn sigkill(pid: i32) {
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
}

fn is_named(pid: i32, name: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == name)
}

/// The helper that works for a subject whose orphans fall to `reaper`, as soon as it is there.
fn helper_below(reaper: i32) -> i32 {
    let mut helper = None;
    until("a helper", || {
        helper = children(reaper).into_iter().find(|pid| is_named(*pid, "defrost-helper"));
        helper.is_some()
    });
    helper.unwrap()
}

/// The CRIU of a helper, as soon as it is there.
fn criu_below(helper: i32) -> Option<i32> {
    let mut criu = None;
    // A relocated CRIU is exec'd through its loader, so its name is not `criu` at first; the helper has no
    // other child for longer than a version query takes.
    until("CRIU", || {
        criu = children(helper).into_iter().find(|pid| has_argument(*pid, "swrk"));
        criu.is_some() || !lives(helper)
    });
    criu
}

fn has_argument(pid: i32, argument: &str) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes())
}

fn own() -> i32 {
    std::process::id().cast_signed()
}

/// After a kill that the subject must outlive, if there is no image: it serves, and the next checkpoint works.
#[track_caller]
fn goes_on(stage: &Stage, actor: Actor, when: &str) {
    assert!(answers_within(actor.port, SOON), "{when}: no answer within {SOON:?}");
    until("nothing left of the broken checkpoint", || stage.partials().is_empty());
    let (pid, port) = (actor.pid, actor.port);
    let image = actor.checkpoint_running(stage, "next");
    actor.stop();
    let memory = stage.diary.texts("memory");
    assert_eq!(memory.last().map(String::as_str), Some("whole"), "{when}");
    let restored = stage.diary.texts("restored").len();
    let (revived, _) = stage.revive(&image, restored + 1);
    assert_eq!((pid, port), (revived.pid, image.port));
    requests(port, 1);
    revived.end();
}

/// What came of a checkpoint that was disturbed.
enum Came {
    /// There is no image, and the subject goes on.
    Nothing(Actor),
    /// It was complete before the kill.
    AnImage,
    /// CRIU was killed while it had the subject execute code of its own.
    Death,
}

/// Disturbs a checkpoint and says what came of it.
#[track_caller]
fn disturbed(stage: &Stage, mut actor: Actor, leave_running: bool, disturb: impl FnOnce()) -> Came {
    let request = if leave_running { "checkpoint img leave-running" } else { "checkpoint img" };
    let asked = actor.ask_aside(request.to_owned());
    disturb();
    let answer = asked.join().unwrap();
    match answer {
        Ok(answer) if !answer.ok => {
            assert!(answer.text.ends_with("; the server goes on"), "{answer:?}");
            assert!(answer.hint.is_some(), "{answer:?}");
            assert!(!stage.host.path("img").exists(), "{answer:?}");
            Came::Nothing(actor)
        }
        Ok(_) if leave_running => {
            actor.serves_soon();
            Came::Nothing(actor)
        }
        Ok(_) => {
            actor.process.ended();
            let image = Image { path: stage.host.path("img"), pid: actor.pid, port: actor.port };
            let restored = stage.diary.texts("restored").len();
            let (revived, _) = stage.revive(&image, restored + 1);
            requests(image.port, 1);
            revived.end();
            Came::AnImage
        }
        Err(error) => {
            let ends = within(SOON, || !lives(actor.pid));
            assert!(ends, "{error}, and it lives: {:?}", actor.ask("status json"));
            let status = actor.process.ended();
            assert!(
                status.signal().is_some_and(|signal| INFECTED.contains(&signal)),
                "{error}, the subject: {status}"
            );
            assert!(!stage.host.path("img").exists());
            Came::Death
        }
    }
}

/// Case 21: whenever CRIU is killed, the subject serves again within a second, with one exception that nobody outside
/// of CRIU can do anything about. To read a process's state, CRIU writes code over its own for a few milliseconds
/// (`compel/src/lib/infect.c`); killed just then, it takes the process with it: roughly one in fifty kills aimed at
/// the first 160 ms did.
pub fn criu_at_every_stage(stage: &Stage) {
    let (mut broken, mut dead) = (0, 0);
    for leave_running in [false, true] {
        for delay in DELAYS {
            let _ = std::fs::remove_dir_all(stage.host.path("img"));
            let actor = stage.start("large", &[MIB]);
            let when = format!("criu killed after {delay} ms, leave-running {leave_running}");
            let came = disturbed(stage, actor, leave_running, || {
                if let Some(criu) = criu_below(helper_below(own())) {
                    sleep(Duration::from_millis(delay));
                    sigkill(criu);
                }
            });
            match came {
                Came::Nothing(actor) => {
                    broken += usize::from(!stage.host.path("img").exists());
                    goes_on(stage, actor, &when);
                }
                Came::AnImage => {}
                Came::Death => dead += 1,
            }
        }
    }
    assert!(dead <= 3, "{dead} subjects died of a kill of CRIU");
    assert!(broken + dead >= 6, "only {broken} of the kills came in time to break a dump of {MIB}");
}

/// A supervisor continues a subject whose helper was killed.
pub fn the_helper_under_a_supervisor(stage: &Stage) {
    for delay in [0, 20, 50, 100, 200] {
        let _ = std::fs::remove_dir_all(stage.host.path("img"));
        let actor = stage.started(&mut stage.supervised_command("large", &[MIB]));
        assert_eq!(parent(actor.pid), Some(actor.process.pid()));
        let supervisor = actor.process.pid();
        let when = format!("helper killed after {delay} ms");
        let asked = actor.ask_aside("checkpoint img".to_owned());
        let helper = helper_below(supervisor);
        sleep(Duration::from_millis(delay));
        sigkill(helper);
        // CRIU, which it leaves behind, may finish its work first.
        let served = answers_within(actor.port, 3 * SOON);
        // The connection that asked was held by the helper.
        let answer = asked.join().unwrap();
        assert!(served, "{when}: {answer:?}");
        assert!(matches!(answer, Err(ClientError::Closed { .. })), "{when}: {answer:?}");
        assert!(!stage.host.path("img").exists(), "{when}");
        // What a killed helper leaves is swept by the next checkpoint of this name.
        // It serves before the broken cycle is over.
        let mut answer = actor.ask("checkpoint img leave-running");
        until("the end of the broken cycle", || {
            let again = answer.text.contains("already running");
            if again {
                answer = actor.ask("checkpoint img leave-running");
            }
            !again
        });
        assert!(answer.ok, "{when}: {answer:?}");
        assert_eq!(stage.partials(), [""; 0], "{when}");
        actor.stop();
        std::fs::remove_file(&stage.diary.0).unwrap();
    }
}

/// Without a supervisor it is the subject's own timer, which needs the whole deadline of the dump.
pub fn the_helper_of_a_subject_on_its_own(stage: &Stage) {
    let actor = stage.start("large", &["mib=400", "deadline=5"]);
    let helper = helper_below(own());
    // Once the image has all its pages, CRIU leaves the subject stopped for the helper to go on with.
    until("a stopped subject", || {
        assert!(lives(actor.pid), "it was not caught before it ended");
        state(actor.pid) == Some('T')
    });
    sigkill(helper);
    let limit = Duration::from_secs(50);
    assert!(answers_within(actor.port, limit), "it is not continued within {limit:?}");
    let outcome = stage.diary.read("outcome", 1);
    assert!(outcome.contains("helper") && outcome.ends_with("; the server goes on"), "{outcome}");
    let image = actor.checkpoint(stage, "img");
    assert_eq!(stage.partials(), [""; 0]);
    let (revived, _) = stage.revive(&image, 1);
    revived.end();
}

/// A subject that dies takes the checkpoint with it: no image, no process, nothing that waits for long.
pub fn the_subject(stage: &Stage) {
    for delay in [0, 20, 50, 100] {
        let _ = std::fs::remove_dir_all(stage.host.path("img"));
        let mut actor = stage.start("large", &[MIB]);
        let asked = actor.ask_aside("checkpoint img".to_owned());
        let helper = helper_below(own());
        sleep(Duration::from_millis(delay));
        sigkill(actor.pid);
        actor.process.ended();
        let _ = asked.join().unwrap();
        gone(helper);
        assert!(alone_within(PATIENCE), "after {delay} ms: {:?} stay", left());
        if !stage.host.path("img").exists() {
            assert_eq!(stage.partials(), [""; 0], "after {delay} ms");
        }
    }
}

/// Case 32, in the middle of a dump: the subject ends too, and so does the helper.
pub fn the_supervisor(stage: &Stage) {
    for delay in [0, 50, 100] {
        let _ = std::fs::remove_dir_all(stage.host.path("img"));
        let mut actor = stage.started(&mut stage.supervised_command("large", &[MIB]));
        let asked = actor.ask_aside("checkpoint img leave-running".to_owned());
        helper_below(actor.process.pid());
        sleep(Duration::from_millis(delay));
        sigkill(actor.process.pid());
        actor.process.ended();
        let _ = asked.join().unwrap();
        gone(actor.pid);
        assert!(alone_within(PATIENCE), "after {delay} ms: {:?} stay", left());
        std::fs::remove_file(&stage.diary.0).unwrap();
    }
}

/// `defrost restore` is killed: no half-restored process stays.
pub fn the_restorer(stage: &Stage) {
    let image = stage.start("large", &[MIB]).checkpoint(stage, "img");
    for delay in DELAYS.into_iter().chain([400]) {
        let mut command = stage.restoring(&image, &[]);
        let mut restorer = Running::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
        sleep(Duration::from_millis(delay));
        restorer.signal(Signal::SIGKILL);
        restorer.ended();
        assert!(alone_within(PATIENCE), "after {delay} ms: {:?} stay", left());
        assert!(!lives(image.pid));
    }
    let restored = stage.diary.texts("restored").len();
    let (revived, _) = stage.revive(&image, restored + 1);
    requests(image.port, 1);
    revived.end();
}

/// The processes that are left, with their command lines.
fn left() -> Vec<String> {
    let named = |pid: i32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        format!("{pid} ({})", line.replace('\0', " "))
    };
    children(own()).into_iter().map(named).collect()
}
