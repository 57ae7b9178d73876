//! Threads, and what each has of its own.

use std::cell::Cell;
use std::fs;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use crate::differential::play::{Play, until_in_call};
use crate::differential::sys::{self, Region, call};

/// Threads that sleep until they are let go, and then tell something.
struct Sleepers<T> {
    go: Arc<AtomicU32>,
    threads: Vec<JoinHandle<T>>,
    tids: Vec<i32>,
}

impl<T: Send + 'static> Sleepers<T> {
    fn new() -> Self {
        Self { go: Arc::new(AtomicU32::new(0)), threads: Vec::new(), tids: Vec::new() }
    }

    /// One more, which does the one thing before it sleeps, and the other thing afterwards.
    fn add<S>(
        &mut self,
        before: impl FnOnce() -> S + Send + 'static,
        after: impl FnOnce(S) -> T + Send + 'static,
    ) {
        let go = Arc::clone(&self.go);
        let (ready, awaited) = mpsc::channel();
        self.threads.push(std::thread::spawn(move || {
            let state = before();
            ready.send(sys::tid()).unwrap();
            while go.load(Ordering::SeqCst) == 0 {
                let _ = call(libc::SYS_futex, &[go.as_ptr() as usize, libc::FUTEX_WAIT as usize, 0, 0]);
            }
            after(state)
        }));
        self.tids.push(awaited.recv().unwrap());
    }

    fn asleep(&self) {
        self.tids.iter().for_each(|tid| until_in_call(*tid, libc::SYS_futex));
    }

    fn wake(self) -> Vec<T> {
        sys::release(&self.go);
        self.threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }
}

fn name() -> String {
    let name = fs::read_to_string(format!("/proc/self/task/{}/comm", sys::tid())).unwrap();
    name.trim_end().to_owned()
}

/// Head of the calling thread's list of robust mutexes.
fn robust_list() -> (usize, usize) {
    let (mut head, mut len) = (0_usize, 0_usize);
    call(libc::SYS_get_robust_list, &[0, sys::address(&mut head), sys::address(&mut len)]).unwrap();
    (head, len)
}

thread_local! {
    static OWN: Cell<usize> = const { Cell::new(0) };
}

/// Two hundred threads, each with a name, thread-local storage, a robust list and a stack.
pub fn two_hundred(play: &mut Play) {
    let mut sleepers = Sleepers::new();
    for index in 0..200 {
        let before = move || {
            OWN.set(index);
            nix::sys::prctl::set_name(&std::ffi::CString::new(format!("number {index}")).unwrap()).unwrap();
            ([index; 1000], robust_list(), sys::tid())
        };
        let after = move |(on_stack, list, tid): ([usize; 1000], (usize, usize), i32)| {
            let kept = OWN.get() == index && on_stack.iter().all(|word| *word == index);
            (kept, list == robust_list(), tid == sys::tid(), name())
        };
        sleepers.add(before, after);
    }
    sleepers.asleep();
    play.dump();
    for (index, found) in sleepers.wake().into_iter().enumerate() {
        play.same(format!("thread {index}"), found, (true, true, true, format!("number {index}")));
    }
}

/// Threads on the smallest stacks that there are, with hardly anything left below.
pub fn small_stacks(play: &mut Play) {
    let go = Arc::new(AtomicU32::new(0));
    let (ready, awaited) = mpsc::channel();
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (go, ready) = (Arc::clone(&go), ready.clone());
            let sleep = move || {
                ready.send(sys::tid()).unwrap();
                let here = [7_u8; 1000];
                while go.load(Ordering::SeqCst) == 0 {
                    let _ = call(libc::SYS_futex, &[go.as_ptr() as usize, libc::FUTEX_WAIT as usize, 0, 0]);
                }
                std::hint::black_box(here) == [7; 1000]
            };
            std::thread::Builder::new().stack_size(16 * 1024).spawn(sleep).unwrap()
        })
        .collect();
    threads.iter().for_each(|_| until_in_call(awaited.recv().unwrap(), libc::SYS_futex));
    play.dump();
    sys::release(&go);
    for thread in threads {
        play.expect(thread.join().unwrap(), "a small stack has changed");
    }
}

