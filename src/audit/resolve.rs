//! Fills in what only the kernel's socket lists know: addresses, states, peers.
//!
//! Asks for the protocols that are there, and for nothing when there is no socket. It must not judge.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;

use super::descriptors::{Descriptor, Home};
use super::kind::DescriptorKind;
use super::sock_diag::SockDiag;
use super::sockets::{TcpSocket, TcpState, UnixSocket, UnixState};

/// Completes the sockets among the descriptors. Those of a process in another network namespace stay as they
/// are: the kernel answers for the caller's namespace only.
pub(super) fn sockets(home: &Home, descriptors: &mut [Descriptor]) -> io::Result<()> {
    netlink(home, descriptors);
    let tcp = inodes(descriptors, |kind| matches!(kind, DescriptorKind::Tcp(_)));
    let udp = inodes(descriptors, |kind| matches!(kind, DescriptorKind::Udp(_)));
    let unix = inodes(descriptors, |kind| matches!(kind, DescriptorKind::Unix(_)));
    if (tcp.is_empty() && udp.is_empty() && unix.is_empty()) || elsewhere(home)? {
        return Ok(());
    }
    let mut diag = SockDiag::open()?;
    let tcp = if tcp.is_empty() { HashMap::new() } else { diag.tcp(&tcp)? };
    let udp = if udp.is_empty() { HashMap::new() } else { diag.udp(&udp)? };
    let mut answers = HashMap::new();
    for inode in &unix {
        answers.insert(*inode, unix_socket(&mut diag, *inode, &unix)?);
    }
    for descriptor in descriptors {
        let inode = descriptor.inode;
        match &mut descriptor.kind {
            DescriptorKind::Tcp(socket) => {
                *socket = tcp.get(&inode).cloned().unwrap_or(TcpSocket::in_state(TcpState::Closed));
            }
            DescriptorKind::Udp(socket) => *socket = udp.get(&inode).cloned().unwrap_or(socket.clone()),
            DescriptorKind::Unix(socket) => {
                if let Some(Some(answer)) = answers.get(&inode) {
                    *socket = answer.clone();
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn inodes(descriptors: &[Descriptor], wanted: impl Fn(&DescriptorKind) -> bool) -> HashSet<u64> {
    descriptors
        .iter()
        .filter(|descriptor| wanted(&descriptor.kind))
        .map(|descriptor| descriptor.inode)
        .collect()
}

fn elsewhere(home: &Home) -> io::Result<bool> {
    if home.own {
        return Ok(false);
    }
    Ok(fs::read_link("/proc/self/ns/net")? != fs::read_link(home.folder.join("ns/net"))?)
}

fn unix_socket(diag: &mut SockDiag, inode: u64, own: &HashSet<u64>) -> io::Result<Option<UnixSocket>> {
    let Some(mut socket) = diag.unix(inode)? else { return Ok(None) };
    if let UnixState::Connected { peer, peer_name } = &mut socket.state
        && !own.contains(peer)
    {
        *peer_name = diag.unix(*peer)?.and_then(|peer| peer.name);
    }
    Ok(Some(socket))
}

/// How much each netlink socket has not yet read, from `/proc/PID/net/netlink`. Where that cannot be read,
/// nothing is assumed to be queued, as CRIU does.
fn netlink(home: &Home, descriptors: &mut [Descriptor]) {
    let is_netlink = |descriptor: &Descriptor| match &descriptor.kind {
        DescriptorKind::Socket(socket) => socket.protocol == "NETLINK",
        _ => false,
    };
    if !descriptors.iter().any(is_netlink) {
        return;
    }
    let Ok(table) = fs::read_to_string(home.folder.join("net/netlink")) else { return };
    let queued: HashMap<u64, u32> = table.lines().skip(1).filter_map(netlink_line).collect();
    for descriptor in descriptors {
        if let DescriptorKind::Socket(socket) = &mut descriptor.kind
            && let Some(bytes) = queued.get(&descriptor.inode)
        {
            socket.queued = *bytes;
        }
    }
}

/// Inode and bytes to read, from `sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode`.
fn netlink_line(line: &str) -> Option<(u64, u32)> {
    let mut words = line.split_whitespace();
    let queued = words.nth(4)?.parse().ok()?;
    Some((words.nth(4)?.parse().ok()?, queued))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_line_of_the_netlink_list() {
        let line = "00000000c7e0 4   1234   00000001 768        0        0        2        0        5678";
        assert_eq!(netlink_line(line), Some((5678, 768)));
        assert_eq!(netlink_line("sk Eth"), None);
    }
}
