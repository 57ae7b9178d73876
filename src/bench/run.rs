//! The rounds of a benchmark: each starts every way once, so that what slows the machine down for a while does so for
//! all of them. A round in which others took much of the processors is run again, within a bound.
//!
//! It must not know what is done with the samples.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::question::Question;
use super::record::{Memory, Start, Way};
use super::start::{Extras, start_once};
use super::usage::Usage;
use super::ways::Plan;

/// How many times the rounds asked for may be run to get so many quiet ones.
const MOST: u32 = 2;
/// How often in a row a way may fail before it is left alone.
const FAILURES: u32 = 2;

/// What is measured, and how.
#[derive(Debug)]
pub struct Setup<'a> {
    /// What is asked first.
    pub question: &'a Question,
    /// What is asked after the first answer, if that is something else.
    pub then: Option<&'a Question>,
    /// How many rounds are wanted.
    pub rounds: u32,
    /// How long a start may take, and the requests after it.
    pub deadline: Duration,
    /// How long all rounds may take: no other is begun then. There is at least one.
    pub within: Duration,
    /// How many requests follow the first answer.
    pub requests: u32,
    /// In how many starts of each way these are made, and memory is looked at.
    pub followed: u32,
    /// The share of the processors that others may take in a round, 0 to 1.
    pub quiet: f64,
    /// The image of the restoring ways.
    pub image: Option<&'a Path>,
    /// A folder for what the commands say.
    pub folder: &'a Path,
    /// Set when the user wants an end.
    pub stop: &'a AtomicBool,
}

impl Setup<'_> {
    /// Why there is to be an end, if there is.
    pub(super) fn stopped(&self) -> Option<String> {
        self.stop.load(Ordering::Relaxed).then(|| "the benchmark was stopped".to_owned())
    }
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// All ways, in the order of each round.
    pub ways: Vec<Way>,
    /// How many rounds were run again.
    pub repeated: u32,
    /// Whether the user wanted an end before all was done.
    pub stopped: bool,
    /// Whether any start failed, one that is not kept too.
    pub failed: bool,
}

/// One way in the course of the rounds.
struct Course<'a> {
    plan: &'a Plan,
    way: Way,
    failures: u32,
    failed: bool,
    why: String,
}

/// A finished round.
struct Round {
    number: u32,
    others: f64,
    starts: Vec<Start>,
}

/// Runs all rounds. `note` is told of each. A way that fails twice in a row is not started again; its remaining starts
/// say so.
pub fn run(setup: &Setup<'_>, plans: &[Plan], note: &mut dyn FnMut(&str)) -> Outcome {
    let mut courses: Vec<Course<'_>> = plans.iter().map(Course::new).collect();
    // The first start of each way fills caches.
    let first = round(setup, &mut courses, 0);
    tell(first.as_ref(), &courses, note);
    let mut stopped = first.is_none();
    let mut rounds: Vec<Round> = Vec::new();
    let wanted = usize::try_from(setup.rounds).unwrap_or(usize::MAX);
    let is_quiet = |round: &Round| round.others <= setup.quiet;
    let (mut number, began) = (0, Instant::now());
    while !stopped
        && (number == 0 || began.elapsed() < setup.within)
        && rounds.iter().filter(|round| is_quiet(round)).count() < wanted
        && number < MOST * setup.rounds
    {
        number += 1;
        let done = round(setup, &mut courses, number);
        tell(done.as_ref(), &courses, note);
        match done {
            Some(round) => {
                note(&format!("round {number}: others took {:.0}% of the processors", round.others * 100.0));
                rounds.push(round);
            }
            None => stopped = true,
        }
    }
    let repeated = number.saturating_sub(setup.rounds);
    // The quietest are kept, in their order.
    rounds.sort_by(|one, other| one.others.total_cmp(&other.others));
    rounds.truncate(wanted);
    rounds.sort_by_key(|round| round.number);
    for round in rounds {
        for (course, start) in courses.iter_mut().zip(round.starts) {
            course.way.starts.push(start);
        }
    }
    let failed = courses.iter().any(|course| course.failed);
    let ways = courses.into_iter().map(|course| Way { memory: middle(course.way.memory), ..course.way });
    Outcome { ways: ways.collect(), repeated, stopped, failed }
}

/// Which starts of a round failed: it may not be kept, and its samples with it.
fn tell(round: Option<&Round>, courses: &[Course<'_>], note: &mut dyn FnMut(&str)) {
    let starts = round.map(|round| round.starts.as_slice()).unwrap_or_default();
    for (course, start) in courses.iter().zip(starts) {
        if let Some(why) = &start.failure {
            note(&format!("{} failed: {why}", course.way.name));
        }
    }
}

/// Starts each way once; round 0 is for the caches. None if the user wants an end.
fn round(setup: &Setup<'_>, courses: &mut [Course<'_>], number: u32) -> Option<Round> {
    let usage = Usage::start();
    let mut elsewhere = Duration::ZERO;
    let mut starts = Vec::new();
    for course in courses {
        if setup.stop.load(Ordering::Relaxed) {
            return None;
        }
        starts.push(course.start(setup, number, &mut elsewhere));
    }
    let stopped = setup.stop.load(Ordering::Relaxed);
    (!stopped).then(|| Round { number, others: usage.others(elsewhere), starts })
}

impl<'a> Course<'a> {
    fn new(plan: &'a Plan) -> Self {
        let way = Way {
            name: plan.name.clone(),
            kind: plan.kind,
            command: plan.command.clone(),
            evicted: plan.evicted,
            kerndat: plan.kerndat,
            clones: plan.clones,
            starts: Vec::new(),
            requests: Vec::new(),
            memory: Vec::new(),
        };
        Self { plan, way, failures: 0, failed: false, why: String::new() }
    }

    fn start(&mut self, setup: &Setup<'_>, number: u32, elsewhere: &mut Duration) -> Start {
        if self.failures >= FAILURES {
            let failure = format!("not started again after {FAILURES} failures in a row: {}", self.why);
            return Start { failure: Some(failure), ..Start::default() };
        }
        let followed = (1..=setup.followed).contains(&number);
        let (start, extras) = start_once(setup, self.plan, followed);
        *elsewhere += extras.elsewhere;
        self.way.kerndat = extras.kerndat.or(self.way.kerndat);
        self.failed |= start.failure.is_some();
        self.failures = if start.failure.is_some() { self.failures + 1 } else { 0 };
        self.why = start.failure.clone().unwrap_or_default();
        self.keep(extras);
        start
    }

    fn keep(&mut self, extras: Extras) {
        if !extras.requests.is_empty() {
            self.way.requests.push(extras.requests);
        }
        self.way.memory.extend(extras.memory);
    }
}

/// Of the memory at each moment, that of the start in the middle.
fn middle(all: Vec<Memory>) -> Vec<Memory> {
    let mut moments: Vec<(String, Vec<Memory>)> = Vec::new();
    for memory in all {
        match moments.iter_mut().find(|(at, _)| *at == memory.at) {
            Some((_, found)) => found.push(memory),
            None => moments.push((memory.at.clone(), vec![memory])),
        }
    }
    let of = |mut found: Vec<Memory>| {
        found.sort_by_key(|memory| memory.pss);
        found.swap_remove(found.len() / 2)
    };
    moments.into_iter().map(|(_, found)| of(found)).collect()
}
