//! Timers and clocks.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::differential::play::Play;
use crate::differential::sys::{self, call};

/// The most that may pass from the set-up to the check, in seconds.
const TEST: u64 = 120;
/// One of the real-time signals.
const REAL_TIME: u64 = 40;

/// Seconds that are left of interval timer `which`, and its interval: seconds, microseconds.
fn interval_timer(which: usize) -> [u64; 3] {
    let mut words = [0_u64; 4];
    call(libc::SYS_getitimer, &[which, sys::address(&mut words)]).unwrap();
    [words[2], words[0], words[1]]
}

/// All three, so long that none expires; and one that does is left out by the next kind.
pub fn interval_timers(play: &mut Play) {
    let settings = [[7_u64, 250_000, 1000, 0], [3, 0, 2000, 500_000], [0, 0, 3000, 0]];
    for (which, mut words) in settings.into_iter().enumerate() {
        call(libc::SYS_setitimer, &[which, sys::address(&mut words), 0]).unwrap();
    }
    play.dump();
    for (which, [sec, usec, left, _]) in settings.into_iter().enumerate() {
        let [now, found_sec, found_usec] = interval_timer(which);
        play.same(format!("interval of timer {which}"), (found_sec, found_usec), (sec, usec));
        play.expect(now <= left && now + TEST > left, format!("timer {which} has {now} s of {left} s left"));
    }
}

/// A timer that expires soon after the restore, with a handler.
pub fn expiring(play: &mut Play) {
    static EXPIRED: AtomicU32 = AtomicU32::new(0);
    extern "C" fn handler(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
        EXPIRED.fetch_add(1, Ordering::SeqCst);
    }
    sys::handle(libc::SIGALRM, handler, 0, &[]);
    let mut words = [0_u64, 0, 2, 0];
    let began = Instant::now();
    call(libc::SYS_setitimer, &[0, sys::address(&mut words), 0]).unwrap();
    play.dump();
    crate::differential::play::until("the timer", || EXPIRED.load(Ordering::SeqCst) > 0);
    play.expect(began.elapsed() >= Duration::from_secs(2), "the timer expired too early");
}

/// Timers that expire a thousand times a second, by handlers that run wherever they interrupt: threads that reckon with
/// vector registers all the time, before, while and after the process is dumped.
pub fn storm(play: &mut Play) {
    static CALLED: AtomicU32 = AtomicU32::new(0);
    static STOP: AtomicU32 = AtomicU32::new(0);
    extern "C" fn handler(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
        CALLED.fetch_add(1, Ordering::SeqCst);
    }
    /// A sum that comes out exact, wherever it is interrupted.
    fn reckon(seed: f64) -> bool {
        let terms = [seed; 64].map(std::hint::black_box);
        let sum: f64 = (0..64).map(|index| terms[index] * f64::from(u32::try_from(index).unwrap())).sum();
        sum == seed * 2016.0
    }
    for signal in [libc::SIGALRM, libc::SIGPROF, 40] {
        sys::handle(signal, handler, libc::SA_RESTART, &[]);
    }
    let threads: Vec<_> = [1.0, 2.0, 4.0]
        .map(|seed| {
            std::thread::spawn(move || {
                let mut right = true;
                while STOP.load(Ordering::SeqCst) == 0 {
                    right &= reckon(seed);
                }
                right
            })
        })
        .into();
    let mut words = [0_u64, 1000, 0, 1000];
    for which in [0, 2] {
        call(libc::SYS_setitimer, &[which, sys::address(&mut words), 0]).unwrap();
    }
    let mut event = [0_u64, REAL_TIME, 0, 0, 0, 0, 0, 0];
    let mut id = 0_u32;
    let arguments = [libc::CLOCK_MONOTONIC as usize, sys::address(&mut event), sys::address(&mut id)];
    call(libc::SYS_timer_create, &arguments).unwrap();
    let mut words = [0_u64, 1_000_000, 0, 1_000_000];
    call(libc::SYS_timer_settime, &[id as usize, 0, sys::address(&mut words), 0]).unwrap();
    play.dump();
    let before = CALLED.load(Ordering::SeqCst);
    crate::differential::play::until("many expiries", || CALLED.load(Ordering::SeqCst) > before + 200);
    STOP.store(1, Ordering::SeqCst);
    for thread in threads {
        play.expect(thread.join().unwrap(), "a sum came out wrong");
    }
}

/// A timer that was made after many others: its id has to be asked for, since making as many again would take long.
pub fn late_timer(play: &mut Play) {
    let mut event = [0, (libc::SIGEV_NONE as u64) << 32, 0, 0, 0, 0, 0, 0];
    let mut id = 0_u32;
    let arguments = [libc::CLOCK_MONOTONIC as usize, sys::address(&mut event), sys::address(&mut id)];
    for _ in 0..100 {
        call(libc::SYS_timer_create, &arguments).unwrap();
        call(libc::SYS_timer_delete, &[id as usize]).unwrap();
    }
    call(libc::SYS_timer_create, &arguments).unwrap();
    let mut words = [0_u64, 0, 5000, 0];
    call(libc::SYS_timer_settime, &[id as usize, 0, sys::address(&mut words), 0]).unwrap();
    play.dump();
    call(libc::SYS_timer_gettime, &[id as usize, sys::address(&mut words)]).unwrap();
    play.expect((1..=5000).contains(&words[2]), "the timer has another time left");
}

