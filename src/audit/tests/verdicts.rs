//! One case for each kind of blocker and each thing that passes, without touching the system.

use std::os::fd::RawFd;

use nix::libc;

use crate::audit::holders::{Holder, Holders};
use crate::audit::rules::judge;
use crate::audit::scan::Scan;
use crate::audit::{
    BlockerKind as Kind, CharDevice, Claims, Descriptor, DescriptorKind, FileName, Mapping, MappingKind,
    OtherSocket, Owner, PipeEnd, ProcessName, ProcessState, RegularFile, Report, TcpSocket, TcpState,
    UdpSocket, UnixSocket, UnixState, UnixStyle, Watched,
};

const PID: i32 = 4000;

fn scan(descriptors: Vec<Descriptor>) -> Scan {
    let process = ProcessState {
        process: ProcessName { pid: PID, name: "server".to_owned() },
        own: true,
        session: PID,
        terminal: false,
        tracer: None,
        children: Vec::new(),
        zombies: Vec::new(),
        subreaper: Some(false),
        threads: 4,
    };
    let holders = Holders { complete: true, ..Holders::default() };
    Scan { process, descriptors, mappings: Vec::new(), holders }
}

fn descriptor(fd: RawFd, kind: DescriptorKind, target: &str) -> Descriptor {
    let inode = 1000 + u64::try_from(fd).unwrap();
    Descriptor { fd, kind, target: target.to_owned(), flags: libc::O_RDWR, inode, locks: Vec::new() }
}

fn file(fd: RawFd, append_only: bool, name: FileName, size: u64) -> Descriptor {
    let target = if name == FileName::Current { "/srv/data" } else { "/srv/data (deleted)" };
    descriptor(fd, DescriptorKind::Regular(RegularFile { size, append_only, name }), target)
}

fn unix(fd: RawFd, style: UnixStyle, state: UnixState, name: Option<&str>) -> Descriptor {
    let socket = UnixSocket { style, state, name: name.map(str::to_owned) };
    descriptor(fd, DescriptorKind::Unix(socket), "socket:[1]")
}

fn connected(fd: RawFd, peer: u64) -> Descriptor {
    unix(fd, UnixStyle::Stream, UnixState::Connected { peer, peer_name: None }, None)
}

fn tcp(state: TcpState, queued: u32) -> DescriptorKind {
    let remote = (state == TcpState::Established).then(|| "127.0.0.1:5432".parse().unwrap());
    DescriptorKind::Tcp(TcpSocket { state, local: Some("127.0.0.1:9090".parse().unwrap()), remote, queued })
}

fn other(protocol: &str, queued: u32) -> DescriptorKind {
    DescriptorKind::Socket(OtherSocket { protocol: protocol.to_owned(), queued })
}

fn lines(report: &Report) -> Vec<String> {
    report.blockers.iter().map(ToString::to_string).collect()
}

/// What one descriptor leads to, with nobody and with a resource answering for it.
fn verdicts(one: Descriptor) -> (Option<Kind>, Option<Kind>) {
    let fd = one.fd;
    let claims = Claims { by_resource: vec![(fd, "pool".to_owned())], ..Claims::default() };
    let alone = judge(scan(vec![one.clone()]), &Claims::default());
    let claimed = judge(scan(vec![one]), &claims);
    let owned = |report: &Report| {
        report.blockers.iter().all(|blocker| blocker.owner == Owner::Resource("pool".to_owned()))
    };
    assert!(owned(&claimed));
    for blocker in alone.blockers.iter().chain(&claimed.blockers) {
        assert!(!blocker.remedy.is_empty() && !blocker.to_string().contains('\n'), "{blocker:?}");
    }
    let kind = |report: &Report| report.blockers.first().map(|blocker| blocker.kind);
    (kind(&alone), kind(&claimed))
}

