//! Execution state (`core-TID.img`, one record per thread). Registers, credentials and signals have
//! files of their own.

use std::fmt;

use crate::credentials::Credentials;
use crate::process::KernelIds;
use crate::registers::ThreadInfoX86;
use crate::signals::{SignalAction, SignalQueue, SignalStack};
use crate::timers::TaskTimers;

/// The one record of `core-TID.img`. Register sets of machines other than x86 are not decoded.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Core {
    /// Machine the registers belong to; [`Machine`].
    #[prost(enumeration = "Machine", required, tag = "1")]
    pub machine: i32,
    /// Registers on x86.
    #[prost(message, optional, tag = "2")]
    pub thread_info: Option<ThreadInfoX86>,
    /// State of the whole process; only in the core of its leader.
    #[prost(message, optional, tag = "3")]
    pub task: Option<TaskCore>,
    /// Kernel objects; normally in `ids-PID.img` instead.
    #[prost(message, optional, tag = "4")]
    pub ids: Option<KernelIds>,
    /// State of this thread; absent for a dead process.
    #[prost(message, optional, tag = "5")]
    pub thread: Option<ThreadCore>,
}

/// What belongs to a process as a whole.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct TaskCore {
    /// [`TaskState`] as a number.
    #[prost(uint32, required, tag = "1")]
    pub task_state: u32,
    /// Wait status of a dead process.
    #[prost(uint32, required, tag = "2")]
    pub exit_code: u32,
    /// Execution domain, see `personality(2)`.
    #[prost(uint32, required, tag = "3")]
    pub personality: u32,
    /// `PF_*` flags of the kernel's task.
    #[prost(uint32, required, tag = "4")]
    pub flags: u32,
    /// Blocked signals of the leader.
    #[prost(uint64, required, tag = "5")]
    pub blk_sigset: u64,
    /// Command name, at most 15 bytes of any value.
    #[prost(bytes = "vec", required, tag = "6")]
    pub comm: Vec<u8>,
    /// Interval and POSIX timers.
    #[prost(message, optional, tag = "7")]
    pub timers: Option<TaskTimers>,
    /// Resource limits, by `RLIMIT_*` number.
    #[prost(message, optional, tag = "8")]
    pub limits: Option<ResourceLimits>,
    /// Control group set in old images; now in the thread's record.
    #[prost(uint32, optional, tag = "9")]
    pub cg_set: Option<u32>,
    /// Signals pending for the process.
    #[prost(message, optional, tag = "10")]
    pub signals: Option<SignalQueue>,
    /// Seccomp mode in old images; now in the thread's record.
    #[prost(enumeration = "SeccompMode", optional, tag = "11")]
    pub old_seccomp_mode: Option<i32>,
    /// Seccomp filter in old images; now in the thread's record.
    #[prost(uint32, optional, tag = "12")]
    pub old_seccomp_filter: Option<u32>,
    /// Audit login user.
    #[prost(uint32, optional, tag = "13")]
    pub loginuid: Option<u32>,
    /// Adjustment of the out-of-memory score.
    #[prost(int32, optional, tag = "14")]
    pub oom_score_adj: Option<i32>,
    /// Dispositions of signals 1, 2, … without SIGKILL and SIGSTOP.
    #[prost(message, repeated, tag = "15")]
    pub sigactions: Vec<SignalAction>,
    /// Orphans below this process become its children.
    #[prost(bool, optional, tag = "18")]
    pub child_subreaper: Option<bool>,
    /// Blocked signals 65 to 128, where a machine has them.
    #[prost(uint64, optional, tag = "20")]
    pub blk_sigset_extended: Option<u64>,
    /// Signal that stopped the process.
    #[prost(uint32, optional, tag = "21")]
    pub stop_signo: Option<u32>,
    /// Registrations for `membarrier(2)`.
    #[prost(uint32, optional, tag = "22")]
    pub membarrier_registration_mask: Option<u32>,
}

/// Resource limits of a process.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ResourceLimits {
    /// One per `RLIMIT_*` number, in order.
    #[prost(message, repeated, tag = "1")]
    pub limits: Vec<ResourceLimit>,
}

/// One resource limit; `u64::MAX` is unlimited.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ResourceLimit {
    /// Limit in force.
    #[prost(uint64, required, tag = "1")]
    pub soft: u64,
    /// Ceiling of the soft limit.
    #[prost(uint64, required, tag = "2")]
    pub hard: u64,
}

