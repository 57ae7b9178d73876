//! Whether the instant engine can restore an image, and if not, why. This module looks at what belongs to the
//! process as a whole and to the host; what belongs to memory, threads and descriptors is looked at where their
//! parts of the plan are made.

use std::path::Path;

use criu_images::{LsmType, SeccompMode, TaskState};

use super::source::Source;
use crate::image::Image;
use crate::image::verify::may_choose_pids;

/// Reasons against, each a sentence without a full stop.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Reasons(Vec<String>);

impl Reasons {
    /// Adds one.
    pub fn add(&mut self, reason: String) {
        self.0.push(reason);
    }

    /// Adds one if it holds.
    pub fn add_if(&mut self, holds: bool, reason: &str) {
        if holds {
            self.add(reason.to_owned());
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them.
    #[must_use]
    pub fn into_vec(self) -> Vec<String> {
        self.0
    }
}

/// Looks at the image as a whole, before its parts are read.
pub(super) fn image(image: &Image, reasons: &mut Reasons) {
    let own = image.manifest().subject.parameter_pipe.is_some();
    // A thread leaves through a signal frame on its own stack, which code that counts on its own use of the
    // memory below the stack pointer would not survive.
    reasons.add_if(!own, "the image was not made by a defrost server's own checkpoint");
    match nix::sys::utsname::uname() {
        Ok(here) if here.release().to_string_lossy() == image.manifest().machine.kernel.as_str() => {}
        Ok(here) => reasons.add(format!(
            "the image was made under kernel {}, and this is {}",
            image.manifest().machine.kernel,
            here.release().to_string_lossy()
        )),
        Err(error) => reasons.add(format!("the kernel does not say its release: {error}")),
    }
    reasons.add_if(
        !may_choose_pids(),
        "choosing its pids takes cap_checkpoint_restore or cap_sys_admin here; in a pid namespace of its own it does \
         not (--pid-namespace always)",
    );
    // exec(2) enters the time namespace of a process that has made one since Linux 6.1.
    let old = image.manifest().machine.kernel_version().is_none_or(|version| version < (6, 1));
    reasons.add_if(old, "the kernel is older than 6.1");
}

/// Looks at the process, whose parent we stay, or not.
pub(super) fn process(source: &Source, stays: bool, reasons: &mut Reasons) {
    let (process, task) = (&source.process, &source.task);
    reasons.add_if(task.state() != Some(TaskState::Alive), "the process was stopped or dead");
    reasons.add_if(
        process.sid != process.pid || process.pgid != process.pid,
        "the process does not lead its session",
    );
    reasons.add_if(namespaces_differ(source), "the process lived in namespaces of its own");
    reasons.add_if(source.path(source.fs.root_id) != Some(Path::new("/")), "its root folder is not /");
    reasons.add_if(source.is_nameless(source.fs.cwd_id), "its working folder had lost its name");
    reasons
        .add_if(source.clocks.is_none(), "the image does not record the clocks, and they must not jump back");
    let labelled = source.inventory.lsm.is_some_and(|module| module != LsmType::None as i32);
    reasons.add_if(labelled, "a security module labels processes");
    reasons.add_if(source.inventory.tcp_close == Some(true), "connections were dumped closed");
    reasons.add_if(source.inventory.allow_uprobes == Some(true), "uprobes were accepted");
    reasons
        .add_if(!matches!(source.folder.parent(), Ok(None)), "the image is the difference to a parent image");
    reasons.add_if(!source.memory.aios.is_empty(), "the process used native asynchronous input and output");
    // The name of a file, and the bytes of one that lists nothing.
    for (name, empty, what) in
        [("filelocks.img", 8, "file locks were held"), ("seccomp.img", 12, "seccomp filters were installed")]
    {
        reasons.add_if(source.folder.size(name).is_ok_and(|size| size > empty), what);
    }
    for thread in &source.threads {
        let seccomp = thread.core.seccomp_mode.unwrap_or(0) != SeccompMode::Disabled as i32;
        reasons.add_if(seccomp, "a thread was under seccomp");
        let bereft = !stays && thread.core.pdeath_sig.unwrap_or(0) != 0;
        reasons.add_if(
            bereft,
            "a thread asked for a signal when its parent ends, which is soon when it is detached",
        );
    }
}

fn namespaces_differ(source: &Source) -> bool {
    let ids = &source.ids;
    let Some(root) = &source.inventory.root_ids else { return true };
    // The time namespace is made anew: CRIU and this engine both put every process into its own.
    [
        (ids.pid_ns_id, root.pid_ns_id),
        (ids.net_ns_id, root.net_ns_id),
        (ids.ipc_ns_id, root.ipc_ns_id),
        (ids.uts_ns_id, root.uts_ns_id),
        (ids.mnt_ns_id, root.mnt_ns_id),
        (ids.user_ns_id, root.user_ns_id),
        (ids.cgroup_ns_id, root.cgroup_ns_id),
    ]
    .iter()
    .any(|(own, root)| own != root)
}
