//! Signal dispositions, stacks and queues (parts of `core-TID.img`).

/// Disposition of one signal.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SignalAction {
    /// Address of the handler, or 0 (default) or 1 (ignore).
    #[prost(uint64, required, tag = "1")]
    pub handler: u64,
    /// `SA_*` flags.
    #[prost(uint64, required, tag = "2")]
    pub flags: u64,
    /// Address that handlers return to.
    #[prost(uint64, required, tag = "3")]
    pub restorer: u64,
    /// Signals blocked while the handler runs.
    #[prost(uint64, required, tag = "4")]
    pub mask: u64,
    /// Set by a 32-bit process.
    #[prost(bool, optional, tag = "5")]
    pub compat: Option<bool>,
    /// Blocked signals 65 to 128, where a machine has them.
    #[prost(uint64, optional, tag = "6")]
    pub mask_extended: Option<u64>,
}

/// Alternative signal stack.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SignalStack {
    /// Lowest address.
    #[prost(uint64, required, tag = "1")]
    pub address: u64,
    /// Size in bytes.
    #[prost(uint64, required, tag = "2")]
    pub size: u64,
    /// `SS_*` flags.
    #[prost(uint32, required, tag = "3")]
    pub flags: u32,
}

/// Pending signals.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SignalQueue {
    /// In the order of delivery.
    #[prost(message, repeated, tag = "1")]
    pub signals: Vec<PendingSignal>,
}

/// One pending signal.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PendingSignal {
    /// The kernel's `siginfo_t` as it was.
    #[prost(bytes = "vec", required, tag = "1")]
    pub siginfo: Vec<u8>,
}
