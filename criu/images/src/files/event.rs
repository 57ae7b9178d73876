//! Descriptors that turn something into readiness: eventfd, epoll, signalfd, timerfd.

use super::owner::Owner;

/// An eventfd.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct EventFd {
    /// File id.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// `O_*` status flags.
    #[prost(uint32, required, tag = "2")]
    pub flags: u32,
    /// Who gets its signals.
    #[prost(message, required, tag = "3")]
    pub owner: Owner,
    /// Its count.
    #[prost(uint64, required, tag = "4")]
    pub counter: u64,
}

/// An epoll instance.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Epoll {
    /// File id.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// `O_*` status flags.
    #[prost(uint32, required, tag = "2")]
    pub flags: u32,
    /// Who gets its signals.
    #[prost(message, required, tag = "3")]
    pub owner: Owner,
    /// Descriptors it watches.
    #[prost(message, repeated, tag = "4")]
    pub watched: Vec<EpollWatch>,
}

/// One descriptor an epoll instance watches.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct EpollWatch {
    /// File id of the epoll instance.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// Number of the watched descriptor.
    #[prost(uint32, required, tag = "2")]
    pub fd: u32,
    /// `EPOLL*` events.
    #[prost(uint32, required, tag = "3")]
    pub events: u32,
    /// What `epoll_wait(2)` hands back.
    #[prost(uint64, required, tag = "4")]
    pub data: u64,
    /// Device of the watched file, to find duplicates.
    #[prost(uint32, optional, tag = "5")]
    pub device: Option<u32>,
    /// Inode of the watched file.
    #[prost(uint64, optional, tag = "6")]
    pub inode: Option<u64>,
    /// Offset of the watched file.
    #[prost(uint64, optional, tag = "7")]
    pub position: Option<u64>,
}

/// A signalfd.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SignalFd {
    /// File id.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// `O_*` status flags.
    #[prost(uint32, required, tag = "2")]
    pub flags: u32,
    /// Who gets its signals.
    #[prost(message, required, tag = "3")]
    pub owner: Owner,
    /// Signals it takes.
    #[prost(uint64, required, tag = "4")]
    pub sigmask: u64,
}

/// A timerfd.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct TimerFd {
    /// File id.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// `O_*` status flags.
    #[prost(uint32, required, tag = "2")]
    pub flags: u32,
    /// Who gets its signals.
    #[prost(message, required, tag = "3")]
    pub owner: Owner,
    /// `CLOCK_*` number.
    #[prost(uint32, required, tag = "4")]
    pub clock: u32,
    /// Expiries not yet read.
    #[prost(uint64, required, tag = "5")]
    pub ticks: u64,
    /// `TFD_TIMER_*` flags.
    #[prost(uint32, required, tag = "6")]
    pub settime_flags: u32,
    /// Left until expiry, seconds.
    #[prost(uint64, required, tag = "7")]
    pub value_sec: u64,
    /// Left until expiry, nanoseconds within the second.
    #[prost(uint64, required, tag = "8")]
    pub value_nsec: u64,
    /// Interval, seconds.
    #[prost(uint64, required, tag = "9")]
    pub interval_sec: u64,
    /// Interval, nanoseconds within the second.
    #[prost(uint64, required, tag = "10")]
    pub interval_nsec: u64,
}
