//! Whether the TCP ports that a restore binds are free: those of the engine and those of the server itself.

use std::fmt::Write;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, bind, setsockopt, socket, sockopt,
};
use procfs::net::{TcpState, tcp, tcp6};
use procfs::process::{FDTarget, all_processes};

use super::PAUSE;
use super::finding::{Class, Finding};
use crate::image::manifest::{Listen, Manifest};
use crate::image::process;

pub(super) fn check(manifest: &Manifest, rebound: &[(String, SocketAddr)], wait: Duration) -> Vec<Finding> {
    let begun = Instant::now();
    let wanted = wanted(manifest, rebound);
    loop {
        let refused: Vec<_> =
            wanted.iter().filter_map(|listen| try_bind(listen).err().map(|error| (listen, error))).collect();
        let may_pass = refused.iter().any(|(_, error)| *error == Errno::EADDRINUSE);
        if !may_pass || begun.elapsed() >= wait {
            return refused.into_iter().map(|(listen, error)| finding(listen, error)).collect();
        }
        thread::sleep(PAUSE);
    }
}

/// Every address once. Port 0 is whichever is free.
fn wanted(manifest: &Manifest, rebound: &[(String, SocketAddr)]) -> Vec<Listen> {
    let subject = manifest.subject.listens.iter().flat_map(|listen| elsewhere(listen, rebound));
    let mut wanted: Vec<Listen> = Vec::new();
    for listen in subject.chain(manifest.listeners.iter().cloned()) {
        if listen.address.port() != 0 && wanted.iter().all(|known| known.address != listen.address) {
            wanted.push(listen);
        }
    }
    wanted
}

/// Where it will listen: at its own address unless it was given others.
fn elsewhere(listen: &Listen, rebound: &[(String, SocketAddr)]) -> Vec<Listen> {
    let given = rebound.iter().filter(|(name, _)| *name == listen.name);
    let mut places: Vec<Listen> =
        given.map(|(_, address)| Listen { address: *address, ..listen.clone() }).collect();
    if places.is_empty() {
        places.push(listen.clone());
    }
    places
}

/// Binds as a server does (SO_REUSEADDR, so connections in TIME_WAIT do not count) and does not listen: no
/// client can be answered by mistake. Refused exactly if somebody listens there.
fn try_bind(listen: &Listen) -> nix::Result<()> {
    let family = if listen.address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    if listen.reuse_port {
        setsockopt(&socket, sockopt::ReusePort, &true)?;
    }
    match listen.address {
        SocketAddr::V4(address) => bind(socket.as_raw_fd(), &SockaddrIn::from(address)),
        SocketAddr::V6(address) => bind(socket.as_raw_fd(), &SockaddrIn6::from(address)),
    }
}

fn finding(listen: &Listen, error: Errno) -> Finding {
    let address = listen.address;
    let mut subject = format!("address {address}");
    if !listen.name.is_empty() {
        let _ = write!(subject, " of resource {}", listen.name);
    }
    let other = match listen.name.as_str() {
        "" => String::new(),
        name => format!(", or give the server another address (--set {name}.listen=ADDR)"),
    };
    match error {
        Errno::EADDRINUSE => Finding::new(
            Class::Busy,
            format!(
                "{subject} is in use{}",
                listener(address).map_or_else(String::new, |who| format!(" by {who}"))
            ),
            format!("stop what listens there{other}"),
        ),
        Errno::EADDRNOTAVAIL => Finding::new(
            Class::Host,
            format!("{subject} is not an address of this host"),
            format!("add the address to an interface{other}"),
        ),
        error => Finding::new(
            Class::Host,
            format!("{subject} cannot be bound: {}", error.desc().to_lowercase()),
            format!("allow the restore to bind it{other}"),
        ),
    }
}

/// Who listens at this address, as far as we may see: only asked after a refusal, as it looks at all processes.
fn listener(address: SocketAddr) -> Option<String> {
    let tables = [tcp().unwrap_or_default(), tcp6().unwrap_or_default()].concat();
    let inodes: Vec<u64> = tables
        .into_iter()
        .filter(|entry| entry.state == TcpState::Listen && overlap(entry.local_address, address))
        .map(|entry| entry.inode)
        .collect();
    let holder = all_processes().ok()?.flatten().find(|process| {
        process.fd().is_ok_and(|mut all| {
            all.any(
                |fd| matches!(fd.map(|fd| fd.target), Ok(FDTarget::Socket(inode)) if inodes.contains(&inode)),
            )
        })
    })?;
    let holder = process::holder(u32::try_from(holder.pid).ok()?)?;
    Some(format!("process {} ({})", holder.pid, holder.command))
}

/// Whether listening at one address keeps others from the other.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port()
        && (one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::image::manifest::tests::manifest;

    fn image_at(address: SocketAddr) -> Manifest {
        let mut manifest = manifest();
        manifest.subject.listens[0].address = address;
        manifest.listeners.clear();
        manifest
    }

    fn only(findings: Vec<Finding>, class: Class) -> Finding {
        let [finding] = <[Finding; 1]>::try_from(findings).unwrap();
        assert_eq!(finding.class, class, "{finding:?}");
        finding
    }

    #[test]
    fn a_taken_port_is_told_with_its_holder_and_a_free_one_is_not() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let finding = only(check(&image_at(address), &[], Duration::ZERO), Class::Busy);
        let own = std::process::id();
        let begin = format!("address {address} of resource http is in use by process {own} (");
        assert!(finding.what.starts_with(&begin), "{finding}");
        assert!(finding.remedy.contains("--set http.listen=ADDR"), "{finding:?}");
        drop(taken);
        assert_eq!(check(&image_at(address), &[], Duration::ZERO), []);
    }

    #[test]
    fn another_address_for_the_resource_is_what_counts() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let free = ("http".to_owned(), SocketAddr::from(([127, 0, 0, 1], 0)));
        assert_eq!(check(&image_at(address), &[free], Duration::ZERO), []);
        let of_another = ("admin".to_owned(), SocketAddr::from(([127, 0, 0, 1], 0)));
        assert_eq!(check(&image_at(address), &[of_another], Duration::ZERO).len(), 1);
    }

    #[test]
    fn the_engines_own_listeners_count_once() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let mut manifest = image_at(address);
        manifest.listeners = vec![Listen { name: String::new(), address, reuse_port: false }];
        only(check(&manifest, &[], Duration::ZERO), Class::Busy);
        manifest.subject.listens.clear();
        let finding = only(check(&manifest, &[], Duration::ZERO), Class::Busy);
        assert!(finding.what.starts_with(&format!("address {address} is in use")), "{finding}");
    }

    #[test]
    fn an_address_of_another_host_is_told() {
        // TEST-NET-1 (RFC 5737) belongs to nobody.
        let finding =
            only(check(&image_at("192.0.2.1:80".parse().unwrap()), &[], Duration::ZERO), Class::Host);
        assert_eq!(finding.what, "address 192.0.2.1:80 of resource http is not an address of this host");
    }

    #[test]
    fn a_listener_that_is_about_to_close_is_waited_for() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let image = image_at(taken.local_addr().unwrap());
        let closer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(30));
            drop(taken);
        });
        assert_eq!(check(&image, &[], Duration::from_secs(10)), []);
        closer.join().unwrap();
    }
}
