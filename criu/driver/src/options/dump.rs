//! The options of a dump.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use super::{ImagesFolder, LogLevel, WORKING_DIRECTORY, cgroups_argument, log_path, switch};
use crate::message::{ManageCgroups, NetworkLock, Options};

/// Whose tree is dumped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DumpTarget {
    /// The process that made the socket pair of the connection: a self-dump. RPC only.
    Requester,
    /// This process, which must not be an ancestor of CRIU.
    Pid(i32),
}

/// How to dump. Made by [`DumpOptions::new`]; every field may be changed afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DumpOptions {
    /// Where the images go.
    pub images: ImagesFolder,
    /// Whose tree is dumped.
    pub target: DumpTarget,
    /// The tree goes on after the dump instead of being killed. Off.
    pub leave_running: bool,
    /// Leave the tree stopped, as by SIGSTOP, after the dump. A requester that dumps itself gets no answer then, and
    /// when it is continued it sees the end of the connection. Off.
    pub leave_stopped: bool,
    /// Name of the log, without a slash, in the work folder. `dump.log`.
    pub log_file: String,
    /// How much is logged. [`LogLevel::Warning`].
    pub log_level: LogLevel,
    /// The folder of the log and the statistics; the images folder when `None`. Not for a self-dump: its
    /// descriptor would be dumped too.
    pub work_folder: Option<PathBuf>,
    /// Largest deleted file that is put into the image, in bytes. CRIU's own default, 1 MiB, when `None`.
    pub ghost_limit: Option<u32>,
    /// The session leader or the terminal is outside the tree; then a restore needs it too. Off.
    pub shell_job: bool,
    /// Keep TCP connections; then a restore needs it too, and the peer's packets are kept away meanwhile. Off.
    pub tcp_established: bool,
    /// Close TCP connections; then a restore needs it too. Off.
    pub tcp_close: bool,
    /// Leave out connections that nobody has accepted yet. Off.
    pub skip_in_flight: bool,
    /// Keep file locks; a restore without it loses them without a word. Off.
    pub file_locks: bool,
    /// Accept Unix sockets whose peer is outside the tree. Off.
    pub ext_unix_sk: bool,
    /// Make hard links for deleted files that have other names. Off.
    pub link_remap: bool,
    /// How cgroups are treated. [`ManageCgroups::Ignore`]: saves the cgroup yard, and a whole class of failures.
    pub manage_cgroups: ManageCgroups,
    /// How packets are kept away from kept connections. CRIU's own default when `None`.
    pub network_lock: Option<NetworkLock>,
    /// How long CRIU tries to freeze the tree, in seconds. CRIU's own default, 10, when `None`. Covers nothing else.
    pub timeout: Option<u32>,
    /// Resources that the restore will supply, such as `unix[INO]` or `tty[RDEV:DEV]`. None.
    pub externals: Vec<String>,
    /// CRIU has only CAP_CHECKPOINT_RESTORE and CAP_SYS_PTRACE. Off.
    pub unprivileged: bool,
}

impl DumpOptions {
    /// Dumps `target` into `images` and kills it; all else as the fields say.
    #[must_use]
    pub fn new(images: impl Into<ImagesFolder>, target: DumpTarget) -> DumpOptions {
        DumpOptions {
            images: images.into(),
            target,
            leave_running: false,
            leave_stopped: false,
            log_file: "dump.log".to_owned(),
            log_level: LogLevel::default(),
            work_folder: None,
            ghost_limit: None,
            shell_job: false,
            tcp_established: false,
            tcp_close: false,
            skip_in_flight: false,
            file_locks: false,
            ext_unix_sk: false,
            link_remap: false,
            manage_cgroups: ManageCgroups::Ignore,
            network_lock: None,
            timeout: None,
            externals: Vec::new(),
            unprivileged: false,
        }
    }

    /// The log, seen from the process that starts CRIU.
    #[must_use]
    pub fn log_path(&self) -> PathBuf {
        log_path(&self.images, self.work_folder.as_deref(), &self.log_file)
    }

    /// As an RPC message for a worker whose working folder is the images folder. `work_dir` is the number of the work
    /// folder's descriptor in the process that made the connection.
    #[must_use]
    pub fn to_message(&self, work_dir: Option<RawFd>) -> Options {
        Options {
            images_dir_fd: -1,
            images_dir: Some(WORKING_DIRECTORY.to_owned()),
            work_dir_fd: work_dir,
            pid: match self.target {
                DumpTarget::Requester => None,
                DumpTarget::Pid(pid) => Some(pid),
            },
            leave_running: switch(self.leave_running),
            leave_stopped: switch(self.leave_stopped),
            log_file: Some(self.log_file.clone()),
            log_level: Some(self.log_level as i32),
            ghost_limit: self.ghost_limit,
            shell_job: switch(self.shell_job),
            tcp_established: switch(self.tcp_established),
            tcp_close: switch(self.tcp_close),
            tcp_skip_in_flight: switch(self.skip_in_flight),
            file_locks: switch(self.file_locks),
            ext_unix_sk: switch(self.ext_unix_sk),
            link_remap: switch(self.link_remap),
            manage_cgroups_mode: Some(self.manage_cgroups.into()),
            network_lock: self.network_lock.map(Into::into),
            timeout: self.timeout,
            external: self.externals.clone(),
            unprivileged: switch(self.unprivileged),
            ..Options::default()
        }
    }

