//! Tier 2: images that depend on earlier ones, as a process restored by mapping leaves them: restored by every
//! engine, refused when an ancestor is not what it was, guarded against removal, and made whole.

#![allow(clippy::unwrap_used, reason = "a test says by a panic what is wrong")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod support;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use support::client::{get, requests};
use support::process::{Running, end, gone};
use support::restored::{Restored, nothing_runs};
use support::server::{Dumped, NAME};
use support::{Host, Server, info};

const WARM: [&str; 2] = ["--warm-mib", "4"];

/// `defrost restore IMAGE` in the foreground, with these further arguments, when it serves with all of its memory.
#[track_caller]
fn restored(host: &Host, dumped: &Dumped, image: &str, more: &[&str]) -> Running {
    let arguments = ["restore", image];
    let supervisor = Running::start(&mut host.defrost(arguments.iter().chain(more)));
    requests(dumped.echo, 10);
    assert_eq!(get(dumped.http, "/checksum").0, 200, "{image} by {more:?}");
    supervisor
}

/// Kills the server, which its supervisor tells by its status.
#[track_caller]
fn kill_under(supervisor: &mut Running, dumped: &Dumped) {
    kill(Pid::from_raw(dumped.pid), Signal::SIGKILL).unwrap();
    assert_eq!(supervisor.ended().code(), Some(128 + 9));
    gone(dumped.pid);
}

const MAPPED: [&str; 4] = ["--engine", "instant", "--memory", "map"];

/// A server, and images `img0` to `imgN` of it, each made of a process that was restored by mapping the one before.
#[track_caller]
fn chain(host: &Host, generations: u32) -> Dumped {
    let mut dumped = Server::start(host, &WARM).checkpoint(host, "img0");
    for generation in 1..=generations {
        let mut supervisor = restored(host, &dumped, &format!("img{}", generation - 1), &MAPPED);
        assert_eq!(info(dumped.http)["generation"], generation);
        host.run(["checkpoint", NAME, &format!("img{generation}")]).worked();
        assert_eq!(supervisor.ended().code(), Some(0), "ended by intent");
        dumped.image = host.path(format!("img{generation}"));
    }
    dumped
}

/// Restores an image by plain `criu restore`, and by each engine, and sees that all its memory is there.
#[track_caller]
fn restores_by_all(host: &Host, dumped: &Dumped, image: &str) {
    let dumped = Dumped { image: host.path(image), ..dumped.clone() };
    let plain = Restored::plain(host, &dumped);
    assert_eq!(get(dumped.http, "/checksum").0, 200);
    plain.stop();
    let copied = ["--engine", "instant", "--memory", "copy"];
    for more in [&["--engine", "criu"][..], &copied, &MAPPED] {
        let mut supervisor = restored(host, &dumped, image, more);
        kill_under(&mut supervisor, &dumped);
    }
}

#[track_caller]
fn manifest(host: &Host, image: &str) -> Value {
    serde_json::from_str(&host.run(["inspect", "--json", image]).worked()).unwrap()
}

