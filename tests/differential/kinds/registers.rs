//! Registers.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use crate::differential::play::{Play, until, until_in_call};
use crate::differential::sys::{self, Area, Region, call};

/// Where in an area of XSAVE what is (Intel SDM vol. 1, 13.4): control of x87, its registers in use, control of SSE,
/// and the header, which tells what is in use.
const X87_CONTROL: usize = 0;
const X87_TAGS: usize = 4;
const SSE_CONTROL: usize = 24;
const HEADER: usize = 512;
/// The eight registers of x87, of which ten bytes count, and the sixteen of SSE.
const X87: Range<usize> = 32..160;
const SSE: Range<usize> = 160..416;

/// Where all registers of these states lie.
fn registers(states: u64) -> Vec<Range<usize>> {
    let control = [X87_CONTROL..X87_CONTROL + 2, SSE_CONTROL..SSE_CONTROL + 4];
    let extended = (2..64).filter(|state| states >> state & 1 != 0).map(|state| {
        let leaf = raw_cpuid::native_cpuid::cpuid_count(0xd, state);
        leaf.ebx as usize..(leaf.ebx + leaf.eax) as usize
    });
    let x87 = X87.step_by(16).map(|start| start..start + 10);
    control.into_iter().chain(x87).chain([SSE]).chain(extended).collect()
}

/// All states with a value of their own in every register, and rounding as nobody else has it.
fn pattern(states: u64) -> Box<Area> {
    let mut area = Area::empty();
    for place in registers(states).into_iter().flatten() {
        area.0[place] = (place % 251) as u8 | 1;
    }
    // Numbers, not the odd values that the processor would quieten.
    for start in X87.step_by(16) {
        area.0[start + 7] |= 0x80;
        area.0[start + 9] = 0x3f;
    }
    area.0[X87_TAGS] = 0xff;
    // Extended precision, rounding up, all exceptions masked; then flush to zero, rounding down, all masked.
    area.0[X87_CONTROL..X87_CONTROL + 2].copy_from_slice(&0x0b7f_u16.to_le_bytes());
    area.0[SSE_CONTROL..SSE_CONTROL + 4].copy_from_slice(&0xbf80_u32.to_le_bytes());
    area.0[HEADER..HEADER + 8].copy_from_slice(&states.to_le_bytes());
    area
}

fn held(play: &mut Play, sleeps: bool) {
    let states = sys::states();
    let go = Arc::new(AtomicU32::new(0));
    let tid = Arc::new(AtomicI32::new(0));
    let (word, number) = (Arc::clone(&go), Arc::clone(&tid));
    let thread = std::thread::spawn(move || {
        let pattern = pattern(states);
        let mut found = Area::empty();
        number.store(sys::tid(), Ordering::SeqCst);
        if sleeps {
            sys::sleep_with(states, &pattern, &mut found, &word);
        } else {
            sys::spin_with(states, &pattern, &mut found, &word);
        }
        (pattern, found)
    });
    until("the thread", || tid.load(Ordering::SeqCst) != 0);
    if sleeps {
        until_in_call(tid.load(Ordering::SeqCst), libc::SYS_futex);
    }
    play.dump();
    sys::release(&go);
    let (pattern, found) = thread.join().unwrap();
    for range in registers(states) {
        play.same(format!("registers at {range:?}"), &found.0[range.clone()], &pattern.0[range]);
    }
}

pub fn registers_while_running(play: &mut Play) {
    held(play, false);
}

pub fn registers_while_asleep(play: &mut Play) {
    held(play, true);
}

/// A thread with a base for the segment gs.
pub fn gs_base(play: &mut Play) {
    const ARCH_SET_GS: usize = 0x1001;
    let go = Arc::new(AtomicU32::new(0));
    let tid = Arc::new(AtomicI32::new(0));
    let (word, number) = (Arc::clone(&go), Arc::clone(&tid));
    let thread = std::thread::spawn(move || {
        let region = Region::new(4096);
        region.write(&0x1234_5678_9abc_def0_u64.to_le_bytes());
        call(libc::SYS_arch_prctl, &[ARCH_SET_GS, region.start]).unwrap();
        number.store(sys::tid(), Ordering::SeqCst);
        while word.load(Ordering::SeqCst) == 0 {
            let _ = call(libc::SYS_futex, &[word.as_ptr() as usize, libc::FUTEX_WAIT as usize, 0, 0]);
        }
        sys::word_of_gs()
    });
    until("the thread", || tid.load(Ordering::SeqCst) != 0);
    until_in_call(tid.load(Ordering::SeqCst), libc::SYS_futex);
    play.dump();
    sys::release(&go);
    play.same("the first word of gs", thread.join().unwrap(), 0x1234_5678_9abc_def0);
}
