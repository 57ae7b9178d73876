//! Filling memory: jobs that several tasks take from one list, each the next one that nobody has.
//!
//! The helpers are threads, so that they end with the process whatever becomes of it. They are gone, as far as they
//! use its memory, before anything else is made: their numbers are free again then, or soon will be.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::arch::{self, CloneArguments, call, errno, number};
use crate::plan::Plan;
use crate::wire::{self, Header, Part, Step};
use crate::{Failure, THREAD_FLAGS, WORD, give_up, run};

/// SETTLS is of no use to a helper; PARENT_SETTID writes its number to where CHILD_CLEARTID will clear it.
const HELPER_FLAGS: u64 = THREAD_FLAGS & !0x8_0000 | 0x10_0000;
const FUTEX_WAIT: usize = 0;
/// Words of the page: those that threads sleep at later, the next job, and the numbers of the helpers.
const NEXT_JOB: usize = 2;
const HELPERS: usize = 4;

/// Does all jobs, with as many helpers as can be made. Where one fails, in whichever task, the process ends.
pub(crate) fn fill(plan: &Plan) -> Result<(), Failure> {
    let header = plan.header();
    let made = (0..header.helpers).take_while(|index| help(header, *index)).count();
    work(plan)?;
    for index in 0..made {
        let alive = word(header, HELPERS + index);
        loop {
            // The kernel clears it and wakes by the address of a word that processes may share (mm_release).
            let id = alive.load(Ordering::SeqCst);
            if id == 0 {
                break;
            }
            call(number::FUTEX, [alive.as_ptr() as usize, FUTEX_WAIT, id as usize, 0, 0, 0]);
        }
    }
    Ok(())
}

/// Makes a helper; whether it could be. Where it cannot, the others do its part.
fn help(header: &Header, index: u32) -> bool {
    let id = word(header, HELPERS + index as usize).as_ptr() as u64;
    let arguments = CloneArguments {
        flags: HELPER_FLAGS,
        child_tid: id,
        parent_tid: id,
        stack: header.stacks - (u64::from(index) + 2) * wire::STACK,
        stack_size: wire::STACK,
        ..CloneArguments::default()
    };
    let entry = arch::address_of!(in_helper);
    // SAFETY: the stack is the helper's alone, and the entry never returns.
    let made = unsafe { arch::spawn(&arguments, entry, [header.home as usize, 0]) };
    errno(made).is_none()
}

/// The life of a helper.
extern "C" fn in_helper(home: usize, _: usize) -> ! {
    // SAFETY: the leader has started this task with the plan's address.
    let plan = unsafe { Plan::at(home) };
    if let Err(failure) = work(&plan) {
        give_up(plan.header().report, failure);
    }
    loop {
        call(number::EXIT, [0; 6]);
    }
}

/// Does jobs until there are none left.
fn work(plan: &Plan) -> Result<(), Failure> {
    let header = plan.header();
    let next = word(header, NEXT_JOB);
    loop {
        let index = next.fetch_add(1, Ordering::SeqCst);
        if index >= header.jobs.count {
            return Ok(());
        }
        let job: Part = plan.item(header.jobs, index).ok_or(Failure::new(Step::Fill, index, 0))?;
        run(plan, job).map_err(|failure| Failure { index, ..failure })?;
    }
}

fn word(header: &Header, index: usize) -> &'static AtomicU32 {
    let address = header.park as usize + index * WORD;
    // SAFETY: the page of words is mapped for as long as the program runs, and all tasks use it by atomics.
    unsafe { AtomicU32::from_ptr(address as *mut u32) }
}
