//! Registers of the processor that CPUID does not show.

/// XCR0: the register states that the kernel lets programs use, as XSAVE component bits (Intel SDM vol. 1,
/// 13.1). None where the kernel has not enabled XSAVE, and on other architectures.
#[cfg(target_arch = "x86_64")]
#[must_use]
pub fn xcr0() -> Option<u64> {
    const OSXSAVE: u32 = 1 << 27;
    let os_uses_xsave = raw_cpuid::native_cpuid::cpuid_count(1, 0).ecx & OSXSAVE != 0;
    // SAFETY: OSXSAVE says that the processor has XGETBV and that CR4 allows it here; register 0 always exists.
    #[allow(unsafe_code, reason = "XGETBV has no safe wrapper")]
    os_uses_xsave.then(|| unsafe { read_xcr0() })
}

/// XCR0 exists on x86 only.
#[cfg(not(target_arch = "x86_64"))]
#[must_use]
pub const fn xcr0() -> Option<u64> {
    None
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "xsave")]
fn read_xcr0() -> u64 {
    // SAFETY: register 0 exists wherever XGETBV does, and the caller made sure of that.
    #[allow(unsafe_code, reason = "XGETBV has no safe wrapper")]
    unsafe {
        core::arch::x86_64::_xgetbv(0)
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    #[test]
    fn xcr0_always_has_the_x87_state() {
        assert_eq!(super::xcr0().map_or(1, |bits| bits & 1), 1);
    }
}
