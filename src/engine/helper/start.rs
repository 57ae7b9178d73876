//! The subject's side: starting the helper, and hearing from it.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use command_fds::{CommandFdExt, FdMapping};
use criu_driver::Criu;

use super::link::Link;
use super::order::{Order, REPORT, Report};
use super::{FIRST_KEPT_FD, ORDER_FD, ROLE_VARIABLE, WORKER_FD};
use crate::engine::{Complete, DumpError, DumpOrder, Finish};
use crate::image::folder::Partial;
use crate::image::record;
use crate::sys;

/// How long the helper may take for manifest, hashes and fsync, beyond what CRIU may take. A subject that its own
/// timer has continued meanwhile waits for that too: the image may yet become complete, and the subject end.
const FINISH: Duration = Duration::from_secs(600);

/// Whether this program's own executable turns into the helper when it is asked to.
static OWN_EXECUTABLE: AtomicBool = AtomicBool::new(false);

/// Says that this program looks for the helper's part first thing in `main`, so that it can be its own helper.
pub fn own_executable_can_help() {
    OWN_EXECUTABLE.store(true, Ordering::Relaxed);
}

/// A helper that runs.
#[derive(Debug)]
pub(in crate::engine) struct Helper {
    link: super::link::LinkName,
    /// What CRIU may take: the helper ends it then.
    deadline: Duration,
}

/// Starts the helper and hands it CRIU's end of the socket. The kept descriptors stay with the caller, who
/// closes its own copies once this has worked.
pub(in crate::engine) fn start(
    criu: &Criu,
    partial: &Partial,
    order: &DumpOrder,
    worker: OwnedFd,
) -> Result<Helper, DumpError> {
    let failed = |problem| move |source| DumpError::Helper { problem, source };
    let link = sys::random::fresh().map_err(failed("got no random name"))?;
    let written = Order {
        partial: partial.path().into(),
        target: partial.target().as_path().into(),
        criu: criu.path.as_path().into(),
        subject_pid: std::process::id().cast_signed(),
        subject: order.subject.clone(),
        leave_running: order.leave_running,
        durable: order.durable,
        link,
        kept: u32::try_from(order.kept.len()).unwrap_or(u32::MAX),
        answer: order.answer.and_then(|index| u32::try_from(index).ok()),
        deadline_ms: u64::try_from(order.deadline.as_millis()).unwrap_or(u64::MAX),
    };
    let bytes = record::encode(super::order::ORDER, &written)
        .map_err(|error| failed("got no order")(io::Error::other(error)))?;
    let memfd = sys::descriptors::sealed_memfd("defrost-order", &bytes).map_err(failed("got no order"))?;
    let mut command = Command::new(program());
    command.env(ROLE_VARIABLE, "1").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.current_dir("/");
    let mut mappings = vec![
        FdMapping { parent_fd: memfd, child_fd: ORDER_FD },
        FdMapping { parent_fd: worker, child_fd: WORKER_FD },
    ];
    for (number, kept) in (FIRST_KEPT_FD..).zip(&order.kept) {
        let parent_fd = kept.try_clone().map_err(failed("got no descriptors"))?;
        mappings.push(FdMapping { parent_fd, child_fd: number });
    }
    command
        .fd_mappings(mappings)
        .map_err(|error| failed("got no descriptors")(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
    sys::process::spawn_detached(&mut command).map_err(failed("did not start"))?;
    Ok(Helper { link, deadline: order.deadline })
}

/// The own executable, even if its file has been replaced; else the `defrost` command.
fn program() -> OsString {
    if is_own_executable() { "/proc/self/exe".into() } else { "defrost".into() }
}

/// Whether the helper is this program itself.
pub(in crate::engine) fn is_own_executable() -> bool {
    OWN_EXECUTABLE.load(Ordering::Relaxed)
}

impl Helper {
    /// Takes the kept descriptors back, and returns how to wait for the report.
    ///
    /// # Errors
    /// [`DumpError::Helper`]: the helper is gone, and with it what it kept.
    pub(in crate::engine) fn rejoin(self) -> Result<(Vec<OwnedFd>, Finish), DumpError> {
        match Link::connect(&self.link, self.deadline + FINISH) {
            Ok((link, kept)) => Ok((kept, Box::new(move || hear(link)))),
            Err(source) => Err(DumpError::Helper { problem: "is gone", source }),
        }
    }
}

fn hear(link: Link) -> Result<Complete, DumpError> {
    let failed = |source| DumpError::Helper { problem: "ended without a report", source };
    let bytes = link.report(FINISH).map_err(failed)?;
    let report: Report = record::decode(REPORT, &bytes).map_err(|error| failed(io::Error::other(error)))?;
    report.into_result()
}
