//! Processes and threads: the tree itself, and the files each process has to have.

use std::collections::BTreeSet;

use super::Check;
use crate::files::FileKind;
use crate::finding::Finding;
use crate::process::Process;
use crate::task::{Core, Machine, TaskState};

impl Check<'_> {
    pub(super) fn processes(&mut self) {
        let Some(processes) = self.read(self.dir.pstree()) else { return };
        if processes.is_empty() {
            self.find(Finding::NoProcess);
        }
        let mut pids = BTreeSet::new();
        let mut tids = BTreeSet::new();
        let mut tables = BTreeSet::new();
        let mut shared = BTreeSet::new();
        for process in &processes {
            self.place(process, &mut pids);
            let state = self.leader(process.pid);
            self.report.processes += 1;
            if state == Some(TaskState::Dead) {
                // CRIU 4.2.1 gives a zombie one thread with whatever number was in memory.
                self.report.threads += 1;
                continue;
            }
            self.threads(process, &mut tids);
            // One whose state cannot be read is taken to be alive.
            if !state.is_none_or(TaskState::has_memory) {
                continue;
            }
            if let Some(ids) = self.read(self.dir.ids(process.pid)) {
                tables.insert(ids.files_id);
            }
            self.folders(process.pid);
            shared.extend(self.memory(process.pid));
        }
        for files_id in tables {
            self.descriptors(files_id);
        }
        self.shared_memory(shared);
    }

    /// Whether the tree can be: every process once, parents first, one root.
    fn place(&mut self, process: &Process, pids: &mut BTreeSet<u32>) {
        let pid = process.pid;
        let root = pids.is_empty();
        let mut wrong = |what| self.report.findings.push(Finding::Tree { pid, what });
        if pid == 0 {
            wrong("has no pid");
        }
        if process.ppid == 0 && !root {
            wrong("a second root");
        } else if process.ppid != 0 && !pids.contains(&process.ppid) {
            wrong("its parent is not listed before it");
        }
        if !pids.insert(pid) {
            wrong("listed twice");
        }
    }

    /// Checks the core of a process's leader. Returns the state of the process if it can be read.
    fn leader(&mut self, pid: u32) -> Option<TaskState> {
        let core = self.read(self.dir.core(pid))?;
        let file = format!("core-{pid}.img");
        let state = core.task.as_ref().and_then(|t| t.state());
        if state.is_none() {
            self.find(Finding::CorePart { file: file.clone(), part: "a known process state" });
        }
        self.core_parts(file, &core, state.is_none_or(TaskState::has_memory));
        state
    }

    /// Checks the list of threads, and the core of each but the leader.
    fn threads(&mut self, process: &Process, tids: &mut BTreeSet<u32>) {
        let pid = process.pid;
        self.report.threads += process.threads.len();
        if !process.threads.contains(&pid) {
            self.find(Finding::Tree { pid, what: "its leader is not among its threads" });
        }
        for &tid in &process.threads {
            if !tids.insert(tid) {
                self.find(Finding::Tree { pid, what: "has a thread that is listed twice" });
            } else if tid != pid
                && let Some(core) = self.read(self.dir.core(tid))
            {
                self.core_parts(format!("core-{tid}.img"), &core, true);
            }
        }
    }

    fn core_parts(&mut self, file: String, core: &Core, alive: bool) {
        let (image, host) = (core.march(), Machine::host());
        if image != Some(host) {
            self.find(Finding::Machine { file, image, host });
            return;
        }
        if !alive {
            return;
        }
        // Only the registers of x86 are decoded.
        if host == Machine::X86_64 && core.thread_info.is_none() {
            self.find(Finding::CorePart { file: file.clone(), part: "registers" });
        }
        if core.thread.is_none() {
            self.find(Finding::CorePart { file, part: "a thread's state" });
        }
    }

    /// Working folder and root.
    fn folders(&mut self, pid: u32) {
        let Some(fs) = self.read(self.dir.fs(pid)) else { return };
        let file = format!("fs-{pid}.img");
        self.refer(&file, "working folder", fs.cwd_id, &[FileKind::Regular]);
        self.refer(&file, "root folder", fs.root_id, &[FileKind::Regular]);
    }
}
