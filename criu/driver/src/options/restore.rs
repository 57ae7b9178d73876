//! The options of a restore.

use std::ffi::OsString;
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use super::{ImagesFolder, LogLevel, WORKING_DIRECTORY, cgroups_argument, log_path, switch};
use crate::message::{Inherit, ManageCgroups, Options};

/// A descriptor that takes the place of one in the image.
#[derive(Debug)]
pub struct InheritFd {
    /// What it replaces: `pipe:[INO]`, `socket:[INO]`, `tty[RDEV:DEV]`, or the path of a regular file without its
    /// leading slash, whose size, mode and existence are then not checked.
    ///
    /// `pipe[INO]`, as CRIU's help text has it, is ignored without a word.
    pub key: String,
    /// The descriptor. The worker gets a duplicate.
    pub fd: OwnedFd,
}

/// How to restore. Made by [`RestoreOptions::new`]; every field may be changed afterwards.
#[derive(Debug)]
#[non_exhaustive]
pub struct RestoreOptions {
    /// Where the images are.
    pub images: ImagesFolder,
    /// The root task becomes a child of the calling process, which gets its exit status and must reap it. Otherwise it
    /// goes to the nearest subreaper, and dies at once if it had asked for a death signal. On.
    pub sibling: bool,
    /// Descriptors that replace some in the image. None.
    pub inherit_fd: Vec<InheritFd>,
    /// Name of the log, without a slash, in the work folder. `restore.log`.
    pub log_file: String,
    /// How much is logged. [`LogLevel::Warning`].
    pub log_level: LogLevel,
    /// The folder of the log and the statistics; the images folder when `None`. A tmpfs here keeps the images folder
    /// untouched, and may be the only choice where that is not writable.
    pub work_folder: Option<PathBuf>,
    /// As at the dump. Off.
    pub shell_job: bool,
    /// As at the dump. Off.
    pub tcp_established: bool,
    /// As at the dump. Off.
    pub tcp_close: bool,
    /// As at the dump; without it the locks are lost without a word. Off.
    pub file_locks: bool,
    /// Restore Unix sockets whose peer was outside the tree, without a peer. Off.
    pub ext_unix_sk: bool,
    /// How cgroups are treated. [`ManageCgroups::Ignore`]: the tree stays in the cgroup of the caller.
    pub manage_cgroups: ManageCgroups,
    /// Resources outside the image, such as `mnt[KEY]:PATH`. None.
    pub externals: Vec<String>,
    /// Do not compare the mode of files with that at the dump. Off.
    pub skip_file_rwx_check: bool,
    /// CRIU has few capabilities. Off.
    pub unprivileged: bool,
}

impl RestoreOptions {
    /// Restores `images` as a child of the caller; all else as the fields say.
    #[must_use]
    pub fn new(images: impl Into<ImagesFolder>) -> RestoreOptions {
        RestoreOptions {
            images: images.into(),
            sibling: true,
            inherit_fd: Vec::new(),
            log_file: "restore.log".to_owned(),
            log_level: LogLevel::default(),
            work_folder: None,
            shell_job: false,
            tcp_established: false,
            tcp_close: false,
            file_locks: false,
            ext_unix_sk: false,
            manage_cgroups: ManageCgroups::Ignore,
            externals: Vec::new(),
            skip_file_rwx_check: false,
            unprivileged: false,
        }
    }

    /// The log, seen from the process that starts CRIU.
    #[must_use]
    pub fn log_path(&self) -> PathBuf {
        log_path(&self.images, self.work_folder.as_deref(), &self.log_file)
    }

    /// As an RPC message for a worker whose working folder is the images folder, and whose descriptors from
    /// `first_inherited` on are [`RestoreOptions::inherit_fd`] in its order. `work_dir` is the number of the work
    /// folder's descriptor in the process that made the connection.
    #[must_use]
    pub fn to_message(&self, work_dir: Option<RawFd>, first_inherited: RawFd) -> Options {
        let inherit = |(inherit, fd): (&InheritFd, RawFd)| Inherit { key: inherit.key.clone(), fd };
        Options {
            images_dir_fd: -1,
            images_dir: Some(WORKING_DIRECTORY.to_owned()),
            work_dir_fd: work_dir,
            rst_sibling: switch(self.sibling),
            inherit_fd: self.inherit_fd.iter().zip(first_inherited..).map(inherit).collect(),
            log_file: Some(self.log_file.clone()),
            log_level: Some(self.log_level as i32),
            shell_job: switch(self.shell_job),
            tcp_established: switch(self.tcp_established),
            tcp_close: switch(self.tcp_close),
            file_locks: switch(self.file_locks),
            ext_unix_sk: switch(self.ext_unix_sk),
            manage_cgroups_mode: Some(self.manage_cgroups.into()),
            external: self.externals.clone(),
            skip_file_rwx_check: switch(self.skip_file_rwx_check),
            unprivileged: switch(self.unprivileged),
            ..Options::default()
        }
    }

