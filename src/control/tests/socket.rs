use std::os::unix::fs::PermissionsExt;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn questions_are_answered_on_one_connection() {
    let server = Server::start(|_| {});
    let mut talk = server.connect().await;
    let status = talk.ask("status").await;
    assert!(
        status.starts_with(&format!("ok: echo, pid {}, ready, generation 0, ", std::process::id())),
        "{status}"
    );
    assert!(status.ends_with(", 1 resource"), "{status}");
    let status: Status = serde_json::from_str(&talk.ask("status json").await).unwrap();
    assert_eq!(
        (status.name.as_str(), status.state, status.engine.as_str()),
        ("echo", State::Ready, "simulated")
    );
    let resources = talk.ask("resources").await;
    let socket = server.socket();
    assert!(
        resources
            .starts_with(&format!("ok: 1 resource: control (unix {}, 1 connection; fifo ", socket.display()))
    );
    assert!(talk.ask("resources json").await.contains("\"resource_count\":1"));
    let audit = talk.ask("audit").await;
    assert!(audit.starts_with("ok: "), "{audit}");
    assert!(
        audit.contains(&format!("unix listener {}, registered by nobody (by control)", socket.display())),
        "{audit}"
    );
    assert!(talk.ask("audit json").await.starts_with("{\"blockers\":["));
    assert!(talk.ask("help\r").await.starts_with("ok: requests are checkpoint DIR"));
    assert!(talk.ask("reboot").await.starts_with("error: unknown request 'reboot'; hint: requests are"));
    talk.send(b"\x00\xff\x7f\x01garbage\n").await;
    assert_eq!(
        talk.line().await,
        "error: the request contains the control character 0x00; hint: send plain words, one request a line"
    );
    assert!(talk.ask("").await.starts_with("error: the request is empty"));
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelined_requests_are_answered_in_order() {
    let server = Server::start(|_| {});
    server.stubborn(1);
    let mut talk = server.connect().await;
    talk.send("help\ncheckpoint ./x leave-running\nresources\nstatus").await;
    talk.0.get_mut().shutdown().await.unwrap();
    assert!(talk.line().await.starts_with("ok: requests"));
    assert_eq!(talk.line().await, WILL_NOT);
    assert!(talk.line().await.starts_with("ok: 2 resources"));
    // The last line has no newline.
    assert!(talk.line().await.starts_with("ok: echo"));
    assert_eq!(talk.line().await, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_checkpoint_is_told_on_the_same_connection() {
    let server = Server::start(|_| {});
    server.stubborn(8);
    let mut talk = server.connect().await;
    for _ in 0..3 {
        assert_eq!(talk.ask("checkpoint ./never made").await, WILL_NOT);
        assert!(talk.ask("status").await.starts_with("ok: echo"));
    }
    let status: Status = serde_json::from_str(&talk.ask("status json").await).unwrap();
    let last = status.last_checkpoint.unwrap();
    assert!(!last.ok && last.text.contains("it will not"));
    assert!(server.connect().await.ask("status").await.starts_with("ok: echo"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_checkpoint_is_refused_while_one_runs() {
    let server = Server::start(|_| {});
    let stubborn = server.stubborn(0);
    let (mut first, mut second) = (server.connect().await, server.connect().await);
    first.send("checkpoint ./a\n").await;
    stubborn.asked.acquire().await.unwrap().forget();
    let refused = second.ask("checkpoint ./b").await;
    assert!(refused.contains("a checkpoint is already running"), "{refused}");
    assert!(second.ask("status").await.contains(", checkpointing, "));
    stubborn.permits.add_permits(1);
    assert_eq!(first.line().await, WILL_NOT);
    // It said nothing when the cycle came to the connections, and had to go.
    assert_eq!(second.line().await, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_cannot_be_understood_or_is_silent_is_closed() {
    let server = Server::start(|options| options.idle_limit = Duration::from_millis(100));
    let mut talk = server.connect().await;
    talk.send(vec![b'x'; LINE_LIMIT + 1]).await;
    assert!(talk.line().await.starts_with("error: the request is longer than 8192 bytes; hint: "));
    assert_eq!(talk.line().await, "");
    let mut silent = server.connect().await;
    assert_eq!(silent.line().await, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_clients_are_told_so() {
    let server = Server::start(|_| {});
    let mut clients = Vec::new();
    for _ in 0..64 {
        let mut client = server.connect().await;
        assert!(client.ask("help").await.starts_with("ok"));
        clients.push(client);
    }
    let refused = server.connect().await.line().await;
    assert!(refused.starts_with("error: there are 64 connections already; hint: "), "{refused}");
    clients.clear();
    let served = async {
        while server.connect().await.ask("help").await.starts_with("error") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(AMPLE, served).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_is_answered_before_the_server_ends() {
    let server = Server::start(|_| {});
    assert_eq!(server.connect().await.ask("stop").await, "ok: the server is about to end");
    assert_eq!(server.stopped().await, StopOrigin::Request(Source::Socket));
    server.control.request_stop();
    assert_eq!(server.stopped().await, StopOrigin::Request(Source::Socket));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_can_stop_itself() {
    let server = Server::start(|_| {});
    server.control.request_stop();
    assert_eq!(server.stopped().await, StopOrigin::Program);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_belongs_to_one_server_and_goes_with_it() {
    let server = Server::start(|_| {});
    let path = server.socket();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    let socket = SocketPlace::Path(path.clone());
    let options = ControlOptions { socket, ..without_signals() };
    let error = Control::start(&server.subject, options).unwrap_err();
    let expected = format!("the socket {} is in use by process {}", path.display(), std::process::id());
    assert_eq!(error.to_string(), expected);
    assert!(server.connect().await.ask("status").await.starts_with("ok"));
    drop(server.control);
    let gone = async {
        while path.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(AMPLE, gone).await.unwrap();
    assert!(server.subject.context().resources().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clone_takes_a_socket_beside_the_original() {
    let server = Server::start(|_| {});
    let home = server.socket();
    let runs = server.subject.context().quiesce(&Cycle::new(true)).await;
    assert!(runs.iter().all(|run| run.outcome.is_ok()));
    std::fs::remove_file(&home).unwrap();
    let original = std::os::unix::net::UnixListener::bind(&home).unwrap();
    server.subject.context().wake(&restored()).await;
    let instance = server.subject.identity().instance.to_string();
    let moved = server.folder.path().join(format!("echo-{}.sock", &instance[..8]));
    assert_eq!(server.socket(), moved);
    assert!(server.connect().await.ask("status").await.starts_with("ok: echo"));
    // The original has ended: the next restore comes back to its place.
    drop(original);
    server.cycle(&restored()).await;
    assert_eq!(server.socket(), home);
    assert!(!moved.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_talks_to_the_server() {
    let server = Server::start(|_| {});
    server.stubborn(1);
    let path = server.socket();
    let answers = tokio::task::spawn_blocking(move || {
        let mut client = Client::connect(&path, AMPLE).unwrap();
        [client.request(b"status", AMPLE).unwrap(), client.request(b"checkpoint x", AMPLE).unwrap()]
    });
    let [status, checkpoint] = answers.await.unwrap();
    assert!(status.ok && status.text.starts_with("echo, pid "));
    assert!(!checkpoint.ok && checkpoint.text.ends_with("; the server goes on"));
    assert_eq!(checkpoint.hint.as_deref(), Some("mend what stubborn complains of and ask again"));
}

#[tokio::test]
async fn bad_options_start_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let subject = Subject::new("no name").unwrap();
    let start = |change: &dyn Fn(&mut ControlOptions)| {
        let socket = SocketPlace::Path(folder.path().join("s"));
        let mut options = ControlOptions { socket, ..without_signals() };
        change(&mut options);
        let error = Control::start(&subject, options).unwrap_err();
        assert!(error.hint().is_some());
        error.to_string()
    };
    assert!(start(&|options| options.socket = SocketPlace::Default).contains("the name 'no name' contains"));
    assert!(
        start(&|options| options.checkpoint_to = Some("%q".to_owned())).contains("unknown sequence '%q'")
    );
    std::fs::write(folder.path().join("file"), "").unwrap();
    let fifo = folder.path().join("file");
    assert!(start(&|options| options.fifo = Some(fifo.clone())).contains("is a file of another kind"));
    let long = folder.path().join("x".repeat(120));
    assert!(
        start(&|options| options.socket = SocketPlace::Path(long.clone())).starts_with("no control socket: ")
    );
    assert!(subject.context().resources().is_empty());
}