/// What belongs to one thread.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ThreadCore {
    /// Address of the robust futex list.
    #[prost(uint64, required, tag = "1")]
    pub futex_rla: u64,
    /// Length of its head, in bytes.
    #[prost(uint32, required, tag = "2")]
    pub futex_rla_len: u32,
    /// Nice value.
    #[prost(sint32, optional, tag = "3")]
    pub sched_nice: Option<i32>,
    /// `SCHED_*` policy.
    #[prost(uint32, optional, tag = "4")]
    pub sched_policy: Option<u32>,
    /// Real-time priority.
    #[prost(uint32, optional, tag = "5")]
    pub sched_prio: Option<u32>,
    /// Blocked signals.
    #[prost(uint64, optional, tag = "6")]
    pub blk_sigset: Option<u64>,
    /// Alternative signal stack.
    #[prost(message, optional, tag = "7")]
    pub signal_stack: Option<SignalStack>,
    /// Signal sent when the parent ends; a restored root gets it when CRIU exits.
    #[prost(uint32, optional, tag = "8")]
    pub pdeath_sig: Option<u32>,
    /// Signals pending for the thread.
    #[prost(message, optional, tag = "9")]
    pub signals: Option<SignalQueue>,
    /// Credentials.
    #[prost(message, optional, tag = "10")]
    pub credentials: Option<Credentials>,
    /// Seccomp mode.
    #[prost(enumeration = "SeccompMode", optional, tag = "11")]
    pub seccomp_mode: Option<i32>,
    /// Index of the last filter in `seccomp.img`.
    #[prost(uint32, optional, tag = "12")]
    pub seccomp_filter: Option<u32>,
    /// Thread name, at most 15 bytes of any value.
    #[prost(bytes = "vec", optional, tag = "13")]
    pub comm: Option<Vec<u8>>,
    /// Blocked signals 65 to 128, where a machine has them.
    #[prost(uint64, optional, tag = "14")]
    pub blk_sigset_extended: Option<u64>,
    /// Restartable sequences.
    #[prost(message, optional, tag = "15")]
    pub rseq: Option<RestartableSequences>,
    /// Control group set.
    #[prost(uint32, optional, tag = "16")]
    pub cg_set: Option<u32>,
}

/// Registration of a thread for restartable sequences, see rseq(2).
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RestartableSequences {
    /// Address of the shared area.
    #[prost(uint64, required, tag = "1")]
    pub address: u64,
    /// Its size in bytes.
    #[prost(uint32, required, tag = "2")]
    pub size: u32,
    /// Signature in front of abort handlers.
    #[prost(uint32, required, tag = "3")]
    pub signature: u32,
    /// Critical section at the dump, if the thread was inside one.
    #[prost(uint64, optional, tag = "4")]
    pub critical_section: Option<u64>,
}

impl Core {
    /// The machine the image was made on; `None` for a number this crate does not know.
    #[must_use]
    pub fn march(&self) -> Option<Machine> {
        Machine::try_from(self.machine).ok()
    }
}

impl TaskCore {
    /// State of the process; `None` for a number this crate does not know.
    #[must_use]
    pub fn state(&self) -> Option<TaskState> {
        match self.task_state {
            1 => Some(TaskState::Alive),
            2 => Some(TaskState::Dead),
            3 => Some(TaskState::Stopped),
            4 => Some(TaskState::Helper),
            _ => None,
        }
    }
}

/// State of a process at the dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskState {
    /// Running or sleeping.
    Alive,
    /// A zombie: it has a core file and nothing else.
    Dead,
    /// Stopped by a signal.
    Stopped,
    /// Made up by CRIU to carry a session or group.
    Helper,
}

impl TaskState {
    /// Whether the process has memory, descriptors and folders.
    #[must_use]
    pub fn has_memory(self) -> bool {
        matches!(self, Self::Alive | Self::Stopped)
    }
}

/// Machines CRIU supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Machine {
    /// Never written.
    Unknown = 0,
    /// 64-bit x86, which may run 32-bit code.
    X86_64 = 1,
    /// 32-bit ARM.
    Arm = 2,
    /// 64-bit ARM.
    Aarch64 = 3,
    /// 64-bit POWER.
    Ppc64 = 4,
    /// 64-bit z/Architecture.
    S390 = 5,
    /// 64-bit MIPS.
    Mips = 6,
    /// 64-bit LoongArch.
    Loongarch64 = 7,
    /// 64-bit RISC-V.
    Riscv64 = 8,
}

impl Machine {
    /// The machine this program was built for.
    #[must_use]
    pub const fn host() -> Self {
        if cfg!(target_arch = "x86_64") {
            Self::X86_64
        } else if cfg!(target_arch = "aarch64") {
            Self::Aarch64
        } else if cfg!(target_arch = "arm") {
            Self::Arm
        } else if cfg!(target_arch = "powerpc64") {
            Self::Ppc64
        } else if cfg!(target_arch = "s390x") {
            Self::S390
        } else if cfg!(target_arch = "mips64") {
            Self::Mips
        } else if cfg!(target_arch = "loongarch64") {
            Self::Loongarch64
        } else if cfg!(target_arch = "riscv64") {
            Self::Riscv64
        } else {
            Self::Unknown
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "unknown",
            Self::X86_64 => "x86_64",
            Self::Arm => "arm",
            Self::Aarch64 => "aarch64",
            Self::Ppc64 => "ppc64",
            Self::S390 => "s390",
            Self::Mips => "mips",
            Self::Loongarch64 => "loongarch64",
            Self::Riscv64 => "riscv64",
        })
    }
}

/// Seccomp modes, the kernel's `SECCOMP_MODE_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum SeccompMode {
    /// No restriction.
    Disabled = 0,
    /// Only read, write, exit and sigreturn.
    Strict = 1,
    /// By filter programs.
    Filter = 2,
}
