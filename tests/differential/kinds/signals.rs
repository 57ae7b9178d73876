//! Signals: pending ones, masks, dispositions, stacks for handlers.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use nix::sys::signal::{SigSet, Signal};

use crate::differential::play::{Play, until, until_in_call};
use crate::differential::sys::{self, Region, call};

/// One of the real-time signals.
const REAL_TIME: usize = 40;

/// Queues a signal with a value, for this process, or for one thread of it.
fn queue(signal: usize, value: u64, thread: Option<i32>) {
    let mut info = [0_u64; 16];
    // struct siginfo: number, error, code; then sender, user, value.
    info[0] = signal as u64;
    info[1] = u64::from(libc::SI_QUEUE.cast_unsigned());
    info[2] = u64::from(std::process::id());
    info[3] = value;
    let pid = std::process::id() as usize;
    let done = match thread {
        None => call(libc::SYS_rt_sigqueueinfo, &[pid, signal, sys::address(&mut info)]),
        Some(tid) => call(libc::SYS_rt_tgsigqueueinfo, &[pid, tid as usize, signal, sys::address(&mut info)]),
    };
    done.unwrap();
}

/// Takes what is pending of these signals: number, code, value.
fn taken(signals: &[usize]) -> Vec<(u64, u64, u64)> {
    let mut set = signals.iter().fold(0_u64, |set, signal| set | 1 << (signal - 1));
    let mut taken = Vec::new();
    let mut no_time = [0_u64; 2];
    loop {
        let mut info = [0_u64; 16];
        let arguments = [sys::address(&mut set), sys::address(&mut info), sys::address(&mut no_time), 8];
        match call(libc::SYS_rt_sigtimedwait, &arguments) {
            Ok(_) => taken.push((info[0] & 0xffff_ffff, info[1] & 0xffff_ffff, info[3])),
            Err(_) => return taken,
        }
    }
}

fn block(signals: &[usize]) {
    let mut set = signals.iter().fold(0_u64, |set, signal| set | 1 << (signal - 1));
    call(libc::SYS_rt_sigprocmask, &[libc::SIG_BLOCK as usize, sys::address(&mut set), 0, 8]).unwrap();
}

/// Signals that are blocked and pending, for the process and for single threads, with values, some several times.
pub fn pending(play: &mut Play) {
    let usr1 = libc::SIGUSR1 as usize;
    let usr2 = libc::SIGUSR2 as usize;
    let all = [usr1, usr2, REAL_TIME, REAL_TIME + 1];
    // Before any thread is made, so that all of them block it.
    block(&all);
    let go = Arc::new(AtomicU32::new(0));
    let tid = Arc::new(AtomicI32::new(0));
    let (word, number) = (Arc::clone(&go), Arc::clone(&tid));
    let thread = std::thread::spawn(move || {
        number.store(sys::tid(), Ordering::SeqCst);
        while word.load(Ordering::SeqCst) == 0 {
            let _ = call(libc::SYS_futex, &[word.as_ptr() as usize, libc::FUTEX_WAIT as usize, 0, 0]);
        }
        taken(&[usr2, REAL_TIME + 1])
    });
    until("the thread", || tid.load(Ordering::SeqCst) != 0);
    until_in_call(tid.load(Ordering::SeqCst), libc::SYS_futex);
    for value in [11, 12, 13] {
        queue(REAL_TIME, value, None);
    }
    nix::sys::signal::kill(nix::unistd::getpid(), Signal::SIGUSR1).unwrap();
    for value in [21, 22] {
        queue(REAL_TIME + 1, value, Some(tid.load(Ordering::SeqCst)));
    }
    queue(usr2, 23, Some(tid.load(Ordering::SeqCst)));
    // Nobody may wait for children then.
    let mut ignore = [libc::SIG_IGN, 0, 0, 0];
    call(libc::SYS_rt_sigaction, &[libc::SIGCHLD as usize, sys::address(&mut ignore), 0, 8]).unwrap();
    play.dump();
    let queued = u64::from(libc::SI_QUEUE.cast_unsigned());
    sys::release(&go);
    let (usr1, usr2, real) = (usr1 as u64, usr2 as u64, REAL_TIME as u64);
    let of_thread = vec![(usr2, queued, 23), (real + 1, queued, 21), (real + 1, queued, 22)];
    play.same("signals of a thread", thread.join().unwrap(), of_thread);
    let of_process = taken(&all);
    let value = of_process.first().map_or(0, |signal| signal.2);
    let expected = vec![(usr1, 0, value), (real, queued, 11), (real, queued, 12), (real, queued, 13)];
    play.same("signals of the process", of_process, expected);
}

