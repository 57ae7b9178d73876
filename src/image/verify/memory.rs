//! Whether there is memory for what is brought back.

use std::fs;

use super::finding::{Class, Finding};

pub(super) fn check(present: u64, copies: u32, available: Option<u64>) -> Option<Finding> {
    let needed = present.saturating_mul(u64::from(copies));
    let available = available.filter(|available| *available < needed)?;
    let shown = |bytes: u64| format!("{} MiB", bytes.div_ceil(1 << 20));
    let each = if copies > 1 { format!(" for {copies} copies") } else { String::new() };
    Some(Finding::new(
        Class::Host,
        format!("restore needs {} of memory{each}, {} are available", shown(needed), shown(available)),
        "stop something that uses memory, or raise the memory limit".into(),
    ))
}

/// Memory that new processes of this one can have without swapping: the host's, or what its control group
/// (version 2) leaves if that is less.
pub(super) fn available() -> Option<u64> {
    let host = field(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:").map(|kib| kib * 1024);
    match (host, left_in_group()) {
        (Some(host), Some(group)) => Some(host.min(group)),
        (host, group) => host.or(group),
    }
}

fn left_in_group() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?.trim_end_matches('/');
    let read = |name| fs::read_to_string(format!("/sys/fs/cgroup{path}/{name}")).ok();
    // "max" where there is no limit.
    let limit: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    // Cached files count as used, and give way.
    let cache = field(&read("memory.stat")?, "inactive_file").unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cache)))
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_memory_is_told_with_both_amounts() {
        assert_eq!(check(8 << 20, 1, Some(8 << 20)), None);
        assert_eq!(check(8 << 20, 1, None), None);
        let finding = check(1 << 30, 1, Some(512 << 20)).unwrap();
        assert_eq!(finding.what, "restore needs 1024 MiB of memory, 512 MiB are available");
        assert_eq!(finding.class, Class::Host);
        let finding = check(300 << 20, 4, Some(1 << 30)).unwrap();
        assert_eq!(finding.what, "restore needs 1200 MiB of memory for 4 copies, 1024 MiB are available");
        assert!(check(u64::MAX, u32::MAX, Some(1)).is_some());
    }

    #[test]
    fn this_host_has_some() {
        assert!(available().is_some_and(|bytes| bytes > 1 << 20));
    }
}
