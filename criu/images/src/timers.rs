//! Interval and POSIX timers of a process (parts of the leader's core file).

/// Timers of a process.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct TaskTimers {
    /// `ITIMER_REAL`.
    #[prost(message, required, tag = "1")]
    pub real: IntervalTimer,
    /// `ITIMER_VIRTUAL`.
    #[prost(message, required, tag = "2")]
    pub cpu_user: IntervalTimer,
    /// `ITIMER_PROF`.
    #[prost(message, required, tag = "3")]
    pub cpu_total: IntervalTimer,
    /// Timers of `timer_create(2)`.
    #[prost(message, repeated, tag = "4")]
    pub posix: Vec<PosixTimer>,
}

/// One interval timer; all zero when unarmed.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct IntervalTimer {
    /// Interval, seconds.
    #[prost(uint64, required, tag = "1")]
    pub interval_sec: u64,
    /// Interval, microseconds within the second.
    #[prost(uint64, required, tag = "2")]
    pub interval_usec: u64,
    /// Left until expiry, seconds.
    #[prost(uint64, required, tag = "3")]
    pub value_sec: u64,
    /// Left until expiry, microseconds within the second.
    #[prost(uint64, required, tag = "4")]
    pub value_usec: u64,
}

/// One timer of `timer_create(2)`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PosixTimer {
    /// Kernel's id of the timer.
    #[prost(uint32, required, tag = "1")]
    pub id: u32,
    /// `CLOCK_*` number.
    #[prost(uint32, required, tag = "2")]
    pub clock_id: u32,
    /// Signal sent at expiry.
    #[prost(uint32, required, tag = "3")]
    pub signal: u32,
    /// `SIGEV_*` way of notification.
    #[prost(uint32, required, tag = "4")]
    pub notify: u32,
    /// Value handed to the handler.
    #[prost(uint64, required, tag = "5")]
    pub value: u64,
    /// Expiries not delivered.
    #[prost(uint32, required, tag = "6")]
    pub overrun: u32,
    /// Interval, seconds.
    #[prost(uint64, required, tag = "7")]
    pub interval_sec: u64,
    /// Interval, nanoseconds within the second.
    #[prost(uint64, required, tag = "8")]
    pub interval_nsec: u64,
    /// Left until expiry, seconds.
    #[prost(uint64, required, tag = "9")]
    pub value_sec: u64,
    /// Left until expiry, nanoseconds within the second.
    #[prost(uint64, required, tag = "10")]
    pub value_nsec: u64,
    /// Thread the signal goes to.
    #[prost(int32, optional, tag = "11")]
    pub notify_thread_id: Option<i32>,
}
