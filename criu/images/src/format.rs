//! How image files are laid out: names, magic numbers, limits. Knows nothing of what records mean.
//!
//! A file is one or two magic numbers and then records, each a length and that many bytes of
//! protobuf, up to the end. All integers are little-endian on the machines this crate is for.

use crate::error::ReadError;

/// First word of every image file but the inventory (`IMG_COMMON_MAGIC` in CRIU's `magic.h`).
const COMMON: u32 = 0x5456_4319;
/// First word of files that are not part of the image itself (`IMG_SERVICE_MAGIC`).
const SERVICE: u32 = 0x5510_5940;

/// Largest file read into memory, in bytes. A page map of 4 Mi runs of pages is a quarter of it;
/// the pages themselves are never read here.
pub const MAX_FILE: u64 = 256 << 20;
/// Largest record, in bytes. The largest known is a memory record, about 60 bytes a mapping.
pub const MAX_RECORD: u32 = 32 << 20;
/// Most records in a file.
pub const MAX_RECORDS: usize = 4 << 20;
/// Most messages, strings and lists inside one record, at any depth. Bounds what a record of tiny
/// parts can grow to when decoded; a memory record has one a mapping, and Linux allows a process
/// 65,530 mappings unless told otherwise.
pub const MAX_PARTS: usize = 1 << 20;

/// The files this crate reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Layout {
    Inventory,
    Pstree,
    Core,
    Ids,
    Memory,
    Pagemap,
    Files,
    Fdinfo,
    Fs,
    Stats,
    TimeNamespace,
    CpuInfo,
    Memfd,
    Terminals,
    Remaps,
    PipesData,
    FifosData,
    SocketQueues,
    GhostFile,
}

impl Layout {
    /// Magic numbers a file of this kind begins with.
    fn magics(self) -> &'static [u32] {
        match self {
            Self::Inventory => &[0x5831_3116],
            Self::Pstree => &[COMMON, 0x5027_3030],
            Self::Core => &[COMMON, 0x5505_3847],
            Self::Ids => &[COMMON, 0x5443_2030],
            Self::Memory => &[COMMON, 0x5749_2820],
            Self::Pagemap => &[COMMON, 0x5608_4025],
            Self::Files => &[COMMON, 0x5630_3138],
            Self::Fdinfo => &[COMMON, 0x5621_3732],
            Self::Fs => &[COMMON, 0x5140_3912],
            Self::Stats => &[SERVICE, 0x5709_3306],
            Self::TimeNamespace => &[COMMON, 0x4311_4433],
            Self::CpuInfo => &[COMMON, 0x6140_4013],
            Self::Memfd => &[COMMON, 0x4845_3499],
            Self::Terminals => &[COMMON, 0x5945_3036],
            Self::Remaps => &[COMMON, 0x5913_3954],
            Self::PipesData => &[COMMON, 0x5645_3709],
            Self::FifosData => &[COMMON, 0x5933_3054],
            Self::SocketQueues => &[COMMON, 0x5626_4026],
            Self::GhostFile => &[COMMON, 0x5258_3605],
        }
    }
}

/// The contents of a file: its magic numbers, then each record behind its length. `None` if a record is longer,
/// or the whole is more, than is read again.
pub(crate) fn contents(layout: Layout, records: impl Iterator<Item = Vec<u8>>) -> Option<Vec<u8>> {
    let mut bytes: Vec<u8> = layout.magics().iter().flat_map(|magic| magic.to_le_bytes()).collect();
    for (number, record) in records.enumerate() {
        let length = u32::try_from(record.len()).ok().filter(|length| *length <= MAX_RECORD)?;
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&record);
        if bytes.len() as u64 > MAX_FILE || number >= MAX_RECORDS {
            return None;
        }
    }
    Some(bytes)
}

/// The records of one file, in order. Ends after the first error.
#[derive(Debug)]
pub(crate) struct Records<'a> {
    file: &'a str,
    bytes: &'a [u8],
    offset: usize,
    left: usize,
}

/// One record, not yet decoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    /// Name of the file.
    pub(crate) file: &'a str,
    /// Where the record's bytes start in the file.
    pub(crate) offset: u64,
    /// The protobuf message.
    pub(crate) bytes: &'a [u8],
}

