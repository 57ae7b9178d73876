//! `mremap(2)` as the program calls it: right for memory that a file stands in for.
//!
//! Anonymous memory that is extended goes on with zeros. A private mapping of a file goes on with the file: here,
//! with what other memory held, and behind the file's end with SIGBUS. And anonymous memory that was one mapping
//! may have become several, which the kernel extends never and moves since Linux 6.17. So the program gets its own
//! function of this name, as it does for [`discard`](super::discard), where it also says who calls it.
//!
//! The C library's realloc does not: it extends its own large blocks by the system call, and copies where that
//! fails. Whoever maps memory must see to it that it fails: a block that lies in two mappings is not extended.

use std::ffi::{c_int, c_void};

use super::areas::{Area, Areas, Kind};
use super::call::{self, Fresh};
use super::ledger;

const DONTUNMAP: c_int = 4;

/// `mremap(2)`. The last argument, which C declares as optional, is passed like any other on x86-64.
///
/// # Safety
/// As the system call: what lay at the old addresses, and with `MREMAP_FIXED` at the new ones, is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    target: *mut c_void,
) -> *mut c_void {
    // Anything, where it was not passed.
    let target = if flags & libc::MREMAP_FIXED == 0 { 0 } else { target.addr() };
    let wish = Wish {
        old: old.addr(),
        old_len: call::page_up(old_len).unwrap_or(0),
        new_len: call::page_up(new_len).unwrap_or(0),
        flags,
        target,
    };
    let plain = ledger::is_empty() || !call::is_page(old) || !wish.is_sound();
    let result = if plain {
        let flags = flags.cast_unsigned() as usize;
        // SAFETY: by the contract of this function.
        unsafe { call::call(libc::SYS_mremap, [wish.old, old_len, new_len, flags, wish.target, 0]) }
    } else {
        // SAFETY: by the contract of this function.
        unsafe { wish.fulfil() }
    };
    match result {
        Ok(address) => address as *mut c_void,
        Err(errno) => {
            call::set_errno(errno);
            libc::MAP_FAILED
        }
    }
}

/// What is asked for. Lengths are whole pages.
#[derive(Clone, Copy, Debug)]
struct Wish {
    old: usize,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    target: usize,
}

impl Wish {
    fn has(self, flag: c_int) -> bool {
        self.flags & flag != 0
    }

    /// Whether it makes sense; the kernel tells what is wrong with others.
    fn is_sound(self) -> bool {
        let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | DONTUNMAP;
        let moves = self.has(libc::MREMAP_MAYMOVE);
        let [old_end, target_end] =
            [self.old.checked_add(self.old_len), self.target.checked_add(self.new_len)];
        let (Some(old_end), Some(target_end)) = (old_end, target_end) else { return false };
        let apart = target_end <= self.old || old_end <= self.target;
        let placed = self.target.is_multiple_of(call::PAGE) && apart;
        self.old_len != 0
            && self.new_len != 0
            && self.flags & !known == 0
            && (moves || self.flags == 0)
            && (!self.has(libc::MREMAP_FIXED) || placed)
            && (!self.has(DONTUNMAP) || self.old_len == self.new_len)
    }

    /// # Safety
    /// As for [`mremap`].
    unsafe fn fulfil(self) -> Result<usize, c_int> {
        let old_end = self.old + self.old_len;
        let goes_on = self.new_len > self.old_len || self.has(DONTUNMAP);
        let mut areas = None;
        let mut lent = false;
        if goes_on {
            let opened = Areas::open().ok_or(libc::ENOMEM)?;
            lent = ledger::next(&opened, self.old, old_end)?.is_some();
            areas = Some(opened);
        }
        if !lent {
            // SAFETY: by the contract of this function.
            match unsafe { self.kernel() } {
                // It may be one mapping for the program, and several for the kernel.
                Err(libc::EFAULT) => {}
                result => return result,
            }
        }
        let areas = areas.or_else(Areas::open).ok_or(libc::EFAULT)?;
        let protection = as_one(&areas, self.old, old_end)?.ok_or(libc::EFAULT)?;
        // SAFETY: by the contract of this function; all of the range is mapped.
        unsafe { self.extend_or_move(&areas, protection) }
    }