/// Handlers with flags and masks, ignored signals; and threads with masks and stacks of their own.
pub fn dispositions(play: &mut Play) {
    static CALLED: AtomicU32 = AtomicU32::new(0);
    extern "C" fn handler(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
        CALLED.fetch_add(1, Ordering::SeqCst);
    }
    /// `struct sigaction` of the kernel.
    fn actions() -> Vec<[usize; 4]> {
        let action = |signal| {
            let mut words = [0; 4];
            let _ = call(libc::SYS_rt_sigaction, &[signal, 0, sys::address(&mut words), 8]);
            words
        };
        (1..=64).map(action).collect()
    }
    let flags = libc::SA_NODEFER | libc::SA_RESTART | libc::SA_ONSTACK;
    sys::handle(libc::SIGUSR1, handler, flags, &[libc::SIGHUP, libc::SIGWINCH, 50]);
    sys::handle(libc::SIGUSR2, handler, libc::SA_RESETHAND, &[]);
    extern "C" fn nothing(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}
    sys::handle(libc::SIGCHLD, nothing, libc::SA_NOCLDWAIT | libc::SA_NOCLDSTOP, &[]);
    sys::handle(64, handler, 0, &[]);
    for signal in [libc::SIGHUP, libc::SIGTTOU, 45] {
        let mut ignore = [libc::SIG_IGN, 0, 0, 0];
        call(libc::SYS_rt_sigaction, &[signal as usize, sys::address(&mut ignore), 0, 8]).unwrap();
    }
    let go = Arc::new(AtomicU32::new(0));
    let state = |seen: &mut [usize; 4]| {
        call(libc::SYS_rt_sigprocmask, &[0, 0, sys::address(&mut seen[0]), 8]).unwrap();
        let mut stack = [0; 3];
        call(libc::SYS_sigaltstack, &[0, sys::address(&mut stack)]).unwrap();
        seen[1..].copy_from_slice(&stack);
    };
    /// SS_AUTODISARM (linux/signal.h).
    const DISARM: usize = 1 << 31;
    let ready = Arc::new(AtomicU32::new(0));
    let threads: Vec<_> = [(libc::SIGTERM as usize, 0), (REAL_TIME, 0), (63, DISARM)]
        .into_iter()
        .map(|(blocked, flags)| {
            let (word, ready) = (Arc::clone(&go), Arc::clone(&ready));
            std::thread::spawn(move || {
                block(&[blocked]);
                let stack = Region::new((blocked + 8) * 4096);
                call(libc::SYS_sigaltstack, &[sys::address(&mut [stack.start, flags, stack.len]), 0])
                    .unwrap();
                let (mut before, mut after) = ([0; 4], [0; 4]);
                state(&mut before);
                ready.fetch_add(1, Ordering::SeqCst);
                while word.load(Ordering::SeqCst) == 0 {
                    let _ = call(libc::SYS_futex, &[word.as_ptr() as usize, libc::FUTEX_WAIT as usize, 0, 0]);
                }
                state(&mut after);
                (before, after)
            })
        })
        .collect();
    until("the threads", || ready.load(Ordering::SeqCst) == 3);
    let before = actions();
    play.dump();
    play.same("dispositions", actions(), before);
    sys::release(&go);
    for thread in threads {
        let (before, after) = thread.join().unwrap();
        play.same("mask and stack of a thread", after, before);
    }
    nix::sys::signal::raise(Signal::SIGUSR1).unwrap();
    nix::sys::signal::raise(Signal::SIGUSR2).unwrap();
    nix::sys::signal::raise(Signal::SIGHUP).unwrap();
    play.same("handlers called", CALLED.load(Ordering::SeqCst), 2);
    play.expect(!SigSet::thread_get_mask().unwrap().contains(Signal::SIGUSR1), "a mask is left behind");
}
