//! Signal frames: a thread comes back by returning from a signal that it never got.
//!
//! rt_sigreturn(2) sets all registers, the signal mask and the alternative stack from a frame on the thread's
//! stack, as the kernel itself writes it (arch/x86/kernel/signal_64.c, and fpu/signal.c for the extended part).

use std::cell::OnceCell;

use criu_images::{ExtendedState, FloatingRegisters, GeneralRegisters, SignalStack};
use raw_cpuid::native_cpuid::cpuid_count;

/// What code may use below its stack pointer (System V ABI for x86-64, 3.2.2).
const RED_ZONE: u64 = 128;
/// Return address and `struct ucontext`, whose mask has 64 bits.
const FIXED: usize = 8 + 16 + 24 + 256 + 8;
/// The area that FXSAVE writes, and where in it the kernel describes what follows.
const LEGACY: usize = 512;
const DESCRIPTION: usize = 464;
/// After it comes the header of XSAVE.
const XSAVE_HEADER: usize = 64;
const MAGIC_1: u32 = 0x4650_5853;
const MAGIC_2: u32 = 0x4650_5845;
/// UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS.
const FLAGS: u64 = 1 | 2 | 4;
const USER_CODE: u64 = 0x33;
const USER_STACK: u64 = 0x2b;
/// x87 and SSE, which the legacy area holds.
const LEGACY_STATES: u64 = 3;

/// The extended states that CRIU's image carries: XSAVE component, and its bytes.
const COMPONENTS: [(u32, usize); 7] = [(2, 256), (3, 64), (4, 64), (5, 64), (6, 512), (7, 1024), (9, 8)];

/// A frame, and where it goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) address: u64,
    pub(super) bytes: Vec<u8>,
    /// The stack pointer that it restores: nothing above the red zone below that is touched.
    pub(super) end: u64,
}

/// What goes into a frame.
#[derive(Debug)]
pub(super) struct State<'a> {
    pub(super) general: &'a GeneralRegisters,
    pub(super) floating: &'a FloatingRegisters,
    pub(super) mask: u64,
    pub(super) stack: Option<&'a SignalStack>,
    /// The address of code that calls rt_sigreturn.
    pub(super) return_to: u64,
}

/// What this machine says of extended states. Each answer costs microseconds in a virtual machine, so only what
/// matters is asked for, and once for all threads.
#[derive(Debug)]
pub(super) struct Processor {
    /// XCR0.
    enabled: u64,
    offsets: [OnceCell<usize>; COMPONENTS.len()],
}

impl Processor {
    pub(super) fn here() -> Self {
        Self {
            enabled: crate::sys::cpu::xcr0().unwrap_or(0),
            offsets: [const { OnceCell::new() }; COMPONENTS.len()],
        }
    }

    /// Where XSAVE puts the state of the component with this index (Intel SDM vol. 1, 13.5).
    fn offset(&self, index: usize) -> usize {
        *self.offsets[index].get_or_init(|| cpuid_count(0xd, COMPONENTS[index].0).ebx as usize)
    }
}

/// Makes the frame of a thread. Registers that this machine cannot take are an error, as a text.
pub(super) fn frame(state: &State<'_>, processor: &Processor) -> Result<Frame, &'static str> {
    let general = state.general;
    if general.cs != USER_CODE || general.ss != USER_STACK || general.mode == Some(2) {
        return Err("runs 32-bit code");
    }
    if [general.ds, general.es, general.fs, general.gs] != [0; 4] {
        return Err("has segments of its own");
    }
    let extended = extended(state.floating, processor)?;
    let top = general.sp.checked_sub(RED_ZONE).ok_or("has no stack")?;
    let extended_at = top.checked_sub(extended.len() as u64).ok_or("has no stack")? & !63;
    // At a function's first instruction the stack pointer is 8 below a multiple of 16; the kernel keeps to it.
    let address = (extended_at.checked_sub(FIXED as u64).ok_or("has no stack")? & !15) - 8;
    let mut bytes = vec![0; usize::try_from(extended_at - address).map_err(|_| "has no stack")?];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words(state, extended_at)) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes.extend(extended);
    Ok(Frame { address, bytes, end: top })
}

