//! The head of an image folder (`inventory.img`): format version and what the dump was told.
//! Knows nothing of the other files.

use std::fmt;

use crate::process::KernelIds;

/// The only layout this crate reads: every file but the inventory opens with a common magic
/// (`CRTOOLS_IMAGES_V1_1` in CRIU's `magic.h`).
pub const IMAGE_VERSION: u32 = 2;

/// The one record of `inventory.img`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Inventory {
    /// Layout of the folder; see [`IMAGE_VERSION`].
    #[prost(uint32, required, tag = "1")]
    pub img_version: u32,
    /// Descriptor tables are named by `files_id`. False in old images only.
    #[prost(bool, optional, tag = "2")]
    pub fdinfo_per_id: Option<bool>,
    /// Kernel objects of CRIU itself at the dump, to tell own namespaces from inherited ones.
    #[prost(message, optional, tag = "3")]
    pub root_ids: Option<KernelIds>,
    /// Namespace files are named by namespace id.
    #[prost(bool, optional, tag = "4")]
    pub ns_per_id: Option<bool>,
    /// Control group set of CRIU at the dump.
    #[prost(uint32, optional, tag = "5")]
    pub root_cg_set: Option<u32>,
    /// Security module that was active.
    #[prost(enumeration = "LsmType", optional, tag = "6")]
    pub lsm: Option<i32>,
    /// Uptime of the host at the dump, in microseconds.
    #[prost(uint64, optional, tag = "8")]
    pub dump_uptime: Option<u64>,
    /// 0 no pre-dump, else the way pages were read.
    #[prost(uint32, optional, tag = "9")]
    pub pre_dump_mode: Option<u32>,
    /// Connections were dumped closed. A restore must be given the same option.
    #[prost(bool, optional, tag = "10")]
    pub tcp_close: Option<bool>,
    /// How connections were held; [`NetworkLock`] (not the numbers of the RPC option).
    #[prost(uint32, optional, tag = "11")]
    pub network_lock_method: Option<u32>,
    /// Plugins that took part in the dump.
    #[prost(message, optional, tag = "12")]
    pub plugins: Option<Plugins>,
    /// Random identity of the dump.
    #[prost(string, optional, tag = "13")]
    pub run_id: Option<String>,
    /// Uprobe mappings were accepted. A restore must be given the same option.
    #[prost(bool, optional, tag = "14")]
    pub allow_uprobes: Option<bool>,
}

/// Plugins that took part in a dump.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Plugins {
    /// File names of the plugins.
    #[prost(string, repeated, tag = "12")]
    pub names: Vec<String>,
}

impl Inventory {
    /// How connections were held during the dump; `None` when unset or not known to this crate.
    #[must_use]
    pub fn network_lock(&self) -> Option<NetworkLock> {
        self.network_lock_method
            .and_then(|n| i32::try_from(n).ok())
            .and_then(|n| NetworkLock::try_from(n).ok())
    }
}

/// Security modules CRIU tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum LsmType {
    /// None active.
    None = 0,
    /// SELinux labels are recorded.
    Selinux = 1,
    /// AppArmor profiles are recorded.
    Apparmor = 2,
}

/// How packets of established connections were held while dumping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum NetworkLock {
    /// By the iptables program.
    Iptables = 0,
    /// By libnftables.
    Nftables = 1,
    /// Not at all.
    Skip = 2,
}

impl fmt::Display for NetworkLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
            Self::Skip => "skip",
        })
    }
}
