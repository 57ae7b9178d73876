use super::*;

/// Writes as `echo LINES > FIFO` does.
async fn echo(server: &Server, lines: &'static str) {
    let path = server.folder.path().join("fifo");
    timeout(AMPLE, tokio::fs::write(path, lines)).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_are_carried_out_before_and_after_a_cycle() {
    let server = Server::start(|_| {});
    server.stubborn(1);
    echo(&server, "nonsense\nstatus\n").await;
    echo(&server, "checkpoint ./x\n").await;
    assert!(server.last_checkpoint().await.text.contains("it will not"));
    echo(&server, "stop\n").await;
    assert_eq!(server.stopped().await, StopOrigin::Request(Source::Fifo));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_behind_a_checkpoint_waits_for_its_end() {
    let server = Server::start(|_| {});
    let stubborn = server.stubborn(0);
    echo(&server, "checkpoint ./x\nstop\n").await;
    stubborn.asked.acquire().await.unwrap().forget();
    assert!(timeout(Duration::from_millis(50), server.control.stopped()).await.is_err());
    stubborn.permits.add_permits(1);
    assert_eq!(server.stopped().await, StopOrigin::Request(Source::Fifo));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_process_reads_on_but_not_what_was_meant_for_the_original() {
    let server = Server::start(|_| {});
    // Half a line of the original's.
    echo(&server, "st").await;
    server.cycle(&Wake::Resumed).await;
    echo(&server, "at").await;
    server.cycle(&restored()).await;
    echo(&server, "op\nstop\n").await;
    assert_eq!(server.stopped().await, StopOrigin::Request(Source::Fifo));
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_line_survives_where_the_process_goes_on() {
    let server = Server::start(|_| {});
    echo(&server, "st").await;
    server.cycle(&Wake::Aborted).await;
    server.cycle(&Wake::Resumed).await;
    echo(&server, "op\n").await;
    assert_eq!(server.stopped().await, StopOrigin::Request(Source::Fifo));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_holds_nothing_while_a_cycle_runs() {
    let server = Server::start(|_| {});
    let path = server.folder.path().join("fifo").canonicalize().unwrap();
    let open = || {
        let held = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok);
        held.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target == path)).count()
    };
    assert_eq!(open(), 1);
    server.subject.context().quiesce(&Cycle::new(true)).await;
    assert_eq!(open(), 0);
    server.subject.context().wake(&Wake::Resumed).await;
    assert_eq!(open(), 1);
}