#[test]
fn what_no_claim_can_carry() {
    let cases = [
        (file(7, false, FileName::Deleted, (1 << 20) + 1), Kind::DeletedFile),
        (file(7, false, FileName::Elsewhere, 10), Kind::RenamedFile),
        (descriptor(7, DescriptorKind::CharDevice(CharDevice::Terminal), "/dev/pts/0"), Kind::Terminal),
        (descriptor(7, DescriptorKind::CharDevice(CharDevice::Other), "/dev/kvm"), Kind::Device),
        (descriptor(7, DescriptorKind::BlockDevice, "/dev/sda"), Kind::Device),
        (connected(7, 99), Kind::UnixPeer),
        (unix(7, UnixStyle::Stream, UnixState::PeerGone, None), Kind::UnixPeer),
        (unix(7, UnixStyle::Stream, UnixState::Unknown, None), Kind::UnixPeer),
        (unix(7, UnixStyle::Stream, UnixState::Listening { pending: 2 }, Some("/run/x")), Kind::InFlight),
        (descriptor(7, tcp(TcpState::Listen, 1), "socket:[1]"), Kind::InFlight),
        (descriptor(7, tcp(TcpState::Established, 0), "socket:[1]"), Kind::TcpConnection),
        (descriptor(7, tcp(TcpState::Passing, 0), "socket:[1]"), Kind::TcpConnection),
        (descriptor(7, tcp(TcpState::Unknown, 0), "socket:[1]"), Kind::TcpConnection),
        (descriptor(7, other("AF_VSOCK", 0), "socket:[1]"), Kind::OtherSocket),
        (descriptor(7, other("MPTCP", 0), "socket:[1]"), Kind::OtherSocket),
        (descriptor(7, other("NETLINK", 12), "socket:[1]"), Kind::NetlinkQueue),
        (descriptor(7, DescriptorKind::IoUring, "anon_inode:[io_uring]"), Kind::IoUring),
        (descriptor(7, DescriptorKind::UserFault, "anon_inode:[userfaultfd]"), Kind::UserFault),
        (descriptor(7, DescriptorKind::PerfEvent, "anon_inode:[perf_event]"), Kind::PerfEvent),
        (
            descriptor(7, DescriptorKind::Bpf { object: "bpf-prog".to_owned() }, "anon_inode:bpf-prog"),
            Kind::Bpf,
        ),
        (descriptor(7, DescriptorKind::PidFd { pid: 17 }, "anon_inode:[pidfd]"), Kind::PidFd),
        (
            descriptor(7, DescriptorKind::EventFd { id: Some(5), semaphore: true }, "anon_inode:[eventfd]"),
            Kind::EventSemaphore,
        ),
        (
            descriptor(7, DescriptorKind::Anonymous { name: "kvm-vm".to_owned() }, "anon_inode:kvm-vm"),
            Kind::KernelObject,
        ),
    ];
    for (one, kind) in cases {
        let name = format!("{one:?}");
        assert_eq!(verdicts(one), (Some(kind), Some(kind)), "{name}");
    }
}

#[test]
fn what_needs_an_owner() {
    let mut locked = file(7, false, FileName::Current, 10);
    locked.locks.push("FLOCK ADVISORY WRITE".to_owned());
    assert_eq!(verdicts(locked), (Some(Kind::FileLock), Some(Kind::FileLock)));
    let udp = UdpSocket { local: Some("0.0.0.0:53".parse().unwrap()), remote: None, queued: 9 };
    let cases = [
        (file(7, false, FileName::Current, 10), Kind::RegularFile),
        (file(7, true, FileName::Current, 10), Kind::RegularFile),
        (file(1, false, FileName::Current, 10), Kind::RegularFile),
        (file(7, false, FileName::Deleted, 1 << 20), Kind::RegularFile),
        (descriptor(7, DescriptorKind::Directory, "/srv"), Kind::Directory),
        (descriptor(7, DescriptorKind::Path, "/srv"), Kind::PathDescriptor),
        (unix(7, UnixStyle::Stream, UnixState::Listening { pending: 0 }, Some("/run/x")), Kind::UnixListener),
        (unix(7, UnixStyle::Datagram, UnixState::Unconnected, Some("@x")), Kind::UnixListener),
        (descriptor(7, tcp(TcpState::Listen, 0), "socket:[1]"), Kind::TcpListener),
        (descriptor(7, DescriptorKind::Udp(udp), "socket:[1]"), Kind::UdpSocket),
        (descriptor(7, other("RAW", 0), "socket:[1]"), Kind::RawSocket),
        (descriptor(7, other("PACKET", 0), "socket:[1]"), Kind::RawSocket),
        (
            descriptor(7, DescriptorKind::Bpf { object: "bpf-map".to_owned() }, "anon_inode:bpf-map"),
            Kind::Bpf,
        ),
        (descriptor(7, DescriptorKind::Fanotify, "anon_inode:[fanotify]"), Kind::Fanotify),
    ];
    for (one, kind) in cases {
        let name = format!("{one:?}");
        assert_eq!(verdicts(one), (Some(kind), None), "{name}");
    }
}

