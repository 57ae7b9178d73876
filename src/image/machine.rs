//! The host as an image sees it: kernel, processor features, page size.
//!
//! A value that can be read here and now, stored, or made up by a test. This module must not know what is
//! compared with what.

use std::fs;
use std::io;

use nix::sys::utsname::uname;
use nix::unistd::{SysconfVar, sysconf};
use serde::{Deserialize, Serialize};

use super::cpu_features;
use crate::sys::cpu::xcr0;

/// What a host is, as far as a dumped process may depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Kernel release, as `uname -r` says it.
    pub kernel: String,
    /// Architecture, as `uname -m` says it.
    pub architecture: String,
    /// The host's name.
    pub hostname: String,
    /// Processor vendor, as CPUID says it; empty where there is no CPUID.
    pub cpu_vendor: String,
    /// Processor model, as CPUID says it; empty where there is no CPUID.
    pub cpu_model: String,
    /// Processor features that programs use, by the names of /proc/cpuinfo.
    pub cpu_features: Vec<String>,
    /// Bytes that XSAVE needs for the states enabled; 0 without XSAVE.
    pub xsave_size: u32,
    /// Register states that the kernel enabled (XCR0); 0 without XSAVE.
    pub xcr0: u64,
    /// Size of a memory page in bytes.
    pub page_size: u64,
    /// The kernel's id of this boot: pids and clocks of another boot mean nothing.
    pub boot_id: String,
}

impl Machine {
    /// This host, now. Reads one file and a dozen CPUID leaves.
    ///
    /// # Errors
    /// When the kernel does not say its name, its page size or its boot id.
    pub fn here() -> io::Result<Self> {
        let (cpu_vendor, cpu_model) = cpu_features::model();
        Ok(Self {
            cpu_vendor,
            cpu_model,
            cpu_features: cpu_features::here().into_iter().map(str::to_owned).collect(),
            xsave_size: cpu_features::xsave_size(),
            xcr0: xcr0().unwrap_or(0),
            ..Self::kernel()?
        })
    }

    /// Whether it is this host, which has not been started anew since.
    #[must_use]
    pub fn is_of_this_boot(&self) -> bool {
        fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .is_ok_and(|here| here.trim_end() == self.boot_id)
    }

    /// This host, now; if it still runs the boot that `known` is of, the processor is not asked again: each of a
    /// dozen CPUID leaves costs some five microseconds in a virtual machine. A virtual machine that is moved to
    /// another processor while it runs owes the features of the first to everything in it.
    ///
    /// # Errors
    /// As for [`Machine::here`].
    pub fn here_or_as(known: &Self) -> io::Result<Self> {
        let kernel = Self::kernel()?;
        if kernel.boot_id.is_empty() || kernel.boot_id != known.boot_id {
            return Self::here();
        }
        Ok(Self {
            cpu_vendor: known.cpu_vendor.clone(),
            cpu_model: known.cpu_model.clone(),
            cpu_features: known.cpu_features.clone(),
            xsave_size: known.xsave_size,
            xcr0: known.xcr0,
            ..kernel
        })
    }

    /// What the kernel says, without the processor.
    fn kernel() -> io::Result<Self> {
        let name = uname()?;
        let text = |part: &std::ffi::OsStr| part.to_string_lossy().into_owned();
        let page_size = sysconf(SysconfVar::PAGE_SIZE)?.unwrap_or(4096);
        Ok(Self {
            kernel: text(name.release()),
            architecture: text(name.machine()),
            hostname: text(name.nodename()),
            page_size: page_size.unsigned_abs(),
            boot_id: fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim_end().to_owned(),
            ..Self::default()
        })
    }

    /// Major and minor of the kernel release; none if it does not begin with two numbers.
    #[must_use]
    pub fn kernel_version(&self) -> Option<(u32, u32)> {
        let mut numbers = self.kernel.split(|c: char| !c.is_ascii_digit()).map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_described() {
        let here = Machine::here().unwrap();
        assert!(here.kernel_version().is_some_and(|version| version >= (4, 0)), "{}", here.kernel);
        assert!(here.page_size >= 4096 && here.boot_id.len() == 36, "{here:?}");
        if cfg!(target_arch = "x86_64") {
            assert_eq!(here.architecture, "x86_64");
            assert!(here.cpu_features.iter().any(|name| name == "sse2"), "{:?}", here.cpu_features);
        }
    }

    #[test]
    fn the_processor_is_asked_again_after_another_boot() {
        let here = Machine::here().unwrap();
        assert_eq!(Machine::here_or_as(&here).unwrap(), here);
        let same_boot = Machine { cpu_model: "as known".into(), kernel: "another".into(), ..here.clone() };
        let known = Machine::here_or_as(&same_boot).unwrap();
        assert_eq!((known.cpu_model.as_str(), &known.kernel), ("as known", &here.kernel));
        for boot_id in [String::new(), "another".to_owned()] {
            let known = Machine { boot_id, ..same_boot.clone() };
            assert_eq!(Machine::here_or_as(&known).unwrap(), here);
        }
    }

    #[test]
    fn features_are_those_that_the_kernel_lists() {
        let Ok(cpuinfo) = fs::read_to_string("/proc/cpuinfo") else { return };
        let Some(flags) = cpuinfo.lines().find(|line| line.starts_with("flags")) else { return };
        let flags: Vec<&str> = flags.split_whitespace().collect();
        // The kernel hides some that the processor has, and has names of its own for few: most must agree.
        let here = Machine::here().unwrap().cpu_features;
        let unknown: Vec<&String> = here.iter().filter(|name| !flags.contains(&name.as_str())).collect();
        assert!(unknown.len() * 10 <= here.len(), "not in /proc/cpuinfo: {unknown:?}");
    }

    #[test]
    fn kernel_versions_are_read_from_any_release() {
        let version = |kernel: &str| Machine { kernel: kernel.into(), ..Machine::default() }.kernel_version();
        assert_eq!(version("6.18.0-rc3+"), Some((6, 18)));
        assert_eq!(version("5.10.0-21-amd64"), Some((5, 10)));
        assert_eq!(version("6.1-custom"), Some((6, 1)));
        assert_eq!(version("custom"), None);
    }
}