/// Return address, `struct ucontext`, in words.
fn words(state: &State<'_>, extended_at: u64) -> Vec<u64> {
    let g = state.general;
    let disabled = SignalStack { address: 0, size: 0, flags: libc::SS_DISABLE.unsigned_abs() };
    let stack = state.stack.unwrap_or(&disabled);
    let mut words = vec![state.return_to, FLAGS, 0, stack.address, u64::from(stack.flags), stack.size];
    words.extend([g.r8, g.r9, g.r10, g.r11, g.r12, g.r13, g.r14, g.r15]);
    words.extend([g.di, g.si, g.bp, g.bx, g.dx, g.ax, g.cx, g.sp, g.ip, g.flags]);
    words.push(USER_CODE | USER_STACK << 48);
    // Error, trap, old mask, fault address: for the reader of a real signal.
    words.extend([0; 4]);
    words.push(extended_at);
    words.extend([0; 8]);
    words.push(state.mask);
    words
}

/// The floating point part, as XSAVE lays it out on this machine.
fn extended(registers: &FloatingRegisters, processor: &Processor) -> Result<Vec<u8>, &'static str> {
    let empty = ExtendedState::default();
    let xsave = registers.xsave.as_ref().unwrap_or(&empty);
    let in_use = if registers.xsave.is_some() { xsave.xstate_bv } else { LEGACY_STATES };
    let carried = COMPONENTS.iter().fold(LEGACY_STATES, |bits, (component, _)| bits | 1 << component);
    if in_use & !carried != 0 {
        return Err("has register states that the image does not carry");
    }
    if in_use & !processor.enabled != 0 {
        return Err("has register states that this processor lacks");
    }
    if xsave.shadow_stack.as_ref().is_some_and(|stack| stack.control != 0) {
        return Err("uses a shadow stack");
    }
    let mut bytes = legacy(registers);
    bytes.extend(in_use.to_le_bytes());
    bytes.resize(LEGACY + XSAVE_HEADER, 0);
    for (index, (component, len)) in COMPONENTS.iter().enumerate() {
        if in_use >> component & 1 == 0 {
            continue;
        }
        let offset = processor.offset(index);
        let state = component_bytes(xsave, *component);
        if state.len() != *len || offset < LEGACY + XSAVE_HEADER {
            return Err("has register states of an unknown size");
        }
        let end = offset + len;
        bytes.resize(bytes.len().max(end), 0);
        bytes[offset..end].copy_from_slice(&state);
    }
    let size = u32::try_from(bytes.len()).map_err(|_| "has register states of an unknown size")?;
    let mut description = Vec::with_capacity(LEGACY - DESCRIPTION);
    description.extend(MAGIC_1.to_le_bytes());
    description.extend((size + 4).to_le_bytes());
    description.extend((in_use | LEGACY_STATES).to_le_bytes());
    description.extend(size.to_le_bytes());
    bytes[DESCRIPTION..DESCRIPTION + description.len()].copy_from_slice(&description);
    bytes.extend(MAGIC_2.to_le_bytes());
    Ok(bytes)
}

/// The area of FXSAVE (Intel SDM vol. 1, 10.5.1).
fn legacy(registers: &FloatingRegisters) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(LEGACY);
    for word in [registers.cwd, registers.swd, registers.twd, registers.fop] {
        bytes.extend(&word.to_le_bytes()[..2]);
    }
    bytes.extend(registers.rip.to_le_bytes());
    bytes.extend(registers.rdp.to_le_bytes());
    bytes.extend(registers.mxcsr.to_le_bytes());
    bytes.extend(registers.mxcsr_mask.to_le_bytes());
    bytes.extend(low_words(&registers.st_space, 32));
    bytes.extend(low_words(&registers.xmm_space, 64));
    bytes.resize(LEGACY, 0);
    bytes
}