#[test]
fn what_passes_though_nobody_claims_it() {
    let device = |device, path| descriptor(7, DescriptorKind::CharDevice(device), path);
    let closed = descriptor(7, tcp(TcpState::Closed, 0), "socket:[1]");
    let unbound = UdpSocket { local: None, remote: None, queued: 0 };
    let cases = [
        file(1, true, FileName::Current, 10),
        device(CharDevice::Null, "/dev/null"),
        device(CharDevice::Zero, "/dev/zero"),
        device(CharDevice::Random, "/dev/random"),
        device(CharDevice::Urandom, "/dev/urandom"),
        descriptor(7, DescriptorKind::MemFd, "/memfd:x (deleted)"),
        descriptor(7, DescriptorKind::TimerFd, "anon_inode:[timerfd]"),
        descriptor(7, DescriptorKind::SignalFd, "anon_inode:[signalfd]"),
        descriptor(7, DescriptorKind::Inotify, "anon_inode:inotify"),
        descriptor(7, DescriptorKind::Namespace, "net:[4026531840]"),
        descriptor(7, DescriptorKind::PidFd { pid: PID }, "anon_inode:[pidfd]"),
        descriptor(7, DescriptorKind::PidFd { pid: -1 }, "anon_inode:[pidfd]"),
        descriptor(7, DescriptorKind::Pipe { end: PipeEnd::Write }, "pipe:[1]"),
        descriptor(7, DescriptorKind::Fifo { end: PipeEnd::Both }, "/run/fifo"),
        descriptor(7, other("NETLINK", 0), "socket:[1]"),
        descriptor(7, DescriptorKind::Udp(unbound), "socket:[1]"),
        closed,
    ];
    for one in cases {
        let name = format!("{one:?}");
        assert_eq!(verdicts(one), (None, None), "{name}");
    }
}

#[test]
fn a_quiesced_tokio_server_is_clear_and_needs_no_word() {
    let null = || DescriptorKind::CharDevice(CharDevice::Null);
    let epoll = || DescriptorKind::Epoll {
        watched: vec![Watched { fd: 4, inode: 1004 }, Watched { fd: 6, inode: 1006 }],
    };
    let report = judge(
        scan(vec![
            descriptor(0, null(), "/dev/null"),
            descriptor(1, null(), "/dev/null"),
            descriptor(2, null(), "/dev/null"),
            descriptor(3, epoll(), "anon_inode:[eventpoll]"),
            descriptor(4, DescriptorKind::EventFd { id: Some(5), semaphore: false }, "anon_inode:[eventfd]"),
            descriptor(5, epoll(), "anon_inode:[eventpoll]"),
            connected(6, 1007),
            connected(7, 1006),
            descriptor(8, DescriptorKind::EventFd { id: Some(5), semaphore: false }, "anon_inode:[eventfd]"),
        ]),
        &Claims::default(),
    );
    assert!(report.is_clear(), "{:?}", lines(&report));
    assert_eq!(report.notes, []);
}

