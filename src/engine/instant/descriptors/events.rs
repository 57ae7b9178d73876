//! Descriptors that turn something into readiness: eventfd, epoll, signalfd, timerfd.

use std::io;
use std::os::fd::OwnedFd;

use criu_images::{EventFd, SignalFd, TimerFd};
use criu_restorer::plan::{Call, Step, Writer};
use rustix::event::{EventfdFlags, epoll};
use rustix::fs::OFlags;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use super::super::plan::any;
use super::nonblocking;
use crate::sys::descriptors::signalfd;

/// ioctl(2) of a timerfd: the expiries that wait to be read.
const TFD_IOC_SET_TICKS: u64 = 0x4008_5400;

/// How to make a counter. Whether it counts down by one is not in the image, for CRIU neither.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counter {
    value: u64,
    nonblocking: bool,
}

impl Counter {
    pub(super) fn of(eventfd: &EventFd) -> Self {
        Self { value: eventfd.counter, nonblocking: nonblocking(eventfd.flags) }
    }

    /// Makes it.
    ///
    /// # Errors
    /// The kernel's own.
    pub(super) fn make(self) -> io::Result<OwnedFd> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        if self.value != 0 {
            rustix::io::write(&fd, &self.value.to_ne_bytes())?;
        }
        rustix::io::ioctl_fionbio(&fd, self.nonblocking)?;
        Ok(fd)
    }
}

/// How to make an epoll instance; what it watches is registered when all have their numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watcher {
    pub(super) nonblocking: bool,
}

impl Watcher {
    /// Makes it.
    ///
    /// # Errors
    /// The kernel's own.
    pub(super) fn make(self) -> io::Result<OwnedFd> {
        let fd = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        if self.nonblocking {
            rustix::fs::fcntl_setfl(&fd, OFlags::NONBLOCK)?;
        }
        Ok(fd)
    }
}

/// How to make a descriptor that takes signals.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signals {
    signals: u64,
    nonblocking: bool,
}

impl Signals {
    pub(super) fn of(signalfd: &SignalFd) -> Self {
        Self { signals: signalfd.sigmask, nonblocking: nonblocking(signalfd.flags) }
    }

    /// Makes it.
    ///
    /// # Errors
    /// The kernel's own.
    pub(super) fn make(self) -> io::Result<OwnedFd> {
        let fd = signalfd(self.signals)?;
        rustix::io::ioctl_fionbio(&fd, self.nonblocking)?;
        Ok(fd)
    }
}

/// How to make a timer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timer {
    clock: TimerfdClockId,
    flags: TimerfdTimerFlags,
    left: Timespec,
    interval: Timespec,
    ticks: u64,
    nonblocking: bool,
}

impl Timer {
    /// Decides.
    ///
    /// # Errors
    /// What the timer is, if it cannot be made again.
    pub(super) fn of(timer: &TimerFd) -> Result<Self, String> {
        let clock = match i32::try_from(timer.clock) {
            Ok(libc::CLOCK_REALTIME) => TimerfdClockId::Realtime,
            Ok(libc::CLOCK_MONOTONIC) => TimerfdClockId::Monotonic,
            Ok(libc::CLOCK_BOOTTIME) => TimerfdClockId::Boottime,
            _ => return Err(format!("a timerfd of clock {}", timer.clock)),
        };
        let flags = TimerfdTimerFlags::from_bits(timer.settime_flags);
        let flags = flags.ok_or_else(|| format!("a timerfd set with flags {:#x}", timer.settime_flags))?;
        let time = |sec: u64, nsec: u64| Timespec { tv_sec: sec.cast_signed(), tv_nsec: nsec.cast_signed() };
        Ok(Self {
            clock,
            flags,
            left: time(timer.value_sec, timer.value_nsec),
            interval: time(timer.interval_sec, timer.interval_nsec),
            ticks: timer.ticks,
            nonblocking: nonblocking(timer.flags),
        })
    }

