//! Reading a plan that lies in memory. Trusts nothing in it that it can check: an offset outside of the plan
//! gives `None`.

use crate::wire::{Header, MAGIC, MOST_HELPERS, Part, SIZE_LIMIT, VERSION};

/// A plan in memory.
pub(crate) struct Plan {
    address: usize,
    header: Header,
}

/// Whether this is the head of a plan whose parts lie where they must.
pub(crate) fn is_plan(header: &Header) -> bool {
    let end = header.home.saturating_add(header.home_len);
    let inside = |address: u64| address >= header.home.saturating_add(header.size) && address <= end;
    header.magic == MAGIC
        && header.version == VERSION
        && header.size >= size_of::<Header>() as u64
        && header.size <= SIZE_LIMIT
        && end <= header.space_end
        && [header.code, header.scratch, header.park, header.stacks].into_iter().all(inside)
        && header.threads.count > 0
        && header.helpers <= MOST_HELPERS
}

impl Plan {
    /// # Safety
    /// A plan whose header [`is_plan`] has accepted must lie there, whole.
    pub(crate) unsafe fn at(address: usize) -> Self {
        // SAFETY: by the contract of this function.
        let header = unsafe { (address as *const Header).read_unaligned() };
        Self { address, header }
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    /// An item of a list.
    pub(crate) fn item<T: Copy>(&self, list: Part, index: u32) -> Option<T> {
        let size = u32::try_from(size_of::<T>()).ok()?;
        let offset = list.offset.checked_add(index.checked_mul(size)?)?;
        let address = self.bytes(Part { offset, count: size }).filter(|_| index < list.count)?;
        // SAFETY: the bytes are inside of the plan, and items are plain numbers, valid for all bits.
        Some(unsafe { (address as *const T).read_unaligned() })
    }

    /// The address of bytes that lie inside of the plan.
    pub(crate) fn bytes(&self, part: Part) -> Option<usize> {
        let end = u64::from(part.offset) + u64::from(part.count);
        (end <= self.header.size).then(|| self.address + part.offset as usize)
    }
}

/// The plan's descriptor, which is the first argument in decimal, and a value of the auxiliary vector.
///
/// # Safety
/// `stack` must be what the kernel passed to the program.
pub(crate) unsafe fn arguments(stack: *const usize, wanted: usize) -> Option<(usize, usize)> {
    // SAFETY: by the contract, here and below: every read is of a word before the vector's end.
    let word = |index: usize| unsafe { stack.wrapping_add(index).read() };
    let count = word(0);
    if count < 2 {
        return None;
    }
    let mut text = word(2) as *const u8;
    let mut fd = 0_usize;
    loop {
        // SAFETY: arguments end with a zero byte.
        match unsafe { text.read() } {
            0 => break,
            digit @ b'0'..=b'9' => fd = fd.checked_mul(10)?.checked_add(usize::from(digit - b'0'))?,
            _ => return None,
        }
        text = text.wrapping_add(1);
    }
    let mut index = count + 2;
    while word(index) != 0 {
        index += 1;
    }
    index += 1;
    while word(index) != 0 {
        if word(index) == wanted {
            return Some((fd, word(index + 1)));
        }
        index += 2;
    }
    None
}
