//! The helper's own life, from its order to its exit status.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use criu_driver::{Criu, DumpOptions, DumpTarget};
use criu_images::ImageDir;
use nix::sys::signal::Signal;
use rustix::process::{Pid, PidfdFlags};

use super::link::{Listener, Peer};
use super::order::{ORDER, Order, REPORT, Report};
use super::{
    ENDED_THE_SUBJECT, FAILED, FIRST_KEPT_FD, LEFT_RUNNING, LOG_NAME, ORDER_FD, PROCESS_NAME, ROLE_VARIABLE,
    WORKER_FD,
};
use crate::engine::DumpError;
use crate::image::Users;
use crate::image::chain::dependents;
use crate::image::describe::describe;
use crate::image::durable::make_ancestors_durable;
use crate::image::folder::{FolderError, Partial};
use crate::image::manifest::{CriuRecord, Phase};
use crate::image::record;
use crate::sys;

/// The most that an order may take.
const ORDER_LIMIT: u64 = 16 * 1024 * 1024;
/// How long the subject may take to connect once it goes on.
const CONNECT: Duration = Duration::from_secs(20);
/// How long a killed subject may take to be gone.
const DEATH: Duration = Duration::from_secs(10);
/// How long init may take to reap it: up to 2 s were seen.
const REAPED: Duration = Duration::from_secs(3);

/// Turns this process into the helper if it was started to be one, and does not return then. To be called
/// first thing in `main`, while the process has one thread and owns nothing.
pub fn take_part() {
    if std::env::var_os(ROLE_VARIABLE).is_none() {
        return;
    }
    let status = match Helper::from_order() {
        Ok(mut helper) => helper.work(),
        // Nobody can be told: whoever started this sees CRIU's socket close.
        Err(_) => FAILED,
    };
    sys::process::exit_now(status);
}

struct Helper {
    order: Order,
    partial: PathBuf,
    subject: OwnedFd,
    kept: Vec<OwnedFd>,
    listener: Listener,
    started: Instant,
    criu_version: (u32, u32, u32),
    dump_us: u64,
}

/// Why there is no image.
struct Failure {
    cause: String,
    hint: Option<String>,
}

impl Failure {
    fn of_criu(error: &criu_driver::Error) -> Self {
        Self { cause: error.to_string(), hint: error.hint().map(str::to_owned) }
    }
}

