//! The address space of a process (`mm-PID.img`). Which pages are in the image is the page map's
//! business.

use bitflags::bitflags;

/// The one record of `mm-PID.img`; all addresses are virtual.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Memory {
    /// First byte of the program's code.
    #[prost(uint64, required, tag = "1")]
    pub start_code: u64,
    /// End of the program's code.
    #[prost(uint64, required, tag = "2")]
    pub end_code: u64,
    /// First byte of its initialised data.
    #[prost(uint64, required, tag = "3")]
    pub start_data: u64,
    /// End of its initialised data.
    #[prost(uint64, required, tag = "4")]
    pub end_data: u64,
    /// Where the first stack begins.
    #[prost(uint64, required, tag = "5")]
    pub start_stack: u64,
    /// Start of the heap.
    #[prost(uint64, required, tag = "6")]
    pub start_brk: u64,
    /// End of the heap.
    #[prost(uint64, required, tag = "7")]
    pub brk: u64,
    /// First byte of the arguments.
    #[prost(uint64, required, tag = "8")]
    pub arg_start: u64,
    /// End of the arguments.
    #[prost(uint64, required, tag = "9")]
    pub arg_end: u64,
    /// First byte of the environment.
    #[prost(uint64, required, tag = "10")]
    pub env_start: u64,
    /// End of the environment.
    #[prost(uint64, required, tag = "11")]
    pub env_end: u64,
    /// File id of the executable.
    #[prost(uint32, required, tag = "12")]
    pub exe_file_id: u32,
    /// Auxiliary vector, type and value in turn.
    #[prost(uint64, repeated, packed = "false", tag = "13")]
    pub saved_auxv: Vec<u64>,
    /// Mappings by ascending address.
    #[prost(message, repeated, tag = "14")]
    pub vmas: Vec<Vma>,
    /// Whether core dumps are allowed.
    #[prost(int32, optional, tag = "15")]
    pub dumpable: Option<i32>,
    /// Rings of native asynchronous I/O.
    #[prost(message, repeated, tag = "16")]
    pub aios: Vec<AioRing>,
    /// Transparent huge pages are off.
    #[prost(bool, optional, tag = "17")]
    pub thp_disabled: Option<bool>,
}

/// One mapping.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Vma {
    /// First byte.
    #[prost(uint64, required, tag = "1")]
    pub start: u64,
    /// Byte after the last.
    #[prost(uint64, required, tag = "2")]
    pub end: u64,
    /// Offset in the mapped object, in bytes.
    #[prost(uint64, required, tag = "3")]
    pub offset: u64,
    /// File id of a mapped file, or id of shared anonymous memory.
    #[prost(uint64, required, tag = "4")]
    pub object: u64,
    /// `PROT_*` flags.
    #[prost(uint32, required, tag = "5")]
    pub prot: u32,
    /// `MAP_*` flags.
    #[prost(uint32, required, tag = "6")]
    pub flags: u32,
    /// [`VmaStatus`] as a number.
    #[prost(uint32, required, tag = "7")]
    pub status: u32,
    /// Unused, -1.
    #[prost(sint64, required, tag = "8")]
    pub fd: i64,
    /// One bit per `MADV_*` number to apply.
    #[prost(uint64, optional, tag = "9")]
    pub madv: Option<u64>,
    /// Status flags of the mapped file.
    #[prost(uint32, optional, tag = "10")]
    pub fdflags: Option<u32>,
}

/// One ring of native asynchronous I/O.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AioRing {
    /// Its address, which is the context's id.
    #[prost(uint64, required, tag = "1")]
    pub id: u64,
    /// Requests it can hold.
    #[prost(uint32, required, tag = "2")]
    pub requests: u32,
    /// Length in bytes.
    #[prost(uint32, required, tag = "3")]
    pub length: u32,
}

bitflags! {
    /// What a mapping is, `VMA_*` in CRIU's `image.h`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct VmaStatus: u32 {
        /// Restored like any other mapping.
        const REGULAR = 1 << 0;
        /// Grows downwards.
        const STACK = 1 << 1;
        /// The kernel's vsyscall page.
        const VSYSCALL = 1 << 2;
        /// The kernel's vDSO.
        const VDSO = 1 << 3;
        /// The heap of `brk(2)`.
        const HEAP = 1 << 5;
        /// A file, mapped privately.
        const FILE_PRIVATE = 1 << 6;
        /// A file, mapped shared.
        const FILE_SHARED = 1 << 7;
        /// Anonymous memory that processes share.
        const ANON_SHARED = 1 << 8;
        /// Anonymous memory of this process.
        const ANON_PRIVATE = 1 << 9;
        /// System V shared memory.
        const SYSVIPC = 1 << 10;
        /// A mapped packet socket.
        const SOCKET = 1 << 11;
        /// Data of the vDSO.
        const VVAR = 1 << 12;
        /// Ring of native asynchronous I/O.
        const AIO_RING = 1 << 13;
        /// A memfd.
        const MEMFD = 1 << 14;
        /// Shadow stack of control-flow enforcement.
        const SHADOW_STACK = 1 << 15;
        /// Guard pages inside another mapping (`MADV_GUARD_INSTALL`); no mapping of its own.
        const GUARD = 1 << 16;
        /// The kernel's uprobe trampolines.
        const UPROBES = 1 << 17;
        // Later CRIU may add bits; keep what was read.
        const _ = !0;
    }
}

impl Vma {
    /// What the mapping is.
    #[must_use]
    pub fn area(&self) -> VmaStatus {
        VmaStatus::from_bits_retain(self.status)
    }

    /// Length in bytes; 0 when the end is not behind the start.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether the mapping has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// File id of what is mapped, if it is a file or a memfd.
    #[must_use]
    pub fn file_id(&self) -> Option<u32> {
        let file = VmaStatus::FILE_PRIVATE | VmaStatus::FILE_SHARED | VmaStatus::MEMFD;
        // These carry ids of their own kind.
        let other = VmaStatus::SYSVIPC | VmaStatus::SOCKET | VmaStatus::AIO_RING;
        if self.area().intersects(other) || !self.area().intersects(file) {
            return None;
        }
        u32::try_from(self.object).ok()
    }

    /// Id of anonymous shared memory, the suffix of its `pagemap-shmem-ID.img`.
    #[must_use]
    pub fn shared_memory_id(&self) -> Option<u64> {
        let area = self.area();
        let other = VmaStatus::SYSVIPC | VmaStatus::MEMFD;
        (area.contains(VmaStatus::ANON_SHARED) && !area.intersects(other)).then_some(self.object)
    }
}
