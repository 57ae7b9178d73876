//! What to do about each kind of blocker, in one sentence for the operator or the author of the server.
//!
//! Text only. It must not decide anything.

use std::os::fd::RawFd;

use super::blocker::{BlockerKind, Owner};

/// The remedy for a descriptor: whoever owns it is told first.
pub(super) fn for_descriptor(fd: RawFd, kind: BlockerKind, owner: &Owner) -> String {
    let general = general(kind);
    match owner {
        Owner::Resource(name) => format!("let {name} close it in before_checkpoint, or: {general}"),
        _ if (0..=2).contains(&fd) => format!(
            "point descriptor {fd} at /dev/null or at a log opened for appending (`>> FILE`), \
             or leave standard input and output to defrost"
        ),
        Owner::Inherited => format!(
            "close it where the server is started: defrost::init() does, unless told to keep it; or: {general}"
        ),
        _ => general.to_owned(),
    }
}

/// The remedy where nothing is known of an owner.
pub(super) fn general(kind: BlockerKind) -> &'static str {
    use BlockerKind as Kind;
    match kind {
        Kind::RegularFile => "close it before the checkpoint, or register it as a data file or log file",
        Kind::DeletedFile => "close it before the checkpoint: CRIU stores deleted files up to 1 MiB only",
        Kind::RenamedFile => {
            "open the file again under its present name: CRIU looks for it under the old one"
        }
        Kind::Directory => "close it before the checkpoint, or register a resource that opens it again",
        Kind::PathDescriptor => "close it before the checkpoint, or register a resource that opens it again",
        Kind::FileLock => "release the lock before the checkpoint and take it again after the restore",
        Kind::Terminal => "detach from the terminal: run the server under `defrost run`",
        Kind::Device => "close the device before the checkpoint and open it again after the restore",
        Kind::Pipe => "close it before the checkpoint: after a restore nobody is at its other end",
        Kind::Fifo => "close it before the checkpoint, or register a resource that opens it again",
        Kind::UnixListener => "register the socket with the context, so that it is closed and bound again",
        Kind::UnixPeer => "disconnect before the checkpoint and connect again after the restore",
        Kind::TcpListener => "register the listener with the context, so that it is closed and bound again",
        Kind::TcpConnection => {
            "close the connection before the checkpoint; a registered pool or tracker does"
        }
        Kind::InFlight => "stop accepting first: close the listener, or accept what waits, then dump",
        Kind::UdpSocket => "register the socket with the context, so that it is closed and bound again",
        Kind::RawSocket => "close the socket before the checkpoint and open it again after the restore",
        Kind::NetlinkQueue => "read the waiting messages, or close the socket before the checkpoint",
        Kind::OtherSocket => "close the socket before the checkpoint: CRIU does not know its protocol",
        Kind::IoUring => {
            "build the server without io_uring, or drop the ring before the checkpoint: CRIU cannot dump one"
        }
        Kind::UserFault => "unregister and close it before the checkpoint: CRIU cannot dump it",
        Kind::Bpf => "close it before the checkpoint and load it again after the restore",
        Kind::PerfEvent => "stop profiling before the checkpoint: CRIU cannot dump performance counters",
        Kind::Fanotify => "register a resource that closes the watch and sets it up again",
        Kind::PidFd => "close it before the checkpoint: that process will not be there after a restore",
        Kind::EventSemaphore => {
            "close it before the checkpoint and make it anew: CRIU restores an eventfd without EFD_SEMAPHORE"
        }
        Kind::KernelObject => "close it before the checkpoint: CRIU does not know this kind of object",
        Kind::DeletedMapping => {
            "restart the server from the file that is there now, or pass CRIU a larger --ghost-limit"
        }
        Kind::SysvShm => "use POSIX shared memory or memfd instead, or run in an IPC namespace of its own",
        Kind::DeviceMapping => "unmap the device before the checkpoint and map it again after the restore",
        Kind::Traced => "detach the debugger or tracer: CRIU has to trace the process itself",
        Kind::Session => {
            "start it with `defrost run` or `setsid`, or call defrost::init() first thing in main"
        }
        Kind::ControllingTerminal => {
            "start it with `defrost run` or `setsid`, or call defrost::init() first thing in main"
        }
        Kind::Child => "end child processes in before_checkpoint and start them again after the restore",
        Kind::Reaper => {
            "run the server below a supervisor (`defrost run`): CRIU would end up inside the tree that it dumps"
        }
    }
}
