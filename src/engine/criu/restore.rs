//! A process comes back as the caller's own child.

use std::os::fd::OwnedFd;
use std::path::Path;

use criu_driver::{CauseKind, Cli, InheritFd, RestoreOptions, Rpc, Transport as _};
use criu_images::ImageDir;

use super::work::WorkFolder;
use super::{CriuEngine, Transport};
use crate::engine::channel::Handover;
use crate::engine::error::log_of;
use crate::engine::{EngineName, RestoreError, RestoreOrder, RestoredProcess};
use crate::image::manifest::{Clock, Phase};
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
    let origin = Origin {
        engine: EngineName::Criu.to_string(),
        reason: order.why.to_owned(),
        cause: order.cause.map(str::to_owned),
        ..Origin::default()
    };
    let work = WorkFolder::create().map_err(RestoreError::Work)?;
    let mut options = RestoreOptions::new(order.image.path());
    options.work_folder = Some(work.path().to_owned());
    options.sibling = true;
    let subject = &order.image.manifest().subject;
    let (report, told) = match (subject.parameter_pipe, subject.report_pipe) {
        (Some(params), Some(report)) => {
            let handover =
                Handover::new(order.params, &origin, order.awaited).map_err(RestoreError::Parameters)?;
            options.inherit_fd.push(stand_in(params, handover.params));
            options.inherit_fd.push(stand_in(report, handover.report));
            (Some(handover.reader), Some(handover.phases))
        }
        _ if *order.params != Params::default() => return Err(RestoreError::NoParameters),
        _ => (None, None),
    };
    let mut clock = Clock::start();
    let restored = match engine.transport {
        Transport::Rpc => Rpc::new(criu).restore(&options, order.deadline),
        Transport::Cli => Cli::new(criu).restore(&options, order.deadline),
    };
    match restored {
        Ok(restored) => {
            clock.lap("have criu restore");
            let phases = by_its_statistics(clock.into_phases(), work.path());
            if let Some(told) = told {
                told.tell(&phases);
            }
            Ok(RestoredProcess { pid: restored.pid, report, origin, phases })
        }
        Err(error) if is_of_a_taken_pid(&error) => {
            Err(RestoreError::pid_taken(order.image, error.to_string()))
        }
        Err(error) => {
            if log_of(&error).is_some() {
                // The log that the error names must stay.
                work.keep();
            }
            Err(error.into())
        }
    }
}

/// The one phase of the whole, parted by what CRIU writes of it into its work folder, if it did. Its own clock begins
/// when it has started, and ends before it lets the process go: the rest of the time is the first part here.
fn by_its_statistics(whole: Vec<Phase>, work: &Path) -> Vec<Phase> {
    let stats = ImageDir::open(work).ok().and_then(|folder| folder.stats_restore().ok().flatten());
    let (Some(stats), [phase]) = (stats, &whole[..]) else { return whole };
    let (restore, forking) = (u64::from(stats.restore_time), u64::from(stats.forking_time));
    let (Some(around), Some(memory)) = (phase.micros.checked_sub(restore), restore.checked_sub(forking))
    else {
        return whole;
    };
    let part = |name: &str, micros| Phase { name: name.to_owned(), micros };
    let all = [
        part("start criu and end it", around),
        part("have criu fork", forking),
        part("have criu restore", memory),
    ];
    all.into_iter().filter(|phase| phase.micros > 0).collect()
}

/// Whether it was refused a pid or tid, and left nothing behind.
fn is_of_a_taken_pid(error: &criu_driver::Error) -> bool {
    use criu_driver::Error::{Died, Failed};
    matches!(error, Failed { cause, .. } | Died { cause: Some(cause), .. } if cause.kind == CauseKind::PidTaken)
}