    /// # Safety
    /// As for [`mremap`].
    unsafe fn kernel(self) -> Result<usize, c_int> {
        let flags = self.flags.cast_unsigned() as usize;
        // SAFETY: by the contract of this function.
        unsafe { call::call(libc::SYS_mremap, [self.old, self.old_len, self.new_len, flags, self.target, 0]) }
    }

    /// # Safety
    /// As for [`mremap`]; all of the old range must be mapped.
    unsafe fn extend_or_move(self, areas: &Areas, protection: usize) -> Result<usize, c_int> {
        let fixed = self.has(libc::MREMAP_FIXED);
        if !fixed && self.new_len > self.old_len {
            let tail = Fresh {
                at: self.old + self.old_len,
                len: self.new_len - self.old_len,
                protection,
                placement: libc::MAP_FIXED_NOREPLACE,
            };
            // SAFETY: nothing is replaced.
            if unsafe { call::map(tail) }.is_ok() {
                return Ok(self.old);
            }
            if !self.has(libc::MREMAP_MAYMOVE) {
                return Err(libc::ENOMEM);
            }
        }
        let placement = if fixed { libc::MAP_FIXED } else { 0 };
        let at = if fixed { self.target } else { 0 };
        // SAFETY: what is replaced, the caller has given up.
        let room = unsafe { call::map(Fresh { at, len: self.new_len, protection, placement }) }?;
        let moved = self.old_len.min(self.new_len);
        // SAFETY: the room is fresh, and the old range is the caller's.
        if let Err((done, errno)) = unsafe { move_areas(areas, self.old, moved, room) } {
            // SAFETY: back to where it came from, which nobody has mapped since. What cannot be moved back stays.
            if unsafe { move_areas(areas, room, done, self.old) }.is_ok() {
                // SAFETY: the room is this function's, and holds nothing. It stays mapped if that fails.
                let _ = unsafe { call::call(libc::SYS_munmap, [room, self.new_len, 0, 0, 0, 0]) };
            }
            return Err(errno);
        }
        if moved < self.old_len {
            let rest = [self.old + moved, self.old_len - moved, 0, 0, 0, 0];
            // SAFETY: the caller has given the old range up. It stays mapped if that fails, which harms nobody.
            let _ = unsafe { call::call(libc::SYS_munmap, rest) };
        }
        if self.has(DONTUNMAP) {
            let placement = libc::MAP_FIXED_NOREPLACE;
            // SAFETY: nothing is replaced.
            unsafe { call::map(Fresh { at: self.old, len: self.old_len, protection, placement }) }?;
        }
        Ok(room)
    }
}

/// The protection of a range that can be one mapping for the program: all of it anonymous, or with a file that
/// stands in for that.
fn as_one(areas: &Areas, start: usize, end: usize) -> Result<Option<usize>, c_int> {
    let mut protection = None;
    let mut at = start;
    while at < end {
        let Some(area) = areas.from(at)?.filter(|area| area.start <= at) else { return Ok(None) };
        let known = area.kind == Kind::Anonymous || ledger::is_stand_in(areas, area)?;
        if !known || protection.is_some_and(|protection| protection != area.protection) {
            return Ok(None);
        }
        protection = Some(area.protection);
        at = area.end;
    }
    Ok(protection)
}

/// Moves a range, mapping by mapping. When one cannot be moved: how many bytes were, and why.
///
/// # Safety
/// The range must be mapped and the caller's, and what lies at `target` may go.
unsafe fn move_areas(areas: &Areas, start: usize, len: usize, target: usize) -> Result<(), (usize, c_int)> {
    let mut done = 0;
    while done < len {
        let at = start + done;
        let area = areas.from(at).map_err(|errno| (done, errno))?;
        let area: Area = area.ok_or((done, libc::EFAULT))?.within(at, start + len);
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED).cast_unsigned() as usize;
        let arguments = [at, area.len(), area.len(), flags, target + done, 0];
        // SAFETY: by the contract of this function.
        unsafe { call::call(libc::SYS_mremap, arguments) }.map_err(|errno| (done, errno))?;
        done += area.len();
    }
    Ok(())
}
