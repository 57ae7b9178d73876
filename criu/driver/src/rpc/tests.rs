//! Against a scripted peer in a thread.

use super::*;
use crate::message::{DumpAnswer, VersionAnswer};
use crate::options::ImagesFolder;
use std::thread::{self, JoinHandle};
use std::time::Instant;

const LIMIT: Duration = Duration::from_secs(10);

/// What the peer does next.
enum Step {
    /// Waits for a request, and keeps it.
    Take,
    Answer(Response),
    Bytes(Vec<u8>),
    Sleep(Duration),
}

/// Plays the steps at the other end, then closes it. Gives the requests.
fn peer(steps: Vec<Step>) -> (Connection, JoinHandle<Vec<Request>>) {
    let (connection, socket) = Connection::pair().unwrap();
    let play = move || {
        let mut requests = Vec::new();
        let write = |bytes: &[u8]| send(socket.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL).unwrap();
        for step in steps {
            match step {
                Step::Take => {
                    let mut bytes = vec![0; 4096];
                    let size = recv(socket.as_raw_fd(), &mut bytes, MsgFlags::empty()).unwrap();
                    requests.push(Request::decode(&bytes[..size]).unwrap());
                }
                Step::Answer(response) => {
                    write(&response.encode_to_vec());
                }
                Step::Bytes(bytes) => {
                    write(&bytes);
                }
                Step::Sleep(time) => thread::sleep(time),
            }
        }
        requests
    };
    (connection, thread::spawn(play))
}

fn self_dump(steps: Vec<Step>) -> Result<SelfDump, Error> {
    let (connection, peer) = peer(steps);
    let options = DumpOptions::new(ImagesFolder::WorkingDirectory, DumpTarget::Requester);
    let outcome = connection.self_dump(&options, LIMIT);
    let requests = peer.join().unwrap();
    let opts = requests[0].opts.as_ref().unwrap();
    assert_eq!((requests[0].kind(), opts.pid, opts.notify_scripts), (Kind::Dump, None, None));
    outcome
}

fn verdict(restored: bool) -> Step {
    Step::Answer(Response {
        kind: Kind::Dump.into(),
        success: true,
        dump: Some(DumpAnswer { restored: Some(restored) }),
        ..Response::default()
    })
}

fn notify(script: &str) -> Step {
    Step::Answer(Response {
        kind: Kind::Notify.into(),
        success: true,
        notify: Some(Notify { script: Some(script.into()), pid: None }),
        ..Response::default()
    })
}

#[test]
fn a_self_dump_has_three_verdicts_and_an_end() {
    assert_eq!(self_dump(vec![Step::Take, verdict(false)]).unwrap(), SelfDump::Dumped);
    assert_eq!(self_dump(vec![Step::Take, verdict(true)]).unwrap(), SelfDump::Restored);
    let refusal = Response {
        kind: Kind::Dump.into(),
        success: false,
        errno: Some(56),
        first_error: Some("rlimit".into()),
        ..Response::default()
    };
    let refused = SelfDump::Refused { errno: Some(56), first_error: Some("rlimit".into()) };
    assert_eq!(self_dump(vec![Step::Take, Step::Answer(refusal)]).unwrap(), refused);
    let error = self_dump(vec![Step::Take]).unwrap_err();
    assert!(matches!(error, Error::Died { operation: Operation::SelfDump, .. }), "{error}");
}

#[test]
fn an_answer_that_was_queued_before_the_peer_ended_counts() {
    // What CRIU leaves for the restored process: a packet, and a closed peer. The deadline has long passed there.
    let (connection, peer) = peer(vec![Step::Take, verdict(true)]);
    let options = DumpOptions::new(ImagesFolder::WorkingDirectory, DumpTarget::Requester);
    let opts = order(Kind::Dump, options.to_message(None));
    connection.send(Operation::SelfDump, &opts, &Deadline::after(LIMIT)).unwrap();
    peer.join().unwrap();
    let response = connection.receive(Operation::SelfDump, &Deadline::after(Duration::ZERO)).unwrap();
    assert!(response.dump.unwrap().restored());
}

#[test]
fn a_success_without_a_verdict_is_none() {
    let empty = Response { kind: Kind::Dump.into(), success: true, ..Response::default() };
    let error = self_dump(vec![Step::Take, Step::Answer(empty)]).unwrap_err();
    assert!(matches!(error, Error::Protocol { problem: Problem::Incomplete(_), .. }), "{error}");
}

#[test]
fn garbage_is_refused() {
    let error = self_dump(vec![Step::Take, Step::Bytes(vec![0xff; 40])]).unwrap_err();
    assert!(matches!(error, Error::Protocol { problem: Problem::Undecodable(_), .. }), "{error}");
    let version = Response { kind: Kind::Version.into(), success: true, ..Response::default() };
    let error = self_dump(vec![Step::Take, Step::Answer(version)]).unwrap_err();
    assert!(matches!(error, Error::Protocol { problem: Problem::Unexpected(10), .. }), "{error}");
}

