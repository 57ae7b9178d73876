//! The restorer: a program that becomes another process.
//!
//! It is started in place of the process that is restored, with the right pid and descriptors, and a plan in a
//! memory file. It moves into a hole of the address space to come, empties the rest, makes the system calls of
//! the plan, starts the threads, and leaves: the last of it is unmapped by a call made from restored code.
//!
//! It knows no image format and decides nothing: whatever takes thought is in the plan. No allocation, no
//! variables, no libc; all that belongs to an architecture is in `arch`.

#![no_std]
#![no_main]

mod arch;
mod fill;
mod plan;
#[path = "../src/wire.rs"]
#[allow(dead_code, reason = "shared with the library, which uses the rest")]
mod wire;

use core::sync::atomic::{AtomicU32, Ordering};

use arch::{CloneArguments, call, errno, number};
use plan::Plan;
use wire::{Header, Report, Step, Thread};

/// Exit status after a failure that was, or could not be, reported.
const FAILED: usize = 125;
const PROT_READ_WRITE: usize = 3;
const PROT_READ_EXEC: usize = 5;
const PRIVATE_FIXED_NOREPLACE: usize = 0x10_0002;
const ANONYMOUS: usize = 0x20;
const REMAP_FIXED: usize = 3;
const FUTEX_WAIT_PRIVATE: usize = 128;
const FUTEX_WAKE_PRIVATE: usize = 129;
const FUTEX_CMP_REQUEUE_PRIVATE: usize = 132;
const EVERYBODY: usize = i32::MAX as usize;
/// How often a thread id that is taken is tried again, and after what time: seconds and nanoseconds. The kernel
/// frees the number of a thread that has ended a little later than it lets others see the end (`release_task` in
/// kernel/exit.c), which on a busy machine takes milliseconds.
const TRIES: u32 = 100;
const PAUSE: [usize; 2] = [0, 1_000_000];
const EEXIST: i32 = 17;
/// Bytes of a futex.
const WORD: usize = 4;
const AT_SYSINFO_EHDR: usize = 33;
/// VM, FS, FILES, SIGHAND, THREAD, SYSVSEM, SETTLS, CHILD_CLEARTID: as pthread_create(3) makes threads.
const THREAD_FLAGS: u64 = 0x100 | 0x200 | 0x400 | 0x800 | 0x1_0000 | 0x4_0000 | 0x8_0000 | 0x20_0000;

/// What failed, with the kernel's error number.
#[derive(Clone, Copy)]
struct Failure {
    step: u32,
    index: u32,
    errno: i32,
}

impl Failure {
    fn new(step: Step, index: u32, errno: i32) -> Self {
        Self { step: step as u32, index, errno }
    }
}

/// A call of the program's own, which must not fail.
fn must(step: Step, index: u32, result: isize) -> Result<usize, Failure> {
    match errno(result) {
        None => Ok(result.cast_unsigned()),
        Some(errno) => Err(Failure::new(step, index, errno)),
    }
}

/// Where the program starts, on the stack that the kernel made: argc, argv, environment, auxiliary vector.
#[unsafe(no_mangle)]
extern "C" fn begin(stack: *const usize) -> ! {
    let mut report = -1;
    let failure = match move_in(stack, &mut report) {
        Ok(never) => match never {},
        Err(failure) => failure,
    };
    give_up(report, failure)
}

enum Never {}

/// Copies plan and program into the hole, and goes on there.
fn move_in(stack: *const usize, report: &mut i32) -> Result<Never, Failure> {
    let failed = |index| Failure::new(Step::Move, index, 0);
    // SAFETY: the kernel passes this layout to every program (x86-64 psABI, 3.4.1).
    let (fd, vdso) = unsafe { plan::arguments(stack, AT_SYSINFO_EHDR) }.ok_or(failed(0))?;
    let mut header = Header::default();
    let size = size_of::<Header>();
    let into = (&raw mut header) as usize;
    let read = must(Step::Move, 1, call(number::PREAD64, [fd, into, size, 0, 0, 0]))?;
    if read != size || !plan::is_plan(&header) {
        return Err(failed(2));
    }
    *report = header.report;
    let (home, len) = (header.home as usize, header.home_len as usize);
    // The whole hole first: whatever of this program is in the way shows here.
    let flags = PRIVATE_FIXED_NOREPLACE | ANONYMOUS;
    let all = [home, len, PROT_READ_WRITE, flags, usize::MAX, 0];
    must(Step::Move, 3, call(number::MMAP, all))?;
    let got = must(Step::Move, 4, call(number::PREAD64, [fd, home, header.size as usize, 0, 0, 0]))?;
    if got != header.size as usize {
        return Err(failed(5));
    }
    let (start, end) = arch::program();
    let room = wire::CODE_ROOM as usize;
    if end - start > room {
        return Err(failed(6));
    }
    // SAFETY: both are mapped, do not overlap, and nothing else is in the room for code.
    unsafe { arch::copy(start, header.code as usize, end - start) };
    must(Step::Move, 7, call(number::MPROTECT, [header.code as usize, room, PROT_READ_EXEC, 0, 0, 0]))?;
    let entry = arch::address_of!(go_on) - start + header.code as usize;
    // SAFETY: the copy is the same code, which does not depend on its address, and the stack is unused.
    unsafe { arch::enter(entry, header.stacks as usize, [home, vdso]) }
}

