//! A process dumps itself: it asks the CRIU that its helper runs, and learns from the one answer which process
//! it now is.

use std::os::fd::OwnedFd;
use std::time::Duration;

use criu_driver::{Connection, DumpOptions, DumpTarget, ImagesFolder, SelfDump};

use super::CriuEngine;
use super::wakeup::Wakeup;
use crate::engine::channel::Channel;
use crate::engine::filling;
use crate::engine::helper::start::{Helper, start};
use crate::engine::{Dump, DumpError, DumpOrder, Original, Prepared};
use crate::image::folder::Partial;

/// How much longer than the helper this side waits: the helper kills CRIU first, and then the socket closes.
const SLACK: Duration = Duration::from_secs(30);
/// Files that have lost their name and are open or mapped are stored in the image up to this size. CRIU's own
/// limit; the audit turns larger ones away.
const GHOST_LIMIT: u32 = 1024 * 1024;

pub(super) fn dump(engine: &CriuEngine, prepared: Prepared, mut order: DumpOrder) -> Dump {
    let Prepared::Folder(partial) = prepared else {
        let source = std::io::ErrorKind::NotFound.into();
        return untouched(order.kept, DumpError::Helper { problem: "got no folder", source });
    };
    let begun =
        filling::wait().map_err(DumpError::Filling).and_then(|()| begin(engine, &partial, &mut order));
    let Begun { channel, connection, helper } = match begun {
        Ok(begun) => begun,
        Err(error) => {
            Prepared::Folder(partial).discard();
            return untouched(order.kept, error);
        }
    };
    // The helper holds them now, and the image must not.
    order.kept.clear();
    let mut options = DumpOptions::new(ImagesFolder::WorkingDirectory, DumpTarget::Requester);
    options.leave_running = order.leave_running;
    options.leave_stopped = !order.leave_running;
    options.ghost_limit = Some(GHOST_LIMIT);
    // Should the helper be killed while this process is stopped. Without a timer, a supervisor still helps.
    let _wakeup = (!order.leave_running).then(|| Wakeup::arm(order.deadline + SLACK).ok());
    let verdict = connection.self_dump(&options, order.deadline + SLACK);
    if matches!(verdict, Ok(SelfDump::Restored)) {
        return Dump::Restored(channel.arrive());
    }
    // Every other end means that this is the original; the helper knows why.
    let dumped = matches!(verdict, Ok(SelfDump::Dumped));
    Dump::Original(match helper.rejoin() {
        Ok((kept, finish)) => Original::new(dumped, kept, finish),
        Err(error) => {
            // Nobody else would remove it while this process lives.
            Prepared::Folder(partial).discard();
            Original::new(dumped, Vec::new(), move || Err(error))
        }
    })
}

/// An original for which nothing has begun.
fn untouched(kept: Vec<OwnedFd>, error: DumpError) -> Dump {
    Dump::Original(Original::new(false, kept, move || Err(error)))
}

/// A dump of which everything is in place but the request.
struct Begun {
    channel: Channel,
    connection: Connection,
    helper: Helper,
}

fn begin(engine: &CriuEngine, partial: &Partial, order: &mut DumpOrder) -> Result<Begun, DumpError> {
    let failed = |source| DumpError::Helper { problem: "got no pipes", source };
    let channel = Channel::new().map_err(failed)?;
    let (params, report) = channel.inodes().map_err(failed)?;
    order.subject.parameter_pipe = Some(params);
    order.subject.report_pipe = Some(report);
    let (connection, worker) = Connection::pair()?;
    let helper = start(&engine.find()?, partial, order, worker)?;
    Ok(Begun { channel, connection, helper })
}
