//! Users, groups, capabilities and labels of a thread (part of `core-TID.img`).

/// Credentials of a thread. Capability sets are two words, the low one first.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Credentials {
    /// Real user.
    #[prost(uint32, required, tag = "1")]
    pub uid: u32,
    /// Real group.
    #[prost(uint32, required, tag = "2")]
    pub gid: u32,
    /// Effective user.
    #[prost(uint32, required, tag = "3")]
    pub euid: u32,
    /// Effective group.
    #[prost(uint32, required, tag = "4")]
    pub egid: u32,
    /// Saved user.
    #[prost(uint32, required, tag = "5")]
    pub suid: u32,
    /// Saved group.
    #[prost(uint32, required, tag = "6")]
    pub sgid: u32,
    /// User for file access.
    #[prost(uint32, required, tag = "7")]
    pub fsuid: u32,
    /// Group for file access.
    #[prost(uint32, required, tag = "8")]
    pub fsgid: u32,
    /// Inheritable capabilities.
    #[prost(uint32, repeated, packed = "false", tag = "9")]
    pub cap_inh: Vec<u32>,
    /// Permitted capabilities.
    #[prost(uint32, repeated, packed = "false", tag = "10")]
    pub cap_prm: Vec<u32>,
    /// Effective capabilities.
    #[prost(uint32, repeated, packed = "false", tag = "11")]
    pub cap_eff: Vec<u32>,
    /// Bounding set.
    #[prost(uint32, repeated, packed = "false", tag = "12")]
    pub cap_bnd: Vec<u32>,
    /// `SECBIT_*` flags.
    #[prost(uint32, required, tag = "13")]
    pub secbits: u32,
    /// Supplementary groups.
    #[prost(uint32, repeated, packed = "false", tag = "14")]
    pub groups: Vec<u32>,
    /// Label of the security module.
    #[prost(string, optional, tag = "15")]
    pub lsm_profile: Option<String>,
    /// SELinux label for new sockets.
    #[prost(string, optional, tag = "16")]
    pub lsm_sockcreate: Option<String>,
    /// AppArmor namespaces and policies, not decoded here.
    #[prost(bytes = "vec", optional, tag = "17")]
    pub apparmor_data: Option<Vec<u8>>,
    /// Whether `execve` may not grant privileges.
    #[prost(uint32, optional, tag = "18")]
    pub no_new_privs: Option<u32>,
    /// Ambient capabilities.
    #[prost(uint32, repeated, packed = "false", tag = "19")]
    pub cap_amb: Vec<u32>,
}
