//! Things that CRIU carries and the instant engine does not, each with the reason that is told.

use std::fs::{self, File};
use std::os::fd::AsFd;

use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use super::scene::Scene;

/// What each of the things is called in the refusal.
pub const REASONS: [&str; 4] = [
    "is of a kind that is not restored here: fanotify",
    "a unix socket with descriptors on their way",
    "in which the process looks at itself",
    "a unix socket whose path was removed",
];

pub fn set(scene: &mut Scene) {
    let watch = Fanotify::init(InitFlags::FAN_CLASS_NOTIF, EventFFlags::O_RDONLY).unwrap();
    let pair =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let passed = [File::open("/dev/null").unwrap()];
    let fds = [passed[0].as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    let bytes = [std::io::IoSlice::new(b"x")];
    rustix::net::sendmsg(&pair.0, &bytes, &mut ancillary, SendFlags::empty()).unwrap();
    let own = File::open(format!("/proc/{}/maps", std::process::id())).unwrap();
    let path = scene.folder.join("removed.sock");
    let removed = std::os::unix::net::UnixListener::bind(&path).unwrap();
    fs::remove_file(&path).unwrap();
    scene.add("refused", move || {
        drop((watch, pair, passed, own, removed));
    });
}
