//! One start, from the state that it is to begin in to the end of all that it brought up.
//!
//! It must not know how many there are, or what is done with the sample.

use std::io;
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::probe::{Tally, ask_once, first_answer, milliseconds};
use super::question::Question;
use super::record::{Answer, Kind, Memory, Phase, Start};
use super::run::Setup;
use super::started::Started;
use super::usage::Usage;
use super::ways::{EMPTY, Plan};
use super::{caches, clones, memory};

/// How long a look at a port takes at most.
const GLANCE: Duration = Duration::from_millis(50);
/// How long a port may stay taken after the end of who had it.
const FREE: Duration = Duration::from_secs(10);
/// How `defrost restore -v` introduces the phases.
const PHASES: &str = "defrost: it took ";

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
    match Started::spawn(plan.kind, &plan.command, setup.folder) {
        Err(error) => {
            let program = plan.command.first().map(String::as_str).unwrap_or_default();
            start.failure = Some(format!("{program} could not be started: {error}; nothing runs"));
        }
        Ok(mut started) => {
            match measure(setup, plan, &mut started, &mut start, &mut extras, followed) {
                Ok(answer) => start.answer = Some(answer),
                Err(why) => start.failure = Some(why),
            }
            start.phases = phases(&started.said("err"));
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
    started.finish(setup.deadline)?;
    // The floor answers once.
    if followed && plan.kind != Kind::Floor {
        follow(setup, plan, started, &asked, extras)?;
    }
    Ok(answer)
}

/// To the first correct answer of one process.
fn one(setup: &Setup<'_>, started: &mut Started, tally: &mut Tally) -> Result<Answer, String> {
    let began = started.began;
    let mut over = || {
        let stopped = setup.stop.load(Ordering::Relaxed).then(|| "the benchmark was stopped".to_owned());
        stopped.or_else(|| started.is_over())
    };
    first_answer(setup.question, began, setup.deadline, tally, &mut over).map_err(|miss| miss.to_string())
}

/// To the moment when the command says that all clones are ready, and each of them has answered.
fn several(setup: &Setup<'_>, started: &mut Started) -> Result<(Answer, Vec<Question>), String> {
    started.finish(setup.deadline)?;
    let since = |began: Instant| milliseconds(began.elapsed());
    let ready = since(started.began);
    let listener = setup.image.and_then(|image| clones::listener(image, setup.question));
    let asked = clones::questions(&started.said("out"), listener.as_deref(), setup.question)?;
    let mut first = None;
    for question in &asked {
        ask_once(question, setup.deadline).map_err(|why| format!("a clone: {why}"))?;
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
        let took = ask_once(question, left).map_err(|why| format!("request {}: {why}", number + 1))?;
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

/// The phases that `defrost restore -v` tells.
fn phases(said: &str) -> Vec<Phase> {
    let told = said.lines().find_map(|line| line.strip_prefix(PHASES)).unwrap_or_default();
    let mut began = 0.0;
    let phase = |part: &str| {
        let (took, name) = part.split_once(" ms to ")?;
        let took: f64 = took.trim().parse().ok()?;
        let phase = Phase { name: name.to_owned(), began, took };
        began += took;
        Some(phase)
    };
    told.split(", ").filter_map(phase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_read_as_the_command_tells_them() {
        let said = "defrost: process 7 was restored by instant\ndefrost: it took 1.5 ms to plan, 0.5 ms to map memory\n";
        let found = phases(said);
        assert_eq!(found.len(), 2);
        assert_eq!(found[1], Phase { name: "map memory".to_owned(), began: 1.5, took: 0.5 });
        assert!(phases("something else").is_empty());
    }
}
