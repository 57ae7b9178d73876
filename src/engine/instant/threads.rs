//! Threads: what each has of its own, and the signal frame that it comes back by.

use criu_images::ThreadCore;
use criu_restorer::plan::{Call, Step, Thread, Writer};

use super::frame::{Processor, State, frame};
use super::layout::Layout;
use super::plan::{any, pointer_to_text};
use super::source::{Source, SourceThread};
use super::support::Reasons;
use crate::image::verify::capabilities_of_child;

const ARCH_SET_GS: u64 = 0x1001;
const ARCH_SET_FS: u64 = 0x1002;
const CAP_SYS_NICE: u64 = 1 << 23;
/// SCHED_OTHER, SCHED_FIFO, SCHED_RR, SCHED_BATCH, SCHED_IDLE (sched(7)).
const POLICIES: [u32; 5] = [0, 1, 2, 3, 5];
const DEADLINE: u32 = 6;
/// A part of the policy: children begin without it.
const RESET_ON_FORK: u32 = 0x4000_0000;

/// All threads, the leader first. `parting` has what each does last of all, by position.
pub(super) fn threads(
    source: &Source,
    layout: &Layout,
    return_to: u64,
    parting: &[Vec<Call>],
    writer: &mut Writer,
    reasons: &mut Reasons,
) -> Vec<Thread> {
    let nice = rustix::process::getpriority_process(None).unwrap_or(0);
    let stack = rustix::process::getrlimit(rustix::process::Resource::Stack).current.unwrap_or(u64::MAX);
    let common = Common { layout, return_to, nice, stack, processor: Processor::here() };
    let mut threads = Vec::with_capacity(source.threads.len());
    for (thread, parting) in source.threads.iter().zip(parting) {
        match make(source, thread, parting, &common, writer) {
            Ok(thread) => threads.push(thread),
            Err(what) => reasons.add(format!("thread {} {what}", thread.tid)),
        }
    }
    threads
}

/// What all threads have in common.
struct Common<'a> {
    layout: &'a Layout,
    return_to: u64,
    /// Our own niceness, which they begin with.
    nice: i32,
    /// Our limit of a stack, in bytes: that of the process is not in force yet when the frames are written.
    stack: u64,
    processor: Processor,
}

fn make(
    source: &Source,
    thread: &SourceThread,
    parting: &[Call],
    common: &Common<'_>,
    writer: &mut Writer,
) -> Result<Thread, String> {
    let SourceThread { tid, core, info } = thread;
    let leads = *tid == source.process.pid;
    let sections = core.rseq.as_ref().and_then(|rseq| rseq.critical_section).unwrap_or(0);
    if sections != 0 {
        return Err("was inside of a restartable sequence".to_owned());
    }
    if info.tls.iter().any(|segment| segment.base_addr != 0 || segment.usable) {
        return Err("has 32-bit thread-local storage".to_owned());
    }
    // The leader's is in the record of the process.
    let mask = if leads { source.task.blk_sigset } else { core.blk_sigset.unwrap_or(0) };
    let state = State {
        general: &info.general,
        floating: &info.floating,
        mask,
        stack: core.signal_stack.as_ref(),
        return_to: common.return_to,
    };
    let frame = frame(&state, &common.processor)?;
    if !common.layout.is_writable(frame.address, frame.end, common.stack) {
        return Err("has no room on its stack for a signal frame".to_owned());
    }
    let mut calls = own(source, thread, common.nice, writer)?;
    let general = &info.general;
    if general.gs_base != 0 {
        calls.push(any(Step::Thread, libc::SYS_arch_prctl, &[ARCH_SET_GS, general.gs_base]));
    }
    if leads {
        calls.push(any(Step::Thread, libc::SYS_arch_prctl, &[ARCH_SET_FS, general.fs_base]));
        calls.push(any(Step::Thread, libc::SYS_set_tid_address, &[info.clear_tid_addr]));
    }
    calls.extend(parting);
    Ok(Thread {
        tid: tid.cast_signed(),
        padding: 0,
        tls: general.fs_base,
        clear_tid: info.clear_tid_addr,
        calls: writer.calls(&calls),
        frame: writer.blob(&frame.bytes),
        frame_at: frame.address,
    })
}

