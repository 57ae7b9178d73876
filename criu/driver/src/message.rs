//! The messages of CRIU's RPC (its `rpc.proto`), as far as this crate speaks it. Knows no socket and no option type.
//!
//! Every message is one datagram. Unknown fields of a newer CRIU are skipped by the decoder.

/// What is asked for, or answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
#[non_exhaustive]
pub enum Kind {
    /// An answer to a request that CRIU does not know.
    Empty = 0,
    /// Dump a process tree.
    Dump = 1,
    /// Restore a process tree.
    Restore = 2,
    /// Look whether the kernel has the features of category 1.
    Check = 3,
    /// A script point: CRIU waits until it is acknowledged.
    Notify = 6,
    /// Ask for optional kernel features.
    FeatureCheck = 9,
    /// Ask for the version.
    Version = 10,
}

/// How cgroups are dumped and restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum ManageCgroups {
    /// Leave them alone: tasks stay in the cgroup of CRIU.
    Ignore = 0,
    /// Check that the cgroups are there, put tasks into them, restore no property.
    None = 1,
    /// Restore the properties of cgroups that exist already.
    Props = 2,
    /// Create missing ones, restore the properties only of those created.
    Soft = 3,
    /// Create missing ones, restore the properties of all.
    Full = 4,
    /// Create all; fail if one exists.
    Strict = 5,
    /// CRIU's own default.
    Default = 6,
}

/// What keeps packets away from a connection between dump and restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum NetworkLock {
    /// The `iptables` program.
    Iptables = 1,
    /// nftables, through its library.
    Nftables = 2,
    /// Nothing.
    Skip = 3,
}

/// A request (`criu_req`).
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    /// What is asked for.
    #[prost(enumeration = "Kind", required, tag = "1")]
    pub kind: i32,
    /// How to do it.
    #[prost(message, optional, boxed, tag = "2")]
    pub opts: Option<Box<Options>>,
    /// The answer to a notify message.
    #[prost(bool, optional, tag = "3")]
    pub notify_success: Option<bool>,
    /// Whether another request follows on this connection.
    #[prost(bool, optional, tag = "4")]
    pub keep_open: Option<bool>,
    /// The features asked about.
    #[prost(message, optional, tag = "5")]
    pub features: Option<Features>,
}

/// An answer (`criu_resp`).
#[derive(Clone, PartialEq, prost::Message)]
pub struct Response {
    /// What is answered.
    #[prost(enumeration = "Kind", required, tag = "1")]
    pub kind: i32,
    /// Whether it was done.
    #[prost(bool, required, tag = "2")]
    pub success: bool,
    /// Answer to a dump.
    #[prost(message, optional, tag = "3")]
    pub dump: Option<DumpAnswer>,
    /// Answer to a restore.
    #[prost(message, optional, tag = "4")]
    pub restore: Option<RestoreAnswer>,
    /// The script point.
    #[prost(message, optional, tag = "5")]
    pub notify: Option<Notify>,
    /// An errno for a few failures: EEXIST, ESRCH, EBADRQC.
    #[prost(int32, optional, tag = "7")]
    pub errno: Option<i32>,
    /// The features found.
    #[prost(message, optional, tag = "8")]
    pub features: Option<Features>,
    /// The first error that was logged, which is not the cause (see the crate's page).
    #[prost(string, optional, tag = "9")]
    pub first_error: Option<String>,
    /// The version.
    #[prost(message, optional, tag = "10")]
    pub version: Option<VersionAnswer>,
}

/// `criu_dump_resp`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct DumpAnswer {
    /// Whether this is read by the restored process.
    #[prost(bool, optional, tag = "1")]
    pub restored: Option<bool>,
}

/// `criu_restore_resp`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct RestoreAnswer {
    /// The root task, as CRIU numbers it. May be there although the restore failed.
    #[prost(int32, required, tag = "1")]
    pub pid: i32,
}

/// `criu_notify`: a point at which CRIU waits for an acknowledgement.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Notify {
    /// Its name, such as `pre-dump` or `post-resume`.
    #[prost(string, optional, tag = "1")]
    pub script: Option<String>,
    /// The root task, told at `setup-namespaces` and `post-restore` only.
    #[prost(int32, optional, tag = "2")]
    pub pid: Option<i32>,
}

/// `criu_version`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct VersionAnswer {
    /// First number.
    #[prost(int32, required, tag = "1")]
    pub major: i32,
    /// Second number.
    #[prost(int32, required, tag = "2")]
    pub minor: i32,
    /// The commit, for a build from git.
    #[prost(string, optional, tag = "3")]
    pub gitid: Option<String>,
    /// Third number.
    #[prost(int32, optional, tag = "4")]
    pub sublevel: Option<i32>,
}

