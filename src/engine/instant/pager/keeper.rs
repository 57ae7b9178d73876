//! The two processes that stand behind a process whose memory is being filled: see the module above.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, Resource, Rlimit, getrlimit, setrlimit};

use super::super::aside::{self, tell};
use super::Pager;
use super::missing::Missing;
use super::serve::{End, Work, comes};
use super::space::{Space, Touch};
use crate::engine::keeper::LOST;
use crate::image::chain::live::PAGER;
use crate::image::working_set::WorkingSet;
use crate::sys::message;
use crate::sys::process::{Fork, exit_now, fork_sharing_descriptors};
use crate::sys::userfault::{Pages, Userfault};

const KEEPER: &CStr = c"defrost-keeper";
/// The pager's exit status when it could not go on.
const FAILED: i32 = 1;
/// How long forked processes are looked for after the restored one was ended.
const SEARCH: Duration = Duration::from_secs(2);

/// Starts both, for this child of the calling process.
pub(super) fn start(pager: &Pager, pid: i32) -> io::Result<Pid> {
    let known = rustix::process::Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
    let process = rustix::process::pidfd_open(known, PidfdFlags::empty())?;
    let kept = [process.as_fd(), pager.socket.as_fd(), pager.pages.as_fd()];
    aside::start(KEEPER, kept, |kept| {
        let process =
            kept.map(|[process, socket, pages]| (keep(pager, pid, &process, socket, pages), process));
        match process {
            Ok((Ok(status), _)) => status,
            Ok((Err(error), process)) => {
                lose(&process, pid, &format!("its memory could not be filled: {error}"));
                LOST
            }
            // Whatever keeps this process from its own descriptors keeps it from those of the process, too; that
            // waits for its first page then until the restore is late, and is ended.
            Err(error) => {
                tell(&format!("the memory of process {pid} cannot be filled: {error}"));
                LOST
            }
        }
    })
}

/// The keeper's life; gives its exit status.
fn keep(pager: &Pager, pid: i32, process: &OwnedFd, socket: OwnedFd, pages: OwnedFd) -> io::Result<i32> {
    let own = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
    match fork_sharing_descriptors()? {
        Fork::Child => exit_now(page(pager, pid, process, own.as_fd(), socket, pages)),
        Fork::Parent(child) => {
            // They are the pager's: what it closes is closed here, too.
            std::mem::forget((socket, pages));
            match waitpid(child, None)? {
                WaitStatus::Exited(_, 0) => Ok(0),
                status => {
                    lose(process, pid, &format!("its pager {}", how(status)));
                    Ok(LOST)
                }
            }
        }
    }
}

fn how(status: WaitStatus) -> String {
    match status {
        WaitStatus::Signaled(_, signal, _) => format!("was ended by {signal}"),
        _ => "failed".to_owned(),
    }
}

/// The pager's life; gives its exit status.
fn page(
    pager: &Pager,
    pid: i32,
    process: &OwnedFd,
    keeper: BorrowedFd<'_>,
    socket: OwnedFd,
    pages: OwnedFd,
) -> i32 {
    let _ = rustix::thread::set_name(PAGER);
    // Each process that is forked meanwhile takes a descriptor.
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let mut recorded = |touched: &[Touch]| {
        if let Some(record) = &pager.record {
            let touched = touched.iter().map(|touch| (touch.page, touch.write));
            let set = WorkingSet::of(record.image, touched);
            if let Err(error) = set.store(&record.folder) {
                tell(&format!("the working set of process {pid} was not recorded: {error}"));
            }
        }
    };
    let files = (socket, pages.into());
    match work(pager, process, keeper, files, &mut recorded) {
        Ok(End::Done) => 0,
        Ok(End::Unwatched) => {
            lose(process, pid, "the keeper of its pager was ended");
            FAILED
        }
        Err(error) => {
            tell(&format!("the memory of process {pid} cannot be filled: {error}"));
            FAILED
        }
    }
}

fn work(
    pager: &Pager,
    process: &OwnedFd,
    keeper: BorrowedFd<'_>,
    (socket, pages): (OwnedFd, File),
    recorded: &mut dyn FnMut(&[Touch]),
) -> io::Result<End> {
    let pages = Pages::of(&pages)?;
    if !comes(&socket, process.as_fd())? {
        return Ok(End::Done);
    }
    let (_, mut sent) = message::receive(&socket, &mut [0])?;
    // The restorer has failed before it came that far, and says so itself.
    let Some(fault) = sent.pop() else { return Ok(End::Done) };
    // Nobody may be there any more to hear it.
    let _ = rustix::net::send(&socket, &[1], rustix::net::SendFlags::NOSIGNAL);
    drop(socket);
    let missing = Missing::new(&pager.handled, &pager.runs);
    let work = Work {
        space: Space::new(Userfault::adopt(fault), missing),
        pages: &pages,
        first: &pager.first,
        recording: pager.record.as_ref().map(|record| Instant::now() + record.time),
        process: process.as_fd(),
        watch: keeper,
    };
    work.run(recorded).map(|(end, _)| end)
}

/// Ends the process, and those of its session, since what they would read is not what they have written. The
/// descriptors of their faults are open until then, so that none of them reads anything else meanwhile.
fn lose(process: &OwnedFd, pid: i32, why: &str) {
    let _ = rustix::process::pidfd_send_signal(process, rustix::process::Signal::KILL);
    tell(&format!("process {pid} was ended with its session: {why}"));
    let deadline = Instant::now() + SEARCH;
    while end_session(pid) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Kills whoever lives in the session that this process led; says whether there was anybody.
fn end_session(leader: i32) -> bool {
    let Ok(all) = procfs::process::all_processes() else { return false };
    let lives = |process: procfs::process::Process| {
        let stat = process.stat().ok()?;
        (stat.session == leader && !matches!(stat.state, 'Z' | 'X')).then_some(stat.pid)
    };
    let found: Vec<i32> = all.flatten().filter_map(lives).collect();
    for pid in &found {
        let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
    }
    !found.is_empty()
}