/// The program again, in the hole, as the leader.
extern "C" fn go_on(home: usize, vdso: usize) -> ! {
    // SAFETY: `move_in` has read a plan to this address.
    let plan = unsafe { Plan::at(home) };
    match become_the_process(&plan, vdso) {
        Ok(never) => match never {},
        Err(failure) => give_up(plan.header().report, failure),
    }
}

fn become_the_process(plan: &Plan, vdso: usize) -> Result<Never, Failure> {
    let header = plan.header();
    empty(header, vdso)?;
    run(plan, header.maps)?;
    fill::fill(plan)?;
    run(plan, header.calls)?;
    let threads = header.threads.count;
    for index in 0..threads {
        place_frame(plan, &thread(plan, index)?, index)?;
    }
    for index in 1..threads {
        start(plan, &thread(plan, index)?, index)?;
    }
    let leader = thread(plan, 0)?;
    run(plan, leader.calls)?;
    gather(header, threads as usize - 1)?;
    run(plan, header.finish)?;
    let done = Report { step: Step::Done as u32, index: 0, errno: 0 };
    tell(header.report, &done);
    call(number::CLOSE_RANGE, [header.spare as usize, u32::MAX as usize, 0, 0, 0, 0]);
    release(header);
    let last = [header.home as usize, header.home_len as usize, 0, 0];
    // SAFETY: the gadget is restored code, and the frame is in place.
    unsafe { arch::leave(header.gadget as usize, leader.frame_at as usize, number::MUNMAP, last) }
}

/// Unmaps all but the hole, and takes the vDSO to where the process expects it.
fn empty(header: &Header, vdso: usize) -> Result<(), Failure> {
    let remap = |index: usize, from: usize, len: usize, to: usize| {
        let moved = call(number::MREMAP, [from, len, len, REMAP_FIXED, to, 0]);
        must(Step::Empty, index as u32, moved)
    };
    let mut shelter = header.scratch as usize;
    for (index, part) in header.moves.iter().enumerate().filter(|(_, part)| part.len != 0) {
        remap(index, vdso.wrapping_add_signed(part.offset as isize), part.len as usize, shelter)?;
        shelter += part.len as usize;
    }
    let (home, end) = (header.home as usize, (header.home + header.home_len) as usize);
    must(Step::Empty, 10, call(number::MUNMAP, [0, home, 0, 0, 0, 0]))?;
    must(Step::Empty, 11, call(number::MUNMAP, [end, header.space_end as usize - end, 0, 0, 0, 0]))?;
    let mut shelter = header.scratch as usize;
    for (index, part) in header.moves.iter().enumerate().filter(|(_, part)| part.len != 0) {
        remap(20 + index, shelter, part.len as usize, part.target as usize)?;
        shelter += part.len as usize;
    }
    Ok(())
}

/// Makes the calls of a list, up to the first that fails.
fn run(plan: &Plan, list: wire::Part) -> Result<(), Failure> {
    for index in 0..list.count {
        let wanted: wire::Call = plan.item(list, index).ok_or(Failure::new(Step::Move, index, 0))?;
        let result = call(wanted.number as usize, wanted.arguments.map(|argument| argument as usize));
        let failed = |errno| Failure { step: wanted.step, index, errno };
        if let Some(errno) = errno(result).filter(|_| wanted.outcome != wire::ANYTHING) {
            return Err(failed(errno));
        }
        if wanted.outcome == wire::EXPECTED && result.cast_unsigned() as u64 != wanted.expected {
            return Err(failed(0));
        }
    }
    Ok(())
}

fn thread(plan: &Plan, index: u32) -> Result<Thread, Failure> {
    plan.item(plan.header().threads, index).ok_or(Failure::new(Step::Threads, index, 0))
}

