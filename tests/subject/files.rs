//! Files, logs, Unix sockets and standard streams through real dumps and restores.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;

use async_trait::async_trait;
use defrost::adapters::{DataFile, DataFileOptions, LogFile, UnixListener, UnixOptions};
use defrost::resource::HookError;
use defrost::{Resource, Wake};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::role::Role;
use super::stage::{Image, Stage, gone};
use crate::support::process::lives;
use crate::support::{PATIENCE, until};

const DATA: &str = "data";
const LOG: &str = "server.log";
const SOCKET: &str = "server.sock";

/// Uses files when it is woken, as the server's own tasks would.
struct Reader {
    role: Role,
    data: Option<DataFile>,
    log: LogFile,
}

impl Reader {
    async fn read_ten(&self) -> String {
        let Some(data) = &self.data else { return String::new() };
        let mut ten = [0; 10];
        data.lock().await.unwrap().read_exact(&mut ten).unwrap();
        String::from_utf8(ten.to_vec()).unwrap()
    }
}

#[async_trait]
impl Resource for Reader {
    async fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        self.role.diary.note("read", self.read_ten().await);
        writeln!(self.log.make_writer()(), "awake, {wake}")?;
        // Printing to a stream that nobody holds any more would end the process.
        println!("awake, {wake}");
        Ok(())
    }
}

pub fn program(role: Role) {
    Role::run(async move {
        let stand = role.open();
        let context = stand.subject.context();
        let log = LogFile::open(context, "log", role.path(LOG)).unwrap();
        writeln!(log.make_writer()(), "cold").unwrap();
        let data = role.option("data").map(|_| {
            DataFile::open(context, "data", role.path(DATA), DataFileOptions::new().read(true)).unwrap()
        });
        let socket = UnixOptions::new().mode(0o640).bind(context, "admin", role.path(SOCKET)).unwrap();
        tokio::spawn(answer(socket));
        let reader = Reader { role: role.clone(), data, log };
        role.diary.note("read", reader.read_ten().await);
        stand.register("reader", reader);
        println!("cold");
        stand.serve().await;
    });
}

/// Echoes one line of each client.
async fn answer(socket: UnixListener) {
    loop {
        let (mut stream, _) = socket.accept().await.unwrap();
        let mut line = [0; 5];
        if stream.read_exact(&mut line).await.is_ok() {
            let _ = stream.write_all(&line).await;
        }
    }
}

/// Two restores go on reading where the dump was. A file that has changed meanwhile is told, and not read.
pub fn a_data_file_goes_on_at_its_offset(stage: &Stage) {
    let data = stage.host.path(DATA);
    fs::write(&data, "0123456789abcdefghijABCDEFGHIJ").unwrap();
    let image = stage.start("files", &["data=yes"]).checkpoint(stage, "img");
    assert_eq!(stage.diary.texts("read"), ["0123456789"]);
    for number in 1..=2 {
        let (revived, _) = stage.revive(&image, number);
        assert_eq!(stage.diary.read("read", 1 + number), "abcdefghij");
        revived.end();
    }
    fs::OpenOptions::new().append(true).open(&data).unwrap().write_all(b"more").unwrap();
    let changed =
        format!("data file {} has changed since the dump: its size was 30 bytes and is 34", data.display());
    for more in [&["--wait-ready"][..], &[]] {
        let text = stage.restore_fails(&image, more);
        assert!(
            text.contains(&changed) && text.contains("after_restore") && text.contains("hint: "),
            "{text}"
        );
    }
    fs::remove_file(&data).unwrap();
    let text = stage.restore_fails(&image, &[]);
    assert!(text.contains("it is missing"), "{text}");
}