    /// As arguments after `criu dump`, for a CRIU that is started in the caller's working folder.
    #[must_use]
    pub fn to_arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["--images-dir".into(), self.images.path().into()];
        if let DumpTarget::Pid(pid) = self.target {
            arguments.extend(["--tree".into(), pid.to_string().into()]);
        }
        if let Some(folder) = self.work_folder.as_deref().map(Path::as_os_str) {
            arguments.extend(["--work-dir".into(), folder.into()]);
        }
        arguments.extend(["--log-file".into(), self.log_file.clone().into()]);
        arguments.push(format!("-v{}", self.log_level as i32).into());
        arguments.push(format!("--manage-cgroups={}", cgroups_argument(self.manage_cgroups)).into());
        let switches = [
            (self.leave_running, "--leave-running"),
            (self.leave_stopped, "--leave-stopped"),
            (self.shell_job, "--shell-job"),
            (self.tcp_established, "--tcp-established"),
            (self.tcp_close, "--tcp-close"),
            (self.skip_in_flight, "--skip-in-flight"),
            (self.file_locks, "--file-locks"),
            (self.ext_unix_sk, "--ext-unix-sk"),
            (self.link_remap, "--link-remap"),
            (self.unprivileged, "--unprivileged"),
        ];
        arguments.extend(switches.into_iter().filter(|(on, _)| *on).map(|(_, name)| name.into()));
        let method = self.network_lock.map(|method| match method {
            NetworkLock::Iptables => "iptables",
            NetworkLock::Nftables => "nftables",
            NetworkLock::Skip => "skip",
        });
        let mut value = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                arguments.extend([name.into(), value.into()]);
            }
        };
        value("--ghost-limit", self.ghost_limit.map(|limit| limit.to_string()));
        value("--network-lock", method.map(str::to_owned));
        value("--timeout", self.timeout.map(|seconds| seconds.to_string()));
        for external in &self.externals {
            value("--external", Some(external.clone()));
        }
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everything() -> DumpOptions {
        DumpOptions {
            images: ImagesFolder::Path("/img".into()),
            target: DumpTarget::Pid(7),
            leave_running: true,
            leave_stopped: true,
            log_file: "l".into(),
            log_level: LogLevel::Debug,
            work_folder: Some("/work".into()),
            ghost_limit: Some(5),
            shell_job: true,
            tcp_established: true,
            tcp_close: true,
            skip_in_flight: true,
            file_locks: true,
            ext_unix_sk: true,
            link_remap: true,
            manage_cgroups: ManageCgroups::Soft,
            network_lock: Some(NetworkLock::Skip),
            timeout: Some(3),
            externals: vec!["unix[9]".into()],
            unprivileged: true,
        }
    }

    #[test]
    fn a_self_dump_names_no_pid_and_no_descriptor() {
        let options = DumpOptions::new(ImagesFolder::WorkingDirectory, DumpTarget::Requester);
        let expected = Options {
            images_dir_fd: -1,
            images_dir: Some("/proc/self/cwd".into()),
            log_file: Some("dump.log".into()),
            log_level: Some(2),
            manage_cgroups_mode: Some(0),
            ..Options::default()
        };
        assert_eq!(options.to_message(None), expected);
        assert_eq!(options.log_path(), Path::new("./dump.log"));
    }

    #[test]
    fn every_field_reaches_the_message() {
        let expected = Options {
            images_dir_fd: -1,
            images_dir: Some("/proc/self/cwd".into()),
            work_dir_fd: Some(11),
            pid: Some(7),
            leave_running: Some(true),
            leave_stopped: Some(true),
            log_file: Some("l".into()),
            log_level: Some(4),
            ghost_limit: Some(5),
            shell_job: Some(true),
            tcp_established: Some(true),
            tcp_close: Some(true),
            tcp_skip_in_flight: Some(true),
            file_locks: Some(true),
            ext_unix_sk: Some(true),
            link_remap: Some(true),
            manage_cgroups_mode: Some(3),
            network_lock: Some(3),
            timeout: Some(3),
            external: vec!["unix[9]".into()],
            unprivileged: Some(true),
            ..Options::default()
        };
        assert_eq!(everything().to_message(Some(11)), expected);
        assert_eq!(everything().log_path(), Path::new("/work/l"));
    }

    #[test]
    fn every_field_reaches_the_arguments() {
        let expected = "--images-dir /img --tree 7 --work-dir /work --log-file l -v4 --manage-cgroups=soft \
            --leave-running --leave-stopped --shell-job --tcp-established --tcp-close --skip-in-flight --file-locks --ext-unix-sk \
            --link-remap --unprivileged --ghost-limit 5 --network-lock skip --timeout 3 --external unix[9]";
        assert_eq!(everything().to_arguments().join(" ".as_ref()), expected);
    }

    #[test]
    fn the_defaults_pass_no_switch() {
        let options = DumpOptions::new(Path::new("/img"), DumpTarget::Pid(7));
        let expected = "--images-dir /img --tree 7 --log-file dump.log -v2 --manage-cgroups=ignore";
        assert_eq!(options.to_arguments().join(" ".as_ref()), expected);
    }
}
