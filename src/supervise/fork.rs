//! A process that becomes its own supervisor: the server runs on in the child.

use std::io;

use super::attend::{Ending, attend, become_subreaper};
use super::run::{guard_of, pass_low_pids};
use super::signals::{HeldBack, Signals};
use super::subject::Supervised;
use crate::sys::descriptors;
use crate::sys::process::{Fork, exit_now, fork};

/// The exit status of a supervisor that cannot go on.
const FAILED: i32 = 1;

/// Forks. Returns in the child; the parent attends it and exits with its status. This process must have one
/// thread.
///
/// # Errors
/// Those of fork(2): there is no child then.
pub fn into_supervised_child() -> io::Result<()> {
    become_subreaper()?;
    pass_low_pids()?;
    // From here until the parent watches them, signals wait.
    let held = HeldBack::new()?;
    match fork()? {
        Fork::Child => {
            // Being a subreaper is not inherited, so there is nothing to undo.
            drop(held);
            Ok(())
        }
        Fork::Parent(child) => {
            let status = supervise(child.as_raw(), held).map_or(FAILED, |ending| i32::from(ending.status()));
            exit_now(status)
        }
    }
}

fn supervise(child: i32, held: HeldBack) -> io::Result<Ending> {
    // What was inherited belongs to the child; a socket held here too would never be closed.
    descriptors::close_inherited(None)?;
    let supervised = Supervised::new(child)?;
    let mut signals = Signals::watch()?;
    drop(held);
    let guard = guard_of(&supervised)?;
    attend(&mut signals, &supervised, guard)
}
