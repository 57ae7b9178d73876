//! Which processes of an image are alive: a dead one in the tree has a core and nothing else.

use criu_images::{Core, ImageDir, Process, ReadError, TaskCore, TaskState};

/// Whether this is the core of a process that has memory and open files.
pub(super) fn is_alive(core: &Core) -> bool {
    core.task.as_ref().and_then(TaskCore::state).is_none_or(TaskState::has_memory)
}

/// Those of the tree that are.
pub(super) fn pids(dir: &ImageDir, tree: &[Process]) -> Result<Vec<u32>, ReadError> {
    let mut pids = Vec::with_capacity(tree.len());
    for process in tree {
        if is_alive(&dir.core(process.pid)?) {
            pids.push(process.pid);
        }
    }
    Ok(pids)
}
