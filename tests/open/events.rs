//! Events, pipes with names, paths, files without a name, owners, duplicates.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::fs::{Mode, OFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_gettime,
    timerfd_settime,
};

use super::scene::Scene;

const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;

pub fn set(scene: &mut Scene) {
    counters(scene);
    signals(scene);
    timers(scene);
    named_pipes(scene);
    paths(scene);
    nameless(scene);
    watches(scene);
    owners(scene);
    duplicates(scene);
}

fn counters(scene: &mut Scene) {
    use rustix::event::{EventfdFlags, eventfd};
    let counter = eventfd(5, EventfdFlags::NONBLOCK).unwrap();
    let own = rustix::process::getpid();
    let pidfd = rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty()).unwrap();
    scene.add("pidfd", move || {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).unwrap();
        assert!(info.contains(&format!("Pid:\t{}\n", own.as_raw_nonzero())), "{info}");
    });
    scene.add("eventfd", move || {
        let mut value = [0; 8];
        rustix::io::read(&counter, &mut value).unwrap();
        assert_eq!(u64::from_ne_bytes(value), 5);
        assert_eq!(rustix::io::read(&counter, &mut value).unwrap_err(), rustix::io::Errno::AGAIN);
    });
}

fn signals(scene: &mut Scene) {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGUSR1);
    mask.thread_block().unwrap();
    let fd = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK).unwrap();
    scene.add("signalfd", move || {
        assert!(fd.read_signal().unwrap().is_none());
        raise(Signal::SIGUSR1).unwrap();
        let info = fd.read_signal().unwrap().unwrap();
        assert_eq!(info.ssi_signo, (Signal::SIGUSR1 as i32).cast_unsigned());
    });
}

fn timer(clock: TimerfdClockId, flags: TimerfdTimerFlags, value: Duration, interval: Duration) -> File {
    let fd = timerfd_create(clock, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC).unwrap();
    let time = |span: Duration| Timespec {
        tv_sec: i64::try_from(span.as_secs()).unwrap(),
        tv_nsec: span.subsec_nanos().into(),
    };
    let setting = Itimerspec { it_interval: time(interval), it_value: time(value) };
    timerfd_settime(&fd, flags, &setting).unwrap();
    fd.into()
}

fn timers(scene: &mut Scene) {
    let relative = TimerfdTimerFlags::empty();
    let soon = Duration::from_nanos(1);
    let mut once = timer(TimerfdClockId::Monotonic, relative, soon, Duration::ZERO);
    let again =
        timer(TimerfdClockId::Boottime, relative, Duration::from_secs(900), Duration::from_secs(3000));
    let later =
        Duration::from_secs(rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_sec as u64);
    let absolute = TimerfdTimerFlags::ABSTIME;
    let later = later + Duration::from_secs(1000);
    let at = timer(TimerfdClockId::Monotonic, absolute, later, Duration::ZERO);
    let expired = timer(TimerfdClockId::Monotonic, absolute, soon, Duration::ZERO);
    let off = timer(TimerfdClockId::Monotonic, relative, Duration::ZERO, Duration::ZERO);
    scene.add("timerfd", move || {
        let mut ticks = [0; 8];
        for timer in [&mut once, &mut { expired }] {
            timer.read_exact(&mut ticks).unwrap();
            assert_eq!(u64::from_ne_bytes(ticks), 1, "it had expired once");
        }
        let blocked = |timer: &mut File| timer.read(&mut [0; 8]).unwrap_err().kind();
        assert_eq!(blocked(&mut once), std::io::ErrorKind::WouldBlock);
        let left = timerfd_gettime(&again).unwrap();
        assert_eq!(left.it_interval.tv_sec, 3000);
        assert!((500..=900).contains(&left.it_value.tv_sec), "{left:?}");
        let left = timerfd_gettime(&at).unwrap().it_value.tv_sec;
        assert!((500..=1001).contains(&left), "{left} seconds");
        assert_eq!(timerfd_gettime(&off).unwrap().it_value.tv_sec, 0);
    });
}

