//! Registers of an x86 thread (part of `core-TID.img`).

/// Everything of the processor that belongs to a thread.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ThreadInfoX86 {
    /// Address the kernel zeroes and wakes when the thread ends.
    #[prost(uint64, required, tag = "1")]
    pub clear_tid_addr: u64,
    /// General registers.
    #[prost(message, required, tag = "2")]
    pub general: GeneralRegisters,
    /// Floating point and vector registers.
    #[prost(message, required, tag = "3")]
    pub floating: FloatingRegisters,
    /// Segments of 32-bit thread-local storage.
    #[prost(message, repeated, tag = "4")]
    pub tls: Vec<SegmentDescriptor>,
}

/// General registers, as in the kernel's `user_regs_struct`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct GeneralRegisters {
    /// Register `r15`.
    #[prost(uint64, required, tag = "1")]
    pub r15: u64,
    /// Register `r14`.
    #[prost(uint64, required, tag = "2")]
    pub r14: u64,
    /// Register `r13`.
    #[prost(uint64, required, tag = "3")]
    pub r13: u64,
    /// Register `r12`.
    #[prost(uint64, required, tag = "4")]
    pub r12: u64,
    /// Register `rbp`.
    #[prost(uint64, required, tag = "5")]
    pub bp: u64,
    /// Register `rbx`.
    #[prost(uint64, required, tag = "6")]
    pub bx: u64,
    /// Register `r11`.
    #[prost(uint64, required, tag = "7")]
    pub r11: u64,
    /// Register `r10`.
    #[prost(uint64, required, tag = "8")]
    pub r10: u64,
    /// Register `r9`.
    #[prost(uint64, required, tag = "9")]
    pub r9: u64,
    /// Register `r8`.
    #[prost(uint64, required, tag = "10")]
    pub r8: u64,
    /// Register `rax`, the system call's result.
    #[prost(uint64, required, tag = "11")]
    pub ax: u64,
    /// Register `rcx`.
    #[prost(uint64, required, tag = "12")]
    pub cx: u64,
    /// Register `rdx`.
    #[prost(uint64, required, tag = "13")]
    pub dx: u64,
    /// Register `rsi`.
    #[prost(uint64, required, tag = "14")]
    pub si: u64,
    /// Register `rdi`.
    #[prost(uint64, required, tag = "15")]
    pub di: u64,
    /// Number of the system call the thread was in, all ones if none.
    #[prost(uint64, required, tag = "16")]
    pub orig_ax: u64,
    /// Instruction pointer.
    #[prost(uint64, required, tag = "17")]
    pub ip: u64,
    /// Code segment.
    #[prost(uint64, required, tag = "18")]
    pub cs: u64,
    /// Flags.
    #[prost(uint64, required, tag = "19")]
    pub flags: u64,
    /// Stack pointer.
    #[prost(uint64, required, tag = "20")]
    pub sp: u64,
    /// Stack segment.
    #[prost(uint64, required, tag = "21")]
    pub ss: u64,
    /// Base of `fs`, the thread pointer.
    #[prost(uint64, required, tag = "22")]
    pub fs_base: u64,
    /// Base of `gs`.
    #[prost(uint64, required, tag = "23")]
    pub gs_base: u64,
    /// Data segment.
    #[prost(uint64, required, tag = "24")]
    pub ds: u64,
    /// Segment `es`.
    #[prost(uint64, required, tag = "25")]
    pub es: u64,
    /// Segment `fs`.
    #[prost(uint64, required, tag = "26")]
    pub fs: u64,
    /// Segment `gs`.
    #[prost(uint64, required, tag = "27")]
    pub gs: u64,
    /// Whether the thread ran 32-bit code; native when absent.
    #[prost(enumeration = "RegsMode", optional, tag = "28")]
    pub mode: Option<i32>,
}

