//! Tier 2: the image folder. It can be copied, renamed and linked to, at the very moment when it is said to be
//! complete; any name will do; and an old image stays until the new one is there.

#![allow(clippy::unwrap_used, reason = "a test says by a panic what is wrong")]

mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use command_fds::{CommandFdExt, FdMapping};
use defrost::control::Client;
use nix::sys::signal::Signal;
use support::client::requests;
use support::host::Done;
use support::process::{Running, end, gone};
use support::restored::Restored;
use support::server::{Dumped, NAME};
use support::{Host, PATIENCE, Server, info};

/// The names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// `cp -a`.
#[track_caller]
fn copy(from: &Path, to: &Path) {
    Done::of(Command::new("cp").arg("-a").arg(from).arg(to)).worked();
}

/// The manifest as `defrost inspect --json` shows it.
#[track_caller]
fn manifest(host: &Host, image: &Path) -> serde_json::Value {
    let text = host.run([OsStr::new("inspect"), OsStr::new("--json"), image.as_os_str()]).worked();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn an_image_restores_from_wherever_it_is_taken() {
    let Some(host) = Host::for_test("an_image_restores_from_wherever_it_is_taken") else { return };
    let mut dumped = Server::start(&host, &[]).checkpoint(&host, "img");
    fs::create_dir_all(host.path("weit weg/où ça")).unwrap();
    let mut restores_at = |place: PathBuf| {
        eprintln!("{}", place.display());
        dumped.image = place;
        Restored::plain(&host, &dumped).stop();
        let mut supervisor =
            Running::start(&mut host.defrost([OsStr::new("restore"), dumped.image.as_os_str()]));
        requests(dumped.echo, 1);
        supervisor.signal(Signal::SIGTERM);
        assert_eq!(supervisor.ended().code(), Some(0));
        gone(dumped.pid);
    };
    copy(&host.path("img"), &host.path("copy"));
    fs::remove_dir_all(host.path("img")).unwrap();
    restores_at(host.path("copy"));
    fs::rename(host.path("copy"), host.path("weit weg/où ça/снимок ❄ \"1\"")).unwrap();
    restores_at(host.path("weit weg/où ça/снимок ❄ \"1\""));
    symlink("weit weg/où ça/снимок ❄ \"1\"", host.path("latest")).unwrap();
    restores_at(host.path("latest"));
    restores_at(host.path("weit weg/../latest/"));

    // Relative to the folder where it is started, which is another for a plain restore.
    dumped.image = "../latest".into();
    Restored::plain(&host, &dumped).stop();
    let pid = host.run(["restore", "latest/.", "--wait-ready"]).worked();
    assert_eq!(pid, dumped.pid.to_string());
    requests(dumped.echo, 1);
    end(dumped.pid);
}

#[test]
fn a_target_may_be_spelled_in_any_way() {
    let Some(host) = Host::for_test("a_target_may_be_spelled_in_any_way") else { return };
    for folder in ["two words/ünï", "real", "behind"] {
        fs::create_dir_all(host.path(folder)).unwrap();
    }
    symlink("real", host.path("link")).unwrap();
    symlink("behind", host.path("door")).unwrap();
    let spellings: [(&[u8], &[u8]); 8] = [
        (b"./img", b"img"),
        (b"an image", b"an image"),
        ("снимок ❄".as_bytes(), "снимок ❄".as_bytes()),
        ("two words/ünï/it's".as_bytes(), "two words/ünï/it's".as_bytes()),
        (b"slash/", b"slash"),
        (b"link", b"real"),
        (b"door/../door/img", b"behind/img"),
        (b"not \xff unicode", b"not \xff unicode"),
    ];
    let mut dumped = Server::start(&host, &[]).checkpoint(&host, "first");
    for (spelled, place) in spellings {
        eprintln!("{}", spelled.escape_ascii());
        let restored = Restored::plain(&host, &dumped);
        host.run([OsStr::new("checkpoint"), OsStr::new(NAME), OsStr::from_bytes(spelled)]).worked();
        restored.ended();
        dumped.image = host.path(OsStr::from_bytes(place));
    }
    assert!(host.path("link").is_symlink(), "a link stays a link");

    // On the socket itself, a relative folder is taken from where the server was started.
    let restored = Restored::plain(&host, &dumped);
    assert!(control(&host).request(b"checkpoint from here", PATIENCE).unwrap().ok);
    restored.ended();
    dumped.image = host.path("from here");
    Restored::plain(&host, &dumped).stop();
}

fn control(host: &Host) -> Client {
    Client::connect(&host.path(format!("defrost/{NAME}.sock")), PATIENCE).unwrap()
}

#[test]
fn a_copy_made_at_the_moment_of_done_is_whole_fifty_times() {
    let Some(host) = Host::for_test("a_copy_made_at_the_moment_of_done_is_whole_fifty_times") else { return };
    // What an image needs is hashed for each: a small program, with few threads, makes for a quick turn.
    let mut command = host.at_home(Command::new(host.deploy("server")));
    command.args(Server::arguments(&["--workers", "1"])).stdout(Stdio::piped()).stderr(Stdio::null());
    let server = Server::started(&mut command);
    let (pid, echo, http) = (server.pid, server.echo, server.http);
    let image = host.path("img");
    let mut running = (Some(server), None);
    for round in 1..=50 {
        let answer = control(&host).request(b"checkpoint img", PATIENCE).unwrap();
        let taken = host.path(format!("copy-{round}"));
        copy(&image, &taken);
        assert!(answer.ok, "{}", answer.text);
        // Whatever is written from now on is written to what nobody restores.
        fs::remove_dir_all(&image).unwrap();
        drop(running);
        gone(pid);
        let dumped = Dumped { pid, echo, http, image: taken };
        running = (None, Some(host.plain_restore(&dumped.image)));
        requests(echo, 1);
    }
    assert_eq!(info(http)["generation"], 50);
}

#[test]
fn the_old_image_stays_when_a_checkpoint_is_refused() {
    let Some(host) = Host::for_test("the_old_image_stays_when_a_checkpoint_is_refused") else { return };
    let dumped = Server::start(&host, &[]).checkpoint(&host, "img");
    let before = manifest(&host, &dumped.image);

    // A socket that nothing has registered, handed over as systemd does, keeps this one from being dumped.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let starter = ["sh", "-c", r#"export LISTEN_FDS=1 LISTEN_PID=$$; exec "$@""#, "sh"];
    let mut command = host.defrost_by(&starter, Server::arguments(&[]));
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    command.fd_mappings(vec![FdMapping { parent_fd: listener.into(), child_fd: 3 }]).unwrap();
    let other = Server::started(&mut command);
    let error = host.run(["checkpoint", NAME, "img"]).failed(1);
    assert!(error.contains("the server goes on"), "{error}");
    requests(other.echo, 20);
    drop(other);

    assert_eq!(manifest(&host, &dumped.image), before);
    assert!(!names(host.folder()).iter().any(|name| name.contains("partial")), "{:?}", names(host.folder()));
    Restored::plain(&host, &dumped).stop();
}

#[test]
fn the_old_image_stays_when_the_disk_is_full() {
    let Some(host) = Host::for_test("the_old_image_stays_when_the_disk_is_full") else { return };
    fs::create_dir(host.path("small")).unwrap();
    let script = r#"mount -t tmpfs -o size=12m,mode=0700 none small && exec "$@""#;
    let arguments = Server::arguments(&["--warm-mib", "6"]);
    let mut command = host.defrost_by(&["unshare", "--mount", "sh", "-c", script, "sh"], arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let server = Server::started(&mut command);
    let small = PathBuf::from(format!("/proc/{}/root", server.pid))
        .join(host.path("small").strip_prefix("/").unwrap());
    let checkpoint = || host.run(["checkpoint", NAME, "small/img", "--leave-running"]);
    checkpoint().worked();
    let before = manifest(&host, &small.join("img"));

    let error = checkpoint().failed(1);
    assert!(error.contains("the server goes on") && error.contains("hint: "), "{error}");
    requests(server.echo, 20);
    assert_eq!(info(server.http)["ready"], true);
    assert_eq!(manifest(&host, &small.join("img")), before);
    assert!(!names(&small).iter().any(|name| name.contains("partial")), "{:?}", names(&small));

    // What was kept is good, and with some room again the next one succeeds.
    let kept = host.path("kept");
    copy(&small.join("img"), &kept);
    fs::remove_dir_all(small.join("img")).unwrap();
    checkpoint().worked();
    let dumped = Dumped { pid: server.pid, echo: server.echo, http: server.http, image: kept };
    let mut server = server;
    server.signal(Signal::SIGTERM);
    server.process.ended();
    gone(dumped.pid);
    Restored::plain(&host, &dumped).stop();
}

#[test]
fn a_target_that_cannot_become_an_image_is_refused_and_nothing_is_lost() {
    let name = "a_target_that_cannot_become_an_image_is_refused_and_nothing_is_lost";
    let Some(host) = Host::for_test(name) else { return };
    fs::create_dir_all(host.path("photos")).unwrap();
    fs::write(host.path("photos/cat.jpg"), "cat").unwrap();
    fs::write(host.path("file"), "text").unwrap();
    fs::create_dir(host.path("open")).unwrap();
    fs::set_permissions(host.path("open"), fs::Permissions::from_mode(0o777)).unwrap();
    symlink("nowhere", host.path("dangling")).unwrap();
    let server = Server::start(&host, &[]);
    let before = names(host.folder());
    for (target, said) in [
        ("photos", "photos is not empty and holds no image"),
        ("missing/img", "missing does not exist"),
        ("open/img", "open can be written by everybody"),
        ("file", "file exists and is not a folder"),
        ("file/img", "file is not a folder"),
        ("dangling", "dangling is a symbolic link that leads nowhere"),
        ("/", "names no folder"),
    ] {
        let error = host.run(["checkpoint", NAME, target]).failed(1);
        assert!(error.contains(said) && error.contains("hint: "), "{target}: {error}");
        assert!(error.contains("the server goes on"), "{target}: {error}");
        requests(server.echo, 1);
    }
    assert_eq!(names(host.folder()), before);
    assert_eq!(names(&host.path("photos")), ["cat.jpg"]);
    assert_eq!(names(&host.path("open")), Vec::<String>::new());
    server.checkpoint(&host, "img");
}

#[test]
fn leave_running_twice_replaces_the_image_each_time() {
    let Some(host) = Host::for_test("leave_running_twice_replaces_the_image_each_time") else { return };
    let server = Server::start(&host, &[]);
    let mut made = Vec::new();
    for _ in 0..2 {
        let said = host.run(["checkpoint", NAME, "img", "--leave-running"]).worked();
        assert!(said.contains("the server goes on"), "{said}");
        requests(server.echo, 20);
        made.push(manifest(&host, &host.path("img"))["created_unix_ns"].as_u64().unwrap());
        let found = names(host.folder());
        assert!(!found.iter().any(|name| name.starts_with('.')), "{found:?}");
    }
    assert!(made[0] < made[1], "{made:?}");
    let dumped = Dumped { pid: server.pid, echo: server.echo, http: server.http, image: host.path("img") };
    let mut server = server;
    server.signal(Signal::SIGTERM);
    server.process.ended();
    gone(dumped.pid);
    Restored::plain(&host, &dumped).stop();
}

#[test]
fn an_image_is_its_owners_alone_and_says_what_is_in_it() {
    let Some(host) = Host::for_test("an_image_is_its_owners_alone_and_says_what_is_in_it") else { return };
    let starter = ["sh", "-c", r#"umask 0; exec "$@""#, "sh"];
    let mut command = host.defrost_by(&starter, Server::arguments(&["--warm-mib", "4"]));
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let dumped = Server::started(&mut command).checkpoint(&host, "img");

    assert_eq!(fs::metadata(&dumped.image).unwrap().mode() & 0o7777, 0o700);
    for name in names(&dumped.image) {
        let mode = fs::metadata(dumped.image.join(&name)).unwrap().mode();
        assert_eq!(mode & 0o022, 0, "{name} can be written by others: {mode:o}");
    }

    let manifest = manifest(&host, &dumped.image);
    let subject = &manifest["subject"];
    assert_eq!((&subject["name"], &subject["pid"]), (&NAME.into(), &dumped.pid.into()));
    assert_eq!((&subject["generation"], &subject["leave_running"]), (&0.into(), &false.into()));
    assert_eq!(subject["cwd"].as_str().unwrap(), host.folder().to_str().unwrap());
    assert!(subject["argv"].as_array().unwrap().contains(&"--warm-mib".into()), "{subject}");
    let listens = subject["listens"].as_array().unwrap();
    for (name, port) in [("echo", dumped.echo), ("http", dumped.http)] {
        let address = format!("127.0.0.1:{port}");
        assert!(
            listens.iter().any(|listen| listen["name"] == name && listen["address"] == *address),
            "{listens:?}"
        );
    }
    assert_eq!(manifest["criu"]["restore_flags"], serde_json::json!([]), "a plain restore needs no flag");
    assert_eq!(manifest["processes"].as_array().unwrap().len(), 1);
    assert_eq!(manifest["processes"][0]["pid"], dumped.pid);
    assert!(manifest["present_bytes"].as_u64() > Some(4 << 20), "{}", manifest["present_bytes"]);
    for field in ["defrost", "machine", "capabilities", "needed", "files", "phases"] {
        assert!(!manifest[field].is_null(), "{field}");
    }
    let text = host.run(["inspect", "img"]).worked();
    for part in [NAME, &dumped.pid.to_string(), &dumped.echo.to_string(), "--warm-mib", "flags        none"] {
        assert!(text.contains(part), "`{part}` is not in:\n{text}");
    }
}
