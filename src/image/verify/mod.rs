//! Whether an image is whole and fits this host, before anything is started: all findings at once.
//!
//! On the way of every restore: reads small files once and measures big ones, unless asked for more. An image
//! whose small files have their hashes of the dump is decoded by nobody here, as it was checked in full when
//! it was completed. This module must not know how an image is restored.

mod ancestors;
mod completeness;
mod finding;
mod fit;
mod host;
mod memory;
mod needed;
mod pids;
mod ports;
mod privileges;

use std::net::SocketAddr;
use std::time::Duration;

pub(super) use ancestors::check as check_ancestors;
pub use finding::{Class, Finding};
pub use fit::KERNEL_FLOOR;
pub use host::Host;
pub use privileges::{
    capabilities_of_child, capability_names, effective_capabilities, in_initial_user_namespace,
    may_choose_pids, own_capabilities,
};

use criu_images::Contents;

use super::machine::Machine;
use super::manifest::{Capabilities, Manifest};
use super::open::Image;

/// How long a live process may hold a pid or port before it is told: one that has just been killed takes a moment
/// to let go.
const LIVE_GRACE: Duration = Duration::from_millis(100);

/// Between two looks at what is held.
const PAUSE: Duration = Duration::from_millis(5);

/// What to compare an image with, and how thoroughly.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// Also read what is big: memory pages, programs and libraries; and decode all of the image.
    pub full: bool,
    /// Version of the CRIU that shall restore: major, minor, sublevel. None for another engine.
    pub criu_version: Option<(u32, u32, u32)>,
    /// Capabilities that the restoring engine will have ([`capabilities_of_child`]). None if they are not known.
    pub capabilities: Option<Capabilities>,
    /// Whether the pids and tids of the image have to be free: not for a restore into an own PID namespace.
    pub pids: bool,
    /// How long a dead process may still hold a number. Where the init process collects orphans slowly, that
    /// takes up to 2 s. Live holders of numbers and ports get 100 ms of it to end.
    pub pid_wait: Duration,
    /// Whether the ports have to be free.
    pub ports: bool,
    /// Addresses that resources will bind instead of their own, by name of the resource (`NAME.listen=ADDR`); several
    /// of one name for as many restores.
    pub rebound: Vec<(String, SocketAddr)>,
    /// How many restores of this image are about to be started: memory is needed for each. 0 for an engine that
    /// does not read the memory in.
    pub copies: u32,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self {
            full: false,
            criu_version: None,
            capabilities: None,
            pids: true,
            pid_wait: Duration::from_secs(3),
            ports: true,
            rebound: Vec::new(),
            copies: 1,
        }
    }
}

/// The pids and tids of an image that are taken, a finding for each holder, once these have had their time to let go
/// ([`VerifyOptions::pid_wait`]).
#[must_use]
pub fn taken_pids(image: &Image, wait: Duration) -> Vec<Finding> {
    pids::check(image.manifest(), &this_boot(), wait)
}

/// This host, as far as pids are concerned: the processor takes long to tell of itself.
fn this_boot() -> Machine {
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    Machine { boot_id: boot_id.trim_end().to_owned(), ..Machine::default() }
}

/// Who has a pid or tid of an image that a restore was refused just now, as far as it can still be seen.
#[must_use]
pub fn taker_of_pids(image: &Image) -> Finding {
    pids::taker(image.manifest(), &this_boot())
}

/// Whether this CRIU (major, minor, sublevel) may restore an image: the finding against it, if not.
#[must_use]
pub fn criu_fits(manifest: &Manifest, version: (u32, u32, u32)) -> Option<Finding> {
    fit::check_criu(manifest.criu.version, version)
}

/// Compares an image with this host. Empty if nothing speaks against a restore. The image keeps what was read of its
/// files, so that what is restored is what was verified.
///
/// Takes less than a millisecond for an image of some MiB, unless [`VerifyOptions::full`] is set or something that
/// is needed is held: then it waits as [`VerifyOptions::pid_wait`] says.
#[must_use]
pub fn verify(image: &Image, options: &VerifyOptions) -> Vec<Finding> {
    match Host::here_for(image.manifest()) {
        Ok(host) => verify_on(image, options, &host),
        Err(error) => vec![Finding::new(
            Class::Host,
            format!("host cannot be described: {error}"),
            "mount /proc, and allow it to be read".into(),
        )],
    }
}

