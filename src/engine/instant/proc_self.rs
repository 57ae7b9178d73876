//! What a process says about itself by writing to files of /proc/self: the adjustment of its out-of-memory score,
//! and the user that audit records name. Both outlive exec(2), so the child writes them before it becomes the
//! restorer, which has no /proc.

use std::io;
use std::path::Path;

use criu_images::TaskCore;
use procfs::process::Process;

use super::support::Reasons;

const SCORE: &str = "/proc/self/oom_score_adj";
const LOGIN: &str = "/proc/self/loginuid";
const CAP_AUDIT_CONTROL: u32 = 30;
/// The login user of a process that nobody has logged in for (include/linux/audit.h, `AUDIT_UID_UNSET`).
const NO_LOGIN: i64 = u32::MAX as i64;

/// A file that the child writes, and the number that it writes there.
pub(super) type Write = (&'static str, i64);

/// What differs from what the child gets from us. What it may not write is a reason against.
pub(super) fn writes(task: &TaskCore, reasons: &mut Reasons) -> Vec<Write> {
    let mut writes = Vec::new();
    let adjusted = task.oom_score_adj.unwrap_or(0).into();
    match number(SCORE.as_ref()) {
        Ok(own) if own == adjusted => {}
        // Raising it is nobody's privilege. How far it may be lowered without one is written nowhere
        // (fs/proc/base.c, `oom_score_adj_min`), so it is tried.
        Ok(own) => match if adjusted < own { try_score(adjusted, own) } else { Ok(()) } {
            Ok(()) => writes.push((SCORE, adjusted)),
            Err(error) => reasons.add(format!(
                "its adjustment of the out-of-memory score, {adjusted}, is lower than ours, {own}, and cannot be \
                 lowered: {error}"
            )),
        },
        Err(error) => reasons.add(format!("our adjustment of the out-of-memory score cannot be read: {error}")),
    }
    // A kernel without audit has no such file, and then the image has no such user.
    if let Some(login) = task.loginuid.map(i64::from) {
        match number(LOGIN.as_ref()) {
            Ok(own) if own == login => {}
            Ok(own) if own == NO_LOGIN || may_control_audit() => writes.push((LOGIN, login)),
            Ok(own) => reasons.add(format!(
                "its audit user is {login} and ours is {own}, which takes cap_audit_control to change"
            )),
            Err(error) => reasons.add(format!("our audit user cannot be read: {error}")),
        }
    }
    writes
}

/// Writes them, about the calling process.
///
/// # Errors
/// Which one, counted from 0, and the kernel's own.
pub(super) fn write(writes: &[Write]) -> Result<(), (u32, io::Error)> {
    for (index, (path, number)) in (0_u32..).zip(writes) {
        std::fs::write(path, number.to_string()).map_err(|error| (index, error))?;
    }
    Ok(())
}

/// Has this process take the score for a moment.
fn try_score(adjusted: i64, own: i64) -> io::Result<()> {
    std::fs::write(SCORE, adjusted.to_string())?;
    std::fs::write(SCORE, own.to_string())
}

fn number(path: &Path) -> io::Result<i64> {
    let text = std::fs::read_to_string(path)?;
    text.trim().parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn may_control_audit() -> bool {
    let status = Process::myself().and_then(|process| process.status());
    status.is_ok_and(|status| status.capeff >> CAP_AUDIT_CONTROL & 1 != 0)
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// One of them changes the score of this process for a moment.
    static TURN: Mutex<()> = Mutex::new(());

    fn task() -> TaskCore {
        let login = number(LOGIN.as_ref()).ok().and_then(|login| u32::try_from(login).ok());
        let score = number(SCORE.as_ref()).unwrap();
        TaskCore { oom_score_adj: i32::try_from(score).ok(), loginuid: login, ..TaskCore::default() }
    }

    #[test]
    fn what_the_child_has_anyway_is_not_written() {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reasons = Reasons::default();
        assert_eq!(writes(&task(), &mut reasons), []);
        assert!(reasons.is_empty());
    }

    #[test]
    fn a_higher_score_is_written_by_anybody() {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reasons = Reasons::default();
        let higher = TaskCore { oom_score_adj: Some(1000), ..task() };
        let written = writes(&higher, &mut reasons);
        let own = number(SCORE.as_ref()).unwrap();
        assert_eq!(written, if own == 1000 { vec![] } else { vec![(SCORE, 1000)] });
        assert!(reasons.is_empty());
    }

    #[test]
    fn trying_a_lower_score_leaves_the_own_one() {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let before = number(SCORE.as_ref()).unwrap();
        let mut reasons = Reasons::default();
        let lower = TaskCore { oom_score_adj: Some(-1000), ..task() };
        let written = writes(&lower, &mut reasons);
        // Which of both it is depends on our privileges.
        assert_ne!(written.is_empty(), reasons.is_empty());
        assert_eq!(number(SCORE.as_ref()).unwrap(), before);
    }
}
