//! The scan on real files, kernel objects and processes: one of everything that can be opened here.
//!
//! Other tests of this binary open descriptors at the same time, so each test looks at its own only.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::process::{Command, Stdio};

use nix::fcntl::OFlag;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::EventFd;
use nix::sys::{fanotify, inotify, memfd, signal, signalfd, stat, timerfd};
use nix::unistd::{self, Pid};
use rustix::process::{PidfdFlags, pidfd_open};

use super::subject::{Subject, audit, blocker, entry, kind_of, note};
use crate::audit::{
    Audit, Blocker, BlockerKind as Kind, CharDevice, Claims, DescriptorKind, FileName, MappingKind, PipeEnd,
};

#[test]
fn files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let plain = File::create(&path).unwrap();
    let log = OpenOptions::new().append(true).open(&path).unwrap();
    let directory = File::open(folder.path()).unwrap();
    let name_only = nix::fcntl::open(&path, OFlag::O_PATH, stat::Mode::empty()).unwrap();
    let regular = |fd: &dyn AsRawFd| match entry(&audit(), fd.as_raw_fd()).kind.clone() {
        DescriptorKind::Regular(file) => file,
        other => panic!("{other:?}"),
    };
    assert!(!regular(&plain).append_only && regular(&log).append_only);
    assert_eq!(regular(&plain).name, FileName::Current);
    assert_eq!(kind_of(&directory), DescriptorKind::Directory);
    assert_eq!(kind_of(&name_only), DescriptorKind::Path);

    let odd = File::create(folder.path().join("x (deleted)")).unwrap();
    assert_eq!(regular(&odd).name, FileName::Current);
    fs::hard_link(&path, folder.path().join("other")).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(regular(&plain).name, FileName::Elsewhere);
    fs::remove_file(folder.path().join("other")).unwrap();
    assert_eq!(regular(&plain).name, FileName::Deleted);
    plain.set_len(2 << 20).unwrap();
    let report = audit();
    let blocker = blocker(&report, plain.as_raw_fd()).unwrap();
    assert_eq!(blocker.kind, Kind::DeletedFile);
    assert!(blocker.target.ends_with("(2.0 MiB)"), "{blocker}");
}

#[test]
fn a_lock_is_found_by_its_descriptor() {
    let file = tempfile::tempfile().unwrap();
    assert!(file.try_lock().is_ok());
    let report = audit();
    let locks = &entry(&report, file.as_raw_fd()).locks;
    assert_eq!(locks, &["FLOCK ADVISORY WRITE"]);
    let claims = Claims { by_resource: vec![(file.as_raw_fd(), "store".to_owned())], ..Claims::default() };
    let report = Audit::of_self(&claims).unwrap();
    assert_eq!(blocker(&report, file.as_raw_fd()).unwrap().kind, Kind::FileLock);
}

#[test]
fn devices() {
    let open = |path| kind_of(&File::open(path).unwrap());
    for (path, device) in [
        ("/dev/null", CharDevice::Null),
        ("/dev/zero", CharDevice::Zero),
        ("/dev/full", CharDevice::Full),
        ("/dev/random", CharDevice::Random),
        ("/dev/urandom", CharDevice::Urandom),
    ] {
        assert_eq!(open(path), DescriptorKind::CharDevice(device), "{path}");
    }
    let pair = nix::pty::openpty(None, None).unwrap();
    let report = audit();
    for end in [&pair.master, &pair.slave] {
        assert_eq!(blocker(&report, end.as_raw_fd()).unwrap().kind, Kind::Terminal);
    }
}

#[test]
fn pipes_inside_and_outside() {
    let (reader, writer) = std::io::pipe().unwrap();
    let report = audit();
    assert_eq!(entry(&report, reader.as_raw_fd()).kind, DescriptorKind::Pipe { end: PipeEnd::Read });
    assert_eq!(entry(&report, writer.as_raw_fd()).kind, DescriptorKind::Pipe { end: PipeEnd::Write });
    assert!(blocker(&report, reader.as_raw_fd()).is_none());

    let mut cat = Subject::start(Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()));
    let input = cat.0.stdin.take().unwrap();
    let pid = cat.pid();
    cat.audit_until(|report| report.process.process.name == "cat");
    let report = audit();
    let line = blocker(&report, input.as_raw_fd()).unwrap().to_string();
    assert!(line.contains("(write end), shared with cat (pid ") && line.contains(&pid.to_string()), "{line}");
    assert!(report.blockers.iter().any(|blocker| blocker.to_string().contains("living child cat (pid ")));
    let theirs = Audit::of_process(pid, &Claims::default()).unwrap();
    let line = blocker(&theirs, 0).unwrap().to_string();
    assert!(line.contains(&std::process::id().to_string()), "{line}");
}

#[test]
fn named_pipes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fifo");
    unistd::mkfifo(&path, stat::Mode::S_IRWXU).unwrap();
    let fifo = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    assert_eq!(kind_of(&fifo), DescriptorKind::Fifo { end: PipeEnd::Both });
    let report = audit();
    assert!(blocker(&report, fifo.as_raw_fd()).is_none());
}

