//! The timers of a process: interval timers, and those of timer_create(2) with the ids that they had.
//!
//! The kernel numbers the timers of a process in the order in which they are made, from 0 on (posix_timer_add in
//! kernel/time/posix-timers.c), and a process that is restored has made none. So a timer gets its id back if so many
//! were made before it, of which those that are not in the image are deleted again. That works on every kernel. Where it
//! would take many, and the kernel is new enough, it is asked for the id.

use criu_images::{IntervalTimer, PosixTimer, TaskTimers};
use criu_restorer::plan::{Call, Step, Writer};

use super::plan::{any, exactly};
use super::support::Reasons;
use crate::image::machine::Machine;

/// prctl(2): have timer_create(2) take the id that it is given. Linux 6.15.
const PR_TIMER_CREATE_RESTORE_IDS: u64 = 77;
/// How many timers may be made and deleted again: each takes two system calls.
const MOST_MADE: u32 = 64;

/// Calls that make the timers and arm them.
pub(super) fn calls(timers: &TaskTimers, writer: &mut Writer, reasons: &mut Reasons) -> Vec<Call> {
    let own = [&timers.real, &timers.cpu_user, &timers.cpu_total];
    let mut calls: Vec<Call> =
        (0..).zip(own).filter_map(|(which, timer)| interval(which, timer, writer)).collect();
    let mut posix: Vec<&PosixTimer> = timers.posix.iter().collect();
    posix.sort_by_key(|timer| timer.id);
    let Some(last) = posix.last() else { return calls };
    let missing = u64::from(last.id) + 1 - posix.len() as u64;
    if missing <= u64::from(MOST_MADE) {
        let mut next = 0;
        for timer in posix {
            calls.extend((next..timer.id).flat_map(|id| passed_over(id, writer)));
            calls.extend(made(timer, writer));
            next = timer.id + 1;
        }
        return calls;
    }
    reasons.add_if(
        !restores_ids(),
        "the process has a timer after many others, and the kernel cannot restore its id (Linux 6.15)",
    );
    let ids = |on: u64| any(Step::Timers, libc::SYS_prctl, &[PR_TIMER_CREATE_RESTORE_IDS, on, 0, 0, 0]);
    calls.push(ids(1));
    calls.extend(posix.iter().flat_map(|timer| made(timer, writer)));
    calls.push(ids(0));
    calls
}

/// Whether the kernel is new enough. Only its release is looked at: the processor takes long to tell of itself.
fn restores_ids() -> bool {
    let release = nix::sys::utsname::uname().map(|name| name.release().to_string_lossy().into_owned());
    let machine = Machine { kernel: release.unwrap_or_default(), ..Machine::default() };
    machine.kernel_version().is_some_and(|version| version >= (6, 15))
}

/// Arms an interval timer that ran.
fn interval(which: u64, timer: &IntervalTimer, writer: &mut Writer) -> Option<Call> {
    if timer.value_sec == 0 && timer.value_usec == 0 {
        return None;
    }
    let words = [timer.interval_sec, timer.interval_usec, timer.value_sec, timer.value_usec];
    let at = writer.data(&words.map(u64::to_ne_bytes).concat());
    Some(any(Step::Timers, libc::SYS_setitimer, &[which, at, 0]))
}

/// Makes a timer with the id that it had, and arms it.
fn made(timer: &PosixTimer, writer: &mut Writer) -> [Call; 2] {
    let thread = timer.notify_thread_id.unwrap_or(0).cast_unsigned();
    let event = event(timer.value, timer.signal, timer.notify, thread, writer);
    let id = writer.data(&timer.id.to_ne_bytes());
    let words = [timer.interval_sec, timer.interval_nsec, timer.value_sec, timer.value_nsec];
    let setting = writer.data(&words.map(u64::to_ne_bytes).concat());
    [
        any(Step::Timers, libc::SYS_timer_create, &[timer.clock_id.into(), event, id]),
        any(Step::Timers, libc::SYS_timer_settime, &[timer.id.into(), 0, setting, 0]),
    ]
}

/// Makes a timer that signals nothing, and deletes it: the next has the next id.
fn passed_over(id: u32, writer: &mut Writer) -> [Call; 2] {
    let event = event(0, 0, libc::SIGEV_NONE.unsigned_abs(), 0, writer);
    let at = writer.data(&id.to_ne_bytes());
    [
        any(Step::Timers, libc::SYS_timer_create, &[libc::CLOCK_MONOTONIC as u64, event, at]),
        exactly(Step::Timers, libc::SYS_timer_delete, &[id.into()], 0),
    ]
}

/// `struct sigevent`: value, signal, way, thread; padded to 64 bytes.
fn event(value: u64, signal: u32, notify: u32, thread: u32, writer: &mut Writer) -> u64 {
    let mut event = value.to_ne_bytes().to_vec();
    event.extend([signal, notify, thread].map(u32::to_ne_bytes).concat());
    event.resize(64, 0);
    writer.data(&event)
}
