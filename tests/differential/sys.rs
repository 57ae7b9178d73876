//! What the subjects do without a library: raw system calls, memory at its address, registers. All that is unsafe in
//! these tests is here. A subject that goes wrong breaks itself only, and then says nothing, which fails its test.

use std::arch::asm;
use std::sync::atomic::{AtomicU32, Ordering};

/// A system call: its result, or the error number.
pub fn call(number: libc::c_long, arguments: &[usize]) -> Result<usize, i32> {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    let [a, b, c, d, e, f] = all;
    // SAFETY: subjects pass addresses of their own that live as long as the kernel uses them.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result == -1 {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0));
    }
    Ok(result.cast_unsigned() as usize)
}

/// The address of a value for [`call`], which may write there.
pub fn address<T>(value: &mut T) -> usize {
    std::ptr::from_mut(value) as usize
}

/// The number of the calling thread.
pub fn tid() -> i32 {
    nix::unistd::gettid().as_raw()
}

/// A mapping of the subject's own, for as long as it lives.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub start: usize,
    pub len: usize,
}

impl Region {
    /// Anonymous memory that can be written.
    pub fn new(len: usize) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        Self::map(len, libc::PROT_READ | libc::PROT_WRITE, flags, -1)
    }

    /// A mapping from the start of a file, or anonymous.
    pub fn map(len: usize, protection: i32, flags: i32, fd: i32) -> Self {
        let arguments = [0, len, protection as usize, flags as usize, fd as usize, 0];
        Self { start: call(libc::SYS_mmap, &arguments).unwrap(), len }
    }

    /// The part of it from `from` on.
    pub fn part(self, from: usize, len: usize) -> Self {
        assert!(from + len <= self.len);
        Self { start: self.start + from, len }
    }

    pub fn protect(self, protection: i32) {
        call(libc::SYS_mprotect, &[self.start, self.len, protection as usize]).unwrap();
    }

    pub fn advise(self, advice: i32) -> Result<usize, i32> {
        call(libc::SYS_madvise, &[self.start, self.len, advice as usize])
    }

    /// Writes a word everywhere, each its own.
    pub fn fill(self, seed: u64) {
        for (place, word) in (self.start..self.start + self.len).step_by(8).zip(words(seed)) {
            // SAFETY: the mapping is the subject's own, and it has made it writable.
            unsafe { (place as *mut u64).write_volatile(word) };
        }
    }

    /// Whether these words are there.
    pub fn holds(self, seed: u64) -> bool {
        (self.start..self.start + self.len).step_by(8).zip(words(seed)).all(|(place, word)| {
            // SAFETY: the mapping is the subject's own, and it has made it readable.
            let found = unsafe { (place as *const u64).read_volatile() };
            found == word
        })
    }

    /// Writes bytes at its start.
    pub fn write(self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len);
        // SAFETY: the mapping is the subject's own, and it has made it writable.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start as *mut u8, bytes.len()) };
    }

    /// Its bytes.
    pub fn read(self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        // SAFETY: the mapping is the subject's own, and it has made it readable.
        unsafe { std::ptr::copy_nonoverlapping(self.start as *const u8, bytes.as_mut_ptr(), self.len) };
        bytes
    }

    /// Calls the code at its start, which takes nothing and gives a number.
    pub fn run(self) -> u64 {
        // SAFETY: the subject has put such a function there, and made it executable.
        let code = unsafe { std::mem::transmute::<usize, extern "C" fn() -> u64>(self.start) };
        code()
    }
}

fn words(seed: u64) -> impl Iterator<Item = u64> {
    (1..).map(move |index: u64| index.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed))
}

/// Moves the end of the heap up, as the C library knows of; gives the former end.
pub fn move_break(bytes: usize) -> usize {
    // SAFETY: it only grows.
    unsafe { libc::sbrk(bytes.cast_signed()) as usize }
}

/// What a child finds, which is a copy of this process with this thread only.
pub fn in_child(find: impl FnOnce() -> u8) -> u8 {
    // SAFETY: the child looks at memory, and leaves without running anything of this process's.
    match unsafe { libc::fork() } {
        0 => {
            let found = find();
            // SAFETY: as above.
            unsafe { libc::_exit(found.into()) }
        }
        child => {
            let ended = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(child), None);
            match ended {
                Ok(nix::sys::wait::WaitStatus::Exited(_, found)) => found.to_le_bytes()[0],
                other => panic!("a child: {other:?}"),
            }
        }
    }
}