#[test]
fn anonymous_inodes() {
    let event = EventFd::new().unwrap();
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
    epoll.add(&event, EpollEvent::new(EpollFlags::EPOLLIN, 7)).unwrap();
    let timer =
        timerfd::TimerFd::new(timerfd::ClockId::CLOCK_MONOTONIC, timerfd::TimerFlags::empty()).unwrap();
    let signals = signalfd::SignalFd::new(&signal::SigSet::empty()).unwrap();
    let watch = inotify::Inotify::init(inotify::InitFlags::IN_CLOEXEC).unwrap();
    let memory = memfd::memfd_create("audit", memfd::MFdFlags::MFD_CLOEXEC).unwrap();
    let namespace = File::open("/proc/self/ns/net").unwrap();
    let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
    let parent = pidfd_open(rustix::process::getppid().unwrap(), PidfdFlags::empty()).unwrap();

    let report = audit();
    let epoll_fd = epoll.0.as_raw_fd();
    match &entry(&report, epoll_fd).kind {
        DescriptorKind::Epoll { watched } => assert_eq!(watched[0].fd, number(&event)),
        other => panic!("{other:?}"),
    }
    assert!(note(&report, epoll_fd).is_none() && note(&report, number(&event)).is_none());
    let pid = i32::try_from(std::process::id()).unwrap();
    assert_eq!(kind_of(&signals), DescriptorKind::SignalFd);
    assert_eq!(kind_of(&memory), DescriptorKind::MemFd);
    assert_eq!(kind_of(&namespace), DescriptorKind::Namespace);
    assert_eq!(kind_of(&own), DescriptorKind::PidFd { pid });
    assert_eq!(entry(&report, number(&timer)).kind, DescriptorKind::TimerFd);
    assert_eq!(entry(&report, number(&watch)).kind, DescriptorKind::Inotify);
    assert!(blocker(&report, own.as_raw_fd()).is_none());
    assert_eq!(blocker(&report, parent.as_raw_fd()).unwrap().kind, Kind::PidFd);
    drop(event);
    let report = audit();
    assert!(note(&report, epoll_fd).is_some());
}

#[test]
fn kernel_objects_that_may_be_refused_here() {
    match io_uring::IoUring::new(2) {
        Ok(ring) => {
            let report = audit();
            let blocker = blocker(&report, ring.as_raw_fd()).unwrap();
            assert_eq!(
                blocker.to_string(),
                format!("descriptor {}: io_uring, registered by nobody", ring.as_raw_fd())
            );
            assert!(report.mappings.iter().any(|mapping| mapping.kind == MappingKind::IoUring));
        }
        Err(refused) => println!("skipped: io_uring: {refused}"),
    }
    let flags = fanotify::InitFlags::FAN_CLASS_NOTIF | fanotify::InitFlags::FAN_CLOEXEC;
    match fanotify::Fanotify::init(flags, fanotify::EventFFlags::O_RDONLY) {
        Ok(group) => assert_eq!(blocker(&audit(), number(&group)).unwrap().kind, Kind::Fanotify),
        Err(refused) => println!("skipped: fanotify: {refused}"),
    }
}

#[test]
fn an_executable_replaced_by_a_deploy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server");
    fs::copy("/bin/sleep", &path).unwrap();
    // What follows the program in the file does not matter to it.
    OpenOptions::new().append(true).open(&path).unwrap().write_all(&vec![0; 2 << 20]).unwrap();
    let server = Subject::start(Command::new(&path).arg("60").stdin(Stdio::null()));
    server.audit_until(|report| report.process.process.name == "server");
    fs::remove_file(&path).unwrap();
    let deleted = |blocker: &&Blocker| blocker.kind == Kind::DeletedMapping;
    // A new program has its name a moment before it has its mappings.
    let report = server.audit_until(|report| report.blockers.iter().any(|blocker| deleted(&blocker)));
    let blocker = report.blockers.iter().find(deleted).unwrap();
    let start = format!("mapping: deleted executable {} (2.", path.display());
    assert!(blocker.to_string().starts_with(&start), "{blocker}");
}

#[test]
fn a_process_with_children_in_another_session_under_a_tracer() {
    let mut shell = Subject::start(Command::new("sh").args(["-c", "sleep 60 & wait"]).stdin(Stdio::null()));
    let report =
        shell.audit_until(|report| report.process.children.iter().any(|child| child.name == "sleep"));
    let kinds: Vec<_> = report.blockers.iter().map(|blocker| blocker.kind).collect();
    assert!(kinds.contains(&Kind::Child) && kinds.contains(&Kind::Session), "{kinds:?}");

    let pid = Pid::from_raw(shell.pid());
    nix::sys::ptrace::seize(pid, nix::sys::ptrace::Options::empty()).unwrap();
    let report = Audit::of_process(shell.pid(), &Claims::default()).unwrap();
    let tracer = report.process.tracer.unwrap();
    assert_eq!(u32::try_from(tracer.pid), Ok(std::process::id()));
    assert!(report.blockers.iter().any(|blocker| blocker.kind == Kind::Traced));
    shell.0.kill().unwrap();
}

#[test]
fn no_such_process() {
    let error = Audit::of_process(i32::MAX, &Claims::default()).unwrap_err();
    assert_eq!(error.to_string(), format!("process {}: does not exist", i32::MAX));
}

#[test]
fn the_scan_leaves_itself_out() {
    // Audits of tests that run beside this one may be seen at times; the own would be there each time.
    let folder = format!("/proc/{}/fd", std::process::id());
    let clean = |_| audit().descriptors.iter().all(|descriptor| descriptor.target != folder);
    assert!((0..50).any(clean));
}

/// The number of what lends itself as `AsFd` only.
fn number(descriptor: &impl AsFd) -> RawFd {
    descriptor.as_fd().as_raw_fd()
}