impl Helper {
    fn from_order() -> io::Result<Self> {
        let started = Instant::now();
        rustix::thread::set_name(&std::ffi::CString::new(PROCESS_NAME).unwrap_or_default())?;
        let memfd = sys::descriptors::adopt(ORDER_FD).ok_or(io::ErrorKind::NotFound)?;
        let mut bytes = Vec::new();
        File::from(memfd).take(ORDER_LIMIT).read_to_end(&mut bytes)?;
        let order: Order = record::decode(ORDER, &bytes).map_err(io::Error::other)?;
        let mut kept = Vec::new();
        for number in (FIRST_KEPT_FD..).take(order.kept as usize) {
            let descriptor = sys::descriptors::adopt(number).ok_or(io::ErrorKind::NotFound)?;
            // Handed over across an exec, so not close-on-exec: CRIU must not inherit it.
            rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC)?;
            kept.push(descriptor);
        }
        let pid = Pid::from_raw(order.subject_pid).ok_or(io::ErrorKind::NotFound)?;
        let subject = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        let listener = Listener::bind(&order.link)?;
        Ok(Self {
            partial: order.partial.to_path(),
            order,
            subject,
            kept,
            listener,
            started,
            criu_version: (0, 0, 0),
            dump_us: 0,
        })
    }

    fn work(&mut self) -> i32 {
        match self.dump() {
            Err(failure) => self.fail(failure),
            Ok(()) if self.order.leave_running => self.leave_running(),
            Ok(()) => self.end_subject(),
        }
    }

    /// Runs CRIU until it has answered the subject and ended.
    fn dump(&mut self) -> Result<(), Failure> {
        let worker = sys::descriptors::adopt(WORKER_FD).ok_or_else(|| Failure {
            cause: "the socket to criu was not handed over".to_owned(),
            hint: None,
        })?;
        let failed = |error| Failure::of_criu(&error);
        let criu = Criu::at(&self.order.criu.to_path()).map_err(failed)?;
        self.criu_version = (criu.version.major, criu.version.minor, criu.version.sublevel);
        let options = DumpOptions::new(self.partial.as_path(), DumpTarget::Requester);
        let limit = Duration::from_millis(self.order.deadline_ms);
        let served = criu_driver::serve_self_dump(&criu, worker, &options, limit);
        self.dump_us = micros(self.started.elapsed());
        served.map_err(failed)?;
        // CRIU writes its statistics last, and only after a good dump.
        if self.partial.join("stats-dump").exists() {
            return Ok(());
        }
        Err(Failure { cause: "criu ended well and left no statistics of a dump".to_owned(), hint: None })
    }

    /// Manifest, fsync, rename.
    fn finish(&mut self) -> Result<Report, Failure> {
        // Opened first: that is what keeps another checkpoint from sweeping it away.
        let unfinished = |error: FolderError| Failure {
            cause: format!("the image could not be completed: {error}"),
            hint: error.hint(),
        };
        let partial = Partial::reopen(&self.partial, &self.order.target.to_path()).map_err(unfinished)?;
        let frozen_us = frozen_us(&self.partial);
        let phases = vec![Phase { name: "dump".to_owned(), micros: self.dump_us }];
        let criu = CriuRecord { version: self.criu_version, restore_flags: Vec::new() };
        let mut manifest =
            describe(&self.partial, self.order.subject.clone(), criu, phases).map_err(|error| Failure {
                cause: format!("the image is not fit: {error}"),
                hint: error.hint(),
            })?;
        manifest.durable = self.order.durable;
        // What it needs must last as long as it does.
        make_ancestors_durable(&manifest).map_err(|error| Failure {
            cause: format!("what the image needs could not be put on disk: {error}"),
            hint: None,
        })?;
        let bytes = manifest.files.iter().map(|file| file.size).sum();
        let target = partial.target();
        // Others may have begun to need the image of that name meanwhile.
        let users = Users::of(&target);
        if !users.is_empty() {
            let needed = DumpError::Needed { target, users };
            return Err(Failure { cause: needed.to_string(), hint: needed.hint() });
        }
        // An image without a record is as good, and most often found all the same; nobody can be told.
        let _ = dependents::register(&manifest, &target);
        let image = partial.complete(&manifest).map_err(unfinished)?;
        let took_us = micros(self.started.elapsed());
        Ok(Report::Complete { image: image.as_path().into(), bytes, frozen_us, took_us })
    }

    /// The subject goes on at once; the folder is completed meanwhile.
    fn leave_running(&mut self) -> i32 {
        let peer = self.give_back();
        let finished = self.finish();
        let status = if finished.is_ok() { LEFT_RUNNING } else { FAILED };
        let report = finished.unwrap_or_else(|failure| self.discard(failure));
        tell(peer, &report);
        status
    }

    /// The subject stands still until the image is complete, and then never runs again.
    fn end_subject(&mut self) -> i32 {
        match self.finish() {
            Err(failure) => self.fail(failure),
            Ok(report) => {
                self.kill_subject();
                self.answer(&report);
                ENDED_THE_SUBJECT
            }
        }
    }

    /// There is no image: the subject goes on, and is told why.
    fn fail(&mut self, failure: Failure) -> i32 {
        self.signal(Signal::SIGCONT);
        let peer = self.give_back();
        let report = self.discard(failure);
        tell(peer, &report);
        FAILED
    }

    /// Removes the half image and keeps CRIU's log.
    fn discard(&self, failure: Failure) -> Report {
        let partial = Partial::reopen(&self.partial, &self.order.target.to_path());
        let log = partial.ok().and_then(|partial| partial.discard(Some(LOG_NAME)).ok()).flatten();
        Report::Failed { cause: failure.cause, hint: failure.hint, log: log.as_deref().map(Into::into) }
    }

    fn give_back(&mut self) -> Option<Peer> {
        let peer = self.listener.accept(&self.subject, Instant::now() + CONNECT).ok().flatten();
        let kept = std::mem::take(&mut self.kept);
        peer.filter(|peer| peer.give_back(&kept).is_ok())
    }

    fn signal(&self, signal: Signal) {
        if let Some(signal) = rustix::process::Signal::from_named_raw(signal as i32) {
            let _ = rustix::process::pidfd_send_signal(&self.subject, signal);
        }
    }

    /// Ends the subject, and waits until its ports and files are free, so that whoever hears of the image can
    /// restore it. Its pid is free only once it has been reaped: where that is up to init, which may take its
    /// time, it is waited for too. Another parent may be waiting for this very answer.
    fn kill_subject(&self) {
        use rustix::event::{PollFd, PollFlags, Timespec};
        let status = format!("/proc/{}/stat", self.order.subject_pid);
        let orphan = std::fs::read_to_string(&status).is_ok_and(|stat| parent_in(&stat) == Some(1));
        self.signal(Signal::SIGKILL);
        let limit = Timespec { tv_sec: DEATH.as_secs().cast_signed(), tv_nsec: 0 };
        let mut waiting = [PollFd::new(&self.subject, PollFlags::IN)];
        while rustix::event::poll(&mut waiting, Some(&limit)) == Err(rustix::io::Errno::INTR) {}
        let deadline = Instant::now() + REAPED;
        while orphan && Instant::now() < deadline && Path::new(&status).exists() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Tells the one who asked, if that was somebody with a connection. All other kept descriptors are closed
    /// first: the listeners among them would hold their ports.
    fn answer(&mut self, report: &Report) {
        let index = self.order.answer.map(|index| index as usize);
        let mut kept = std::mem::take(&mut self.kept);
        let answer = index.filter(|index| *index < kept.len()).map(|index| kept.swap_remove(index));
        drop(kept);
        if let (Some(answer), Report::Complete { image, bytes, took_us, .. }) = (answer, report) {
            let line = super::complete_line(&image.to_path(), *bytes, *took_us, false);
            // It may have gone away meanwhile.
            let _ = File::from(answer).write_all(line.as_bytes());
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The parent in a line of proc_pid_stat(5), behind the name, which may contain anything.
fn parent_in(stat: &str) -> Option<i32> {
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// How long CRIU says that the process stood still; 0 when it does not say.
fn frozen_us(folder: &Path) -> u64 {
    let stats = ImageDir::open(folder).and_then(|folder| folder.stats_dump());
    stats.ok().flatten().map_or(0, |stats| u64::from(stats.frozen_time))
}

fn tell(peer: Option<Peer>, report: &Report) {
    if let (Some(peer), Ok(bytes)) = (peer, record::encode(REPORT, report)) {
        // A subject that has died meanwhile needs no report.
        let _ = peer.report(&bytes);
    }
}