    /// As arguments after `criu restore`, for a CRIU that is started in the caller's working folder, detaches from the
    /// restored tree, writes the root's number into `pidfile` (which must not exist), and has the inherited
    /// descriptors from `first_inherited` on.
    #[must_use]
    pub fn to_arguments(&self, pidfile: &Path, first_inherited: RawFd) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["--images-dir".into(), self.images.path().into()];
        if let Some(folder) = self.work_folder.as_deref().map(Path::as_os_str) {
            arguments.extend(["--work-dir".into(), folder.into()]);
        }
        arguments.extend(["--log-file".into(), self.log_file.clone().into()]);
        arguments.push(format!("-v{}", self.log_level as i32).into());
        arguments.push(format!("--manage-cgroups={}", cgroups_argument(self.manage_cgroups)).into());
        arguments.extend(["--restore-detached".into(), "--pidfile".into(), pidfile.into()]);
        let switches = [
            (self.sibling, "--restore-sibling"),
            (self.shell_job, "--shell-job"),
            (self.tcp_established, "--tcp-established"),
            (self.tcp_close, "--tcp-close"),
            (self.file_locks, "--file-locks"),
            (self.ext_unix_sk, "--ext-unix-sk"),
            (self.skip_file_rwx_check, "--skip-file-rwx-check"),
            (self.unprivileged, "--unprivileged"),
        ];
        arguments.extend(switches.into_iter().filter(|(on, _)| *on).map(|(_, name)| name.into()));
        for (inherit, fd) in self.inherit_fd.iter().zip(first_inherited..) {
            arguments.extend(["--inherit-fd".into(), format!("fd[{fd}]:{}", inherit.key).into()]);
        }
        for external in &self.externals {
            arguments.extend(["--external".into(), external.into()]);
        }
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everything() -> RestoreOptions {
        let null = || std::fs::File::open("/dev/null").unwrap().into();
        RestoreOptions {
            images: ImagesFolder::Path("/img".into()),
            sibling: true,
            inherit_fd: vec![
                InheritFd { key: "pipe:[5]".into(), fd: null() },
                InheritFd { key: "var/log/x".into(), fd: null() },
            ],
            log_file: "l".into(),
            log_level: LogLevel::Silent,
            work_folder: Some("/work".into()),
            shell_job: true,
            tcp_established: true,
            tcp_close: true,
            file_locks: true,
            ext_unix_sk: true,
            manage_cgroups: ManageCgroups::Full,
            externals: vec!["mnt[a]:/b".into()],
            skip_file_rwx_check: true,
            unprivileged: true,
        }
    }

    #[test]
    fn every_field_reaches_the_message() {
        let expected = Options {
            images_dir_fd: -1,
            images_dir: Some("/proc/self/cwd".into()),
            work_dir_fd: Some(11),
            rst_sibling: Some(true),
            inherit_fd: vec![
                Inherit { key: "pipe:[5]".into(), fd: 4 },
                Inherit { key: "var/log/x".into(), fd: 5 },
            ],
            log_file: Some("l".into()),
            log_level: Some(0),
            shell_job: Some(true),
            tcp_established: Some(true),
            tcp_close: Some(true),
            file_locks: Some(true),
            ext_unix_sk: Some(true),
            manage_cgroups_mode: Some(4),
            external: vec!["mnt[a]:/b".into()],
            skip_file_rwx_check: Some(true),
            unprivileged: Some(true),
            ..Options::default()
        };
        assert_eq!(everything().to_message(Some(11), 4), expected);
    }

    #[test]
    fn every_field_reaches_the_arguments() {
        let expected = "--images-dir /img --work-dir /work --log-file l -v0 --manage-cgroups=full --restore-detached \
            --pidfile /p --restore-sibling --shell-job --tcp-established --tcp-close --file-locks --ext-unix-sk \
            --skip-file-rwx-check --unprivileged --inherit-fd fd[3]:pipe:[5] --inherit-fd fd[4]:var/log/x \
            --external mnt[a]:/b";
        assert_eq!(everything().to_arguments(Path::new("/p"), 3).join(" ".as_ref()), expected);
    }

    #[test]
    fn the_defaults_make_a_child_and_pass_no_other_switch() {
        let mut options = RestoreOptions::new(Path::new("/img"));
        assert_eq!(options.to_message(None, 4).rst_sibling, Some(true));
        options.sibling = false;
        assert_eq!(options.to_message(None, 4).rst_sibling, None);
        let expected = "--images-dir /img --log-file restore.log -v2 --manage-cgroups=ignore --restore-detached --pidfile /p";
        assert_eq!(options.to_arguments(Path::new("/p"), 3).join(" ".as_ref()), expected);
    }
}