/// Threads of every policy that needs no privilege, each with its own niceness.
pub fn scheduling(play: &mut Play) {
    /// Policy and niceness, as /proc has them.
    fn scheduling() -> (String, String) {
        let stat = fs::read_to_string(format!("/proc/self/task/{}/stat", sys::tid())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        (fields[38].to_owned(), fields[16].to_owned())
    }
    let mut sleepers = Sleepers::new();
    for (policy, nice) in [
        (libc::SCHED_OTHER, 0),
        (libc::SCHED_OTHER, 7),
        (libc::SCHED_BATCH, 3),
        (libc::SCHED_IDLE, 0),
        (libc::SCHED_IDLE, 19),
    ] {
        let before = move || {
            let mut priority = 0_i32;
            let arguments = [0, policy as usize, sys::address(&mut priority)];
            call(libc::SYS_sched_setscheduler, &arguments).unwrap();
            rustix::process::setpriority_process(Some(rustix::thread::gettid()), nice).unwrap();
            scheduling()
        };
        sleepers.add(before, |before| (before, scheduling()));
    }
    sleepers.asleep();
    play.dump();
    for (before, after) in sleepers.wake() {
        play.same("policy and niceness", after, before);
    }
}

/// A thread with restartable sequences registered where it likes, and one without any; all others have the C
/// library's.
pub fn restartable_sequences(play: &mut Play) {
    const SIGNATURE: usize = 0x5305_3053;
    const UNREGISTER: usize = 1;
    /// Of the first version of the structure, in bytes; and where in it the processor is.
    const LEN: usize = 32;
    const PROCESSOR: usize = 4;
    let rseq = |place: usize, len: usize, flags: usize| call(libc::SYS_rseq, &[place, len, flags, SIGNATURE]);
    let unregister = move || {
        // How long it is has changed with the versions of the library.
        if let Some(place) = sys::restartable_area() {
            let lengths = [LEN, 2 * LEN, 4 * LEN, 8 * LEN];
            assert!(
                lengths.into_iter().any(|len| rseq(place, len, UNREGISTER).is_ok()),
                "it stays registered"
            );
        }
    };
    let mut sleepers = Sleepers::new();
    let nowhere = move |()| {
        let region = Region::new(4096);
        // It could not if there was a registration.
        (rseq(region.start, LEN, 0), rseq(region.start, LEN, UNREGISTER), true)
    };
    sleepers.add(unregister, nowhere);
    let register = move || {
        unregister();
        let region = Region::new(4096);
        rseq(region.start, LEN, 0).unwrap();
        region
    };
    let elsewhere = move |region: Region| {
        let processor = region.part(PROCESSOR, 4).read();
        (Ok(0), rseq(region.start, LEN, UNREGISTER), processor != [0xff; 4])
    };
    sleepers.add(register, elsewhere);
    sleepers.asleep();
    play.dump();
    for found in sleepers.wake() {
        play.same("registering, unregistering, processor", found, (Ok(0), Ok(0), true));
    }
}

/// A thread dumped while it handles a signal on a stack for that.
pub fn inside_of_a_handler(play: &mut Play) {
    static GO: AtomicU32 = AtomicU32::new(0);
    static INSIDE: AtomicI32 = AtomicI32::new(0);
    extern "C" fn handler(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
        INSIDE.store(sys::tid(), Ordering::SeqCst);
        while GO.load(Ordering::SeqCst) == 0 {
            let _ = call(libc::SYS_futex, &[GO.as_ptr() as usize, libc::FUTEX_WAIT as usize, 0, 0]);
        }
    }
    sys::handle(libc::SIGUSR1, handler, libc::SA_ONSTACK, &[libc::SIGUSR2]);
    let thread = std::thread::spawn(|| {
        let stack = Region::new(64 * 1024);
        let mut words = [stack.start, 0, stack.len];
        call(libc::SYS_sigaltstack, &[sys::address(&mut words), 0]).unwrap();
        let before = [1_u64, 2, 3].map(std::hint::black_box);
        nix::sys::signal::raise(nix::sys::signal::Signal::SIGUSR1).unwrap();
        let mut now = [0; 3];
        call(libc::SYS_sigaltstack, &[0, sys::address(&mut now)]).unwrap();
        let blocked = nix::sys::signal::SigSet::thread_get_mask().unwrap();
        let mask_is_back = !blocked.contains(nix::sys::signal::Signal::SIGUSR2);
        (before == [1, 2, 3], now == words, mask_is_back)
    });
    crate::differential::play::until("the handler", || INSIDE.load(Ordering::SeqCst) != 0);
    until_in_call(INSIDE.load(Ordering::SeqCst), libc::SYS_futex);
    play.dump();
    sys::release(&GO);
    play.same("frame, stack, mask", thread.join().unwrap(), (true, true, true));
}