/// Timers of timer_create(2): ids with gaps, every way to tell, relative and absolute, running and not.
pub fn posix_timers(play: &mut Play) {
    const SIGEV_THREAD_ID: u64 = 4;
    let create = |clock: i32, value: u64, signal: u64, notify: u64| {
        let mut event = [value, signal | notify << 32, u64::from(sys::tid().unsigned_abs()), 0, 0, 0, 0, 0];
        let mut id = u32::MAX;
        let arguments = [clock as usize, sys::address(&mut event), sys::address(&mut id)];
        call(libc::SYS_timer_create, &arguments).unwrap();
        id
    };
    let set = |id: u32, absolute: bool, mut words: [u64; 4]| {
        call(libc::SYS_timer_settime, &[id as usize, usize::from(absolute), sys::address(&mut words), 0])
            .unwrap();
    };
    let get = |id: u32| {
        let mut words = [0_u64; 4];
        call(libc::SYS_timer_gettime, &[id as usize, sys::address(&mut words)]).map(|_| words)
    };
    let alarm = libc::SIGALRM as u64;
    let timers = [
        (libc::CLOCK_MONOTONIC, 1, alarm, libc::SIGEV_SIGNAL as u64),
        (libc::CLOCK_REALTIME, 2, 40, libc::SIGEV_SIGNAL as u64),
        (libc::CLOCK_BOOTTIME, 3, 41, SIGEV_THREAD_ID),
        (libc::CLOCK_MONOTONIC, 4, 42, SIGEV_THREAD_ID),
        (libc::CLOCK_MONOTONIC, 5, 0, libc::SIGEV_NONE as u64),
        (libc::CLOCK_PROCESS_CPUTIME_ID, 6, 43, libc::SIGEV_SIGNAL as u64),
        (libc::CLOCK_MONOTONIC, 7, 44, libc::SIGEV_SIGNAL as u64),
    ];
    let ids: Vec<u32> =
        timers.iter().map(|(clock, value, signal, how)| create(*clock, *value, *signal, *how)).collect();
    // Gaps: before the first that stays, and between two.
    for index in [0, 3] {
        call(libc::SYS_timer_delete, &[ids[index] as usize]).unwrap();
    }
    set(ids[1], false, [60, 5, 1000, 0]);
    set(ids[2], false, [0, 0, 2000, 0]);
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_sec.unsigned_abs();
    set(ids[4], true, [9, 0, now + 3000, 0]);
    set(ids[5], false, [0, 0, 4000, 0]);
    // The last is not running.
    play.dump();
    for (index, interval, left) in
        [(1, [60, 5], 1000), (2, [0, 0], 2000), (4, [9, 0], 3000), (5, [0, 0], 4000), (6, [0, 0], 0)]
    {
        let found = get(ids[index]).unwrap_or([u64::MAX; 4]);
        play.same(format!("interval of timer {index}"), [found[0], found[1]], interval);
        let near = found[2] <= left && found[2] + TEST > left;
        play.expect(near, format!("timer {index} has {} s of {left} s left", found[2]));
    }
    for index in [0, 3] {
        play.same(format!("timer {index}"), get(ids[index]), Err(libc::EINVAL));
    }
    let next = create(libc::CLOCK_MONOTONIC, 0, alarm, libc::SIGEV_SIGNAL as u64);
    play.expect(
        !ids[1..].contains(&next) || next == ids[3],
        format!("a new timer is {next}, which is in use"),
    );
}

/// A timer that has expired many times while its signal was blocked: one signal is pending.
pub fn expired(play: &mut Play) {
    let mut set = 1_u64 << (REAL_TIME - 1);
    call(libc::SYS_rt_sigprocmask, &[libc::SIG_BLOCK as usize, sys::address(&mut set), 0, 8]).unwrap();
    let mut event = [77_u64, REAL_TIME, 0, 0, 0, 0, 0, 0];
    let mut id = 0_u32;
    let arguments = [libc::CLOCK_MONOTONIC as usize, sys::address(&mut event), sys::address(&mut id)];
    call(libc::SYS_timer_create, &arguments).unwrap();
    call(libc::SYS_timer_settime, &[id as usize, 0, sys::address(&mut [0_u64, 1_000_000, 0, 1_000_000]), 0])
        .unwrap();
    crate::differential::play::until("the timer", || {
        let mut pending = 0_u64;
        call(libc::SYS_rt_sigpending, &[sys::address(&mut pending), 8]).unwrap();
        pending == set
    });
    call(libc::SYS_timer_settime, &[id as usize, 0, sys::address(&mut [0_u64; 4]), 0]).unwrap();
    play.dump();
    let (mut info, mut no_time) = ([0_u64; 16], [0_u64; 2]);
    let arguments = [sys::address(&mut set), sys::address(&mut info), sys::address(&mut no_time), 8];
    let taken = call(libc::SYS_rt_sigtimedwait, &arguments);
    play.same("signal of the timer, and its value", (taken, info[3]), (Ok(REAL_TIME as usize), 77));
    play.same("another", call(libc::SYS_rt_sigtimedwait, &arguments), Err(libc::EAGAIN));
}

/// Clocks go on where they were, and do not jump.
pub fn clocks(play: &mut Play) {
    use rustix::time::{ClockId, clock_gettime};
    let clocks = [ClockId::Monotonic, ClockId::Boottime, ClockId::MonotonicRaw];
    let read = |clock| {
        let time = clock_gettime(clock);
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.try_into().unwrap())
    };
    let before = clocks.map(read);
    let began = Instant::now();
    play.dump();
    for ((clock, before), now) in clocks.into_iter().zip(before).zip(clocks.map(read)) {
        let passed = now.checked_sub(before);
        let fits = passed.is_some_and(|passed| passed < Duration::from_secs(TEST));
        play.expect(fits, format!("{clock:?} was {before:?} and is {now:?}"));
    }
    play.expect(began.elapsed() < Duration::from_secs(TEST), "the time of the library has jumped");
}
