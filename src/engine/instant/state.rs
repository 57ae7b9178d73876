//! What belongs to the process as a whole: the kernel's notes on its memory, signals, timers, limits.

use std::cell::LazyCell;

use criu_images::TaskCore;
use criu_restorer::plan::{Call, EXPECTED, Step, Writer};
use rustix::process::{Resource, getrlimit};

use super::credentials;
use super::plan::{any, exactly};
use super::source::Source;
use super::support::Reasons;
use super::threads::signal_number;
use super::timers;
use crate::image::verify::{effective_capabilities, in_initial_user_namespace};

const PR_SET_MM_MAP: u64 = 14;
const CAP_SYS_RESOURCE: u32 = 24;
/// By `RLIMIT_*` number, as include/uapi/asm-generic/resource.h has them.
const LIMITS: [Resource; 16] = [
    Resource::Cpu,
    Resource::Fsize,
    Resource::Data,
    Resource::Stack,
    Resource::Core,
    Resource::Rss,
    Resource::Nproc,
    Resource::Nofile,
    Resource::Memlock,
    Resource::As,
    Resource::Locks,
    Resource::Sigpending,
    Resource::Msgqueue,
    Resource::Nice,
    Resource::Rtprio,
    Resource::Rttime,
];

/// Calls for when the memory is in place.
pub(super) fn early(source: &Source, program: u64, writer: &mut Writer, reasons: &mut Reasons) -> Vec<Call> {
    // The C library's way to block all signals leaves out two that it keeps for itself.
    let all = writer.data(&u64::MAX.to_ne_bytes());
    let mask = [libc::SIG_SETMASK as u64, all, 0, 8];
    let mut calls = vec![any(Step::Signals, libc::SYS_rt_sigprocmask, &mask)];
    calls.push(notes(source, program, writer));
    calls.extend(dispositions(&source.task, writer));
    let task = &source.task;
    match personality(task.personality) {
        Some(personality) => calls.push(any(Step::Process, libc::SYS_personality, &[personality.into()])),
        None => reasons.add("the image does not tell its personality".to_owned()),
    }
    let mut control = |option: libc::c_int, value: u64| {
        calls.push(any(Step::Process, libc::SYS_prctl, &[option as u64, value, 0, 0, 0]));
    };
    if task.child_subreaper == Some(true) {
        control(libc::PR_SET_CHILD_SUBREAPER, 1);
    }
    if source.memory.thp_disabled == Some(true) {
        control(libc::PR_SET_THP_DISABLE, 1);
    }
    let registrations = task.membarrier_registration_mask.unwrap_or(0);
    for bit in (0..32).filter(|bit| registrations >> bit & 1 != 0) {
        calls.push(any(Step::Process, libc::SYS_membarrier, &[1 << bit, 0, 0]));
    }
    calls
}

/// The personality that an image means, if it can be told. CRIU 4.2 reads the hexadecimal digits of
/// /proc/PID/personality as decimal ones, up to the first that is none (get_task_personality in criu/cr-dump.c).
fn personality(recorded: u32) -> Option<u32> {
    /// All flags of personality(2); its other bits would be the domain, which is always Linux.
    const FLAGS: u32 = 0x0ffe_0000;
    let meant = u32::from_str_radix(&recorded.to_string(), 16).ok()?;
    (meant & !FLAGS == 0).then_some(meant)
}

/// Calls for when all threads are there and have made theirs.
pub(super) fn late(source: &Source, writer: &mut Writer, reasons: &mut Reasons) -> Vec<Call> {
    let mut calls = Vec::new();
    if let Some(timers) = &source.task.timers {
        calls.extend(timers::calls(timers, writer, reasons));
    }
    calls.extend(limits(&source.task, writer, reasons));
    for signal in source.task.signals.iter().flat_map(|queue| &queue.signals) {
        match signal_number(&signal.siginfo) {
            Ok(number) => {
                let info = writer.data(&signal.siginfo);
                let to = [u64::from(source.process.pid), number, info];
                calls.push(any(Step::Signals, libc::SYS_rt_sigqueueinfo, &to));
            }
            Err(what) => reasons.add(format!("the process {what}")),
        }
    }
    calls
}