/// What `defrost image ls` says of the images in the test's folder.
#[track_caller]
fn list(host: &Host) -> Vec<Value> {
    serde_json::from_str(&host.run(["image", "ls", "--json"]).worked()).unwrap()
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

#[test]
fn three_generations_are_a_chain_that_every_engine_restores() {
    let name = "three_generations_are_a_chain_that_every_engine_restores";
    let Some(host) = Host::for_test(name) else { return };
    let dumped = chain(&host, 2);
    restores_by_all(&host, &dumped, "img2");

    let pages = host.path("img0/pages-1.img");
    assert!(size(&pages) > 4 << 20 && size(&host.path("img1/pages-1.img")) < 4 << 20);
    let [first, second, third] = ["img0", "img1", "img2"].map(|image| manifest(&host, image));
    assert_eq!((&first["ancestors"], &first["depth"]), (&serde_json::json!([]), &0.into()));
    assert!(second["depth"] == 1 && third["depth"].as_u64() >= Some(1));
    for dependent in [&second, &third] {
        let ancestor = &dependent["ancestors"][0];
        assert_eq!(ancestor["image"], host.path("img0").to_str().unwrap());
        assert_eq!((&ancestor["id"], &ancestor["files"][0]["size"]), (&first["id"], &size(&pages).into()));
        assert!(ancestor["files"][0]["mapped_bytes"].as_u64() >= Some(4 << 20), "{ancestor}");
        assert!(!dependent["needed"].to_string().contains("pages-1.img"), "it is listed twice");
    }

    let listed = list(&host);
    let images: Vec<_> = listed.iter().map(|entry| entry["image"].as_str().unwrap().to_owned()).collect();
    let paths = ["img0", "img1", "img2"].map(|image| host.path(image).to_str().unwrap().to_owned());
    assert_eq!(images, paths);
    assert!(listed[0]["needed_by"].as_array().unwrap().contains(&paths[1].as_str().into()), "{listed:#?}");
    assert_eq!(listed[1]["depends_on"][0]["image"], paths[0]);
    let text = host.run(["image", "ls"]).worked();
    assert!(text.contains(&format!("depends on {}", paths[0])) && text.contains("needed by image"), "{text}");
    let text = host.run(["inspect", "img1"]).worked();
    assert!(text.contains(&format!("of image {}", paths[0])), "{text}");
}

/// Sees that a restore is refused because of what became of `img0`.
#[track_caller]
fn refused(host: &Host, dumped: &Dumped, more: &[&str], words: &str) {
    for engine in ["criu", "instant"] {
        let arguments = [&["restore", "img1", "--engine", engine], more].concat();
        let error = host.run(arguments).failed(4);
        let dependence = format!("image depends on {}, {words}", host.path("img0").display());
        assert!(error.contains(&dependence) && error.contains("hint: "), "{error}");
        nothing_runs(dumped);
    }
}

#[test]
fn an_ancestor_that_is_not_what_it_was_is_found() {
    let Some(host) = Host::for_test("an_ancestor_that_is_not_what_it_was_is_found") else { return };
    let dumped = chain(&host, 1);
    let pages = host.path("img0/pages-1.img");
    let file = fs::File::options().read(true).write(true).open(&pages).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 5000).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 5000).unwrap();
    refused(&host, &dumped, &[], "whose pages-1.img has other contents than at the dump");
    file.write_all_at(&byte, 5000).unwrap();
    restores_by_all(&host, &dumped, "img1");

    let length = size(&pages);
    file.set_len(length + 4096).unwrap();
    refused(&host, &dumped, &[], &format!("whose pages-1.img has {} bytes", length + 4096));
    file.set_len(length).unwrap();

    fs::rename(host.path("img0"), host.path("moved")).unwrap();
    refused(&host, &dumped, &[], "which is gone");
    let problems = list(&host)[0]["problems"].to_string();
    assert!(problems.contains("which is gone"), "{problems}");
    // It could be moved back, so it is still needed.
    let error = host.run(["image", "rm", "moved"]).failed(1);
    assert!(error.contains("is needed by image"), "{error}");
    host.run(["image", "flatten", "img1"]).failed(4);

    // Another image lies there, of another server.
    let other = Server::start(&host, &WARM).checkpoint(&host, "img0");
    refused(&host, &dumped, &["--verify", "full"], "where another image lies now");
    nothing_runs(&other);
    fs::remove_dir_all(host.path("img0")).unwrap();
    fs::rename(host.path("moved"), host.path("img0")).unwrap();
    let mut supervisor = restored(&host, &dumped, "img1", &MAPPED);
    kill_under(&mut supervisor, &dumped);
}

