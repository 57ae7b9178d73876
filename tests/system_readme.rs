//! Tier 2: the README's sessions, run as they stand, and its table, made again from the samples.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test says by a panic what is wrong")]

mod support;

use std::path::Path;
use std::process::{Command, Stdio};

use support::Host;
use support::process::end;

fn readme() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap()
}

/// What stands between two comments of the README.
fn between(start: &str, stop: &str) -> String {
    let text = readme();
    let start = text.find(start).unwrap_or_else(|| panic!("the README has no `{start}`"));
    let length = text[start..].find(stop).unwrap_or_else(|| panic!("the README has no `{stop}`"));
    text[start..start + length].to_owned()
}

/// The commands of all sessions, one after the other.
fn sessions() -> String {
    let text = readme();
    let parts = text.split("<!-- session:").skip(1).map(|rest| {
        let (part, _) = rest.split_once("<!-- end of session -->").expect("a session has an end");
        part.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap()
    });
    let parts: Vec<&str> = parts.collect();
    assert_eq!(parts.len(), 3, "the README has three sessions");
    parts.concat()
}

#[test]
fn the_session_works_as_it_stands() {
    let Some(host) = Host::for_test("the_session_works_as_it_stands") else { return };
    let session = sessions();
    // Installed commands are found in PATH.
    let defrost = Path::new(env!("CARGO_BIN_EXE_defrost")).parent().unwrap();
    let criu = host.criu.parent().unwrap();
    let path = format!("{}:{}:/usr/sbin:/usr/bin:/sbin:/bin", defrost.display(), criu.display());
    // A step that fails ends the session; a step that hangs is ended.
    let script = format!("set -e -o pipefail\n{session}");
    let mut command = Command::new("timeout");
    command.args(["--kill-after=1", "120", "bash", "-c", &script]).current_dir(host.folder());
    command.env("PATH", path).env("XDG_RUNTIME_DIR", host.folder()).stdin(Stdio::null());
    let log = std::fs::File::create(host.path("session.log")).unwrap();
    let status = command.stdout(log.try_clone().unwrap()).stderr(log).status().unwrap();
    let said = std::fs::read_to_string(host.path("session.log")).unwrap();
    // A session that failed may have left the server that it restored.
    for pid in said.lines().filter_map(|line| line.parse::<i32>().ok()) {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if name.trim_end() == "defrost" {
            end(pid);
        }
    }
    assert!(status.success(), "{said}");
    assert!(said.contains("img is complete"), "{said}");
    assert!(said.contains("generation 2"), "{said}");
    assert!(said.contains("web-3.sock"), "{said}");
    assert!(said.contains("img3") && !host.path("img2").exists(), "{said}");
    assert!(said.contains("1000 of 1000 messages answered"), "{said}");
    assert!(host.path("img4").is_dir(), "{said}");
}

#[test]
fn the_table_is_that_of_its_run() {
    let block = between("<!-- table: ", "<!-- end of table -->");
    let (command, table) = block.split_once(" -->\n").unwrap();
    let words: Vec<&str> = command.trim_start_matches("<!-- table: ").split(' ').collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let printed = Command::new(root.join(words[0])).args(&words[1..]).current_dir(root).output().unwrap();
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    assert_eq!(table.trim(), String::from_utf8(printed.stdout).unwrap().trim());
}
