//! Whether the memory of this process is all there: after a restore that fills it on demand it is not, for a while, and
//! a dump would write zeros for what is missing.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::wake::Origin;

/// How long a dump waits for the rest, which takes as long as copying it. While something is recorded nothing is filled
/// unasked, and the process is quiesced meanwhile: it is let go then, and goes on.
const PATIENCE: Duration = Duration::from_secs(15);
/// How often it looks: that walks all page tables.
const PAUSE: Duration = Duration::from_millis(50);

/// Whether something may be missing. False again once nothing was found to be, and so in every image.
static FILLING: AtomicBool = AtomicBool::new(false);

/// Takes note of how this process was restored.
pub(super) fn restored(origin: &Origin) {
    FILLING.store(origin.memory.as_deref() == Some("fault"), Ordering::Relaxed);
}

/// Waits until nothing is missing. Blocks.
///
/// # Errors
/// `TimedOut` when something still is; else the kernel's own.
pub(super) fn wait() -> io::Result<()> {
    if !FILLING.load(Ordering::Relaxed) {
        return Ok(());
    }
    let deadline = Instant::now() + PATIENCE;
    while is_missing(BufReader::new(File::open("/proc/self/smaps")?))? {
        if Instant::now() > deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(PAUSE);
    }
    FILLING.store(false, Ordering::Relaxed);
    Ok(())
}

/// Whether missing pages of a mapping are told to somebody: proc_pid_smaps(5), VmFlags, `um`.
fn is_missing(smaps: impl BufRead) -> io::Result<bool> {
    for line in smaps.split(b'\n') {
        let line = line?;
        let flags = line.strip_prefix(b"VmFlags:").unwrap_or_default();
        if flags.split(|byte| *byte == b' ').any(|flag| flag == b"um") {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_that_are_being_filled_are_told_from_others() {
        let of = |text: &str| is_missing(text.as_bytes()).unwrap();
        assert!(of("7f00-7f01 rw-p\nVmFlags: rd wr mr mw me ac um sd\nName: x\n"));
        assert!(!of("7f00-7f01 rw-p um\nVmFlags: rd wr mr mw me ac sd\n"));
        assert!(!of(&std::fs::read_to_string("/proc/self/smaps").unwrap()));
    }

    #[test]
    fn a_process_that_was_not_filled_on_demand_never_waits() {
        restored(&Origin { memory: Some("map".into()), ..Origin::default() });
        wait().unwrap();
    }
}
