//! Threads that wait, each in another way.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::differential::play::{Play, until_in_call};
use crate::differential::sys::{self, OwnedMutex, address, call};

/// A thread that will wait in this system call.
fn waiting<T: Send + 'static>(
    number: libc::c_long,
    wait: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let (ready, awaited) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        ready.send(sys::tid()).unwrap();
        wait()
    });
    until_in_call(awaited.recv().unwrap(), number);
    thread
}

/// A mutex that is held with others waiting for it, a condition that is waited for, a channel, a parked thread.
pub fn locks(play: &mut Play) {
    let mutex = Arc::new(Mutex::new(0));
    let condition = Arc::new((Mutex::new(false), Condvar::new()));
    let held = mutex.lock().unwrap();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let mutex = Arc::clone(&mutex);
            waiting(libc::SYS_futex, move || *mutex.lock().unwrap() += 1)
        })
        .collect();
    let pair = Arc::clone(&condition);
    let waiter = waiting(libc::SYS_futex, move || {
        let (lock, condition) = &*pair;
        *condition.wait_while(lock.lock().unwrap(), |come| !*come).unwrap()
    });
    let (sender, receiver) = mpsc::channel::<u32>();
    let receiving = waiting(libc::SYS_futex, move || receiver.recv());
    let parked = waiting(libc::SYS_futex, || {
        std::thread::park_timeout(Duration::from_secs(1000));
    });
    play.dump();
    drop(held);
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    play.same("how often the mutex was taken", *mutex.lock().unwrap(), 3);
    *condition.0.lock().unwrap() = true;
    condition.1.notify_all();
    play.expect(waiter.join().unwrap(), "the condition did not come");
    sender.send(5).unwrap();
    play.same("what came through a channel", receiving.join().unwrap(), Ok(5));
    parked.thread().unpark();
    parked.join().unwrap();
}

/// Mutexes that know their owners: another thread holds them at the dump, and dies or unlocks later.
pub fn owned_mutexes(play: &mut Play) {
    let (robust, inheriting) = (Arc::new(OwnedMutex::new(false)), Arc::new(OwnedMutex::new(true)));
    let word = Arc::new(AtomicU32::new(0));
    let (first, second, go) = (Arc::clone(&robust), Arc::clone(&inheriting), Arc::clone(&word));
    let owner = waiting(libc::SYS_futex, move || {
        let locked = (first.lock(), second.lock());
        while go.load(Ordering::SeqCst) == 0 {
            let _ = call(libc::SYS_futex, &[go.as_ptr() as usize, libc::FUTEX_WAIT as usize, 0, 0]);
        }
        (locked, second.unlock())
    });
    let mutex = Arc::clone(&inheriting);
    let waiter = waiting(libc::SYS_futex, move || (mutex.lock(), mutex.unlock()));
    play.dump();
    sys::release(&word);
    play.same("what the owner did", owner.join().unwrap(), ((0, 0), 0));
    play.same("what the waiter did", waiter.join().unwrap(), (0, 0));
    play.same("taking what a dead thread held", robust.lock(), libc::EOWNERDEAD);
    play.same("repairing it", (robust.repair(), robust.unlock()), (0, 0));
}

/// Threads that sleep for a time, in calls that go on after they were interrupted, or say how much is left.
pub fn sleeps(play: &mut Play) {
    let began = Instant::now();
    let nap = Duration::from_millis(1500);
    let sleeper = waiting(libc::SYS_clock_nanosleep, move || {
        std::thread::sleep(nap);
        began.elapsed()
    });
    let word = Arc::new(AtomicU32::new(0));
    let timed = waiting(libc::SYS_futex, move || {
        let mut limit = [1_u64, 500_000_000];
        let arguments = [word.as_ptr() as usize, libc::FUTEX_WAIT as usize, 0, address(&mut limit)];
        (call(libc::SYS_futex, &arguments), began.elapsed())
    });
    let polling = waiting(libc::SYS_poll, move || (call(libc::SYS_poll, &[0, 0, 1500]), began.elapsed()));
    let absolute = waiting(libc::SYS_clock_nanosleep, move || {
        let end = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let mut end = [end.tv_sec.unsigned_abs() + 1, u64::try_from(end.tv_nsec).unwrap()];
        let arguments = [libc::CLOCK_MONOTONIC as usize, libc::TIMER_ABSTIME as usize, address(&mut end), 0];
        (call(libc::SYS_clock_nanosleep, &arguments), began.elapsed())
    });
    play.dump();
    play.expect(sleeper.join().unwrap() >= nap, "a sleep was too short");
    // CRIU ends what cannot be restarted by EINTR, which these calls may give at any time.
    for (what, thread, least) in
        [("futex", timed, nap), ("poll", polling, nap), ("sleep", absolute, Duration::from_secs(1))]
    {
        let (result, elapsed) = thread.join().unwrap();
        let over = result == Err(libc::EINTR) || elapsed >= least;
        play.expect(over, format!("a {what} gave {result:?} after {elapsed:?}"));
    }
}

