//! One start, from the state that it is to begin in to the end of all that it brought up.
//!
//! It must not know how many there are, or what is done with the sample.

use std::io;
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use super::probe::{Tally, ask_once, first_answer, milliseconds};
use super::question::Question;
use super::record::{Answer, Kind, Memory, Phase, SPAWN, Start};
use super::run::Setup;
use super::started::Started;
use super::usage::Usage;
use super::ways::{EMPTY, Plan};
use super::{caches, clones, memory};
use crate::supervise::timings::Timings;

/// How long a look at a port takes at most.
const GLANCE: Duration = Duration::from_millis(50);
/// How long a port may stay taken after the end of who had it.
const FREE: Duration = Duration::from_secs(10);
/// Where `defrost restore` writes what its time went into, in the folder of what the commands say.
const TIMINGS: &str = "timings";

/// What was measured beside the start itself.
#[derive(Debug, Default)]
pub(super) struct Extras {
    /// Latencies of the requests that followed, in milliseconds.
    pub(super) requests: Vec<f64>,
    /// Memory at named moments.
    pub(super) memory: Vec<Memory>,
    /// Whether CRIU found its cache.
    pub(super) kerndat: Option<bool>,
    /// What processes that are none of this one's worked for it.
    pub(super) elsewhere: Duration,
}

/// Starts `plan` once; `followed` asks for requests and memory too. Nothing of it is left afterwards, or the failure
/// says what.
pub(super) fn start_once(setup: &Setup<'_>, plan: &Plan, followed: bool) -> (Start, Extras) {
    let mut start = Start::default();
    let mut extras = Extras::default();
    if let Err(why) = prepare(setup, plan, &mut extras) {
        start.failure = Some(why);
        return (start, extras);
    }
    let usage = Usage::start();
    let timings = setup.folder.join(TIMINGS);
    let _ = std::fs::remove_file(&timings);
    match Started::spawn(plan.kind, &with_timings(plan, &timings), setup.folder) {
        Err(error) => {
            let program = plan.command.first().map(String::as_str).unwrap_or_default();
            start.failure = Some(format!("{program} could not be started: {error}; nothing runs"));
        }
        Ok(mut started) => {
            match measure(setup, plan, &mut started, &mut start, &mut extras, followed) {
                Ok(answer) => start.answer = Some(answer),
                Err(why) => start.failure = Some(why),
            }
            start.phases =
                Timings::read(&timings).map(|told| phases(&told, started.began)).unwrap_or_default();
            extras.elsewhere = started.worked_elsewhere();
            if let Err(left) = started.end().and_then(|()| is_free(setup.question)) {
                start.failure =
                    Some(start.failure.take().map_or(left.clone(), |why| format!("{why}; {left}")));
            }
        }
    }
    start.others = usage.others(extras.elsewhere);
    if start.failure.is_some() {
        start.answer = None;
    }
    (start, extras)
}

/// Has everything as the start is to find it.
fn prepare(setup: &Setup<'_>, plan: &Plan, extras: &mut Extras) -> Result<(), String> {
    if plan.clones == 1 && is_taken(setup.question) {
        let port = setup.question.address;
        return Err(format!(
            "{port} is taken: somebody listened there before the start; nothing was started"
        ));
    }
    let failed = |error: io::Error| format!("the image's page cache could not be prepared: {error}");
    if let (Some(image), Kind::Criu | Kind::Defrost) = (setup.image, plan.kind) {
        if plan.evicted { caches::evict(image) } else { caches::warm(image) }.map_err(failed)?;
    }
    if plan.kerndat == Some(false) {
        caches::forget_kerndat();
    }
    extras.kerndat = plan.kerndat.map(|_| caches::has_kerndat());
    Ok(())
}

fn measure(
    setup: &Setup<'_>,
    plan: &Plan,
    started: &mut Started,
    start: &mut Start,
    extras: &mut Extras,
    followed: bool,
) -> Result<Answer, String> {
    let mut tally = Tally::default();
    let answered = if plan.clones == 1 {
        one(setup, started, &mut tally).map(|answer| (answer, vec![setup.question.clone()]))
    } else {
        several(setup, started)
    };
    start.attempts = tally.attempts;
    start.lost_syns = tally.lost_syns;
    start.not_yet = tally.not_yet;
    start.worst_gap = milliseconds(tally.worst_gap);
    let (answer, asked) = answered?;
    started.finish(setup.deadline, &|| setup.stopped())?;
    // The floor answers once.
    if followed && plan.kind != Kind::Floor {
        follow(setup, plan, started, &asked, extras)?;
    }
    Ok(answer)
}

