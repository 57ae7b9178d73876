//! From the bytes of a record to a message. It must not know where the bytes came from.

use prost::Message;

use crate::error::ReadError;
use crate::format::{MAX_PARTS, Record};
use crate::wire;

/// What to do with fields this crate does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    Accepted,
    Refused,
}

/// Decodes one record, and sees that nothing of it is missing, nor too much in it.
pub(crate) fn decode<M: Message + Default>(
    record: Record<'_>,
    message: &'static str,
    unknown: Unknown,
) -> Result<M, ReadError> {
    let Record { file, offset, bytes } = record;
    let file = || file.to_owned();
    if wire::parts(bytes, MAX_PARTS + 1) > MAX_PARTS {
        return Err(ReadError::TooManyParts { file: file(), offset, message, limit: MAX_PARTS });
    }
    let decoded =
        M::decode(bytes).map_err(|source| ReadError::Decode { file: file(), offset, message, source })?;
    let difference = wire::compare(bytes, &decoded.encode_to_vec());
    if let Some(field) = difference.missing {
        return Err(ReadError::MissingField { file: file(), offset, message, field });
    }
    match difference.unknown {
        Some(field) if unknown == Unknown::Refused => {
            Err(ReadError::UnknownField { file: file(), offset, message, field })
        }
        _ => Ok(decoded),
    }
}
