//! What would block a checkpoint right now, apart from what its resource will have put down by then.
//!
//! It must not know resources: it goes by the names, addresses and descriptions that the context tells.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::thread;
use std::time::Duration;

use serde::Serialize;

use super::status::{MOST_LISTED, counted};
use crate::Subject;
use crate::audit::{Audit, AuditError, Blocker, Claims, Descriptor, DescriptorKind, Note, Report, TcpState};
use crate::checkpoint::inherited;
use crate::context::ResourceInfo;

/// How often a process that works is looked at, at most, and how long after one look the next one is.
const LOOKS: u32 = 3;
const BETWEEN: Duration = Duration::from_millis(20);

/// The outcome of an audit between two cycles.
#[derive(Debug, Serialize)]
pub(super) struct Findings {
    /// What nobody will put down.
    blockers: Vec<Blocker>,
    /// What the named resource puts down before a dump, as far as can be told from outside of it.
    put_down: Vec<PutDown>,
    notes: Vec<Note>,
    /// How many of all these are not listed.
    left_out: usize,
    /// All of it in words.
    summary: String,
}

#[derive(Debug, Serialize)]
struct PutDown {
    by: String,
    #[serde(flatten)]
    blocker: Blocker,
}

impl Findings {
    /// Audits the process, which works meanwhile: a descriptor is told that is open in two looks running, and one
    /// that was about to be registered or closed is not. Blocks, as [`Audit::of_self`] does, and up to three times as long.
    pub(super) fn of(subject: &Subject) -> Result<Self, AuditError> {
        let mut stayed: Option<HashSet<(RawFd, String)>> = None;
        let mut look = 1;
        loop {
            let (mut report, registered) = Self::look(subject)?;
            if let Some(stayed) = &stayed {
                report.blockers.retain(|blocker| lasts(blocker, &report.descriptors, stayed));
            }
            stayed = Some(report.descriptors.iter().map(named).collect());
            let findings = Self::new(report, &registered);
            if findings.blockers.is_empty() || look == LOOKS {
                return Ok(findings);
            }
            look += 1;
            thread::sleep(BETWEEN);
        }
    }

    fn look(subject: &Subject) -> Result<(Report, Registered), AuditError> {
        let context = subject.context();
        let claims = Claims {
            by_resource: context.claimed(),
            kept: Vec::new(),
            inherited: inherited::remembered(),
            service: Vec::new(),
        };
        let report = Audit::of_self(&claims)?;
        Ok((report, Registered { listens: context.listens(), resources: context.resources() }))
    }

    fn new(report: Report, registered: &Registered) -> Self {
        let mut findings = Self {
            blockers: Vec::new(),
            put_down: Vec::new(),
            notes: report.notes,
            left_out: 0,
            summary: String::new(),
        };
        for blocker in report.blockers {
            let descriptor = report.descriptors.iter().find(|descriptor| Some(descriptor.fd) == blocker.fd);
            match descriptor.and_then(|descriptor| registered.owner_of(descriptor)) {
                Some(by) => findings.put_down.push(PutDown { by, blocker }),
                None => findings.blockers.push(blocker),
            }
        }
        findings.left_out =
            cut(&mut findings.blockers) + cut(&mut findings.put_down) + cut(&mut findings.notes);
        findings.summary = findings.in_words();
        findings
    }

    /// All of it in words.
    pub(super) fn summary(&self) -> &str {
        &self.summary
    }

    fn in_words(&self) -> String {
        let mut text = match self.blockers.len() {
            0 => "nothing blocks a checkpoint".to_owned(),
            count => format!("{} of a checkpoint: ", counted(count, "blocker")),
        };
        let blockers = self.blockers.iter().map(|blocker| format!("{blocker} [{}]", blocker.remedy));
        text.push_str(&blockers.collect::<Vec<_>>().join("; "));
        if !self.put_down.is_empty() {
            let each = self.put_down.iter().map(|PutDown { by, blocker }| format!("{blocker} (by {by})"));
            let each: Vec<String> = each.collect();
            text.push_str(&format!("; put down before the dump: {}", each.join("; ")));
        }
        if self.left_out > 0 {
            text.push_str(&format!("; {} more", self.left_out));
        }
        text
    }
}

fn named(descriptor: &Descriptor) -> (RawFd, String) {
    (descriptor.fd, descriptor.target.clone())
}

/// Whether this is no descriptor, or one that was there in the look before.
fn lasts(blocker: &Blocker, descriptors: &[Descriptor], stayed: &HashSet<(RawFd, String)>) -> bool {
    let descriptor = descriptors.iter().find(|descriptor| Some(descriptor.fd) == blocker.fd);
    descriptor.is_none_or(|descriptor| stayed.contains(&named(descriptor)))
}

fn cut<T>(list: &mut Vec<T>) -> usize {
    let left_out = list.len().saturating_sub(MOST_LISTED);
    list.truncate(MOST_LISTED);
    left_out
}

