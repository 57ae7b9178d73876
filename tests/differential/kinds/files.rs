//! Descriptors.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use rustix::io::FdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;

use crate::differential::play::Play;

/// Answers for descriptors that nobody else does.
struct Claim(Vec<RawFd>);

#[async_trait::async_trait]
impl defrost::Resource for Claim {
    fn claims(&self) -> Vec<RawFd> {
        self.0.clone()
    }
}

/// Event counters, timers and an epoll instance that watches them. CRIU forgets that a counter is a semaphore, so
/// there is none.
pub fn events(play: &mut Play) {
    let counter = EventFd::from_value_and_flags(7, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).unwrap();
    let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK).unwrap();
    let setting =
        Expiration::IntervalDelayed(Duration::from_secs(1000).into(), Duration::from_secs(5).into());
    timer.set(setting, TimerSetTimeFlags::empty()).unwrap();
    let stopped = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC).unwrap();
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
    epoll.add(&counter, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, u64::MAX - 1)).unwrap();
    epoll.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT, 2)).unwrap();
    epoll.add(&stopped, EpollEvent::new(EpollFlags::EPOLLIN, 3)).unwrap();
    let outer = Epoll::new(EpollCreateFlags::empty()).unwrap();
    outer.add(&epoll.0, EpollEvent::new(EpollFlags::EPOLLIN, 4)).unwrap();
    play.dump();
    let mut found = [EpollEvent::empty(); 8];
    let count = outer.wait(&mut found, EpollTimeout::ZERO).unwrap();
    play.same("events of the outer epoll", (count, found[0].data()), (1, 4));
    let count = epoll.wait(&mut found, EpollTimeout::ZERO).unwrap();
    play.same("events of the inner epoll", (count, found[0].data()), (1, u64::MAX - 1));
    play.same("counter", counter.read().unwrap(), 7);
    play.expect(counter.read().is_err(), "the counter is not clear, or blocks");
    let left = timer.get().unwrap();
    play.expect(format!("{left:?}").contains("IntervalDelayed"), format!("timer: {left:?}"));
    play.same("stopped timer", stopped.get().unwrap().is_none(), true);
}

/// Pipes with content, of a size of their own, with ends that are closed or known under several numbers.
pub fn pipes(play: &mut Play) {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
    rustix::pipe::fcntl_setpipe_size(&reader, 256 * 1024).unwrap();
    let content: Vec<u8> = (0..100_000_u32).map(|index| (index / 3) as u8).collect();
    File::from(writer.try_clone().unwrap()).write_all(&content).unwrap();
    let (closed, writer_of_closed) = rustix::pipe::pipe_with(PipeFlags::NONBLOCK).unwrap();
    File::from(writer_of_closed).write_all(b"the rest").unwrap();
    let twice = rustix::io::dup(&reader).unwrap();
    let (empty, end_of_empty) = rustix::pipe::pipe().unwrap();
    let high = rustix::io::fcntl_dupfd_cloexec(&end_of_empty, 900).unwrap();
    // More are open than may be.
    let ceiling = getrlimit(Resource::RLIMIT_NOFILE).unwrap().1;
    setrlimit(Resource::RLIMIT_NOFILE, 100, ceiling).unwrap();
    play.dump();
    setrlimit(Resource::RLIMIT_NOFILE, 1024, ceiling).unwrap();
    play.same("size of a pipe", rustix::pipe::fcntl_getpipe_size(&writer).unwrap(), 256 * 1024);
    let mut found = vec![0; content.len()];
    File::from(twice).read_exact(&mut found).unwrap();
    play.expect(found == content, "content of a pipe has changed");
    let mut rest = Vec::new();
    File::from(closed).read_to_end(&mut rest).unwrap();
    play.same("content of a pipe that nobody writes to", rest, b"the rest".to_vec());
    File::from(high.try_clone().unwrap()).write_all(b"x").unwrap();
    drop((high, end_of_empty));
    let mut rest = Vec::new();
    File::from(empty).read_to_end(&mut rest).unwrap();
    play.same("what was written after the restore", rest, b"x".to_vec());
    play.same("close-on-exec", rustix::io::fcntl_getfd(&reader).unwrap(), FdFlags::CLOEXEC);
}

/// Connected pairs of Unix sockets of each type.
pub fn unix_pairs(play: &mut Play) {
    let pair = |kind: SocketType, flags: SocketFlags| -> (OwnedFd, OwnedFd) {
        rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).unwrap()
    };
    let pairs = [
        pair(SocketType::STREAM, SocketFlags::CLOEXEC),
        pair(SocketType::DGRAM, SocketFlags::NONBLOCK),
        pair(SocketType::SEQPACKET, SocketFlags::empty()),
    ];
    play.dump();
    for (one, other) in &pairs {
        for (from, to) in [(one, other), (other, one)] {
            rustix::io::write(from, b"hello").unwrap();
            let mut found = [0; 16];
            let count = rustix::io::read(to, &mut found).unwrap();
            play.same("what went through a pair", &found[..count], b"hello");
        }
    }
}

/// Files that somebody answers for: at their offsets, append-only, shared by two numbers; and devices.
pub fn regular_files(play: &mut Play) {
    let path = play.folder.join("data");
    std::fs::write(&path, b"0123456789").unwrap();
    let mut file = File::options().read(true).write(true).open(&path).unwrap();
    file.seek(SeekFrom::Start(4)).unwrap();
    let again = file.try_clone().unwrap();
    let mut own = File::open(&path).unwrap();
    own.seek(SeekFrom::End(0)).unwrap();
    let log = File::options().append(true).create(true).open(play.folder.join("log")).unwrap();
    let folder = File::open(&play.folder).unwrap();
    let zero = File::open("/dev/zero").unwrap();
    let all = [&file, &again, &own, &log, &folder, &zero];
    let claim = Claim(all.map(|file| file.as_fd().as_raw_fd()).to_vec());
    play.subject.context().register("files", Arc::new(claim)).forever();
    play.dump();
    let mut found = [0; 3];
    file.read_exact(&mut found).unwrap();
    play.same("what is at the offset", &found, b"456");
    play.same("offset of the other number", (&again).stream_position().unwrap(), 7);
    play.same("offset of the same file, opened again", own.stream_position().unwrap(), 10);
    (&zero).read_exact(&mut found).unwrap();
    play.same("what is in /dev/zero", found, [0; 3]);
    let flags = rustix::fs::fcntl_getfl(&log).unwrap();
    play.expect(flags.contains(rustix::fs::OFlags::APPEND), "the log is not append-only any more");
    play.expect(folder.metadata().unwrap().is_dir(), "the folder is something else");
}
