//! A process comes back as the caller's own child.

use std::os::fd::OwnedFd;

use criu_driver::{Cli, InheritFd, RestoreOptions, Rpc, Transport as _};

use super::{CriuEngine, Transport};
use crate::engine::channel::Handover;
use crate::engine::error::log_of;
use crate::engine::{EngineName, RestoreError, RestoreOrder, RestoredProcess};
use crate::image::manifest::Clock;
use crate::image::verify::criu_fits;
use crate::wake::{Origin, Params};

/// What takes the place of the pipe with this inode.
fn stand_in(inode: u64, fd: OwnedFd) -> InheritFd {
    InheritFd { key: format!("pipe:[{inode}]"), fd }
}

pub(super) fn restore(
    engine: &CriuEngine,
    order: &RestoreOrder<'_>,
) -> Result<RestoredProcess, RestoreError> {
    let criu = engine.find()?;
    let version = (criu.version.major, criu.version.minor, criu.version.sublevel);
    if let Some(finding) = criu_fits(order.image.manifest(), version) {
        return Err(RestoreError::Misfit(finding));
    }
    let origin =
        Origin { engine: EngineName::Criu.to_string(), reason: order.why.to_owned(), ..Origin::default() };
    // Parallel restores share the image folder, which may be read-only: CRIU's log goes elsewhere.
    let work =
        tempfile::Builder::new().prefix("defrost-restore-").tempdir().map_err(RestoreError::Parameters)?;
    let mut options = RestoreOptions::new(order.image.path());
    options.work_folder = Some(work.path().to_owned());
    options.sibling = true;
    let subject = &order.image.manifest().subject;
    let report = match (subject.parameter_pipe, subject.report_pipe) {
        (Some(params), Some(report)) => {
            let handover =
                Handover::new(order.params, &origin, order.awaited).map_err(RestoreError::Parameters)?;
            options.inherit_fd.push(stand_in(params, handover.params));
            options.inherit_fd.push(stand_in(report, handover.report));
            Some(handover.reader)
        }
        _ if *order.params != Params::default() => return Err(RestoreError::NoParameters),
        _ => None,
    };
    let mut clock = Clock::start();
    let restored = match engine.transport {
        Transport::Rpc => Rpc::new(criu).restore(&options, order.deadline),
        Transport::Cli => Cli::new(criu).restore(&options, order.deadline),
    };
    match restored {
        Ok(restored) => {
            clock.lap("have criu restore");
            Ok(RestoredProcess { pid: restored.pid, report, origin, phases: clock.into_phases() })
        }
        Err(error) => {
            if log_of(&error).is_some() {
                // The log that the error names must stay.
                let _ = work.keep();
            }
            Err(error.into())
        }
    }
}
