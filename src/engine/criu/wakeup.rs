//! The subject's own way out of a stop that nobody ends.
//!
//! A dump that is to end the process leaves it stopped until its helper has completed the image. Should the
//! helper be killed just then, a timer of the process's own continues it: kernel timers run on in a stopped
//! process, and SIGCONT continues it when it is generated, however it was blocked or ignored (signal(7)).

use std::time::Duration;

use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;

/// An armed timer; dropping it disarms it, in the original and in a restored process alike.
pub(super) struct Wakeup {
    _timer: Timer,
}

impl Wakeup {
    /// Continues this process once, after this time.
    pub(super) fn arm(after: Duration) -> nix::Result<Self> {
        let event = SigEvent::new(SigevNotify::SigevSignal { signal: Signal::SIGCONT, si_value: 0 });
        let mut timer = Timer::new(ClockId::CLOCK_MONOTONIC, event)?;
        timer.set(Expiration::OneShot(TimeSpec::from_duration(after)), TimerSetTimeFlags::empty())?;
        Ok(Self { _timer: timer })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disarms_when_dropped() {
        // SIGCONT does nothing to a process that runs; what counts is that arming and disarming work.
        let armed = Wakeup::arm(Duration::from_secs(60)).unwrap();
        let timers = || std::fs::read_to_string("/proc/self/timers").unwrap_or_default();
        let listed = timers();
        drop(armed);
        // A kernel without CONFIG_CHECKPOINT_RESTORE has no such file.
        assert!(listed.is_empty() || timers().len() < listed.len());
    }
}
