//! What a figure depends on beside the program: the machine, its load, the versions.
//!
//! It must not know what is measured.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use procfs::Current;

use super::caches::has_kerndat;
use super::record::{Host, Image, Phase};
use crate::image::{Contents, Image as Opened};

/// The machine as it is now. `criu` is its version, `commit` is what the caller says of the source tree.
#[must_use]
pub fn here(criu: Option<String>, commit: Option<String>) -> Host {
    let names = nix::sys::utsname::uname().ok();
    let name = |of: fn(&nix::sys::utsname::UtsName) -> &std::ffi::OsStr| {
        names.as_ref().map(|names| of(names).to_string_lossy().into_owned()).unwrap_or_default()
    };
    let cpus = procfs::CpuInfo::current().ok();
    let cpu = cpus.and_then(|cpus| cpus.model_name(0).map(str::to_owned));
    let memory = procfs::Meminfo::current().map_or(0, |memory| memory.mem_total >> 20);
    let load = procfs::LoadAverage::current();
    let load = load.map_or([0.0; 3], |load| [load.one, load.five, load.fifteen].map(two_digits));
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let (commit, dirty) = match commit {
        Some(commit) => {
            let clean = commit.strip_suffix("-dirty").map(str::to_owned);
            (Some(clean.clone().unwrap_or(commit)), clean.is_some())
        }
        None => (None, false),
    };
    let kerndat = if has_kerndat() { "in place" } else { "absent" };
    Host {
        date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        kernel: name(nix::sys::utsname::UtsName::release),
        machine: name(nix::sys::utsname::UtsName::machine),
        cpu: cpu.unwrap_or_else(|| "unknown".to_owned()),
        cores: u32::try_from(cores).unwrap_or(u32::MAX),
        memory_mib: memory,
        load,
        criu,
        defrost: env!("CARGO_PKG_VERSION").to_owned(),
        commit,
        dirty,
        notes: BTreeMap::from([("kerndat cache".to_owned(), kerndat.to_owned())]),
    }
}

/// As the kernel has them.
fn two_digits(load: f32) -> f64 {
    (f64::from(load) * 100.0).round() / 100.0
}

/// What an image is; its size alone for one that defrost did not make.
///
/// # Errors
/// The system's own.
pub fn image(path: &Path) -> std::io::Result<Image> {
    let bytes = super::caches::size(path)?;
    let Ok(opened) = Opened::open(path) else { return Ok(Image { bytes, ..Image::default() }) };
    let manifest = opened.manifest();
    let mut began = 0.0;
    let mut phase = |phase: &crate::image::manifest::Phase| {
        let took = Duration::from_micros(phase.micros).as_secs_f64() * 1e3;
        let told = Phase { name: phase.name.clone(), began, took };
        began += took;
        told
    };
    let checkpoint = manifest.subject.phases.iter().chain(&manifest.phases).map(&mut phase).collect();
    // What cannot be read is left out: the starts tell of a damaged image.
    let contents = Contents::read(&opened).ok();
    let sums = contents.iter().flat_map(Contents::kinds);
    let mappings = sums.map(|(kind, sum)| (kind.to_owned(), sum.stored)).collect();
    Ok(Image { bytes, resident: Some(manifest.present_bytes), checkpoint, mappings })
}
