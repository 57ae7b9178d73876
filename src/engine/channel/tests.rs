use super::*;

#[test]
fn a_plain_restore_has_no_parameters_and_nobody_to_report_to() {
    let arrival = Channel::new().unwrap().arrive();
    assert_eq!(arrival.params, Params::default());
    assert_eq!(arrival.failure, None);
    let report = Report {
        instance: InstanceId::from_bytes([1; 16]),
        generation: 1,
        socket: None,
        addresses: vec![],
        failures: vec![],
        phases: vec![],
    };
    arrival.report.send(&report).unwrap();
}

#[test]
fn parameters_go_in_and_the_report_comes_out() {
    let mut params = Params::default();
    params.args.push("x".repeat(200_000));
    params.settings.insert("http.listen".into(), "127.0.0.1:0".into());
    let origin = Origin { engine: "instant".into(), ..Origin::default() };
    let handover = Handover::new(&params, &origin, true).unwrap();
    // What CRIU does by inherit_fd.
    let channel = Channel { params: handover.params, report: handover.report };
    let arrival = channel.arrive();
    assert_eq!(arrival.params, params);
    assert_eq!(arrival.origin, Some(origin));
    assert_eq!(arrival.params.listen("http"), Some("127.0.0.1:0"));
    let report = Report {
        instance: InstanceId::from_bytes([2; 16]),
        generation: 3,
        socket: None,
        addresses: vec![],
        failures: vec![],
        phases: vec![phase("wake", 9)],
    };
    let soon = Instant::now() + Duration::from_secs(5);
    let reader = std::thread::spawn(move || handover.reader.wait(soon).unwrap());
    arrival.report.send(&report).unwrap();
    assert_eq!(reader.join().unwrap(), Some(report));
    let phases = [phase("plan", 3), phase("make its memory", 5)];
    handover.phases.tell(&phases);
    assert_eq!(arrival.phases.unwrap().read(), phases);
}

#[test]
fn nobody_waits_for_phases_that_nobody_will_tell() {
    let handover = Handover::new(&Params::default(), &Origin::default(), false).unwrap();
    let arrival = Channel { params: handover.params, report: handover.report }.arrive();
    drop(handover.phases);
    let began = Instant::now();
    assert_eq!(arrival.phases.unwrap().read(), []);
    assert!(began.elapsed() < AFTERWARDS);
}

#[test]
fn a_pipe_full_of_parameters_has_no_room_for_phases_and_nobody_hangs() {
    let mut params = Params::default();
    // With the header, all of a pipe of 64 KiB but a few bytes.
    params.args.push("x".repeat(65_536 - HEADER_LEN - 16));
    let handover = Handover::new(&params, &Origin::default(), false).unwrap();
    handover.phases.tell(&[phase("plan", 3)]);
    let arrival = Channel { params: handover.params, report: handover.report }.arrive();
    assert_eq!(arrival.params, params);
    assert_eq!(arrival.phases.unwrap().read(), []);
}

fn phase(name: &str, micros: u64) -> Phase {
    Phase { name: name.to_owned(), micros }
}

#[test]
fn a_process_that_dies_without_a_report_is_told_from_one_that_is_late() {
    let handover = Handover::new(&Params::default(), &Origin::default(), true).unwrap();
    let late = handover.reader.wait(Instant::now() + Duration::from_millis(20)).unwrap_err();
    assert_eq!(late.kind(), io::ErrorKind::TimedOut);
    let handover = Handover::new(&Params::default(), &Origin::default(), true).unwrap();
    drop(handover.report);
    assert_eq!(handover.reader.wait(Instant::now() + Duration::from_secs(5)).unwrap(), None);
}

#[test]
fn a_report_that_was_wanted_and_is_not_read_is_a_failure() {
    let report = Report {
        instance: InstanceId::from_bytes([3; 16]),
        generation: 1,
        socket: None,
        addresses: vec![],
        failures: vec![],
        phases: vec![],
    };
    for awaited in [true, false] {
        let Handover { params, report: pipe, reader, .. } =
            Handover::new(&Params::default(), &Origin::default(), awaited).unwrap();
        drop(reader);
        let arrival = Channel { params, report: pipe }.arrive();
        assert_eq!(arrival.params, Params::default());
        let sent = arrival.report.send(&report);
        assert_eq!(sent.err().map(|error| error.kind()), awaited.then_some(io::ErrorKind::BrokenPipe));
    }
}

#[test]
fn garbage_in_place_of_parameters_is_a_failure_not_a_crash() {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
    File::from(write).write_all(b"no record at all").unwrap();
    let channel = Channel { params: read, ..Channel::new().unwrap() };
    let arrival = channel.arrive();
    assert_eq!(arrival.params, Params::default());
    assert!(arrival.failure.unwrap().starts_with("parameters of the restore: "));
}