impl<'a> Records<'a> {
    /// Checks the magic numbers of a file's contents.
    pub(crate) fn new(file: &'a str, layout: Layout, bytes: &'a [u8]) -> Result<Self, ReadError> {
        let mut records = Self { file, bytes, offset: 0, left: MAX_RECORDS };
        for &expected in layout.magics() {
            let offset = records.offset as u64;
            let found = records.word()?;
            if found != expected {
                return Err(ReadError::Magic { file: file.to_owned(), offset, expected, found });
            }
        }
        Ok(records)
    }

    /// Bytes between records, where a record says that they follow it.
    pub(crate) fn raw(&mut self, length: usize) -> Result<&'a [u8], ReadError> {
        self.take(length)
    }

    /// All that is left of the file.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.bytes.get(self.offset..).unwrap_or_default()
    }

    fn word(&mut self) -> Result<u32, ReadError> {
        let bytes = self.take(4)?;
        // `take` gives as many bytes as asked for.
        Ok(bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte)))
    }

    fn take(&mut self, wanted: usize) -> Result<&'a [u8], ReadError> {
        let rest = self.bytes.get(self.offset..).unwrap_or_default();
        let bytes = rest.get(..wanted).ok_or_else(|| ReadError::Cut {
            file: self.file.to_owned(),
            offset: self.offset as u64,
            expected: wanted as u64,
            left: rest.len() as u64,
        })?;
        self.offset += wanted;
        Ok(bytes)
    }

    fn record(&mut self) -> Result<Record<'a>, ReadError> {
        let at = self.offset as u64;
        if self.left == 0 {
            let limit = MAX_RECORDS;
            return Err(ReadError::TooManyRecords { file: self.file.to_owned(), offset: at, limit });
        }
        self.left -= 1;
        let length = self.word()?;
        if length > MAX_RECORD {
            let (file, limit) = (self.file.to_owned(), MAX_RECORD);
            return Err(ReadError::RecordTooLong { file, offset: at, length, limit });
        }
        let offset = self.offset as u64;
        let bytes = self.take(length as usize)?;
        Ok(Record { file: self.file, offset, bytes })
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.offset >= self.bytes.len() {
            return None;
        }
        let record = self.record();
        if record.is_err() {
            self.offset = self.bytes.len();
        }
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(bytes: &[u8]) -> Result<Vec<Vec<u8>>, ReadError> {
        Records::new("x.img", Layout::Inventory, bytes)?.map(|r| r.map(|r| r.bytes.to_vec())).collect()
    }

    #[test]
    fn records_follow_each_other_to_the_end() {
        let bytes = b"\x16\x31\x31\x58\x02\0\0\0ab\0\0\0\0\x01\0\0\0c";
        assert_eq!(collect(bytes).unwrap(), [b"ab".to_vec(), b"".to_vec(), b"c".to_vec()]);
    }

    #[test]
    fn what_is_written_is_read_again() {
        let records = [b"ab".to_vec(), Vec::new(), b"c".to_vec()];
        let bytes = contents(Layout::Inventory, records.clone().into_iter()).unwrap();
        assert_eq!(collect(&bytes).unwrap(), records);
        let long = std::iter::once(vec![0; MAX_RECORD as usize + 1]);
        assert_eq!(contents(Layout::Inventory, long), None);
    }

    #[test]
    fn a_wrong_magic_is_shown_with_the_right_one() {
        let error = collect(b"\x16\x31\x31\x59").unwrap_err();
        assert_eq!(
            error.to_string(),
            "x.img: at byte 0: magic number 0x59313116 where 0x58313116 was expected"
        );
    }

    #[test]
    fn a_length_beyond_the_end_is_a_cut_and_ends_the_file() {
        let mut records = Records::new("x.img", Layout::Inventory, b"\x16\x31\x31\x58\x09\0\0\0abc").unwrap();
        let error = records.next().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "x.img: at byte 8: 9 bytes expected, 3 left");
        assert!(records.next().is_none());
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_anything_is_read() {
        let error = collect(b"\x16\x31\x31\x58\xff\xff\xff\xff").unwrap_err();
        assert!(matches!(error, ReadError::RecordTooLong { offset: 4, length: u32::MAX, .. }));
    }
}
