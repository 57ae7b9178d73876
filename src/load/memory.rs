//! What a connection costs in memory, as the growth of resident sets.
//!
//! The kernel's own memory for a socket is not in it: some kilobytes at each end, and more while data waits.

use procfs::process::Process;
use serde::Serialize;

/// From how many connections on what each costs can be told from what else grows.
const LEAST: u64 = 100;

/// How resident memory grew up to the moment when most connections were open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// How many were open then.
    pub connections: u64,
    /// Of this process, for each of them, in bytes: the client's task, its buffers and its connection.
    pub client_bytes: u64,
    /// Of the server, for each of them, in bytes; `None` where its pid is not known.
    pub server_bytes: Option<u64>,
}

/// Follows both processes.
pub(super) struct Watch {
    client: Process,
    server: Option<Process>,
    before: (u64, Option<u64>),
    most: Option<Memory>,
}

impl Watch {
    /// Begins, before there are connections.
    pub(super) fn start(server: Option<i32>) -> Result<Self, String> {
        let said = |error: procfs::ProcError| error.to_string();
        let client = Process::myself().map_err(said)?;
        let server = server.map(Process::new).transpose().map_err(said)?;
        let own = resident(&client).ok_or("its memory cannot be read")?;
        let others = server.as_ref().map(|server| resident(server).ok_or("its memory cannot be read"));
        let before = (own, others.transpose()?);
        Ok(Self { client, server, before, most: None })
    }

    /// Looks while so many are open; tells what each costs by now.
    pub(super) fn look(&mut self, connections: u64) -> Option<Memory> {
        if connections > self.most.map_or(0, |most| most.connections) {
            self.measure(connections);
        }
        // Of a few connections it is noise.
        self.most.filter(|most| most.connections >= LEAST)
    }

    fn measure(&mut self, connections: u64) {
        let each = |now: u64, before: u64| now.saturating_sub(before) / connections;
        let Some(own) = resident(&self.client) else { return };
        // A server that has been restored meanwhile is another process.
        let server = self.server.as_ref().and_then(resident).zip(self.before.1);
        self.most = Some(Memory {
            connections,
            client_bytes: each(own, self.before.0),
            server_bytes: server.map(|(now, before)| each(now, before)),
        });
    }
}

fn resident(process: &Process) -> Option<u64> {
    let pages = process.statm().ok()?.resident;
    Some(pages * procfs::page_size())
}