/// The legacy area that `fxsave` writes, and what `xsave` adds.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FloatingRegisters {
    /// Control word.
    #[prost(uint32, required, tag = "1")]
    pub cwd: u32,
    /// Status word.
    #[prost(uint32, required, tag = "2")]
    pub swd: u32,
    /// Tag word.
    #[prost(uint32, required, tag = "3")]
    pub twd: u32,
    /// Last opcode.
    #[prost(uint32, required, tag = "4")]
    pub fop: u32,
    /// Last instruction pointer.
    #[prost(uint64, required, tag = "5")]
    pub rip: u64,
    /// Last data pointer.
    #[prost(uint64, required, tag = "6")]
    pub rdp: u64,
    /// Control and status of SSE.
    #[prost(uint32, required, tag = "7")]
    pub mxcsr: u32,
    /// Bits of `mxcsr` the processor knows.
    #[prost(uint32, required, tag = "8")]
    pub mxcsr_mask: u32,
    /// Eight x87 registers, four words each.
    #[prost(uint32, repeated, packed = "false", tag = "9")]
    pub st_space: Vec<u32>,
    /// Sixteen XMM registers, four words each.
    #[prost(uint32, repeated, packed = "false", tag = "10")]
    pub xmm_space: Vec<u32>,
    /// Unused.
    #[prost(uint32, repeated, packed = "false", tag = "11")]
    pub padding: Vec<u32>,
    /// Extended state.
    #[prost(message, optional, tag = "13")]
    pub xsave: Option<ExtendedState>,
}

/// Components of the `xsave` area. A component without its bit in `xstate_bv` is in its initial state.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ExtendedState {
    /// Components in use, `XSTATE_BV` of the header.
    #[prost(uint64, required, tag = "1")]
    pub xstate_bv: u64,
    /// Upper halves of sixteen YMM registers, four words each.
    #[prost(uint32, repeated, packed = "false", tag = "2")]
    pub ymmh_space: Vec<u32>,
    /// MPX bounds.
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub bndreg_state: Vec<u64>,
    /// MPX control.
    #[prost(uint64, repeated, packed = "false", tag = "4")]
    pub bndcsr_state: Vec<u64>,
    /// AVX-512 masks.
    #[prost(uint64, repeated, packed = "false", tag = "5")]
    pub opmask_reg: Vec<u64>,
    /// Upper halves of ZMM 0 to 15.
    #[prost(uint64, repeated, packed = "false", tag = "6")]
    pub zmm_upper: Vec<u64>,
    /// ZMM 16 to 31.
    #[prost(uint64, repeated, packed = "false", tag = "7")]
    pub hi16_zmm: Vec<u64>,
    /// Protection key rights.
    #[prost(uint32, repeated, packed = "false", tag = "8")]
    pub pkru: Vec<u32>,
    /// Shadow stack state.
    #[prost(message, optional, tag = "9")]
    pub shadow_stack: Option<ShadowStackState>,
}

/// Control-flow enforcement of a thread.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ShadowStackState {
    /// The `IA32_U_CET` register.
    #[prost(uint64, required, tag = "1")]
    pub control: u64,
    /// Shadow stack pointer.
    #[prost(uint64, required, tag = "2")]
    pub pointer: u64,
}

/// A segment, as in `set_thread_area(2)`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SegmentDescriptor {
    /// Index in the descriptor table.
    #[prost(uint32, required, tag = "1")]
    pub entry_number: u32,
    /// Base address.
    #[prost(uint32, required, tag = "2")]
    pub base_addr: u32,
    /// Limit.
    #[prost(uint32, required, tag = "3")]
    pub limit: u32,
    /// 32-bit segment.
    #[prost(bool, required, tag = "4")]
    pub seg_32bit: bool,
    /// High bit of the contents field.
    #[prost(bool, required, tag = "5")]
    pub contents_h: bool,
    /// Low bit of the contents field.
    #[prost(bool, required, tag = "6")]
    pub contents_l: bool,
    /// Not writable, or not readable.
    #[prost(bool, required, tag = "7")]
    pub read_exec_only: bool,
    /// The limit counts pages.
    #[prost(bool, required, tag = "8")]
    pub limit_in_pages: bool,
    /// Not present.
    #[prost(bool, required, tag = "9")]
    pub seg_not_present: bool,
    /// Available to system software.
    #[prost(bool, required, tag = "10")]
    pub usable: bool,
}

/// Code a thread was running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum RegsMode {
    /// 64-bit.
    Native = 1,
    /// 32-bit.
    Compat = 2,
}