/// What the context tells of its resources.
struct Registered {
    listens: Vec<(String, SocketAddr)>,
    resources: Vec<ResourceInfo>,
}

impl Registered {
    /// The resource that puts this descriptor down, as far as names and addresses tell.
    fn owner_of(&self, descriptor: &Descriptor) -> Option<String> {
        match &descriptor.kind {
            DescriptorKind::Tcp(socket) => self.listener_at(socket.local?, socket.state == TcpState::Listen),
            DescriptorKind::Unix(socket) => self.describing(socket.name.as_deref()?),
            // Standard streams look like anything; whoever registered them says what they are.
            _ if (0..=2).contains(&descriptor.fd) => self.describing("standard streams"),
            _ => self.describing(&descriptor.target),
        }
    }

    fn listener_at(&self, local: SocketAddr, listens: bool) -> Option<String> {
        let matches = |address: &SocketAddr| match listens {
            true => *address == local,
            // An accepted connection has the listener's port, and its address unless that is the wildcard.
            false => address.port() == local.port() && accepts(address.ip(), local.ip()),
        };
        self.listens.iter().find(|(_, address)| matches(address)).map(|(name, _)| name.clone())
    }

    fn describing(&self, what: &str) -> Option<String> {
        let says_so = |resource: &&ResourceInfo| contains_whole(&resource.description, what);
        self.resources.iter().find(says_so).map(|resource| resource.name.clone())
    }
}

fn accepts(listener: IpAddr, local: IpAddr) -> bool {
    listener.is_unspecified() || listener.to_canonical() == local.to_canonical()
}

/// Whether the text contains `what` as a whole: not as the beginning of a longer path.
fn contains_whole(text: &str, what: &str) -> bool {
    let ends = |rest: &str| rest.is_empty() || rest.starts_with([',', ';', ' ', ')']);
    let starts = |before: &str| before.is_empty() || before.ends_with([' ', '(']);
    !what.is_empty()
        && text.match_indices(what).any(|(at, _)| starts(&text[..at]) && ends(&text[at + what.len()..]))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::Arc;

    use super::*;
    use crate::Resource;

    struct Named(SocketAddr, String);

    impl Resource for Named {
        fn listens(&self) -> Vec<SocketAddr> {
            vec![self.0]
        }

        fn describe(&self) -> String {
            format!("file {}", self.1)
        }
    }

    #[test]
    fn what_a_resource_puts_down_is_told_apart() {
        let (known, unknown) =
            (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let address = known.local_addr().unwrap();
        let _client = std::net::TcpStream::connect(address).unwrap();
        let (_accepted, _) = known.accept().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().display().to_string();
        let subject = Subject::new("echo").unwrap();
        subject.context().register("web", Arc::new(Named(address, path.clone()))).forever();
        let findings = Findings::of(&subject).unwrap();
        let put_down = |what: &str| {
            findings.put_down.iter().any(|found| found.by == "web" && found.blocker.target.contains(what))
        };
        assert!(put_down(&format!("tcp listener {address}")), "{findings:?}");
        assert!(put_down(&format!("tcp connection {address} ->")), "{findings:?}");
        assert!(put_down(&path), "{findings:?}");
        let unknown = unknown.local_addr().unwrap();
        assert!(findings.blockers.iter().any(|blocker| blocker.target.contains(&unknown.to_string())));
        assert!(findings.summary().contains(" of a checkpoint: "), "{}", findings.summary());
        assert!(findings.summary().contains("(by web)"));
    }

    #[test]
    fn what_is_open_for_a_moment_only_blocks_nothing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_owned();
        let kept = std::fs::File::open(&path).unwrap();
        let ended = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let end = Arc::clone(&ended);
        let opens = thread::spawn(move || {
            while !end.load(std::sync::atomic::Ordering::Relaxed) {
                // Each has another name, so that none is there twice.
                let passing = tempfile::NamedTempFile::with_prefix("passing-").unwrap();
                thread::sleep(Duration::from_millis(2));
                drop(passing);
            }
        });
        let subject = Subject::new("echo").unwrap();
        let told = |what: &str, findings: &Findings| {
            findings.blockers.iter().any(|blocker| blocker.target.contains(what))
        };
        for _ in 0..10 {
            let findings = Findings::of(&subject).unwrap();
            assert!(!told("/passing-", &findings), "{findings:?}");
            assert!(told(&path.display().to_string(), &findings), "{findings:?}");
        }
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
        opens.join().unwrap();
        drop(kept);
    }

    #[test]
    fn a_path_is_not_taken_for_a_longer_one() {
        assert!(contains_whole("unix /run/a.sock, 1 connection", "/run/a.sock"));
        assert!(contains_whole("log /a b", "/a b"));
        assert!(!contains_whole("unix /run/a.sock.2", "/run/a.sock"));
        assert!(!contains_whole("unix /x/run/a", "/run/a"));
        assert!(!contains_whole("anything", ""));
    }
}
