//! The routes, readiness, and the end of a connection.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn every_route_answers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("motd");
    std::fs::write(&file, "good morning\n").unwrap();
    let motd = Some(MotdOptions { file, max_age: LIMIT });
    let warm = Some(WarmOptions { seed: 3, ..WarmOptions::new(1) });
    let (server, subject) = started(ServerOptions { motd, warm, ..options() });
    server.warmed().await.unwrap();
    let http = http_of(&server);

    assert_eq!(get(http, "/healthz").await, (200, "ok\n".to_owned()));
    assert_eq!(get(http, "/readyz").await, (200, "ready\n".to_owned()));
    assert_eq!(get(http, "/motd").await, (200, "good morning\n".to_owned()));
    let (status, first) = get(http, "/random").await;
    assert_eq!((status, first.trim().len()), (200, 32));
    assert_ne!(get(http, "/random").await.1, first);
    let (status, checksum) = get(http, "/checksum").await;
    assert_eq!(status, 200);
    assert!(checksum.contains(r#""bytes":1048576"#) && checksum.contains(r#""matches":true"#), "{checksum}");
    let touched = get(http, "/touch?pages=100&seed=3").await;
    assert!(touched.0 == 200 && touched.1.starts_with(r#"{"pages":100,"sum":"#), "{touched:?}");
    assert_eq!(get(http, "/touch?pages=100&seed=3").await, touched);
    assert_eq!(get(http, "/touch?pages=9999999").await.0, 400);
    assert_eq!(get(http, "/touch").await.0, 400);
    assert_eq!(get(http, "/elsewhere").await.0, 404);

    let (status, info) = get(http, "/info").await;
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!(status, 200);
    assert_eq!(info["instance"], subject.identity().instance.to_string());
    assert_eq!(
        (info["generation"].as_u64(), info["pid"].as_u64()),
        (Some(0), Some(std::process::id().into()))
    );
    assert!(info["uptime_seconds"].as_f64().unwrap() > 0.0 && info["since_restore_seconds"].is_null());
    let names: Vec<_> =
        info["resources"].as_array().unwrap().iter().map(|resource| &resource["name"]).collect();
    assert_eq!(names, ["random", "motd", "cycles", "http", "echo", "memory"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_configured_is_not_there() {
    let (server, _subject) = started(options());
    for path in ["/motd", "/checksum", "/touch?pages=1"] {
        assert_eq!(get(http_of(&server), path).await.0, 404, "{path}");
    }
    assert_eq!(get(http_of(&server), "/readyz").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_figures_have_their_names() {
    let (server, _subject) = started(options());
    let mut client = connect(echo_of(&server)).await;
    assert_eq!(ask(&mut client, "a\n").await, "a\n");
    get(http_of(&server), "/healthz").await;
    get(http_of(&server), "/made-up-1").await;
    get(http_of(&server), "/made-up-2").await;
    let (_, text) = get(http_of(&server), "/metrics").await;
    for line in [
        r#"defrost_http_requests_total{path="/healthz",status="200"} 1"#,
        r#"defrost_http_requests_total{path="other",status="404"} 2"#,
        r#"defrost_connections_accepted_total{listener="echo"} 1"#,
        r#"defrost_connections_accepted_total{listener="http"} 4"#,
        r#"defrost_connections_active{listener="echo"} 1"#,
        r#"defrost_connections_drained_total{listener="echo"} 0"#,
        r#"defrost_checkpoint_cycles_total{outcome="restored"} 0"#,
        "defrost_generation 0.0",
        "defrost_ready 1.0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    assert!(text.contains("\ndefrost_uptime_seconds "), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_serves_before_it_is_warm_and_is_ready_afterwards() {
    // Too much to be filled before the last question.
    let warm = Some(WarmOptions::new(4096));
    let (server, subject) = started(ServerOptions { warm, ..options() });
    assert_eq!(get(http_of(&server), "/healthz").await.0, 200);
    let (status, why) = get(http_of(&server), "/readyz").await;
    assert_eq!(status, 503);
    assert!(why.starts_with("warming up: ") && why.ends_with(" of 4096 MiB\n"), "{why}");
    assert_eq!(get(http_of(&server), "/checksum").await.0, 503);
    assert_eq!(get(http_of(&server), "/touch?pages=1").await.0, 503);
    let mut client = connect(echo_of(&server)).await;
    assert_eq!(ask(&mut client, "a\n").await, "a\n");
    assert!(!subject.is_ready());
    drop(client);
    server.stop().await;

    let warm = Some(WarmOptions::new(1));
    let (server, subject) = started(ServerOptions { warm, ..options() });
    server.warmed().await.unwrap();
    assert!(subject.is_ready());
    assert_eq!(get(http_of(&server), "/readyz").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_answers_the_request_under_way_and_closes_the_idle() {
    let (server, _subject) = started(ServerOptions { drain: LIMIT, ..options() });
    let (mut fresh, mut idle, mut busy) =
        (connect(http_of(&server)).await, connect(http_of(&server)).await, connect(http_of(&server)).await);
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n").await.unwrap();
    assert_eq!(read_line(&mut idle).await, "HTTP/1.1 200 OK\r\n");
    busy.write_all(b"GET /healthz HTTP/1.1\r\nHo").await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let stop = tokio::spawn(server.stop());
    assert!(rest(&mut idle).await.unwrap().ends_with("ok\n"));
    assert_eq!(rest(&mut fresh).await.unwrap(), "");
    assert!(!stop.is_finished());
    busy.write_all(b"st: test\r\n\r\n").await.unwrap();
    assert!(rest(&mut busy).await.unwrap().ends_with("ok\n"));
    assert!(stop.await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_in_use_is_named_with_its_protocol() {
    let (server, _subject) = started(options());
    let taken = http_of(&server).to_string();
    let subject = subject();
    let error =
        Server::start(ServerOptions { http: Some(taken.clone()), ..options() }, &subject).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with(&format!("http {taken}: ")) && text.contains("in use"), "{text}");
    assert!(error.hint().is_some_and(|hint| hint.contains("another port")));
    assert!(subject.context().resources().is_empty(), "something of it is left");
}
