//! Whether processor, kernel and CRIU can run what was dumped.

use super::finding::{Class, Finding};
use crate::image::machine::Machine;
use crate::image::manifest::Manifest;

/// The oldest kernel, major and minor, that restores are tried on: 5.6 brought time namespaces, which every
/// restore by root enters.
pub const KERNEL_FLOOR: (u32, u32) = (5, 6);

pub(super) fn check(manifest: &Manifest, here: &Machine, criu: Option<(u32, u32, u32)>) -> Vec<Finding> {
    let there = &manifest.machine;
    let mut findings = Vec::new();
    if there.architecture != here.architecture {
        // Nothing else about the processors can be compared then.
        let what = format!("image is of a {} host, this one is {}", there.architecture, here.architecture);
        findings.push(misfit(what, "restore it on a host of its architecture"));
    } else {
        findings.extend(check_processor(there, here));
    }
    if there.page_size != here.page_size {
        let what = format!("image has pages of {} bytes, this kernel {}", there.page_size, here.page_size);
        findings.push(misfit(what, "restore it on a kernel with its page size"));
    }
    if here.kernel_version().is_some_and(|version| version < KERNEL_FLOOR) {
        let (major, minor) = KERNEL_FLOOR;
        let what = format!("kernel {} is older than {major}.{minor}", here.kernel);
        findings.push(Finding::new(Class::Host, what, format!("use a kernel from {major}.{minor} on")));
    }
    if let Some(criu) = criu {
        findings.extend(check_criu(manifest.criu.version, criu));
    }
    findings
}

fn misfit(what: String, remedy: &str) -> Finding {
    Finding::new(Class::DoesNotFit, what, remedy.into())
}

/// A program chose its code by what the processor had at its start, and does not ask again.
fn check_processor(there: &Machine, here: &Machine) -> Vec<Finding> {
    const REMEDY: &str =
        "restore it on a processor with these, or dump it on the oldest processor that it has to run on";
    let mut findings = Vec::new();
    let missing: Vec<&str> = there
        .cpu_features
        .iter()
        .filter(|feature| !here.cpu_features.contains(feature))
        .map(String::as_str)
        .collect();
    if !missing.is_empty() {
        let what = format!("processor lacks what the dumped process may use: {}", missing.join(", "));
        findings.push(misfit(what, REMEDY));
    }
    let states = there.xcr0 & !here.xcr0;
    if states != 0 {
        let what = format!("kernel does not enable register states that were dumped: XCR0 lacks {states:#x}");
        findings.push(misfit(what, REMEDY));
    } else if there.xsave_size > here.xsave_size {
        let what = format!(
            "registers were dumped as {} bytes, this host saves {}",
            there.xsave_size, here.xsave_size
        );
        findings.push(misfit(what, REMEDY));
    }
    findings
}

/// CRIU reads what older ones wrote; what newer ones wrote it may take for something else.
pub(super) fn check_criu(there: (u32, u32, u32), here: (u32, u32, u32)) -> Option<Finding> {
    if (here.0, here.1) >= (there.0, there.1) {
        return None;
    }
    let shown = |(major, minor, sub): (u32, u32, u32)| match sub {
        0 => format!("{major}.{minor}"),
        _ => format!("{major}.{minor}.{sub}"),
    };
    let what = format!("CRIU {} is older than {}, which made the image", shown(here), shown(there));
    Some(Finding::new(Class::Host, what, format!("use CRIU {}.{} or newer", there.0, there.1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::manifest::tests::manifest;

    fn machine() -> Machine {
        Machine {
            kernel: "6.18.0".into(),
            architecture: "x86_64".into(),
            cpu_features: ["sse2", "avx2", "avx512f", "amx_tile"].map(String::from).to_vec(),
            xsave_size: 2696,
            xcr0: 0xe7,
            page_size: 4096,
            ..Machine::default()
        }
    }

    fn dumped_on(machine: Machine) -> Manifest {
        Manifest { machine, ..manifest() }
    }

    fn only(findings: Vec<Finding>, class: Class) -> Finding {
        let [finding] = <[Finding; 1]>::try_from(findings).unwrap();
        assert_eq!(finding.class, class, "{finding:?}");
        finding
    }

    #[test]
    fn the_same_and_a_better_host_will_do() {
        let mut better = machine();
        better.cpu_features.push("avx10".into());
        better.xsave_size = 11008;
        better.xcr0 = 0x602e7;
        assert_eq!(check(&dumped_on(machine()), &machine(), Some((4, 2, 1))), []);
        assert_eq!(check(&dumped_on(machine()), &better, Some((5, 0, 0))), []);
    }

    #[test]
    fn features_that_are_missing_are_named() {
        let mut fewer = machine();
        fewer.cpu_features = ["sse2", "avx2"].map(String::from).to_vec();
        let finding = only(check(&dumped_on(machine()), &fewer, None), Class::DoesNotFit);
        assert_eq!(finding.what, "processor lacks what the dumped process may use: avx512f, amx_tile");
    }

    #[test]
    fn register_states_have_to_be_enabled() {
        let finding =
            only(check(&dumped_on(machine()), &Machine { xcr0: 7, ..machine() }, None), Class::DoesNotFit);
        assert!(finding.what.ends_with("XCR0 lacks 0xe0"), "{finding}");
        let small = Machine { xsave_size: 832, ..machine() };
        let finding = only(check(&dumped_on(machine()), &small, None), Class::DoesNotFit);
        assert_eq!(finding.what, "registers were dumped as 2696 bytes, this host saves 832");
    }

    #[test]
    fn another_architecture_is_one_finding() {
        let arm = Machine { architecture: "aarch64".into(), cpu_features: Vec::new(), xcr0: 0, ..machine() };
        let finding = only(check(&dumped_on(machine()), &arm, None), Class::DoesNotFit);
        assert_eq!(finding.what, "image is of a x86_64 host, this one is aarch64");
    }

    #[test]
    fn page_size_kernel_and_criu_are_compared() {
        let large = Machine { page_size: 65536, ..machine() };
        only(check(&dumped_on(machine()), &large, None), Class::DoesNotFit);
        let old = Machine { kernel: "4.19.0-27-amd64".into(), ..machine() };
        let finding = only(check(&dumped_on(machine()), &old, None), Class::Host);
        assert_eq!(finding.what, "kernel 4.19.0-27-amd64 is older than 5.6");
        let finding = only(check(&dumped_on(machine()), &machine(), Some((4, 1, 1))), Class::Host);
        assert_eq!(finding.what, "CRIU 4.1.1 is older than 4.2.1, which made the image");
        assert_eq!(finding.remedy, "use CRIU 4.2 or newer");
        assert_eq!(check(&dumped_on(machine()), &machine(), Some((4, 2, 0))), []);
    }

    #[test]
    fn all_findings_come_at_once() {
        let poor = Machine {
            kernel: "4.4.0".into(),
            cpu_features: Vec::new(),
            xcr0: 3,
            page_size: 16384,
            ..machine()
        };
        assert_eq!(check(&dumped_on(machine()), &poor, Some((3, 17, 1))).len(), 5);
    }
}
