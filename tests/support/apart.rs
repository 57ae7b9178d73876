//! Restores in namespaces of their own: clones as the command tells them, and what must be gone afterwards.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::client::get;
use super::process::lives;
use super::{Host, info, until};

/// What `--json` prints.
#[derive(Debug, Deserialize)]
pub struct Listed {
    pub clones: Vec<Clone>,
}

/// One clone of it.
#[derive(Debug, Deserialize)]
pub struct Clone {
    pub number: usize,
    pub pid: i32,
    pub instance: String,
    pub generation: u64,
    pub socket: String,
    pub addresses: BTreeMap<String, String>,
    pub pss_kib: Option<u64>,
}

impl Clone {
    #[track_caller]
    pub fn port(&self, name: &str) -> u16 {
        self.addresses[name].rsplit_once(':').unwrap().1.parse().unwrap()
    }

    /// Sees that it is what answers at its address, and is what it said.
    #[track_caller]
    pub fn is_itself(&self) {
        let info = info(self.port("http"));
        assert_eq!(info["instance"], self.instance.as_str());
        assert_eq!(info["generation"], self.generation);
    }
}

/// Restores clones with these arguments, which are to be detached.
#[track_caller]
pub fn clones(host: &Host, image: &str, more: &[&str]) -> Vec<Clone> {
    let arguments = ["restore", image, "--detach", "--json"];
    let said = host.run(arguments.iter().chain(more)).worked();
    serde_json::from_str::<Listed>(&said).unwrap_or_else(|error| panic!("{error}: {said}")).clones
}

/// The first random numbers of a server.
#[track_caller]
pub fn random_numbers(port: u16, count: usize) -> Vec<String> {
    (0..count).map(|_| get(port, "/random").1).collect()
}

/// Waits until no process of the test is left; zombies are up to whoever reaps orphans here.
#[track_caller]
pub fn nothing_is_left(host: &Host) {
    until("the end of all processes", || host.processes().into_iter().all(|pid| !lives(pid)));
}

/// The pid namespaces that processes of this test are in.
pub fn namespaces(host: &Host) -> BTreeSet<String> {
    let of = |pid: i32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    host.processes().into_iter().filter_map(of).map(|link| link.display().to_string()).collect()
}