#[test]
fn an_oversize_answer_is_refused_unread() {
    let size = RESPONSE_LIMIT + 1;
    let error = self_dump(vec![Step::Take, Step::Bytes(vec![0; size])]).unwrap_err();
    let problem = |error: &Error| matches!(error, Error::Protocol { problem: Problem::Oversize { size: s, .. }, .. } if *s == size);
    assert!(problem(&error), "{error}");
}

#[test]
fn a_late_answer_is_not_waited_for() {
    let late = Duration::from_millis(400);
    let (connection, peer) = peer(vec![Step::Take, Step::Sleep(late)]);
    let start = Instant::now();
    let error = connection.version(Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error, Error::Deadline { operation: Operation::Version, .. }), "{error}");
    assert!(start.elapsed() < late);
    peer.join().unwrap();
}

#[test]
fn a_request_that_nobody_takes_has_a_deadline_too() {
    let (connection, _socket) = Connection::pair().unwrap();
    let options = DumpOptions::new(ImagesFolder::WorkingDirectory, DumpTarget::Requester);
    let request = order(Kind::Dump, options.to_message(None));
    let deadline = Deadline::after(Duration::from_millis(50));
    let error = (0..100_000)
        .find_map(|_| connection.send(Operation::SelfDump, &request, &deadline).err())
        .expect("a socket's buffer is finite");
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
}

#[test]
fn a_peer_that_is_gone_is_noticed_at_sending() {
    let (connection, socket) = Connection::pair().unwrap();
    drop(socket);
    assert!(matches!(connection.check(LIMIT).unwrap_err(), Error::Died { .. }));
}

#[test]
fn notify_messages_are_given_to_the_caller_or_refused() {
    let dump = DumpOptions::new(ImagesFolder::WorkingDirectory, DumpTarget::Pid(7));
    let steps = || vec![Step::Take, notify("pre-dump"), Step::Take, verdict(false)];
    let (connection, played) = peer(steps());
    let mut seen = Vec::new();
    let mut give = |notify: &Notify| {
        seen.push(notify.script().to_owned());
        Consent::Given
    };
    assert!(connection.dump(&dump, None, LIMIT, Some(&mut give)).unwrap().success);
    assert_eq!(seen, ["pre-dump"]);
    let requests = played.join().unwrap();
    assert_eq!(requests[0].opts.as_ref().unwrap().notify_scripts, Some(true));
    assert_eq!((requests[1].kind(), requests[1].notify_success), (Kind::Notify, Some(true)));

    let (connection, played) = peer(steps());
    assert!(connection.dump(&dump, None, LIMIT, None).unwrap().success);
    let requests = played.join().unwrap();
    assert_eq!(requests[0].opts.as_ref().unwrap().notify_scripts, None);
    assert_eq!((requests[1].kind(), requests[1].notify_success), (Kind::Notify, Some(false)));
}

#[test]
fn a_notify_message_does_not_renew_the_deadline() {
    let mut steps = vec![Step::Take];
    for _ in 0..20 {
        steps.extend([notify("pre-dump"), Step::Take, Step::Sleep(Duration::from_millis(20))]);
    }
    steps.push(verdict(false));
    let (connection, _peer) = peer(steps);
    let dump = DumpOptions::new(ImagesFolder::WorkingDirectory, DumpTarget::Pid(7));
    let limit = Duration::from_millis(100);
    let error = connection.dump(&dump, None, limit, None).unwrap_err();
    assert!(matches!(error, Error::Deadline { limit: l, .. } if l == limit), "{error}");
}

#[test]
fn versions_and_features_are_read() {
    let version = VersionAnswer { major: 4, minor: 2, gitid: None, sublevel: Some(1) };
    let answer =
        Response { kind: Kind::Version.into(), success: true, version: Some(version), ..Response::default() };
    let (connection, _peer) = peer(vec![Step::Take, Step::Answer(answer)]);
    assert_eq!(connection.version(LIMIT).unwrap().to_string(), "4.2.1");

    let found = Features { mem_track: Some(false), lazy_pages: Some(true), pidfd_store: None };
    let answer = Response {
        kind: Kind::FeatureCheck.into(),
        success: true,
        features: Some(found),
        ..Response::default()
    };
    let (connection, peer) = peer(vec![Step::Take, Step::Answer(answer)]);
    assert_eq!(connection.feature_check(LIMIT).unwrap(), found);
    assert_eq!(peer.join().unwrap()[0].features.unwrap().pidfd_store, Some(true));
}

#[test]
fn each_way_of_dumping_has_its_own_target() {
    let (connection, _socket) = Connection::pair().unwrap();
    let other = DumpOptions::new(ImagesFolder::WorkingDirectory, DumpTarget::Pid(7));
    let own = DumpOptions::new(ImagesFolder::WorkingDirectory, DumpTarget::Requester);
    let target = |error: &Error| matches!(error, Error::Protocol { problem: Problem::Target, .. });
    assert!(target(&connection.dump(&own, None, LIMIT, None).unwrap_err()));
    assert!(target(&connection.self_dump(&other, LIMIT).unwrap_err()));
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(proptest::num::u8::ANY, 1..200)) {
        let (connection, socket) = Connection::pair().unwrap();
        send(socket.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL).unwrap();
        let _ = connection.receive(Operation::Version, &Deadline::after(Duration::ZERO));
    }
}