#[test]
fn an_image_that_is_needed_is_neither_removed_nor_replaced() {
    let name = "an_image_that_is_needed_is_neither_removed_nor_replaced";
    let Some(host) = Host::for_test(name) else { return };
    let dumped = chain(&host, 1);
    let dependent = format!("is needed by image {}", host.path("img1").display());
    let error = host.run(["image", "rm", "img0"]).failed(1);
    assert!(error.contains(&dependent), "{error}");
    assert!(error.contains("defrost image flatten") && error.contains("--force"), "{error}");

    let server = Server::start(&host, &WARM);
    let error = host.run(["checkpoint", NAME, "img0"]).failed(1);
    assert!(error.contains("cannot be replaced") && error.contains(&dependent), "{error}");
    assert!(error.contains("the server goes on") && error.contains("name another folder"), "{error}");
    requests(server.echo, 1);
    drop(server);

    // What depends on it is whole now, but a process still has its memory there.
    let whole = host.run(["image", "flatten", "img1"]).worked();
    assert!(whole.contains("depends on no other image"), "{whole}");
    let mut supervisor = restored(&host, &dumped, "img0", &MAPPED);
    let error = host.run(["image", "rm", "img0"]).failed(1);
    assert!(error.contains(&format!("is needed by process {}", dumped.pid)), "{error}");
    assert_eq!(list(&host)[0]["used_by"], serde_json::json!([dumped.pid]));
    let error = host.run(["image", "flatten", "img1", "--to", "img0"]).failed(1);
    assert!(error.contains("cannot be replaced: it is needed by process"), "{error}");
    kill_under(&mut supervisor, &dumped);

    let removed = host.run(["image", "rm", "img0"]).worked();
    assert_eq!(removed, format!("{} was removed", host.path("img0").display()));
    assert!(!host.path("img0").exists());
    restores_by_all(&host, &dumped, "img1");
    assert_eq!(hidden(&host), [] as [PathBuf; 0]);
    host.run(["image", "rm", "img0"]).failed(4);
    fs::create_dir(host.path("photos")).unwrap();
    fs::write(host.path("photos/cat.jpg"), "cat").unwrap();
    host.run(["image", "rm", "photos", "--force"]).failed(1);
    assert!(host.path("photos/cat.jpg").exists());
}

/// What begins with a dot in the test's folder.
fn hidden(host: &Host) -> Vec<PathBuf> {
    let paths = fs::read_dir(host.folder()).unwrap().map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.file_name().unwrap().to_str().is_some_and(|name| name.starts_with('.')))
        .collect()
}

#[test]
fn the_last_of_a_chain_is_made_whole_and_goes_on() {
    let Some(host) = Host::for_test("the_last_of_a_chain_is_made_whole_and_goes_on") else { return };
    let dumped = chain(&host, 2);
    let dependent = manifest(&host, "img2");
    host.run(["image", "flatten", "img2", "--to", "whole"]).worked();
    assert_eq!(manifest(&host, "img2"), dependent, "the other one stays as it was");
    let whole = manifest(&host, "whole");
    assert_eq!((&whole["ancestors"], &whole["depth"]), (&serde_json::json!([]), &0.into()));
    assert!(size(&host.path("whole/pages-1.img")) > 4 << 20);
    for image in ["img2", "img1", "img0"] {
        host.run(["image", "rm", image]).worked();
    }
    restores_by_all(&host, &dumped, "whole");

    // It is the beginning of a new chain.
    let mut supervisor = restored(&host, &dumped, "whole", &MAPPED);
    host.run(["checkpoint", NAME, "next"]).worked();
    assert_eq!(supervisor.ended().code(), Some(0));
    assert_eq!(manifest(&host, "next")["ancestors"][0]["id"], whole["id"]);
    let pid = host.run(["restore", "next", "--wait-ready"]).worked();
    assert_eq!(pid, dumped.pid.to_string());
    assert_eq!(get(dumped.http, "/checksum").0, 200);
    end(dumped.pid);
}

#[test]
fn killed_while_it_is_made_whole_an_image_stays_as_it_was() {
    let name = "killed_while_it_is_made_whole_an_image_stays_as_it_was";
    let Some(host) = Host::for_test(name) else { return };
    let dumped = chain(&host, 1);
    let before = manifest(&host, "img1");
    let begun = Instant::now();
    host.run(["image", "flatten", "img1", "--to", "timed"]).worked();
    let whole = begun.elapsed();
    let rounds = 12_u32;
    let mut killed = 0;
    for round in 0..rounds {
        let mut command = host.defrost(["image", "flatten", "img1"]);
        let mut flattening = Running::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
        std::thread::sleep(whole * round / rounds + Duration::from_millis(1));
        if flattening.has_ended().is_some() {
            break;
        }
        flattening.signal(Signal::SIGKILL);
        flattening.ended();
        let now = manifest(&host, "img1");
        if now["depth"] == 0 {
            // It was done but for its last word.
            break;
        }
        assert_eq!(now, before, "round {round}");
        host.run(["restore", "img1", "--engine", "simulated", "--verify", "full"]).worked();
        killed += 1;
    }
    assert!(killed > 0, "it was never killed in the middle");
    host.run(["image", "flatten", "img1"]).worked();
    host.run(["image", "rm", "img0"]).worked();
    restores_by_all(&host, &dumped, "img1");
    host.run(["image", "rm", "img1"]).worked();
    assert_eq!(hidden(&host), [] as [PathBuf; 0], "what was left behind is swept");
}
