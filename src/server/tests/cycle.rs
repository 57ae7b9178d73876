//! The server through a checkpoint and a restore.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_let_go_and_come_back_to_the_same_ports() {
    let (server, subject) = started(options());
    let (echo, http) = (echo_of(&server), http_of(&server));
    for end in [Wake::Resumed, Wake::Aborted, restored(Params::default())] {
        let mut client = connect(echo).await;
        assert_eq!(ask(&mut client, "a\n").await, "a\n");
        quiesce(&subject).await;
        assert_eq!(rest(&mut client).await.unwrap(), "");
        wake(&subject, &end).await;
        assert_eq!((echo_of(&server), http_of(&server)), (echo, http));
        let mut client = connect(echo).await;
        assert_eq!(ask(&mut client, "b\n").await, "b\n");
    }
    let (_, text) = get(http, "/metrics").await;
    for line in [
        r#"defrost_connections_drained_total{listener="echo"} 3"#,
        r#"defrost_checkpoint_cycles_total{outcome="restored"} 1"#,
        r#"defrost_checkpoint_cycles_total{outcome="resumed"} 1"#,
        r#"defrost_checkpoint_cycles_total{outcome="aborted"} 1"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_moves_a_listener_and_shows_what_it_was_given() {
    let (server, subject) = started(options());
    let (echo, http) = (echo_of(&server), http_of(&server));
    let mut params = Params { args: vec!["blue".to_owned()], ..Params::default() };
    params.settings.insert("http.listen".to_owned(), ":0".to_owned());
    params.env.insert("SECRET".to_owned(), "12345".to_owned());
    quiesce(&subject).await;
    wake(&subject, &restored(params)).await;
    assert_eq!(echo_of(&server), echo);
    assert_ne!(http_of(&server), http);
    let (_, text) = get(http_of(&server), "/info").await;
    let info: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(info["restore"]["arguments"][0], "blue");
    assert_eq!(info["restore"]["environment"][0], "SECRET");
    assert_eq!(info["restore"]["suspended_seconds"], 7.0);
    assert!(!text.contains("12345"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_expired_by_wall_time_in_the_gap_is_read_anew() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("motd");
    std::fs::write(&file, "monday\n").unwrap();
    let (clock, hand) = clock(1_000);
    let motd = Some(MotdOptions { file: file.clone(), max_age: Duration::from_secs(60) });
    let (server, subject) = started(ServerOptions { motd, clock, ..options() });
    std::fs::write(&file, "tuesday\n").unwrap();
    // A short gap: what is cached is good.
    quiesce(&subject).await;
    hand.store(1_059, Ordering::Relaxed);
    wake(&subject, &restored(Params::default())).await;
    assert_eq!(get(http_of(&server), "/motd").await, (200, "monday\n".to_owned()));
    // A long one.
    quiesce(&subject).await;
    hand.store(90_000, Ordering::Relaxed);
    wake(&subject, &restored(Params::default())).await;
    assert_eq!(get(http_of(&server), "/motd").await, (200, "tuesday\n".to_owned()));
    // Expired, and the file is gone: no stale answer.
    std::fs::remove_file(&file).unwrap();
    hand.store(900_000, Ordering::Relaxed);
    let (status, why) = get(http_of(&server), "/motd").await;
    assert_eq!(status, 503);
    assert!(why.contains("cannot be read"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_waits_for_the_warm_up_while_clients_are_served() {
    let warm = Some(WarmOptions::new(64));
    let (server, subject) = started(ServerOptions { warm, ..options() });
    quiesce(&subject).await;
    assert_eq!(server.warming(), Some(Progress { done: 64 << 20, total: 64 << 20, unit: Unit::Bytes }));
    wake(&subject, &Wake::Resumed).await;
    let (status, checksum) = get(http_of(&server), "/checksum").await;
    assert!(status == 200 && checksum.contains(r#""matches":true"#), "{checksum}");
}
