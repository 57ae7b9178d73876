//! Times a start: from before the command is spawned to the first correct answer.
//!
//! One attempt at a connection on each tick of a grid of absolute times, so that the attempts of ways that are compared
//! fall alike. Accepting is not answering: a restored listener takes connections long before anybody serves them, so
//! only a whole and correct answer counts. It must not know what is started.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::question::{LONGEST, Question, Verdict};
use super::record::Answer;

/// The distance of two ticks.
pub const GRID: Duration = Duration::from_micros(100);
/// How long before a tick the sleep ends; the rest is waited for awake.
const SPIN: Duration = Duration::from_micros(40);
/// How long a connection attempt may go unanswered: the kernel repeats a lost SYN only after a second.
const SYN: Duration = Duration::from_millis(3);
/// The pause after an answer that says "not yet": more often would take the time that is measured from the server.
const NOT_YET: Duration = Duration::from_millis(1);
/// How often a wait for an answer looks whether it is still of use.
const LOOK: Duration = Duration::from_millis(100);
/// The least that a wait for an answer has left, so that no time-out is zero.
const LEAST: Duration = Duration::from_millis(1);

/// What the probe saw beside the times: how far to trust them.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Connection attempts.
    pub attempts: u32,
    /// Attempts that got no answer at all.
    pub lost_syns: u32,
    /// Answers that were not the correct one.
    pub not_yet: u32,
    /// The longest time between two attempts.
    pub worst_gap: Duration,
}

/// Why there was no correct answer. Whatever was started is left as it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Miss {
    /// The deadline is over.
    #[error("{address} gave no correct answer within {seconds} s: {last}")]
    Late {
        /// Who was asked.
        address: std::net::SocketAddr,
        /// The deadline.
        seconds: f64,
        /// The last thing that was seen.
        last: String,
    },
    /// Whoever watches says that there will be none.
    #[error("{0}")]
    Over(String),
}

/// What one attempt came to.
#[derive(Debug)]
enum Attempt {
    Correct {
        connected: Instant,
        first: Instant,
        whole: Instant,
    },
    /// Right in form, and not the expected one.
    Wrong(String),
    LostSyn,
    /// Nobody listens, or the connection broke.
    Nothing(String),
}

/// Sees to exact sleep in the calling thread, as long as it lives: by default the kernel adds up to 50 µs.
#[derive(Debug)]
pub struct ExactTimer(());

impl ExactTimer {
    /// From here on. A process that is forked meanwhile has it too.
    #[must_use]
    pub fn start() -> Self {
        // Without it the figures are less exact, which the worst gap shows.
        let _ = nix::sys::prctl::set_timerslack(1);
        Self(())
    }
}

impl Drop for ExactTimer {
    fn drop(&mut self) {
        // Zero stands for the default.
        let _ = nix::sys::prctl::set_timerslack(0);
    }
}

/// Asks on each tick until the answer is correct, for at most `deadline` after `began`; `over` is asked before each
/// attempt whether there is a reason to give up.
///
/// # Errors
/// [`Miss`]
pub fn first_answer(
    question: &Question,
    began: Instant,
    deadline: Duration,
    tally: &mut Tally,
    over: &mut dyn FnMut() -> Option<String>,
) -> Result<Answer, Miss> {
    let _exact = ExactTimer::start();
    let end = began + deadline;
    let (mut tick, mut last) = (began, Instant::now());
    // A wrong answer says more than that there was none at another time.
    let (mut seen, mut wrong) = ("nobody listens there".to_owned(), None);
    loop {
        if let Some(why) = over() {
            return Err(Miss::Over(why));
        }
        let now = Instant::now();
        if now > end {
            let (address, seconds) = (question.address, deadline.as_secs_f64());
            return Err(Miss::Late { address, seconds, last: wrong.unwrap_or(seen) });
        }
        tick = next_tick(tick, now);
        sleep_until(tick);
        let now = Instant::now();
        tally.worst_gap = tally.worst_gap.max(now - last);
        last = now;
        tally.attempts += 1;
        match attempt(question, end, over) {
            Attempt::Correct { connected, first, whole } => {
                let since = |moment: Instant| milliseconds(moment - began);
                return Ok(Answer {
                    connect: since(connected),
                    first_byte: since(first),
                    whole: since(whole),
                });
            }
            Attempt::Wrong(why) => {
                tally.not_yet += 1;
                wrong = Some(why);
                std::thread::sleep(NOT_YET);
            }
            Attempt::LostSyn => tally.lost_syns += 1,
            Attempt::Nothing(why) => seen = why,
        }
    }
}