#[test]
fn foreign_anonymous_inodes_are_named_and_do_not_block() {
    let epoll = DescriptorKind::Epoll { watched: vec![Watched { fd: 9, inode: 1 }] };
    let event = DescriptorKind::EventFd { id: Some(6), semaphore: false };
    let report = judge(
        scan(vec![
            descriptor(3, DescriptorKind::Epoll { watched: Vec::new() }, "anon_inode:[eventpoll]"),
            descriptor(4, event, "anon_inode:[eventfd]"),
            descriptor(5, epoll, "anon_inode:[eventpoll]"),
            descriptor(6, DescriptorKind::TimerFd, "anon_inode:[timerfd]"),
        ]),
        &Claims::default(),
    );
    assert!(report.is_clear());
    let notes: Vec<_> = report.notes.iter().map(ToString::to_string).collect();
    assert_eq!(
        notes,
        [
            "descriptor 3: epoll of no known runtime, restored as it is, registered by nobody",
            "descriptor 4: eventfd of no known runtime, restored as it is, registered by nobody",
            "descriptor 5: epoll, still watches descriptor 9, which is closed, registered by nobody",
            "descriptor 6: timerfd, restored as it is, registered by nobody",
        ]
    );
}

#[test]
fn the_lines_name_number_kind_addresses_peer_and_origin() {
    let mut found = scan(vec![
        descriptor(1, DescriptorKind::Pipe { end: PipeEnd::Write }, "pipe:[77]"),
        descriptor(7, tcp(TcpState::Listen, 0), "socket:[1]"),
        descriptor(8, tcp(TcpState::Established, 0), "socket:[2]"),
        unix(
            9,
            UnixStyle::Stream,
            UnixState::Connected { peer: 88, peer_name: Some("/run/journal".to_owned()) },
            None,
        ),
    ]);
    let holder = |name: &str, pid, path: Option<&str>| Holder {
        process: ProcessName { pid, name: name.to_owned() },
        path: path.map(str::to_owned),
    };
    found.holders.found.insert("pipe:[77]".to_owned(), vec![holder("tee", 12, Some("/usr/bin/tee"))]);
    found.holders.found.insert("socket:[88]".to_owned(), vec![holder("journald", 1, None)]);
    let claims = Claims {
        by_resource: vec![(8, "pool".to_owned())],
        inherited: vec![(1, "pipe:[77]".to_owned()), (7, "/dev/null".to_owned())],
        ..Claims::default()
    };
    let report = judge(found, &claims);
    assert_eq!(
        lines(&report),
        [
            "descriptor 1: pipe:[77] (write end), shared with tee (pid 12, /usr/bin/tee), inherited at start-up",
            "descriptor 7: tcp listener 127.0.0.1:9090, registered by nobody",
            "descriptor 8: tcp connection 127.0.0.1:9090 -> 127.0.0.1:5432 (established), claimed by pool",
            "descriptor 9: unix stream to /run/journal, shared with journald (pid 1), registered by nobody",
        ]
    );
    assert!(report.blockers[2].remedy.starts_with("let pool close it"));
}

#[test]
fn what_will_not_be_there_passes() {
    let mut locked = file(5, false, FileName::Current, 10);
    locked.locks.push("POSIX ADVISORY READ".to_owned());
    let claims = Claims { kept: vec![4], service: vec![5], ..Claims::default() };
    let report =
        judge(scan(vec![descriptor(4, tcp(TcpState::Established, 0), "socket:[1]"), locked]), &claims);
    assert!(report.is_clear(), "{:?}", lines(&report));
}

#[test]
fn a_pipe_blocks_unless_both_ends_or_nobody_else_has_it() {
    let end = |fd, end| descriptor(fd, DescriptorKind::Pipe { end }, "pipe:[5]");
    let inside = scan(vec![end(4, PipeEnd::Read), end(5, PipeEnd::Write)]);
    let report = judge(inside, &Claims::default());
    assert!(report.is_clear() && report.notes.is_empty());

    let mut hidden = scan(vec![end(4, PipeEnd::Read)]);
    hidden.holders.complete = false;
    let report = judge(hidden, &Claims::default());
    assert_eq!(report.blockers[0].kind, Kind::Pipe);

    let report = judge(scan(vec![end(4, PipeEnd::Read)]), &Claims::default());
    assert!(report.is_clear() && report.notes.len() == 1);
}

