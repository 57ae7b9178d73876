//! The restorer's decoder, compiled as it is: nothing that it gives lies outside of the plan.
#![no_main]

#[allow(dead_code, unreachable_pub, reason = "shared with the library, which uses the rest")]
#[path = "../../../criu/restorer/program/plan.rs"]
mod plan;
#[allow(dead_code, reason = "shared with the library, which uses the rest")]
#[path = "../../../criu/restorer/src/wire.rs"]
mod wire;

use libfuzzer_sys::fuzz_target;
use plan::{Plan, is_plan};
use wire::{Call, Header, MAGIC, Part, Thread, VERSION};

/// The most items of a list that are looked at: a count of four billion is a matter of patience, not of bounds.
const MOST: u32 = 4096;

fuzz_target!(|data: &[u8]| {
    let mut bytes = data.to_vec();
    if bytes.len() < size_of::<Header>() {
        return;
    }
    // What the program makes sure of before: that it has read as many bytes as the head says.
    bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
    bytes[8..12].copy_from_slice(&VERSION.to_ne_bytes());
    let size = bytes.len() as u64;
    bytes[16..24].copy_from_slice(&size.to_ne_bytes());
    // SAFETY: that many bytes are there, and any bits are a header.
    let header = unsafe { bytes.as_ptr().cast::<Header>().read_unaligned() };
    if !is_plan(&header) {
        return;
    }
    let range = bytes.as_ptr_range();
    let range = range.start as usize..=range.end as usize;
    // SAFETY: the header was accepted, and the plan is whole.
    let plan = unsafe { Plan::at(bytes.as_ptr() as usize) };
    let inside = |part: Part| {
        let Some(address) = plan.bytes(part) else { return };
        assert!(range.contains(&address) && range.contains(&(address + part.count as usize)));
    };
    let calls = |list: Part| {
        for index in 0..list.count.min(MOST) {
            if plan.item::<Call>(list, index).is_none() {
                return;
            }
        }
    };
    calls(plan.header().calls);
    calls(plan.header().finish);
    for index in 0..plan.header().threads.count.min(MOST) {
        let Some(thread) = plan.item::<Thread>(plan.header().threads, index) else { break };
        inside(thread.frame);
        calls(thread.calls);
    }
});
