//! Processor features that user programs choose their code by, as CPUID tells them.
//!
//! CPUID and not /proc/cpuinfo: the latter also lists what only kernels see (mitigations, power states), and
//! an image must not be refused over a mitigation switched on; it is also slow to read on big hosts. This
//! module must not know who compares them.

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{here, model, xsave_size};

#[cfg(not(target_arch = "x86_64"))]
pub(super) use other::{here, model, xsave_size};

#[cfg(not(target_arch = "x86_64"))]
mod other {
    pub(in super::super) fn here() -> Vec<&'static str> {
        Vec::new()
    }

    pub(in super::super) fn model() -> (String, String) {
        (String::new(), String::new())
    }

    pub(in super::super) fn xsave_size() -> u32 {
        0
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use raw_cpuid::native_cpuid::cpuid_count;
    use raw_cpuid::{CpuId, CpuIdResult};

    #[derive(Clone, Copy)]
    enum Register {
        Eax,
        Ebx,
        Ecx,
        Edx,
    }
    use Register::{Eax, Ebx, Ecx, Edx};

    impl Register {
        fn of(self, result: &CpuIdResult) -> u32 {
            match self {
                Eax => result.eax,
                Ebx => result.ebx,
                Ecx => result.ecx,
                Edx => result.edx,
            }
        }
    }

    /// One register of one leaf and subleaf, and the bits of it that programs use.
    type Word = (u32, u32, Register, &'static [(u8, &'static str)]);

    /// Bits from Intel's SDM (vol. 2, CPUID) and AMD's APM (vol. 3, appendix E); names of the kernel's
    /// arch/x86/include/asm/cpufeatures.h. Words of one leaf stand together: a leaf costs an exit in a VM.
    const WORDS: &[Word] = &[
        (
            1,
            0,
            Edx,
            &[
                (0, "fpu"),
                (4, "tsc"),
                (8, "cx8"),
                (15, "cmov"),
                (19, "clflush"),
                (23, "mmx"),
                (24, "fxsr"),
                (25, "sse"),
                (26, "sse2"),
            ],
        ),
        (
            1,
            0,
            Ecx,
            &[
                (0, "pni"),
                (1, "pclmulqdq"),
                (9, "ssse3"),
                (12, "fma"),
                (13, "cx16"),
                (19, "sse4_1"),
                (20, "sse4_2"),
                (22, "movbe"),
                (23, "popcnt"),
                (25, "aes"),
                (26, "xsave"),
                (28, "avx"),
                (29, "f16c"),
                (30, "rdrand"),
            ],
        ),
        (
            7,
            0,
            Ebx,
            &[
                (0, "fsgsbase"),
                (3, "bmi1"),
                (4, "hle"),
                (5, "avx2"),
                (8, "bmi2"),
                (9, "erms"),
                (11, "rtm"),
                (14, "mpx"),
                (16, "avx512f"),
                (17, "avx512dq"),
                (18, "rdseed"),
                (19, "adx"),
                (21, "avx512ifma"),
                (23, "clflushopt"),
                (24, "clwb"),
                (26, "avx512pf"),
                (27, "avx512er"),
                (28, "avx512cd"),
                (29, "sha_ni"),
                (30, "avx512bw"),
                (31, "avx512vl"),
            ],
        ),
        (
            7,
            0,
            Ecx,
            &[
                (0, "prefetchwt1"),
                (1, "avx512vbmi"),
                (4, "ospke"),
                (5, "waitpkg"),
                (6, "avx512_vbmi2"),
                (8, "gfni"),
                (9, "vaes"),
                (10, "vpclmulqdq"),
                (11, "avx512_vnni"),
                (12, "avx512_bitalg"),
                (14, "avx512_vpopcntdq"),
                (22, "rdpid"),
                (25, "cldemote"),
                (27, "movdiri"),
                (28, "movdir64b"),
                (29, "enqcmd"),
            ],
        ),
        (
            7,
            0,
            Edx,
            &[
                (2, "avx512_4vnniw"),
                (3, "avx512_4fmaps"),
                (4, "fsrm"),
                (8, "avx512_vp2intersect"),
                (14, "serialize"),
                (22, "amx_bf16"),
                (23, "avx512_fp16"),
                (24, "amx_tile"),
                (25, "amx_int8"),
            ],
        ),
        (
            7,
            1,
            Eax,
            &[
                (0, "sha512"),
                (1, "sm3"),
                (2, "sm4"),
                (4, "avx_vnni"),
                (5, "avx512_bf16"),
                (7, "cmpccxadd"),
                (10, "fzrm"),
                (11, "fsrs"),
                (12, "fsrc"),
                (21, "amx_fp16"),
                (23, "avx_ifma"),
            ],
        ),
        (7, 1, Edx, &[(4, "avx_vnni_int8"), (5, "avx_ne_convert"), (8, "amx_complex"), (19, "avx10")]),
        (0xd, 1, Eax, &[(0, "xsaveopt"), (1, "xsavec"), (2, "xgetbv1")]),
        (0x8000_0001, 0, Edx, &[(27, "rdtscp"), (29, "lm"), (30, "3dnowext"), (31, "3dnow")]),
        (
            0x8000_0001,
            0,
            Ecx,
            &[
                (0, "lahf_lm"),
                (5, "abm"),
                (6, "sse4a"),
                (8, "3dnowprefetch"),
                (11, "xop"),
                (16, "fma4"),
                (21, "tbm"),
                (29, "mwaitx"),
            ],
        ),
    ];

    pub(in super::super) fn here() -> Vec<&'static str> {
        let mut present = Vec::with_capacity(128);
        let mut last = None;
        for &(leaf, subleaf, register, bits) in WORDS {
            let result = match last {
                Some((of, result)) if of == (leaf, subleaf) => result,
                _ if !exists(leaf) => continue,
                _ => cpuid_count(leaf, subleaf),
            };
            last = Some(((leaf, subleaf), result));
            let word = register.of(&result);
            present.extend(bits.iter().filter(|(bit, _)| word >> bit & 1 != 0).map(|(_, name)| *name));
        }
        present
    }

    pub(in super::super) fn model() -> (String, String) {
        let cpuid = CpuId::new();
        let vendor = cpuid.get_vendor_info().map_or_else(String::new, |vendor| vendor.as_str().to_owned());
        let model = cpuid.get_processor_brand_string();
        (vendor, model.map_or_else(String::new, |model| model.as_str().trim().to_owned()))
    }

    /// Leaf 0xd, EBX: the size for the states enabled in XCR0, what CRIU also compares.
    pub(in super::super) fn xsave_size() -> u32 {
        if exists(0xd) { cpuid_count(0xd, 0).ebx } else { 0 }
    }

    /// A processor answers for a leaf above its highest with other data, not with zeros.
    fn exists(leaf: u32) -> bool {
        cpuid_count(leaf & 0x8000_0000, 0).eax >= leaf
    }
}
