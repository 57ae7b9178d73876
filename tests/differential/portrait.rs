//! What /proc tells of a halted process: the kernel has state that no image holds, and the engine's process comes about
//! in another way than CRIU's.

use std::fs;

use super::fields::Fields;

/// Lines of /proc/PID/status that are about the past, the moment or the user, and not about the process.
const PASSING: [&str; 5] = ["Vm", "Rss", "SigQ", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"];
/// Files of /proc/PID of one value.
const FILES: [&str; 8] = [
    "cmdline",
    "environ",
    "limits",
    "coredump_filter",
    "oom_score_adj",
    "timerslack_ns",
    "cgroup",
    "setgroups",
];
/// Links of it.
const LINKS: [&str; 10] =
    ["exe", "cwd", "root", "ns/net", "ns/mnt", "ns/pid", "ns/ipc", "ns/uts", "ns/user", "ns/cgroup"];

/// Adds a field for each.
pub fn add(fields: &mut Fields, pid: i32) {
    let mut put = |name: String, value: String| fields.insert(format!("proc {name}"), value);
    for name in FILES {
        let text = fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        put(name.to_owned(), String::from_utf8_lossy(&text).into_owned());
    }
    for name in LINKS {
        put(name.to_owned(), format!("{:?}", fs::read_link(format!("/proc/{pid}/{name}")).ok()));
    }
    for entry in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let folder = entry.unwrap().path();
        let tid = folder.file_name().unwrap().to_string_lossy().into_owned();
        for line in fs::read_to_string(folder.join("status")).unwrap().lines() {
            let (name, value) = line.split_once(':').unwrap();
            if !PASSING.iter().any(|passing| name.starts_with(passing)) {
                put(format!("{tid} {name}"), value.trim().to_owned());
            }
        }
    }
}
