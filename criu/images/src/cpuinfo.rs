//! The processor an image was made on (`cpuinfo.img`, written when the dump was asked for it).

use std::fmt;

/// The one record of `cpuinfo.img`. Machines other than x86 are not decoded.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CpuInfo {
    /// One per kind of processor in the host.
    #[prost(message, repeated, tag = "1")]
    pub x86: Vec<CpuInfoX86>,
}

/// An x86 processor.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CpuInfoX86 {
    /// Maker.
    #[prost(enumeration = "CpuVendor", required, tag = "1")]
    pub vendor: i32,
    /// Family.
    #[prost(uint32, required, tag = "2")]
    pub cpu_family: u32,
    /// Model.
    #[prost(uint32, required, tag = "3")]
    pub model: u32,
    /// Stepping.
    #[prost(uint32, required, tag = "4")]
    pub stepping: u32,
    /// Layout of the capability words.
    #[prost(uint32, required, tag = "5")]
    pub capability_ver: u32,
    /// Feature words, in the kernel's order.
    #[prost(uint32, repeated, packed = "false", tag = "6")]
    pub capability: Vec<u32>,
    /// Name the processor gives itself.
    #[prost(bytes = "vec", optional, tag = "7")]
    pub model_id: Option<Vec<u8>>,
    /// State components the kernel saves.
    #[prost(uint64, optional, tag = "8")]
    pub xfeatures_mask: Option<u64>,
    /// Size of the `xsave` area with those, in bytes.
    #[prost(uint32, optional, tag = "9")]
    pub xsave_size: Option<u32>,
    /// Size of the `xsave` area with all components, in bytes.
    #[prost(uint32, optional, tag = "10")]
    pub xsave_size_max: Option<u32>,
}

/// Makers of x86 processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum CpuVendor {
    /// Neither of the others.
    Unknown = 0,
    /// Intel.
    Intel = 1,
    /// AMD.
    Amd = 2,
}

impl fmt::Display for CpuVendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "unknown",
            Self::Intel => "intel",
            Self::Amd => "amd",
        })
    }
}