/// [`verify`] for a host of these properties; files, pids and ports are still those of here.
#[must_use]
pub fn verify_on(image: &Image, options: &VerifyOptions, host: &Host) -> Vec<Finding> {
    let manifest = image.manifest();
    let mut kept = Contents::new();
    let mut findings = completeness::check(image.path(), manifest, options.full, &mut kept);
    image.keep(kept);
    findings.extend(completeness::check_durability(manifest, &host.machine));
    findings.extend(fit::check(manifest, &host.machine, options.criu_version));
    findings
        .extend(options.capabilities.and_then(|own| privileges::check(&manifest.capabilities, &own, host)));
    findings.extend(ancestors::check(&manifest.ancestors, manifest.depth, options.full));
    findings.extend(needed::check(&manifest.needed, options.full));
    findings.extend(memory::check(manifest.present_bytes, options.copies, host.available_memory));
    // These two may wait, and a port may belong to a process that the first waits for.
    if options.pids {
        findings.extend(pids::check(manifest, &host.machine, options.pid_wait));
    }
    if options.ports {
        findings.extend(ports::check(manifest, &options.rebound, options.pid_wait.min(LIVE_GRACE)));
    }
    findings
}

/// Compares the earlier images that this one depends on with what they were. Empty if all are there and unchanged.
#[must_use]
pub fn verify_ancestors(image: &Image) -> Vec<Finding> {
    let manifest = image.manifest();
    ancestors::check(&manifest.ancestors, manifest.depth, false)
}

/// Whether the image itself and all that it depends on are what they were, to the last byte, wherever it may fit.
pub(super) fn check_whole(image: &Image) -> Vec<Finding> {
    let manifest = image.manifest();
    let mut findings = completeness::check(image.path(), manifest, true, &mut Contents::new());
    findings.extend(ancestors::check(&manifest.ancestors, manifest.depth, true));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::manifest::Manifest;
    use crate::image::manifest::tests::manifest;

    /// An image of nothing: no process, file or address of it can be missing here.
    fn empty() -> Manifest {
        let mut manifest = manifest();
        manifest.machine = Machine::here().unwrap();
        (manifest.processes, manifest.needed, manifest.files) = Default::default();
        (manifest.ancestors, manifest.depth) = Default::default();
        (manifest.listeners, manifest.subject.listens) = Default::default();
        manifest
    }

    #[test]
    fn nothing_speaks_against_an_image_that_fits() {
        let folder = tempfile::tempdir().unwrap();
        let image = Image::pretend(folder.path(), empty());
        assert_eq!(
            verify(&image, &VerifyOptions { criu_version: Some((4, 2, 1)), ..VerifyOptions::default() }),
            []
        );
    }

    #[test]
    fn one_call_finds_everything() {
        let folder = tempfile::tempdir().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut manifest = manifest();
        manifest.machine = Machine::here().unwrap();
        manifest.machine.cpu_features.push("warp_drive".into());
        manifest.machine.boot_id = "another".into();
        manifest.processes[0].pid = std::process::id();
        manifest.processes[0].threads = vec![std::process::id()];
        manifest.subject.listens[0].address = listener.local_addr().unwrap();
        manifest.listeners.clear();
        manifest.present_bytes = u64::MAX;
        manifest.capabilities.permitted = 1 << 24;
        let options = VerifyOptions {
            criu_version: Some((3, 17, 1)),
            capabilities: Some(Capabilities::default()),
            pid_wait: Duration::ZERO,
            ..VerifyOptions::default()
        };
        let findings = verify(&Image::pretend(folder.path(), manifest.clone()), &options);
        let begins = |what: &str| findings.iter().filter(|finding| finding.what.starts_with(what)).count();
        for what in [
            "pages-1.img is missing",
            "processor lacks what the dumped process may use: warp_drive",
            "CRIU 3.17.1 is older",
            "restore lacks capabilities",
            "image depends on /srv/not \u{fffd} unicode, which is gone",
            "program /srv/shop is gone",
            "restore needs",
            "address 127.0.0.1",
            "pid ",
        ] {
            assert_eq!(begins(what), 1, "{what}: {findings:#?}");
        }
        assert_eq!(findings.len(), 9, "{findings:#?}");

        let elsewhere = VerifyOptions { pids: false, ports: false, ..options };
        let findings = verify(&Image::pretend(folder.path(), manifest), &elsewhere);
        assert!(findings.iter().all(|finding| finding.class != Class::Busy), "{findings:#?}");
        assert_eq!(findings.len(), 7);
    }
}