#[test]
fn mappings() {
    let mapping = |kind, size| Mapping { start: 0, kind, path: "/opt/x".to_owned(), size, executable: false };
    let cases = [
        (mapping(MappingKind::Deleted, 1 << 20), None, 1),
        (mapping(MappingKind::Deleted, (1 << 20) + 1), Some(Kind::DeletedMapping), 0),
        (mapping(MappingKind::Elsewhere, 1), Some(Kind::RenamedFile), 0),
        (mapping(MappingKind::SharedFile { writable: true }, 1), None, 1),
        (mapping(MappingKind::SharedFile { writable: false }, 1), None, 1),
        (mapping(MappingKind::MemFd, 1 << 30), None, 0),
        (mapping(MappingKind::SysvShm, 1), Some(Kind::SysvShm), 0),
        (mapping(MappingKind::IoUring, 1), Some(Kind::IoUring), 0),
        (mapping(MappingKind::Device, 1), Some(Kind::DeviceMapping), 0),
        (mapping(MappingKind::HugePages, 1), None, 1),
        (mapping(MappingKind::KernelObject, 1), Some(Kind::KernelObject), 0),
    ];
    for (one, kind, notes) in cases {
        let found = Scan { mappings: vec![one.clone()], ..scan(Vec::new()) };
        let report = judge(found, &Claims::default());
        assert_eq!(report.blockers.first().map(|blocker| blocker.kind), kind, "{one:?}");
        assert_eq!(report.notes.len(), notes, "{one:?}");
    }
}

#[test]
fn a_ring_with_a_descriptor_is_reported_once() {
    let rings = Mapping {
        start: 0,
        kind: MappingKind::IoUring,
        path: "anon_inode:[io_uring]".to_owned(),
        size: 4096,
        executable: false,
    };
    let ring = descriptor(7, DescriptorKind::IoUring, "anon_inode:[io_uring]");
    let report = judge(Scan { mappings: vec![rings], ..scan(vec![ring]) }, &Claims::default());
    assert_eq!(lines(&report), ["descriptor 7: io_uring, registered by nobody"]);
}

#[test]
fn the_process_as_a_whole() {
    let name = |pid, name: &str| ProcessName { pid, name: name.to_owned() };
    let base = scan(Vec::new()).process;
    let cases = [
        (
            ProcessState { tracer: Some(name(5, "gdb")), ..base.clone() },
            Kind::Traced,
            "process: traced by gdb (pid 5)",
        ),
        (
            ProcessState { session: 9, ..base.clone() },
            Kind::Session,
            "process: not a session leader (its session is 9)",
        ),
        (
            ProcessState { terminal: true, ..base.clone() },
            Kind::ControllingTerminal,
            "process: has a controlling terminal",
        ),
        (
            ProcessState { children: vec![name(6, "sleep")], ..base.clone() },
            Kind::Child,
            "process: living child sleep (pid 6)",
        ),
        (
            ProcessState { process: name(1, "server"), session: 1, ..base.clone() },
            Kind::Reaper,
            "process: is pid 1, which adopts every orphan",
        ),
        (
            ProcessState { subreaper: Some(true), ..base.clone() },
            Kind::Reaper,
            "process: is a child subreaper",
        ),
    ];
    for (process, kind, line) in cases {
        let report = judge(Scan { process, ..scan(Vec::new()) }, &Claims::default());
        assert_eq!(lines(&report), [line]);
        assert_eq!(report.blockers[0].kind, kind);
    }
    let foreign = ProcessState { own: false, subreaper: None, zombies: vec![name(6, "sleep")], ..base };
    let report = judge(Scan { process: foreign, ..scan(Vec::new()) }, &Claims::default());
    assert!(report.is_clear() && report.notes.len() == 1);
}

#[test]
fn the_report_is_json_with_the_names_of_policies() {
    let report = judge(scan(vec![descriptor(7, tcp(TcpState::Listen, 0), "socket:[1]")]), &Claims::default());
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["blockers"][0]["kind"], Kind::TcpListener.name());
    assert_eq!(json["blockers"][0]["fd"], 7);
    assert_eq!(json["descriptors"][0]["kind"]["type"], "tcp");
    assert_eq!(json["descriptors"][0]["kind"]["local"], "127.0.0.1:9090");
}
