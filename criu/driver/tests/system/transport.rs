//! Dump and restore of other processes, by RPC and by command line.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::subject::{self, Running, Subject, host, status, try_status};
use criu_driver::log::CauseKind;
use criu_driver::rpc::Consent;
use criu_driver::{
    Cli, Criu, DumpOptions, DumpTarget, Error, InheritFd, RestoreOptions, Rpc, Transport, self_test,
};
use nix::sys::wait::WaitStatus;

const LIMIT: Duration = Duration::from_secs(20);

/// Runs `test` with a folder for the images, where the host can.
fn on_host(test: impl FnOnce(Criu, &Path)) {
    if let Some(criu) = host() {
        let folder = tempfile::tempdir().unwrap();
        test(criu, folder.path());
    }
}

fn transports(criu: &Criu) -> [(&'static str, Box<dyn Transport>); 2] {
    [("rpc", Box::new(Rpc::new(criu.clone()))), ("cli", Box::new(Cli::new(criu.clone())))]
}

fn dump_of(images: &Path, subject: &Running) -> DumpOptions {
    DumpOptions::new(images, DumpTarget::Pid(subject.pid()))
}

fn kind(error: &Error) -> CauseKind {
    match error {
        Error::Failed { cause, .. } => cause.kind,
        error => panic!("{error:?}"),
    }
}

#[test]
fn the_worker_tells_version_and_features() {
    on_host(|criu, _| {
        let rpc = Rpc::new(criu.clone());
        assert_eq!(rpc.version(LIMIT).unwrap(), criu.version);
        assert!(rpc.check(LIMIT).unwrap());
        let features = rpc.features(LIMIT).unwrap();
        assert!(features.mem_track.is_some() && features.lazy_pages.is_some(), "{features:?}");
    });
}

#[test]
fn the_self_test_passes() {
    on_host(|criu, _| {
        let took = self_test(&criu, Subject::new().command(), LIMIT).unwrap();
        println!("self-test: {took:?}");
    });
}

#[test]
fn the_self_test_tells_a_fault_of_the_subject() {
    on_host(|criu, _| {
        let mut silent = Command::new("sleep");
        silent.arg("60");
        let error = self_test(&criu, silent, Duration::from_millis(300)).unwrap_err();
        assert!(matches!(error, Error::Subject(_)), "{error:?}");
    });
}

#[test]
fn a_process_is_moved_and_its_exit_status_arrives() {
    on_host(|criu, folder| {
        for (name, transport) in transports(&criu) {
            let images = folder.join(name);
            fs::create_dir(&images).unwrap();
            let subject = Subject::new().start();
            transport.dump(&dump_of(&images, &subject), LIMIT).unwrap();
            let port = subject.reap_killed();
            let restored = transport.restore(&RestoreOptions::new(images.as_path()), LIMIT).unwrap();
            assert_eq!(subject::say(port, "hi").unwrap(), "hello", "{name}");
            assert!(subject::say(port, "exit").is_err(), "{name}");
            assert!(matches!(status(restored.pid), WaitStatus::Exited(_, 7)), "{name}");
        }
    });
}

#[test]
fn a_dump_may_leave_its_target_running_and_then_the_pid_is_taken() {
    on_host(|criu, folder| {
        for (name, transport) in transports(&criu) {
            let images = folder.join(name);
            fs::create_dir(&images).unwrap();
            let subject = Subject::new().start();
            let mut options = dump_of(&images, &subject);
            options.leave_running = true;
            transport.dump(&options, LIMIT).unwrap();
            assert_eq!(subject.say("hi").unwrap(), "hello", "{name}");

            let error = transport.restore(&RestoreOptions::new(images.as_path()), LIMIT).unwrap_err();
            assert_eq!(kind(&error), CauseKind::PidTaken, "{name}: {error}");
            let Error::Failed { errno, log_path, cause, .. } = &error else { unreachable!() };
            assert!(cause.text.contains("File exists"), "{error}");
            assert_eq!(log_path.as_deref(), Some(images.join("restore.log").as_path()));
            assert_eq!(*errno, (name == "rpc").then_some(17));
            assert_eq!(subject.say("hi").unwrap(), "hello", "{name}");
        }
    });
}

#[test]
fn a_restore_that_hangs_ends_at_its_deadline_and_leaves_nothing() {
    on_host(|criu, folder| {
        for (name, transport) in transports(&criu) {
            let images = folder.join(name);
            fs::create_dir(&images).unwrap();
            let subject = Subject::new().start();
            let pid = subject.pid();
            transport.dump(&dump_of(&images, &subject), LIMIT).unwrap();
            subject.reap_killed();
            let pages = fs::OpenOptions::new().write(true).open(images.join("pages-1.img")).unwrap();
            pages.set_len((pages.metadata().unwrap().len() / 2) & !4095).unwrap();
            for sibling in [true, false] {
                let mut options = RestoreOptions::new(images.as_path());
                options.sibling = sibling;
                let error = transport.restore(&options, Duration::from_millis(800)).unwrap_err();
                assert!(matches!(error, Error::Deadline { .. }), "{name}, sibling {sibling}: {error}");
                assert!(!subject::lives(pid), "{name}, sibling {sibling}");
                assert_eq!(try_status(pid), None, "{name}: it has been reaped");
            }
        }
    });
}

#[test]
fn a_damaged_image_is_named_and_leaves_nothing() {
    on_host(|criu, folder| {
        let subject = Subject::new().start();
        let pid = subject.pid();
        let rpc = Rpc::new(criu.clone());
        rpc.dump(&dump_of(folder, &subject), LIMIT).unwrap();
        subject.reap_killed();
        let core = folder.join(format!("core-{pid}.img"));
        let bytes = fs::read(&core).unwrap();
        fs::write(&core, &bytes[..100]).unwrap();
        for (name, transport) in transports(&criu) {
            let error = transport.restore(&RestoreOptions::new(folder), LIMIT).unwrap_err();
            assert_eq!(kind(&error), CauseKind::ImageDamaged, "{name}: {error}");
            assert!(!subject::lives(pid) && try_status(pid).is_none(), "{name}");
        }
    });
}

#[test]
fn a_failure_late_in_the_restore_leaves_nothing() {
    on_host(|criu, folder| {
        let subject = Subject::new().start();
        let (pid, port) = (subject.pid(), subject.port());
        let rpc = Rpc::new(criu.clone());
        rpc.dump(&dump_of(folder, &subject), LIMIT).unwrap();
        subject.reap_killed();
        let _taken = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
        for (name, transport) in transports(&criu) {
            let error = transport.restore(&RestoreOptions::new(folder), LIMIT).unwrap_err();
            assert_eq!(kind(&error), CauseKind::Bind, "{name}: {error}");
            assert!(error.to_string().contains("Address already in use"), "{error}");
            assert!(!subject::lives(pid) && try_status(pid).is_none(), "{name}");
        }
    });
}

#[test]
fn what_cannot_be_dumped_is_told_and_goes_on() {
    on_host(|criu, folder| {
        for (name, transport) in transports(&criu) {
            let subject = Subject::new().argument("no-session").start();
            let error = transport.dump(&dump_of(folder, &subject), LIMIT).unwrap_err();
            assert_eq!(kind(&error), CauseKind::NotSessionLeader, "{name}: {error}");
            assert!(error.hint().unwrap().contains("setsid"));
            assert_eq!(subject.say("hi").unwrap(), "hello", "{name}");

            let subject = Subject::new().start();
            let client = std::net::TcpStream::connect(("127.0.0.1", subject.port())).unwrap();
            let error = transport.dump(&dump_of(folder, &subject), LIMIT).unwrap_err();
            let connected = [CauseKind::TcpConnected, CauseKind::TcpInFlight];
            assert!(connected.contains(&kind(&error)), "{name}: {error}");
            drop(client);
            assert_eq!(subject.say("hi").unwrap(), "hello", "{name}");
        }
        let error =
            Rpc::new(criu).dump(&DumpOptions::new(folder, DumpTarget::Pid(i32::MAX)), LIMIT).unwrap_err();
        assert_eq!(kind(&error), CauseKind::NoSuchProcess, "{error}");
    });
}

#[test]
fn a_late_dump_is_given_up_and_its_target_goes_on() {
    on_host(|criu, folder| {
        for (name, transport) in transports(&criu) {
            let subject = Subject::new().start();
            for millis in [1, 5, 8, 12] {
                let mut options = dump_of(folder, &subject);
                options.leave_running = true;
                let outcome = transport.dump(&options, Duration::from_millis(millis));
                assert!(matches!(outcome, Ok(()) | Err(Error::Deadline { .. })), "{name}: {outcome:?}");
                assert!(millis > 1 || outcome.is_err(), "{name}");
                assert_eq!(subject.say("hi").unwrap(), "hello", "{name}");
            }
        }
    });
}

#[test]
fn a_missing_folder_is_named() {
    on_host(|criu, folder| {
        let missing = folder.join("missing");
        let error =
            Rpc::new(criu.clone()).restore(&RestoreOptions::new(missing.as_path()), LIMIT).unwrap_err();
        assert!(matches!(&error, Error::Folder { path, source }
            if *path == missing && source.kind() == io::ErrorKind::NotFound));
        let error = Cli::new(criu).restore(&RestoreOptions::new(missing.as_path()), LIMIT).unwrap_err();
        assert_eq!(kind(&error), CauseKind::ImagesFolder, "{error}");
    });
}

#[test]
fn notify_messages_are_answered() {
    on_host(|criu, folder| {
        let rpc = Rpc::new(criu);
        let subject = Subject::new().start();
        let pid = subject.pid();
        let options = dump_of(folder, &subject);
        let error = rpc.dump_with(&options, LIMIT, Some(&mut |_| Consent::Refused)).unwrap_err();
        assert!(matches!(error, Error::Failed { .. }), "{error}");
        assert_eq!(subject.say("hi").unwrap(), "hello");

        let mut seen = Vec::new();
        let mut note = |notify: &criu_driver::message::Notify| {
            seen.push(notify.script().to_owned());
            Consent::Given
        };
        rpc.dump_with(&options, LIMIT, Some(&mut note)).unwrap();
        assert_eq!(seen, ["pre-dump", "query-ext-files", "post-dump"]);
        subject.reap_killed();

        let mut refuse = |notify: &criu_driver::message::Notify| {
            if notify.script() == "post-restore" { Consent::Refused } else { Consent::Given }
        };
        let error = rpc.restore_with(&RestoreOptions::new(folder), LIMIT, Some(&mut refuse)).unwrap_err();
        assert!(matches!(error, Error::Failed { .. }), "{error}");
        assert!(!subject::lives(pid) && try_status(pid).is_none());
    });
}

#[test]
fn a_grown_file_is_given_back_and_the_log_goes_to_the_work_folder() {
    on_host(|criu, folder| {
        for (name, transport) in transports(&criu) {
            let (images, work) = (folder.join(name), folder.join(format!("{name}.work")));
            fs::create_dir(&images).unwrap();
            fs::create_dir(&work).unwrap();
            let data = folder.join(format!("{name}.data"));
            fs::write(&data, "data").unwrap();
            let subject = Subject::new().argument(data.to_str().unwrap()).start();
            transport.dump(&dump_of(&images, &subject), LIMIT).unwrap();
            let port = subject.reap_killed();
            fs::write(&data, "more data").unwrap();

            let mut options = RestoreOptions::new(images.as_path());
            options.work_folder = Some(work.clone());
            let error = transport.restore(&options, LIMIT).unwrap_err();
            assert_eq!(kind(&error), CauseKind::FileSize, "{name}: {error}");
            assert!(matches!(&error, Error::Failed { log_path: Some(path), .. } if path.starts_with(&work)));
            assert!(!images.join("restore.log").exists());

            let fd = fs::OpenOptions::new().read(true).write(true).open(&data).unwrap().into();
            let key = data.to_str().unwrap().trim_start_matches('/').to_owned();
            options.inherit_fd = vec![InheritFd { key, fd }];
            let restored = transport.restore(&options, LIMIT).unwrap();
            assert_eq!(subject::say(port, "hi").unwrap(), "hello", "{name}");
            assert!(subject::say(port, "exit").is_err());
            assert!(matches!(status(restored.pid), WaitStatus::Exited(_, 7)), "{name}");
        }
    });
}
