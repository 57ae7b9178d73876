//! What CRIU says, what it means, and what to do about it. Texts are those of CRIU 4.2 and 4.2.1.

/// The kinds of causes that are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CauseKind {
    /// The root of the tree does not lead its session.
    NotSessionLeader,
    /// The session that the image names is not there.
    SessionMissing,
    /// The tree has a terminal.
    Terminal,
    /// A regular file has another size than at the dump.
    FileSize,
    /// A regular file has another mode than at the dump.
    FileMode,
    /// A program or library was replaced.
    FileReplaced,
    /// A file is gone.
    FileMissing,
    /// A deleted file is too big to be put into the image.
    GhostTooBig,
    /// A deleted file has another name.
    LinkRemap,
    /// A TCP connection.
    TcpConnected,
    /// A TCP connection in the image, which the restore was not told to close.
    TcpClose,
    /// A connection that nobody has accepted yet.
    TcpInFlight,
    /// Packets could not be kept away.
    TcpLock,
    /// A socket option that this CRIU cannot read on this kernel.
    SocketOption,
    /// A protocol that CRIU does not know, such as MPTCP.
    SocketProtocol,
    /// A Unix socket whose peer is outside the tree.
    UnixSocket,
    /// A vsock socket.
    Vsock,
    /// The address is in use, or not on this machine.
    Bind,
    /// An `io_uring`.
    IoUring,
    /// A userfaultfd.
    Userfaultfd,
    /// A descriptor of a kind that CRIU cannot dump.
    Descriptor,
    /// An inotify watch on a file system without file handles.
    Inotify,
    /// A file lock.
    FileLock,
    /// System V shared memory outside an IPC namespace.
    SysvShm,
    /// A mount namespace of its own.
    MountNamespace,
    /// A user namespace of its own.
    UserNamespace,
    /// Another process traces it.
    Traced,
    /// There is no such process.
    NoSuchProcess,
    /// CRIU is a descendant of what it should dump.
    InsideTree,
    /// A pid or tid of the image is taken.
    PidTaken,
    /// The images folder is not there.
    ImagesFolder,
    /// An image file is damaged or missing.
    ImageDamaged,
    /// CRIU lacks a capability.
    Capabilities,
    /// This CRIU is too old for the kernel.
    KernelTooNew,
    /// The file for the pid is already there.
    Pidfile,
    /// The disk is full.
    NoSpace,
    /// CRIU rejected its options.
    Options,
    /// None of these.
    Unknown,
}

/// How sure a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strength {
    /// It is the cause.
    Cause,
    /// It is the cause if nothing better is logged; it also stands below other causes.
    Weak,
    /// It is the cause although it is only a warning.
    Warning,
}

/// One text that CRIU is known to log.
pub(super) struct Row {
    pub(super) kind: CauseKind,
    pub(super) strength: Strength,
    /// Parts of the text, all of which must be there.
    parts: &'static [&'static str],
    pub(super) remedy: &'static str,
}

impl Row {
    pub(super) fn matches(&self, text: &str) -> bool {
        self.parts.iter().all(|part| text.contains(part))
    }
}

const fn row(
    kind: CauseKind,
    strength: Strength,
    parts: &'static [&'static str],
    remedy: &'static str,
) -> Row {
    Row { kind, strength, parts, remedy }
}

use CauseKind as K;
use Strength::{Cause, Warning, Weak};

const TAKEN: &str = "wait until the process that has this number is gone and reaped (a zombie holds it too), or restore in a pid namespace of its own";
const DAMAGED: &str = "the image is incomplete or damaged; make a new one";
const TERMINAL: &str = "start the process without a terminal, with descriptors 0 to 2 on /dev/null or a file; or use shell_job at dump and restore, inside a terminal";
const UNIX: &str = "let the process close this socket before the dump, or name it as external `unix[INO]` and give it back with inherit_fd";
const GONE: &str = "put the file back as it was at the dump, or give another one back with inherit_fd";