    /// Makes it and has it run.
    ///
    /// # Errors
    /// The kernel's own.
    pub(super) fn make(self) -> io::Result<OwnedFd> {
        let fd = rustix::time::timerfd_create(self.clock, TimerfdFlags::CLOEXEC)?;
        let mut value = self.left;
        if self.ticks != 0 && is_off(value) && !is_off(self.interval) {
            // The kernel has nothing left until somebody reads that it has expired, and goes on then.
            value.tv_nsec = 1;
        }
        if !is_off(value) && self.flags.contains(TimerfdTimerFlags::ABSTIME) {
            // The image tells what was left, for a point in time too (timerfd_show in fs/timerfd.c).
            value = sum(value, now(self.clock));
        }
        let setting = Itimerspec { it_interval: self.interval, it_value: value };
        rustix::time::timerfd_settime(&fd, self.flags, &setting)?;
        rustix::io::ioctl_fionbio(&fd, self.nonblocking)?;
        Ok(fd)
    }

    /// The call that has expiries wait to be read, if some did.
    pub(super) fn expired(&self, number: i32, writer: &mut Writer) -> Option<Call> {
        let ticks = Some(self.ticks).filter(|ticks| *ticks != 0)?;
        let at = writer.data(&ticks.to_ne_bytes());
        let arguments = [u64::from(number.unsigned_abs()), TFD_IOC_SET_TICKS, at];
        Some(any(Step::Descriptors, libc::SYS_ioctl, &arguments))
    }
}

fn is_off(time: Timespec) -> bool {
    (time.tv_sec, time.tv_nsec) == (0, 0)
}

fn now(clock: TimerfdClockId) -> Timespec {
    rustix::time::clock_gettime(match clock {
        TimerfdClockId::Realtime => rustix::time::ClockId::Realtime,
        TimerfdClockId::Boottime => rustix::time::ClockId::Boottime,
        _ => rustix::time::ClockId::Monotonic,
    })
}

fn sum(one: Timespec, other: Timespec) -> Timespec {
    const SECOND: i64 = 1_000_000_000;
    let nanoseconds = one.tv_nsec.saturating_add(other.tv_nsec);
    Timespec {
        tv_sec: one.tv_sec.saturating_add(other.tv_sec).saturating_add(nanoseconds / SECOND),
        tv_nsec: nanoseconds % SECOND,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_in_time_is_as_far_away_as_it_was() {
        let timer = TimerFd {
            clock: libc::CLOCK_MONOTONIC.cast_unsigned(),
            settime_flags: TimerfdTimerFlags::ABSTIME.bits(),
            value_sec: 1000,
            value_nsec: 999_999_999,
            ..TimerFd::default()
        };
        let fd = Timer::of(&timer).unwrap().make().unwrap();
        let left = rustix::time::timerfd_gettime(&fd).unwrap().it_value;
        assert!((900..=1001).contains(&left.tv_sec), "{left:?}");
    }

    #[test]
    fn a_timer_that_is_off_stays_off() {
        let timer = TimerFd { settime_flags: 1, ..TimerFd::default() };
        let fd = Timer::of(&timer).unwrap().make().unwrap();
        assert_eq!(rustix::time::timerfd_gettime(&fd).unwrap().it_value.tv_sec, 0);
    }

    #[test]
    fn clocks_that_wake_the_machine_are_a_reason() {
        let timer = TimerFd { clock: libc::CLOCK_BOOTTIME_ALARM.cast_unsigned(), ..TimerFd::default() };
        assert_eq!(Timer::of(&timer).unwrap_err(), "a timerfd of clock 9");
    }

    #[test]
    fn signals_are_taken_by_number() {
        let fd = Signals { signals: 1 << 9 | 1 << 40, nonblocking: true }.make().unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&fd);
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap();
        assert!(text.contains("sigmask:\t0000010000000200"), "{text}");
    }
}