/// Whether the kernel can read a byte there.
pub fn is_readable(place: usize) -> bool {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let written = call(libc::SYS_write, &[std::os::fd::AsRawFd::as_raw_fd(&writer) as usize, place, 1]);
    drop(reader);
    written == Ok(1)
}

/// The states that XSAVE saves, for which there is a pattern here: x87, SSE, AVX, and the three of AVX-512.
const STATES: u64 = 0b1110_0111;
/// Bytes of an area for them: the standard form ends at 2,688 with all of AVX-512 (Intel SDM vol. 1, 13.4).
const AREA: usize = 4096;

/// An area of XSAVE.
#[repr(C, align(64))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area(pub [u8; AREA]);

impl Area {
    pub fn empty() -> Box<Self> {
        Box::new(Self([0; AREA]))
    }
}

/// Those of the states that this processor has, and the kernel uses.
pub fn states() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: XGETBV of register 0 can be had wherever the kernel uses XSAVE, which all do that can be dumped.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack)) };
    (u64::from(high) << 32 | u64::from(low)) & STATES
}

/// Loads all these states, runs in circles until `go` is not 0, and saves them. No system call is made.
pub fn spin_with(states: u64, pattern: &Area, found: &mut Area, go: &AtomicU32) {
    let mut own = Area::empty();
    // SAFETY: the areas are large and aligned enough, and the own states come back at the end.
    unsafe {
        asm!(
            "xsave64 [{own}]",
            "xrstor64 [{pattern}]",
            "2:",
            "pause",
            "cmp dword ptr [{go}], 0",
            "je 2b",
            "xsave64 [{found}]",
            "xrstor64 [{own}]",
            own = in(reg) own.0.as_mut_ptr(),
            pattern = in(reg) pattern.0.as_ptr(),
            found = in(reg) found.0.as_mut_ptr(),
            go = in(reg) go.as_ptr(),
            in("eax") states as u32,
            in("edx") (states >> 32) as u32,
        );
    }
}

/// The same, asleep in futex(2) until `go` is not 0.
pub fn sleep_with(states: u64, pattern: &Area, found: &mut Area, go: &AtomicU32) {
    let mut own = Area::empty();
    // SAFETY: as above; the call itself changes rax, rcx and r11 only.
    unsafe {
        asm!(
            "xsave64 [{own}]",
            "xrstor64 [{pattern}]",
            "mov r12d, eax",
            "mov r13d, edx",
            "2:",
            "mov eax, {futex}",
            "mov rdi, {go}",
            "mov esi, {wait}",
            "xor edx, edx",
            "xor r10d, r10d",
            "syscall",
            "cmp dword ptr [{go}], 0",
            "je 2b",
            "mov eax, r12d",
            "mov edx, r13d",
            "xsave64 [{found}]",
            "xrstor64 [{own}]",
            own = in(reg) own.0.as_mut_ptr(),
            pattern = in(reg) pattern.0.as_ptr(),
            found = in(reg) found.0.as_mut_ptr(),
            go = in(reg) go.as_ptr(),
            futex = const libc::SYS_futex,
            wait = const libc::FUTEX_WAIT,
            inout("eax") states as u32 => _,
            inout("edx") (states >> 32) as u32 => _,
            out("rcx") _, out("r11") _, out("r10") _, out("rdi") _, out("rsi") _,
            out("r12") _, out("r13") _,
        );
    }
}

/// Sleeps in futex(2) until `go` is not 0, with the stack pointer at this address.
pub fn sleep_at(stack: usize, go: &AtomicU32) {
    // SAFETY: no stack is used meanwhile; the call itself changes rax, rcx and r11 only.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, {stack}",
            "2:",
            "mov eax, {futex}",
            "xor edx, edx",
            "xor r10d, r10d",
            "syscall",
            "cmp dword ptr [rdi], 0",
            "je 2b",
            "mov rsp, r12",
            stack = in(reg) stack,
            futex = const libc::SYS_futex,
            in("rdi") go.as_ptr(),
            in("rsi") libc::FUTEX_WAIT,
            out("rax") _, out("rdx") _, out("rcx") _, out("r10") _, out("r11") _, out("r12") _,
        );
    }
}