/// Cases 3 and 5: whatever became of the log, what is written after a restore is at its path.
pub fn a_log_may_grow_rotate_or_vanish(stage: &Stage) {
    let log = stage.host.path(LOG);
    let actor = stage.start("files", &[]);
    let image = actor.checkpoint_running(stage, "img");
    assert_eq!(fs::read_to_string(&log).unwrap(), "cold\nawake, resumed\n", "grown since the dump");
    assert_eq!(actor.stop().code(), Some(0));
    let mut number = 0;
    let mut restored = |expected: &str| {
        number += 1;
        let (revived, _) = stage.revive(&image, number);
        assert_eq!(fs::read_to_string(&log).unwrap(), expected);
        revived.end();
    };
    restored("cold\nawake, resumed\nawake, restored\n");
    fs::rename(&log, stage.host.path("server.log.1")).unwrap();
    restored("awake, restored\n");
    fs::write(&log, "").unwrap();
    restored("awake, restored\n");
    fs::remove_file(&log).unwrap();
    restored("awake, restored\n");
    let rotated = fs::read_to_string(stage.host.path("server.log.1")).unwrap();
    assert_eq!(rotated, "cold\nawake, resumed\nawake, restored\n", "the old one is left alone");
}

#[track_caller]
fn answers_at(path: &Path) {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"hello").unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"hello");
    assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o640);
}

/// The path, which a killed process leaves behind, is taken again, or made again.
pub fn a_unix_listener_has_its_path_again(stage: &Stage) {
    let path = stage.host.path(SOCKET);
    let actor = stage.start("files", &[]);
    answers_at(&path);
    let image = actor.checkpoint(stage, "img");
    for number in 1..=2 {
        let (revived, _) = stage.revive(&image, number);
        answers_at(&path);
        revived.end();
    }
    fs::remove_file(&path).unwrap();
    let (revived, _) = stage.revive(&image, 3);
    answers_at(&path);
    revived.end();
    let elsewhere = stage.host.path("elsewhere.sock");
    let set = format!("admin.listen={}", elsewhere.display());
    let (revived, _) = stage.restore(&image, &["--set", &set], 4);
    answers_at(&elsewhere);
    revived.end();
    assert!(!path.exists(), "the path that it has left is of no use to anybody");
    fs::write(&path, "somebody's").unwrap();
    let text = stage.restore_fails(&image, &[]);
    assert!(text.contains("exists and is not a socket"), "{text}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "somebody's");
}

/// A pipe as standard output is given back to a process that goes on, and no restored one depends on it.
pub fn standard_streams_do_not_tie_it_down(stage: &Stage) {
    let mut actor = stage.started(stage.command("files", &[]).stdout(Stdio::piped()));
    let mut lines = BufReader::new(actor.process.child().stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "cold");
    actor.checkpoint_running(stage, "img");
    assert_eq!(lines.next().unwrap().unwrap(), "awake, resumed");
    let image = actor.checkpoint(stage, "img");
    assert!(lines.next().is_none());
    let (revived, _) = stage.revive(&image, 1);
    for number in 0..=2 {
        let target = fs::read_link(format!("/proc/{}/fd/{number}", revived.pid)).unwrap();
        assert_eq!(target, Path::new("/dev/null"), "descriptor {number}");
    }
    assert!(lives(revived.pid));
    revived.end();
}

/// Somebody else has the port: verification says so, and a plain restore, which has none, leaves nothing behind.
pub fn a_port_taken_at_restore_time(stage: &Stage) {
    let image: Image = stage.start("files", &[]).checkpoint(stage, "img");
    let thief = std::net::TcpListener::bind(("127.0.0.1", image.port)).unwrap();
    // Nothing verifies a plain restore.
    let mut criu = stage.host.plain_restore(&image.path);
    until("the restored process", || lives(image.pid));
    criu.ended();
    gone(image.pid);
    let refused = crate::support::host::Done::of(&mut stage.restoring(&image, &[]));
    assert!(refused.status == 3 || refused.status == 4, "{refused:?}");
    assert!(refused.err.contains(&image.port.to_string()) && refused.err.contains("hint: "), "{refused:?}");
    drop(thief);
    let restored = stage.diary.texts("restored").len();
    let (revived, _) = stage.restore(&image, &[], restored + 1);
    revived.end();
}