/// A timer that goes off again and again, and waits for somebody to read that it did.
pub fn set_periodic(scene: &mut Scene) {
    let soon = Duration::from_nanos(1);
    let mut timer =
        timer(TimerfdClockId::Monotonic, TimerfdTimerFlags::empty(), soon, Duration::from_secs(3000));
    scene.add("timerfd_periodic", move || {
        let mut ticks = [0; 8];
        timer.read_exact(&mut ticks).unwrap();
        assert_eq!(u64::from_ne_bytes(ticks), 1);
        let left = timerfd_gettime(&timer).unwrap();
        assert!((2000..=3000).contains(&left.it_value.tv_sec), "{left:?}");
    });
}

fn named_pipes(scene: &mut Scene) {
    let path = scene.folder.join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::from_raw_mode(0o600)).unwrap();
    let open = |write: bool| {
        let mut options = File::options();
        options.read(!write).write(write).custom_flags(libc::O_NONBLOCK).open(&path).unwrap()
    };
    let mut reader = open(false);
    let mut writer = open(true);
    let mut second = open(false);
    rustix::pipe::fcntl_setpipe_size(&writer, 1 << 17).unwrap();
    writer.write_all(b"queued").unwrap();
    scene.add("fifo", move || {
        let mut six = [0; 6];
        reader.read_exact(&mut six).unwrap();
        assert_eq!(&six, b"queued");
        let nothing = second.read(&mut six).unwrap_err();
        assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock, "it was there once");
        writer.write_all(b"x").unwrap();
        assert_eq!(second.read(&mut six).unwrap(), 1);
        assert_eq!(rustix::pipe::fcntl_getpipe_size(&writer).unwrap(), 1 << 17);
        drop(writer);
        assert_eq!(reader.read(&mut six).unwrap(), 0, "nobody else writes");
    });
}

fn paths(scene: &mut Scene) {
    let (file, link) = (scene.folder.join("named"), scene.folder.join("link"));
    fs::write(&file, "by path").unwrap();
    std::os::unix::fs::symlink("named", &link).unwrap();
    let open =
        |path, flags| rustix::fs::open(path, flags | OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let (to_file, to_link) = (open(&file, OFlags::empty()), open(&link, OFlags::NOFOLLOW));
    let folder = rustix::fs::open(&scene.folder, OFlags::RDONLY, Mode::empty()).unwrap();
    scene.add("paths", move || {
        let through = format!("/proc/self/fd/{}", to_file.as_raw_fd());
        assert_eq!(fs::read_to_string(through).unwrap(), "by path");
        assert_eq!(rustix::io::read(&to_file, &mut [0; 1]).unwrap_err(), rustix::io::Errno::BADF);
        let target = rustix::fs::readlinkat(&to_link, "", Vec::new()).unwrap();
        assert_eq!(target.as_bytes(), b"named");
        let found = rustix::fs::openat(&folder, "named", OFlags::RDONLY, Mode::empty()).unwrap();
        assert_eq!(File::from(found).metadata().unwrap().len(), 7);
    });
}

/// A file whose name was removed, and one whose name is another file's now.
fn nameless(scene: &mut Scene) {
    let path = scene.folder.join("gone");
    let mut file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    file.write_all(b"lost and found").unwrap();
    let mut reader = File::open(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).unwrap();
    fs::remove_file(&path).unwrap();
    reader.read_exact(&mut [0; 5]).unwrap();
    let replaced = scene.folder.join("replaced");
    fs::write(&replaced, "before").unwrap();
    let mut old = File::open(&replaced).unwrap();
    fs::remove_file(&replaced).unwrap();
    fs::write(&replaced, "after").unwrap();
    scene.add("nameless", move || {
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert_eq!((rest.as_str(), file.stream_position().unwrap()), ("and found", 14));
        file.write_all(b"!").unwrap();
        assert_eq!(reader.read(&mut [0; 9]).unwrap(), 1, "it is one file");
        let meta = file.metadata().unwrap();
        assert_eq!((meta.nlink(), meta.mode() & 0o7777, meta.len()), (0, 0o604, 15));
        assert_eq!(std::io::read_to_string(&mut old).unwrap(), "before");
        assert_eq!(fs::read_to_string(&replaced).unwrap(), "after");
    });
}

fn watches(scene: &mut Scene) {
    // CRIU 4.2.1 cannot dump watches on every file system.
    let folder = scene.memory_folder();
    fs::create_dir(&folder).unwrap();
    let (kept, file) = (folder.join("kept"), folder.join("file"));
    fs::write(&file, "x").unwrap();
    let instance = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
    let ended = instance.add_watch(&folder, AddWatchFlags::IN_MODIFY).unwrap();
    instance.rm_watch(ended).unwrap();
    instance.read_events().unwrap();
    let on_folder = instance.add_watch(&folder, AddWatchFlags::IN_CREATE | AddWatchFlags::IN_DELETE).unwrap();
    let on_file = instance.add_watch(&file, AddWatchFlags::IN_ATTRIB).unwrap();
    scene.add("inotify", move || {
        assert!(instance.read_events().is_err(), "nothing has happened");
        fs::write(&kept, "x").unwrap();
        fs::remove_file(&kept).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let events = instance.read_events().unwrap();
        let expected = [
            (on_folder, AddWatchFlags::IN_CREATE),
            (on_folder, AddWatchFlags::IN_DELETE),
            (on_file, AddWatchFlags::IN_ATTRIB),
        ];
        let found: Vec<_> = events.iter().map(|event| (event.wd, event.mask)).collect();
        assert_eq!(found, expected);
    });
}

/// fcntl(2) with a number.
fn control(file: impl AsFd, command: i32, value: i32) -> i32 {
    // SAFETY: the commands used here take or give numbers only.
    unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, value) }
}