fn place_frame(plan: &Plan, thread: &Thread, index: u32) -> Result<(), Failure> {
    let from = plan.bytes(thread.frame).ok_or(Failure::new(Step::Threads, index, 0))?;
    // SAFETY: the plan's maker has made sure that this is writable memory below the thread's stack pointer.
    unsafe { arch::copy(from, thread.frame_at as usize, thread.frame.count as usize) };
    Ok(())
}

fn start(plan: &Plan, thread: &Thread, index: u32) -> Result<(), Failure> {
    let header = plan.header();
    let tid = thread.tid;
    let arguments = CloneArguments {
        flags: THREAD_FLAGS,
        child_tid: thread.clear_tid,
        stack: header.stacks - (u64::from(index) + 1) * wire::STACK,
        stack_size: wire::STACK,
        tls: thread.tls,
        set_tid: (&raw const tid) as u64,
        set_tid_size: 1,
        ..CloneArguments::default()
    };
    let entry = arch::address_of!(in_thread);
    // SAFETY: the stack is the thread's alone, and the entry never returns.
    let spawn = || unsafe { arch::spawn(&arguments, entry, [header.home as usize, index as usize]) };
    let mut made = spawn();
    for _ in 0..TRIES {
        if errno(made) != Some(EEXIST) {
            break;
        }
        let pause = PAUSE;
        call(number::NANOSLEEP, [(&raw const pause) as usize, 0, 0, 0, 0, 0]);
        made = spawn();
    }
    must(Step::Threads, index, made).map(drop)
}

/// The life of another thread, up to where it sleeps in restored code.
extern "C" fn in_thread(home: usize, index: usize) -> ! {
    // SAFETY: the leader has started this thread with the plan's address.
    let plan = unsafe { Plan::at(home) };
    let header = plan.header();
    let prepared = thread(&plan, index as u32).and_then(|own| run(&plan, own.calls).map(|()| own));
    match prepared {
        Err(failure) => give_up(header.report, failure),
        // SAFETY: the gadget is restored code, and the frame is in place.
        Ok(own) => unsafe {
            let sleep = [header.park as usize, FUTEX_WAIT_PRIVATE, 0, 0];
            arch::leave(header.gadget as usize, own.frame_at as usize, number::FUTEX, sleep)
        },
    }
}

/// Waits until all other threads sleep, which is when none of them runs the program's code any more. The deadline
/// is the engine's, who kills.
///
/// One call that moves sleepers from word to word tells how many there are at that instant. Adding up several calls
/// would not: the kernel may wake a sleeper for no reason and put it back to the word that it came for, where it
/// would be counted again (kernel/futex/waitwake.c, the retry in futex_wait).
fn gather(header: &Header, threads: usize) -> Result<(), Failure> {
    let first = header.park as usize;
    let move_all = |from: usize, to: usize| {
        let requeue = [from, FUTEX_CMP_REQUEUE_PRIVATE, 0, EVERYBODY, to, 0];
        must(Step::Gather, 0, call(number::FUTEX, requeue))
    };
    while move_all(first, first + WORD)? != threads {
        move_all(first + WORD, first)?;
        call(number::SCHED_YIELD, [0; 6]);
    }
    Ok(())
}

/// Lets the sleepers go: those at either word, and by its new value those on their way back to the first.
fn release(header: &Header) {
    let first = header.park as usize;
    // SAFETY: the word is the plan's, aligned, and only read by the kernel besides.
    unsafe { (first as *const AtomicU32).as_ref() }.inspect(|word| word.store(1, Ordering::SeqCst));
    for word in [first, first + WORD] {
        call(number::FUTEX, [word, FUTEX_WAKE_PRIVATE, EVERYBODY, 0, 0, 0]);
    }
}

fn tell(fd: i32, report: &Report) {
    let (from, len) = ((&raw const *report) as usize, size_of::<Report>());
    // Nobody may be listening any more; then nobody needs to know.
    call(number::WRITE, [fd as usize, from, len, 0, 0, 0]);
}

fn give_up(report: i32, failure: Failure) -> ! {
    let Failure { step, index, errno } = failure;
    tell(report, &Report { step, index, errno });
    loop {
        call(number::EXIT_GROUP, [FAILED, 0, 0, 0, 0, 0]);
    }
}

#[panic_handler]
fn panicked(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        call(number::EXIT_GROUP, [FAILED, 0, 0, 0, 0, 0]);
    }
}