/// Threads that wait for descriptors and signals.
pub fn descriptors_and_signals(play: &mut Play) {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let reading = waiting(libc::SYS_read, move || {
        let mut byte = [0];
        File::from(reader).read_exact(&mut byte).map(|()| byte[0]).unwrap()
    });
    let (watched, waker) = rustix::pipe::pipe().unwrap();
    let epoll = nix::sys::epoll::Epoll::new(nix::sys::epoll::EpollCreateFlags::empty()).unwrap();
    let event = nix::sys::epoll::EpollEvent::new(nix::sys::epoll::EpollFlags::EPOLLIN, 77);
    epoll.add(&watched, event).unwrap();
    let waiting_for_event = waiting(libc::SYS_epoll_wait, move || {
        let mut events = [nix::sys::epoll::EpollEvent::empty()];
        // EINTR is to be expected after a restore.
        while epoll.wait(&mut events, nix::sys::epoll::EpollTimeout::NONE).is_err() {}
        drop(watched);
        events[0].data()
    });
    let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
    let receiving = waiting(libc::SYS_recvfrom, move || {
        let mut found = [0; 2];
        (&other).read_exact(&mut found).map(|()| found).unwrap()
    });
    let tid = Arc::new(AtomicU32::new(0));
    let number = Arc::clone(&tid);
    let signalled = waiting(libc::SYS_rt_sigtimedwait, move || {
        number.store(sys::tid().unsigned_abs(), Ordering::SeqCst);
        let mut set = 1_u64 << (libc::SIGUSR1 - 1);
        call(libc::SYS_rt_sigprocmask, &[libc::SIG_BLOCK as usize, address(&mut set), 0, 8]).unwrap();
        loop {
            let taken = call(libc::SYS_rt_sigtimedwait, &[address(&mut set), 0, 0, 8]);
            if taken != Err(libc::EINTR) {
                return taken;
            }
        }
    });
    let pausing = Arc::new(AtomicU32::new(0));
    let number = Arc::clone(&pausing);
    let paused = waiting(libc::SYS_pause, move || {
        number.store(sys::tid().unsigned_abs(), Ordering::SeqCst);
        call(libc::SYS_pause, &[])
    });
    extern "C" fn nothing(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}
    sys::handle(libc::SIGUSR2, nothing, 0, &[]);
    play.dump();
    File::from(writer).write_all(b"r").unwrap();
    play.same("what was read", reading.join().unwrap(), b'r');
    File::from(waker.try_clone().unwrap()).write_all(b"w").unwrap();
    play.same("event", waiting_for_event.join().unwrap(), 77);
    (&one).write_all(b"ok").unwrap();
    play.same("what was received", receiving.join().unwrap(), *b"ok");
    let send = |tid: &AtomicU32, signal: i32| {
        let to = tid.load(Ordering::SeqCst) as usize;
        call(libc::SYS_tgkill, &[std::process::id() as usize, to, signal as usize]).unwrap();
    };
    send(&tid, libc::SIGUSR1);
    play.same("signal", signalled.join().unwrap(), Ok(libc::SIGUSR1 as usize));
    send(&pausing, libc::SIGUSR2);
    play.same("pause", paused.join().unwrap(), Err(libc::EINTR));
    play.expect(waker.as_raw_fd() > 2, "a descriptor has moved");
}