fn owners(scene: &mut Scene) {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGUSR2);
    mask.thread_block().unwrap();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let pid = std::process::id().cast_signed();
    assert_eq!([control(&reader, libc::F_SETOWN, -pid), control(&reader, F_SETSIG, 12)], [0, 0]);
    let flags = OFlags::NONBLOCK | OFlags::from_bits_retain(libc::O_ASYNC.cast_unsigned());
    rustix::fs::fcntl_setfl(&reader, flags).unwrap();
    scene.add("owners", move || {
        assert_eq!([control(&reader, libc::F_GETOWN, 0), control(&reader, F_GETSIG, 0)], [-pid, 12]);
        rustix::io::write(&writer, b"x").unwrap();
        let fd = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK).unwrap();
        let info = fd.read_signal().unwrap().expect("a signal tells of what was written");
        assert_eq!((info.ssi_signo, info.ssi_fd), (12, reader.as_raw_fd()));
    });
}

fn duplicates(scene: &mut Scene) {
    let path = scene.folder.join("data");
    fs::write(&path, "0123456789").unwrap();
    let mut one = File::open(&path).unwrap();
    let mut same = one.try_clone().unwrap();
    let mut other = File::open(&path).unwrap();
    let kept = rustix::io::dup(&one).unwrap();
    one.read_exact(&mut [0; 4]).unwrap();
    scene.add("duplicates", move || {
        let mut two = [0; 2];
        same.read_exact(&mut two).unwrap();
        assert_eq!((&two, one.stream_position().unwrap()), (b"45", 6));
        other.read_exact(&mut two).unwrap();
        assert_eq!((&two, one.stream_position().unwrap()), (b"01", 6));
        let closes = |fd: &dyn AsFd| {
            rustix::io::fcntl_getfd(fd.as_fd()).unwrap().contains(rustix::io::FdFlags::CLOEXEC)
        };
        assert_eq!((closes(&one), closes(&kept)), (true, false));
    });
}
