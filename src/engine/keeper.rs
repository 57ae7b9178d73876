//! What a supervisor must know of the keeper that stands behind a process whose memory is still being filled: how its
//! child is told from others, and what its end means.

/// The name of its process, as `ps` shows it.
pub const PROCESS_NAME: &str = "defrost-keeper";

/// Its exit status when it has ended the restored process, because the memory could not be filled any more.
pub const LOST: i32 = 74;