/// The first row that matches counts.
pub(super) static TABLE: &[Row] = &[
    row(
        K::NotSessionLeader,
        Cause,
        &["is not a session leader"],
        "start the process with setsid, or use shell_job at dump and restore",
    ),
    // Its session's leader is in an outer pid namespace, so that its session shows as 0 here.
    row(
        K::NotSessionLeader,
        Cause,
        &["A session leader of", "is outside of its pid namespace"],
        "start the process with setsid, inside the pid namespace that it runs in",
    ),
    row(
        K::SessionMissing,
        Cause,
        &["No task found with sid"],
        "dump a process that leads its session, or use shell_job at the restore as well",
    ),
    row(K::Terminal, Cause, &["without correspond master peer"], TERMINAL),
    row(K::Terminal, Cause, &["Don't have tty to inherit session"], TERMINAL),
    row(K::Terminal, Cause, &["TTY w/o regfile"], "give the terminal back with inherit_fd `tty[RDEV:DEV]`"),
    row(
        K::FileSize,
        Cause,
        &["has bad size"],
        "open the file with O_WRONLY|O_APPEND (then its size is not checked), restore its size, or give it back with inherit_fd",
    ),
    row(K::FileMode, Cause, &["has bad mode"], "restore the mode of the file, or use skip_file_rwx_check"),
    row(
        K::FileReplaced,
        Cause,
        &["has bad build-ID"],
        "put the program or library of the dump back, or make a new image",
    ),
    row(K::FileMissing, Cause, &["Can't open file", "on restore"], GONE),
    row(
        K::GhostTooBig,
        Cause,
        &["Can't dump ghost file"],
        "raise ghost_limit; a replaced program counts as a deleted file",
    ),
    row(K::LinkRemap, Cause, &["Can't create link remap"], "use link_remap at the dump"),
    row(
        K::TcpInFlight,
        Cause,
        &["In-flight connection"],
        "let the process accept or close it first, or use skip_in_flight",
    ),
    row(
        K::TcpConnected,
        Cause,
        &["Connected TCP socket"],
        "close connections before the dump; or use tcp_close, or tcp_established, at dump and restore",
    ),
    row(K::TcpClose, Cause, &["Need to set the --tcp-close"], "use tcp_close at the restore as well"),
    row(
        K::TcpLock,
        Cause,
        &["Failed to lock TCP"],
        "install iptables or nftables, or use the network lock `skip`",
    ),
    row(
        K::TcpLock,
        Weak,
        &["Iptables configuration failed"],
        "install iptables or nftables, or use the network lock `skip`",
    ),
    row(
        K::SocketOption,
        Cause,
        &["Can't get 1:16 opt"],
        "this criu is too old for the kernel; install criu 4.2 or later",
    ),
    row(K::SocketOption, Weak, &["sockets: Can't get"], "install a newer criu"),
    row(
        K::SocketProtocol,
        Cause,
        &["Unsupported proto"],
        "let the process use plain TCP or UDP; criu cannot dump MPTCP",
    ),
    row(K::UnixSocket, Cause, &["External socket is used"], UNIX),
    row(K::UnixSocket, Cause, &["Can't dump half of stream unix connection"], UNIX),
    row(
        K::Vsock,
        Cause,
        &["Unknown socket collected (family 40)"],
        "close vsock sockets before the dump; criu cannot dump them",
    ),
    row(
        K::Bind,
        Cause,
        &["Can't bind inet socket", "Address already in use"],
        "stop what listens there, or let the process listen with SO_REUSEPORT",
    ),
    row(K::Bind, Cause, &["Can't bind inet socket"], "the address must be on this machine"),
    row(
        K::IoUring,
        Cause,
        &["io_uring"],
        "close the ring before the dump, or switch io_uring off in the process; criu cannot dump it",
    ),
    row(
        K::Userfaultfd,
        Cause,
        &["userfaultfd"],
        "close the userfaultfd before the dump; criu cannot dump it",
    ),
    row(
        K::Inotify,
        Cause,
        &["fsnotify: Can't dump that handle"],
        "watch files on a file system with file handles (not overlayfs), or close the watch before the dump",
    ),
    row(
        K::FileLock,
        Cause,
        &["file locks are hold"],
        "use file_locks at dump and restore, or let the process unlock first",
    ),
    row(K::SysvShm, Cause, &["SysVIPC shmem"], "use POSIX or anonymous shared memory, or an IPC namespace"),
    row(
        K::MountNamespace,
        Cause,
        &["Can't lookup mount="],
        "run the process in the mount namespace of criu, or dump the whole container",
    ),
    row(
        K::UserNamespace,
        Cause,
        &["doesn't belong to the target user namespace"],
        "run the process without a user namespace of its own",
    ),
    row(
        K::Traced,
        Warning,
        &["Unable to interrupt task", "Operation not permitted"],
        "detach the debugger or tracer",
    ),
    row(
        K::InsideTree,
        Cause,
        &["itself is within dumped tree"],
        "start criu outside the tree that is dumped: daemonize it first",
    ),
    row(K::PidTaken, Cause, &["Can't fork", "File exists"], TAKEN),
    row(K::PidTaken, Cause, &["Unable to create a thread: -17"], TAKEN),
    row(K::ImagesFolder, Cause, &["Can't open dir"], "check the path of the images folder"),
    row(K::ImageDamaged, Cause, &["bytes while", "expected from"], DAMAGED),
    row(K::ImageDamaged, Cause, &["Magic doesn't match"], DAMAGED),
    row(K::ImageDamaged, Cause, &["Unexpected EOF on"], DAMAGED),
    row(K::ImageDamaged, Cause, &["Failed unpacking object"], DAMAGED),
    row(K::ImageDamaged, Weak, &["Unable to open", ".img"], DAMAGED),
    row(
        K::Capabilities,
        Cause,
        &["CRIU needs to have the CAP_"],
        "run as root, or give the program cap_checkpoint_restore and cap_sys_ptrace and use unprivileged",
    ),
    row(K::Capabilities, Cause, &["Unable to drop capability"], "give criu cap_setpcap as well"),
    row(
        K::KernelTooNew,
        Cause,
        &["Unexpected rt vDSO area bounds"],
        "this criu is too old for the kernel; install criu 4.2 or later",
    ),
    row(K::Pidfile, Cause, &["pidfile"], "remove the old file"),
    row(K::NoSpace, Cause, &["No space left on device"], "make room where the images go"),
    row(K::Options, Weak, &["Bad options"], "check the images folder and that the log's name has no slash"),
    row(K::Descriptor, Cause, &["Can't dump file", "of that type"], "close this descriptor before the dump"),
    row(
        K::Descriptor,
        Weak,
        &["send_fds failed (-22)"],
        "look for an io_uring in /proc/PID/fd: criu fails on it without naming it",
    ),
    row(
        K::NoSuchProcess,
        Weak,
        &["Unable to detach from", "No such process"],
        "check the number of the process, and that nothing traces it",
    ),
    row(K::NoSuchProcess, Weak, &["No such process"], "check the number of the process"),
];