/// The area for restartable sequences that the C library has registered for the calling thread.
pub fn restartable_area() -> Option<usize> {
    let symbol = |name: &std::ffi::CStr| {
        // SAFETY: only looks a name up.
        let place = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!place.is_null()).then_some(place)
    };
    // SAFETY: since glibc 2.35 that is a ptrdiff_t which never changes.
    let offset = unsafe { symbol(c"__rseq_offset")?.cast::<isize>().read() };
    // SAFETY: and this is an unsigned int.
    let used = unsafe { symbol(c"__rseq_size")?.cast::<u32>().read() };
    let mut pointer = 0_usize;
    /// arch_prctl(2).
    const ARCH_GET_FS: usize = 0x1003;
    call(libc::SYS_arch_prctl, &[ARCH_GET_FS, address(&mut pointer)]).ok()?;
    (used > 0).then_some(pointer.wrapping_add_signed(offset))
}

/// The first word of the segment gs.
pub fn word_of_gs() -> u64 {
    let word: u64;
    // SAFETY: the subject has set the segment's base to memory of its own.
    unsafe { asm!("mov {word}, gs:[0]", word = out(reg) word, options(readonly, nostack)) };
    word
}

/// Lets those go who sleep at this word.
pub fn release(go: &AtomicU32) {
    go.store(1, Ordering::SeqCst);
    call(libc::SYS_futex, &[go.as_ptr() as usize, libc::FUTEX_WAKE as usize, i32::MAX as usize]).unwrap();
}

/// Installs a handler that gets the whole story.
pub fn handle(
    signal: i32,
    handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void),
    flags: i32,
    mask: &[i32],
) {
    // SAFETY: all zeros is a valid action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = flags | libc::SA_SIGINFO;
    for signal in mask {
        // SAFETY: the set is valid, if empty.
        unsafe { libc::sigaddset(&raw mut action.sa_mask, *signal) };
    }
    // SAFETY: the handlers of the subjects are safe to run at any time.
    assert_eq!(unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) }, 0);
}

/// A mutex of the C library, which the kernel knows the owner of.
#[derive(Debug)]
pub struct OwnedMutex(Box<std::cell::UnsafeCell<libc::pthread_mutex_t>>);

// SAFETY: that is what a mutex is for; it is only used by calls of its library.
unsafe impl Sync for OwnedMutex {}
// SAFETY: it stays where it is.
unsafe impl Send for OwnedMutex {}

impl OwnedMutex {
    /// One whose owner's death is told, and which hands its owner's waiters' priority on if asked to.
    pub fn new(inherits: bool) -> Self {
        // SAFETY: all zeros is what the next call overwrites.
        let mut attributes: libc::pthread_mutexattr_t = unsafe { std::mem::zeroed() };
        // SAFETY: the attributes are ours.
        unsafe { libc::pthread_mutexattr_init(&raw mut attributes) };
        // SAFETY: as above, and initialised.
        unsafe { libc::pthread_mutexattr_setrobust(&raw mut attributes, libc::PTHREAD_MUTEX_ROBUST) };
        if inherits {
            // SAFETY: as above.
            unsafe { libc::pthread_mutexattr_setprotocol(&raw mut attributes, libc::PTHREAD_PRIO_INHERIT) };
        }
        let mutex = Box::new(std::cell::UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));
        // SAFETY: nobody uses it yet.
        assert_eq!(unsafe { libc::pthread_mutex_init(mutex.get(), &raw const attributes) }, 0);
        Self(mutex)
    }

    /// 0, or the error number: `EOWNERDEAD` has taken it too.
    pub fn lock(&self) -> i32 {
        // SAFETY: it is initialised and stays where it is.
        unsafe { libc::pthread_mutex_lock(self.0.get()) }
    }

    pub fn unlock(&self) -> i32 {
        // SAFETY: as above.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) }
    }

    /// After its owner has died.
    pub fn repair(&self) -> i32 {
        // SAFETY: as above.
        unsafe { libc::pthread_mutex_consistent(self.0.get()) }
    }
}