/// To the first correct answer of one process.
fn one(setup: &Setup<'_>, started: &mut Started, tally: &mut Tally) -> Result<Answer, String> {
    let began = started.began;
    let mut over = || setup.stopped().or_else(|| started.is_over());
    first_answer(setup.question, began, setup.deadline, tally, &mut over).map_err(|miss| miss.to_string())
}

/// To the moment when the command says that all clones are ready, and each of them has answered.
fn several(setup: &Setup<'_>, started: &mut Started) -> Result<(Answer, Vec<Question>), String> {
    started.finish(setup.deadline, &|| setup.stopped())?;
    let since = |began: Instant| milliseconds(began.elapsed());
    let ready = since(started.began);
    let listener = setup.image.and_then(|image| clones::listener(image, setup.question));
    let asked = clones::questions(&started.said("out"), listener.as_deref(), setup.question)?;
    let mut first = None;
    for question in &asked {
        ask_once(question, setup.deadline, &mut || setup.stopped())
            .map_err(|why| format!("a clone: {why}"))?;
        first.get_or_insert_with(|| since(started.began));
    }
    Ok((Answer { connect: ready, first_byte: first.unwrap_or(ready), whole: since(started.began) }, asked))
}

/// Memory, then the requests that follow, then memory again.
fn follow(
    setup: &Setup<'_>,
    plan: &Plan,
    started: &Started,
    asked: &[Question],
    extras: &mut Extras,
) -> Result<(), String> {
    extras.memory.push(memory::of(&started.living(), "started"));
    // What has nothing warm cannot be asked for it.
    if setup.requests == 0 || (setup.then.is_some() && plan.name == EMPTY) {
        return Ok(());
    }
    let end = Instant::now() + setup.deadline;
    for number in 0..setup.requests {
        // Clones take turns.
        let own = &asked[number as usize % asked.len()];
        let question = match setup.then {
            Some(then) if asked.len() > 1 => &then.at(own.address),
            Some(then) => then,
            None => own,
        };
        let left = end.saturating_duration_since(Instant::now());
        let took = ask_once(question, left, &mut || setup.stopped())
            .map_err(|why| format!("request {}: {why}", number + 1))?;
        extras.requests.push(milliseconds(took));
    }
    extras.memory.push(memory::of(&started.living(), &format!("after {} requests", setup.requests)));
    Ok(())
}

fn is_taken(question: &Question) -> bool {
    TcpStream::connect_timeout(&question.address, GLANCE).is_ok()
}

fn is_free(question: &Question) -> Result<(), String> {
    let deadline = Instant::now() + FREE;
    while is_taken(question) {
        if Instant::now() > deadline {
            let port = question.address;
            return Err(format!("somebody listens on {port} after the end of all that was started"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The command, and for the restore of one process where it writes what its time went into.
fn with_timings(plan: &Plan, file: &Path) -> Vec<String> {
    let mut command = plan.command.clone();
    if plan.kind == Kind::Defrost && plan.clones == 1 {
        command.extend(["--timings".to_owned(), file.display().to_string()]);
    }
    command
}

/// The parts that `defrost restore` tells of, from the spawn on.
fn phases(told: &Timings, spawned: Instant) -> Vec<Phase> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    let spawned = now.saturating_sub(spawned.elapsed());
    let main = milliseconds(Duration::from_nanos(told.began_ns).saturating_sub(spawned));
    let own = told.parts.iter().map(|part| Phase {
        name: part.name.clone(),
        began: main + milliseconds(Duration::from_micros(part.began_us)),
        took: milliseconds(Duration::from_micros(part.took_us)),
    });
    [Phase { name: SPAWN.to_owned(), began: 0.0, took: main }].into_iter().chain(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::timings::{FORM, Part};

    #[test]
    fn parts_begin_with_the_spawn() {
        let spawned = Instant::now();
        let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap());
        let began = now + Duration::from_millis(2);
        let part = Part { name: "verify it".to_owned(), began_us: 500, took_us: 250 };
        let began_ns = u64::try_from(began.as_nanos()).unwrap();
        let found = phases(&Timings { form: FORM, began_ns, parts: vec![part] }, spawned);
        assert_eq!(found.len(), 2);
        let about = |value: f64, wanted: f64| (value - wanted).abs() < 1.0;
        assert!(found[0].name == SPAWN && found[0].began == 0.0 && about(found[0].took, 2.0), "{found:?}");
        assert!(about(found[1].began, 2.5) && found[1].took == 0.25, "{found:?}");
        assert!((found[1].began - found[0].took - 0.5).abs() < 1e-9, "{found:?}");
    }
}