/// So many words, zero where the image has fewer.
fn low_words(words: &[u32], count: usize) -> impl Iterator<Item = u8> {
    words.iter().copied().chain(std::iter::repeat(0)).take(count).flat_map(u32::to_le_bytes)
}

fn component_bytes(state: &ExtendedState, component: u32) -> Vec<u8> {
    let narrow = |words: &[u32]| words.iter().copied().flat_map(u32::to_le_bytes).collect();
    let wide = |words: &[u64]| words.iter().copied().flat_map(u64::to_le_bytes).collect();
    match component {
        2 => narrow(&state.ymmh_space),
        3 => wide(&state.bndreg_state),
        4 => padded(wide(&state.bndcsr_state), 64),
        5 => wide(&state.opmask_reg),
        6 => wide(&state.zmm_upper),
        7 => wide(&state.hi16_zmm),
        9 => padded(narrow(&state.pkru), 8),
        _ => Vec::new(),
    }
}

fn padded(mut bytes: Vec<u8>, len: usize) -> Vec<u8> {
    bytes.resize(bytes.len().max(len), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> (GeneralRegisters, FloatingRegisters) {
        let general = GeneralRegisters {
            cs: USER_CODE,
            ss: USER_STACK,
            sp: 0x7fff_0000_1234,
            ip: 0x40_1000,
            ax: 7,
            ..GeneralRegisters::default()
        };
        let xsave = ExtendedState { xstate_bv: 2, ..ExtendedState::default() };
        let floating = FloatingRegisters {
            cwd: 0x37f,
            mxcsr: 0x1f80,
            xmm_space: (0..64).collect(),
            xsave: Some(xsave),
            ..FloatingRegisters::default()
        };
        (general, floating)
    }

    fn made(general: &GeneralRegisters, floating: &FloatingRegisters) -> Result<Frame, &'static str> {
        let state = State { general, floating, mask: 0x1_0000, stack: None, return_to: 0x5000 };
        frame(&state, &Processor::here())
    }

    #[test]
    fn a_frame_lies_below_the_red_zone_as_the_kernel_would_put_it() {
        let (general, floating) = state();
        let frame = made(&general, &floating).unwrap();
        let end = frame.address + frame.bytes.len() as u64;
        assert!(end <= general.sp - RED_ZONE && general.sp - end < 1024);
        assert_eq!((frame.address + 8) % 16, 0);
        let word = |at: usize| u64::from_le_bytes(frame.bytes[at..at + 8].try_into().unwrap());
        assert_eq!(word(0), 0x5000);
        // uc_mcontext begins at 48: sp and ip are its 16th and 17th word, fpstate its 24th.
        assert_eq!((word(48 + 15 * 8), word(48 + 16 * 8)), (general.sp, general.ip));
        let extended = word(48 + 23 * 8);
        assert_eq!(extended % 64, 0);
        assert_eq!(word(FIXED - 8), 0x1_0000);
        let at = usize::try_from(extended - frame.address).unwrap();
        assert_eq!(frame.bytes[at..at + 2], [0x7f, 3]);
        assert_eq!(frame.bytes[at + 160 + 4], 1, "the second word of xmm0");
        assert_eq!(frame.bytes[at + DESCRIPTION..at + DESCRIPTION + 4], MAGIC_1.to_le_bytes());
        assert_eq!(frame.bytes[frame.bytes.len() - 4..], MAGIC_2.to_le_bytes());
        let size = u32::from_le_bytes(frame.bytes[at + 480..at + 484].try_into().unwrap());
        assert_eq!(size as usize, frame.bytes.len() - at - 4);
    }

    #[test]
    fn registers_that_cannot_be_set_are_refused() {
        let (general, floating) = state();
        let compat = GeneralRegisters { cs: 0x23, ..general.clone() };
        assert!(made(&compat, &floating).is_err());
        let mut amx = floating.clone();
        amx.xsave.as_mut().unwrap().xstate_bv = 1 << 18;
        assert!(made(&general, &amx).is_err());
        let lost = GeneralRegisters { sp: 16, ..general };
        assert!(made(&lost, &floating).is_err());
    }
}