/// The call for when all threads have their credentials: who may dump the process or trace it. The value 2 cannot be set;
/// the kernel chooses it when credentials change, if fs.suid_dumpable says so. Elsewhere it becomes 0, which is as
/// strict, and what CRIU makes of it.
pub(super) fn dumpable(source: &Source) -> Option<Call> {
    let changed = credentials::change_dumpable(source);
    let chosen =
        || std::fs::read_to_string("/proc/sys/fs/suid_dumpable").is_ok_and(|text| text.trim() == "2");
    let control = |option: libc::c_int, value: u64| {
        any(Step::Credentials, libc::SYS_prctl, &[option.unsigned_abs().into(), value, 0, 0, 0])
    };
    match source.memory.dumpable? {
        1 if !changed => None,
        1 => Some(control(libc::PR_SET_DUMPABLE, 1)),
        2 if changed && chosen() => {
            Some(Call { outcome: EXPECTED, expected: 2, ..control(libc::PR_GET_DUMPABLE, 0) })
        }
        _ => Some(control(libc::PR_SET_DUMPABLE, 0)),
    }
}

/// `struct prctl_mm_map`: addresses, auxiliary vector and program.
fn notes(source: &Source, program: u64, writer: &mut Writer) -> Call {
    let memory = &source.memory;
    let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    let vector = bytes(&memory.saved_auxv);
    let at = writer.data(&vector);
    let map = bytes(&[
        memory.start_code,
        memory.end_code,
        memory.start_data,
        memory.end_data,
        memory.start_brk,
        memory.brk,
        memory.start_stack,
        memory.arg_start,
        memory.arg_end,
        memory.env_start,
        memory.env_end,
        at,
        vector.len() as u64 | program << 32,
    ]);
    let at = writer.data(&map);
    any(Step::Notes, libc::SYS_prctl, &[libc::PR_SET_MM as u64, PR_SET_MM_MAP, at, map.len() as u64, 0])
}

/// Signal dispositions; the image has none for SIGKILL and SIGSTOP.
fn dispositions(task: &TaskCore, writer: &mut Writer) -> Vec<Call> {
    let settable = (1..=64).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP].contains(signal));
    let one = |(signal, action): (i32, &criu_images::SignalAction)| {
        let words = [action.handler, action.flags, action.restorer, action.mask];
        let at = writer.data(&words.map(u64::to_ne_bytes).concat());
        any(Step::Signals, libc::SYS_rt_sigaction, &[u64::from(signal.unsigned_abs()), at, 0, 8])
    };
    settable.zip(&task.sigactions).map(one).collect()
}

/// Limits that differ from those that the process would inherit from us.
fn limits(task: &TaskCore, writer: &mut Writer, reasons: &mut Reasons) -> Vec<Call> {
    // prlimit(2) asks for it over the host.
    let raise = LazyCell::new(|| {
        effective_capabilities() >> CAP_SYS_RESOURCE & 1 != 0 && in_initial_user_namespace()
    });
    let mut calls = Vec::new();
    for (which, limit) in (0_u64..).zip(task.limits.iter().flat_map(|limits| &limits.limits)) {
        let inherited = usize::try_from(which).ok().and_then(|which| LIMITS.get(which));
        let Some(inherited) = inherited.map(|limit| getrlimit(*limit)) else { continue };
        let (soft, hard) = (number(inherited.current), number(inherited.maximum));
        if (soft, hard) == (limit.soft, limit.hard) {
            continue;
        }
        if limit.hard > hard && !*raise {
            reasons
                .add(format!("resource limit {which} would have to be raised, which takes cap_sys_resource"));
        }
        let at = writer.data(&[limit.soft, limit.hard].map(u64::to_ne_bytes).concat());
        calls.push(exactly(Step::Limits, libc::SYS_prlimit64, &[0, which, at, 0], 0));
    }
    calls
}

/// As the kernel writes it: RLIM64_INFINITY for none.
fn number(limit: Option<u64>) -> u64 {
    limit.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_personality_is_read_as_criu_wrote_it() {
        assert_eq!(personality(0), Some(0));
        assert_eq!(personality(40_000), Some(0x4_0000), "ADDR_NO_RANDOMIZE");
        assert_eq!(personality(440_000), Some(0x44_0000), "with READ_IMPLIES_EXEC");
        assert_eq!(personality(4000), None, "cut at a letter");
    }
}