/// Asks once, and gives the time from before the connection to the whole answer. A lost SYN is sent again. `over` is
/// asked now and then whether there is a reason to give up.
///
/// # Errors
/// What was wrong.
pub fn ask_once(
    question: &Question,
    deadline: Duration,
    over: &mut dyn FnMut() -> Option<String>,
) -> Result<Duration, String> {
    let began = Instant::now();
    let end = began + deadline;
    loop {
        if let Some(why) = over() {
            return Err(why);
        }
        match attempt(question, end, over) {
            Attempt::Correct { whole, .. } => return Ok(whole - began),
            Attempt::Wrong(why) | Attempt::Nothing(why) => return Err(why),
            Attempt::LostSyn if Instant::now() > end => {
                return Err(format!("{} took no connection within {deadline:?}", question.address));
            }
            Attempt::LostSyn => {}
        }
    }
}

/// In the unit of the record.
#[must_use]
pub fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The first tick of the grid that is not over.
fn next_tick(tick: Instant, now: Instant) -> Instant {
    let behind = now.saturating_duration_since(tick).as_nanos() / GRID.as_nanos();
    tick + GRID * u32::try_from(behind + 1).unwrap_or(u32::MAX)
}

fn sleep_until(tick: Instant) {
    let ahead = tick.saturating_duration_since(Instant::now()).saturating_sub(SPIN);
    if !ahead.is_zero() {
        std::thread::sleep(ahead);
    }
    while Instant::now() < tick {
        std::hint::spin_loop();
    }
}

fn attempt(question: &Question, end: Instant, over: &mut dyn FnMut() -> Option<String>) -> Attempt {
    let stream = match TcpStream::connect_timeout(&question.address, SYN) {
        Ok(stream) => stream,
        Err(error) if error.kind() == ErrorKind::TimedOut => return Attempt::LostSyn,
        Err(error) => return Attempt::Nothing(format!("connecting to {}: {error}", question.address)),
    };
    let connected = Instant::now();
    // The port is free again at once.
    let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
    let _ = stream.set_nodelay(true);
    match converse(stream, question, end, over) {
        Ok((first, whole)) => Attempt::Correct { connected, first, whole },
        Err(Talk::Wrong(why)) => Attempt::Wrong(why),
        Err(Talk::Broken(why)) => Attempt::Nothing(why),
    }
}

enum Talk {
    Wrong(String),
    Broken(String),
}

