//! Clocks of the dumped time namespace (`timens-0.img`), and points in time.

use std::time::Duration;

/// The one record of `timens-0.img`. A restore sets up clocks that go on from here.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct TimeNamespace {
    /// `CLOCK_MONOTONIC` at the dump.
    #[prost(message, required, tag = "1")]
    pub monotonic: Timespec,
    /// `CLOCK_BOOTTIME` at the dump.
    #[prost(message, required, tag = "2")]
    pub boottime: Timespec,
}

/// A point on a clock.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Timespec {
    /// Seconds.
    #[prost(uint64, required, tag = "1")]
    pub sec: u64,
    /// Nanoseconds within the second.
    #[prost(uint64, required, tag = "2")]
    pub nsec: u64,
}

/// A point on the wall clock.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Timeval {
    /// Seconds.
    #[prost(uint64, required, tag = "1")]
    pub sec: u64,
    /// Microseconds within the second.
    #[prost(uint64, required, tag = "2")]
    pub usec: u64,
}

impl Timespec {
    /// Time since the clock's zero; saturates on figures no kernel writes.
    #[must_use]
    pub fn since_zero(&self) -> Duration {
        Duration::from_secs(self.sec).saturating_add(Duration::from_nanos(self.nsec))
    }
}