/// `criu_features`: optional features of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Features {
    /// Dirty page tracking (CONFIG_MEM_SOFT_DIRTY), for incremental dumps.
    #[prost(bool, optional, tag = "1")]
    pub mem_track: Option<bool>,
    /// userfaultfd that can be used for lazy pages.
    #[prost(bool, optional, tag = "2")]
    pub lazy_pages: Option<bool>,
    /// pidfds kept across a dump.
    #[prost(bool, optional, tag = "3")]
    pub pidfd_store: Option<bool>,
}

/// `inherit_fd`: a descriptor of the worker that replaces one in the image.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Inherit {
    /// What it replaces.
    #[prost(string, required, tag = "1")]
    pub key: String,
    /// Its number in the worker.
    #[prost(int32, required, tag = "2")]
    pub fd: i32,
}

/// `criu_opts`: the options that this crate sets.
#[derive(Clone, PartialEq, prost::Message)]
#[expect(
    missing_docs,
    reason = "named after CRIU's own options; options::DumpOptions and RestoreOptions document them"
)]
pub struct Options {
    /// Required by the protocol; -1 says that `images_dir` counts.
    #[prost(int32, required, tag = "1")]
    pub images_dir_fd: i32,
    #[prost(int32, optional, tag = "2")]
    pub pid: Option<i32>,
    #[prost(bool, optional, tag = "3")]
    pub leave_running: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    pub ext_unix_sk: Option<bool>,
    #[prost(bool, optional, tag = "5")]
    pub tcp_established: Option<bool>,
    #[prost(bool, optional, tag = "7")]
    pub shell_job: Option<bool>,
    #[prost(bool, optional, tag = "8")]
    pub file_locks: Option<bool>,
    #[prost(int32, optional, tag = "9")]
    pub log_level: Option<i32>,
    #[prost(string, optional, tag = "10")]
    pub log_file: Option<String>,
    #[prost(bool, optional, tag = "12")]
    pub notify_scripts: Option<bool>,
    #[prost(int32, optional, tag = "17")]
    pub work_dir_fd: Option<i32>,
    #[prost(bool, optional, tag = "18")]
    pub link_remap: Option<bool>,
    #[prost(bool, optional, tag = "26")]
    pub rst_sibling: Option<bool>,
    #[prost(message, repeated, tag = "27")]
    pub inherit_fd: Vec<Inherit>,
    #[prost(enumeration = "ManageCgroups", optional, tag = "34")]
    pub manage_cgroups_mode: Option<i32>,
    #[prost(uint32, optional, tag = "35")]
    pub ghost_limit: Option<u32>,
    #[prost(string, repeated, tag = "37")]
    pub external: Vec<String>,
    #[prost(uint32, optional, tag = "45")]
    pub timeout: Option<u32>,
    #[prost(bool, optional, tag = "46")]
    pub tcp_skip_in_flight: Option<bool>,
    #[prost(bool, optional, tag = "52")]
    pub tcp_close: Option<bool>,
    #[prost(enumeration = "NetworkLock", optional, tag = "64")]
    pub network_lock: Option<i32>,
    #[prost(bool, optional, tag = "66")]
    pub skip_file_rwx_check: Option<bool>,
    #[prost(bool, optional, tag = "67")]
    pub unprivileged: Option<bool>,
    #[prost(string, optional, tag = "68")]
    pub images_dir: Option<String>,
    #[prost(bool, optional, tag = "69")]
    pub leave_stopped: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    #[test]
    fn encodes_as_rpc_proto_says() {
        let request = Request {
            kind: Kind::Dump.into(),
            opts: Some(Box::new(Options {
                images_dir_fd: -1,
                images_dir: Some("/d".into()),
                ..Options::default()
            })),
            ..Request::default()
        };
        let mut expected = vec![0x08, 1, 0x12, 16, 0x08];
        expected.extend([0xff; 9]);
        expected.extend([0x01, 0xa2, 0x04, 2, b'/', b'd']);
        expected[3] = u8::try_from(expected.len() - 4).unwrap();
        assert_eq!(request.encode_to_vec(), expected);
    }

    #[test]
    fn skips_the_fields_of_a_newer_criu() {
        let bytes = [0x08, 1, 0x10, 1, 0x1a, 2, 0x08, 1, 0xf8, 0x06, 5];
        let response = Response::decode(&bytes[..]).unwrap();
        assert_eq!((response.kind(), response.success), (Kind::Dump, true));
        assert_eq!(response.dump, Some(DumpAnswer { restored: Some(true) }));
    }
}