/// Sends the request, and reads until the answer is judged. Gives the moments of its first byte and of its end.
fn converse(
    mut stream: TcpStream,
    question: &Question,
    end: Instant,
    over: &mut dyn FnMut() -> Option<String>,
) -> Result<(Instant, Instant), Talk> {
    let broken = |error: std::io::Error| Talk::Broken(format!("{}: {error}", question.address));
    let left = end.saturating_duration_since(Instant::now());
    stream.set_write_timeout(Some(left.max(LEAST))).map_err(broken)?;
    stream.set_read_timeout(Some(left.clamp(LEAST, LOOK))).map_err(broken)?;
    stream.write_all(&question.request).map_err(broken)?;
    let (mut answer, mut first) = (Vec::new(), None);
    let mut part = vec![0; 64 << 10];
    loop {
        let count = match stream.read(&mut part) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if Instant::now() > end || over().is_some() {
                    return Err(Talk::Broken(format!(
                        "{} took the connection and did not answer",
                        question.address
                    )));
                }
                continue;
            }
            Err(error) => return Err(broken(error)),
        };
        let now = Instant::now();
        if count > 0 {
            first.get_or_insert(now);
        }
        answer.extend_from_slice(&part[..count]);
        match question.expect.judge(&answer, count == 0) {
            Verdict::Correct => return Ok((first.unwrap_or(now), now)),
            Verdict::Wrong(why) if answer.is_empty() => return Err(Talk::Broken(why)),
            Verdict::Wrong(why) => return Err(Talk::Wrong(why)),
            Verdict::Incomplete if answer.len() > LONGEST => {
                return Err(Talk::Wrong(format!("the answer is longer than {LONGEST} bytes")));
            }
            Verdict::Incomplete => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    use super::*;

    /// The machine may be busy: of so many measurements the best one counts.
    const TRIES: u32 = 40;
    /// The most that the best one may be off.
    const ERROR: Duration = Duration::from_micros(200);
    const PATIENCE: Duration = Duration::from_secs(10);

    fn ping(address: std::net::SocketAddr) -> Question {
        Question::bytes(&address.to_string(), b"ping\n", b"pong\n").unwrap()
    }

    fn free_address() -> std::net::SocketAddr {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    /// Listens after this delay, and answers the first one so often wrongly; gives when it listened.
    fn serve(address: std::net::SocketAddr, delay: Duration, wrong: usize) -> JoinHandle<Instant> {
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            let listener = TcpListener::bind(address).unwrap();
            let listens = Instant::now();
            for number in 0..=wrong {
                let (mut client, _) = listener.accept().unwrap();
                client.read_exact(&mut [0; 5]).unwrap();
                client.write_all(if number < wrong { b"wait\n" } else { b"pong\n" }).unwrap();
            }
            listens
        })
    }

    #[test]
    fn the_time_of_a_known_delay_is_right() {
        let mut best = Duration::MAX;
        for _ in 0..TRIES {
            let address = free_address();
            let began = Instant::now();
            let server = serve(address, Duration::from_millis(15), 0);
            let mut tally = Tally::default();
            let answer = first_answer(&ping(address), began, PATIENCE, &mut tally, &mut || None).unwrap();
            let listens = milliseconds(server.join().unwrap() - began);
            assert!(answer.whole >= listens && answer.whole >= answer.first_byte);
            assert!(answer.first_byte >= answer.connect && tally.attempts > 0);
            best = best.min(Duration::from_secs_f64((answer.whole - listens) / 1e3));
            if best < ERROR {
                return;
            }
        }
        panic!("the best of {TRIES} measurements was {best:?} off");
    }

    #[test]
    fn a_wrong_answer_is_counted_and_asked_again() {
        let address = free_address();
        let server = serve(address, Duration::ZERO, 2);
        let mut tally = Tally::default();
        first_answer(&ping(address), Instant::now(), PATIENCE, &mut tally, &mut || None).unwrap();
        server.join().unwrap();
        assert_eq!(tally.not_yet, 2);
    }

    #[test]
    fn who_never_answers_is_late_and_says_why() {
        let address = free_address();
        let deadline = Duration::from_millis(30);
        let missed =
            first_answer(&ping(address), Instant::now(), deadline, &mut Tally::default(), &mut || None);
        let text = missed.unwrap_err().to_string();
        assert!(text.contains("refused") && text.contains("0.03 s"), "{text}");
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let question = ping(silent.local_addr().unwrap());
        let missed = first_answer(&question, Instant::now(), deadline, &mut Tally::default(), &mut || None);
        let text = missed.unwrap_err().to_string();
        assert!(text.contains("did not answer"), "{text}");
    }

    #[test]
    fn who_watches_can_end_it() {
        let address = free_address();
        let mut looks = 0;
        let mut over = || {
            looks += 1;
            (looks > 3).then(|| "it ended".to_owned())
        };
        let missed = first_answer(&ping(address), Instant::now(), PATIENCE, &mut Tally::default(), &mut over);
        assert!(matches!(missed, Err(Miss::Over(why)) if why == "it ended"));
    }

    #[test]
    fn one_question_can_be_given_up_too() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let question = ping(silent.local_addr().unwrap());
        let began = Instant::now();
        let mut over = || (began.elapsed() > Duration::from_millis(50)).then(|| "no more".to_owned());
        ask_once(&question, Duration::from_secs(600), &mut over).unwrap_err();
        assert!(began.elapsed() < PATIENCE);
        assert_eq!(ask_once(&question, PATIENCE, &mut over).unwrap_err(), "no more");
    }

    #[test]
    fn ticks_lie_on_the_grid() {
        let began = Instant::now();
        assert_eq!(next_tick(began, began), began + GRID);
        assert_eq!(next_tick(began, began + GRID * 3 + Duration::from_nanos(1)), began + GRID * 4);
    }
}