/// What a thread sets for itself.
fn own(source: &Source, thread: &SourceThread, nice: i32, writer: &mut Writer) -> Result<Vec<Call>, String> {
    let core = &thread.core;
    let mut calls = Vec::new();
    let mut call = |number, arguments: &[u64]| calls.push(any(Step::Thread, number, arguments));
    if core.futex_rla != 0 {
        call(libc::SYS_set_robust_list, &[core.futex_rla, u64::from(core.futex_rla_len)]);
    }
    if let Some(rseq) = core.rseq.as_ref().filter(|rseq| rseq.address != 0) {
        call(libc::SYS_rseq, &[rseq.address, u64::from(rseq.size), 0, u64::from(rseq.signature)]);
    }
    let name = core.comm.as_ref().unwrap_or(&source.task.comm);
    call(libc::SYS_prctl, &[libc::PR_SET_NAME as u64, pointer_to_text(writer, name)]);
    schedule(core, nice, writer, &mut call)?;
    for signal in core.signals.iter().flat_map(|queue| &queue.signals) {
        let number = signal_number(&signal.siginfo)?;
        let info = writer.data(&signal.siginfo);
        let to = [u64::from(source.process.pid), u64::from(thread.tid), number, info];
        call(libc::SYS_rt_tgsigqueueinfo, &to);
    }
    Ok(calls)
}

fn schedule(
    core: &ThreadCore,
    nice: i32,
    writer: &mut Writer,
    call: &mut impl FnMut(libc::c_long, &[u64]),
) -> Result<(), String> {
    let wanted = core.sched_nice.unwrap_or(0);
    let policy = core.sched_policy.unwrap_or(0);
    if !POLICIES.contains(&(policy & !RESET_ON_FORK)) {
        return Err(match policy & !RESET_ON_FORK {
            DEADLINE => {
                "has deadlines of its own for the scheduler, which the image does not carry".to_owned()
            }
            other => format!("has scheduling policy {other}, which is not known here"),
        });
    }
    let real_time = [libc::SCHED_FIFO, libc::SCHED_RR].map(libc::c_int::unsigned_abs);
    let prefers = wanted < nice || real_time.contains(&(policy & !RESET_ON_FORK));
    if prefers && capabilities_of_child().is_none_or(|own| own.effective & CAP_SYS_NICE == 0) {
        return Err("was preferred by the scheduler, which takes cap_sys_nice".to_owned());
    }
    if wanted != nice {
        call(libc::SYS_setpriority, &[libc::PRIO_PROCESS.into(), 0, i64::from(wanted).cast_unsigned()]);
    }
    // Whatever it was: ours, which it begins with, need not be the usual one.
    let priority = writer.data(&core.sched_prio.unwrap_or(0).to_ne_bytes());
    call(libc::SYS_sched_setscheduler, &[0, u64::from(policy), priority]);
    Ok(())
}

/// The number in a `siginfo_t`, which it begins with.
pub(super) fn signal_number(info: &[u8]) -> Result<u64, String> {
    let number = info.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes)).filter(|_| info.len() == 128);
    number
        .filter(|number| (1..=64).contains(number))
        .map(|number| u64::from(number.unsigned_abs()))
        .ok_or_else(|| "has a pending signal that cannot be read".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The calls for a thread with this policy and niceness, where ours is 0.
    fn scheduled(policy: u32, nice: i32) -> Result<Vec<(i64, Vec<u64>)>, String> {
        let core = ThreadCore { sched_policy: Some(policy), sched_nice: Some(nice), ..ThreadCore::default() };
        let mut calls = Vec::new();
        let mut call = |number, arguments: &[u64]| calls.push((number, arguments.to_vec()));
        schedule(&core, 0, &mut Writer::new(0), &mut call)?;
        Ok(calls)
    }

    #[test]
    fn a_thread_has_its_own_policy_whatever_ours_is() {
        let calls = scheduled(0, 0).unwrap();
        assert_eq!((calls.len(), calls[0].0, calls[0].1[1]), (1, libc::SYS_sched_setscheduler, 0));
    }

    #[test]
    fn a_policy_that_children_do_not_inherit_is_set_with_that() {
        let calls = scheduled(RESET_ON_FORK | 3, 5).unwrap();
        assert_eq!(calls[0], (libc::SYS_setpriority, vec![0, 0, 5]));
        assert_eq!((calls[1].0, calls[1].1[1]), (libc::SYS_sched_setscheduler, u64::from(RESET_ON_FORK | 3)));
    }

    #[test]
    fn policies_that_cannot_be_set_are_named() {
        assert!(scheduled(DEADLINE, 0).unwrap_err().contains("deadlines"));
        assert!(scheduled(7, 0).unwrap_err().contains("policy 7"));
    }
}
