//! Stored records, as bytes from anywhere, and with a checksum that is right.
#![no_main]

use defrost::image::manifest::{MANIFEST, Manifest, SUBJECT, SubjectRecord};
use defrost::image::record::Kind;
use libfuzzer_sys::fuzz_target;

/// A record of this kind with this body, whatever it is.
fn sealed(kind: Kind, body: &[u8]) -> Vec<u8> {
    let mut bytes = kind.magic.to_vec();
    bytes.extend(kind.version.to_le_bytes());
    bytes.extend(u32::try_from(body.len()).expect("a short body").to_le_bytes());
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(&bytes);
    checksum.update(body);
    bytes.extend(checksum.finalize().to_le_bytes());
    bytes.extend(body);
    bytes
}

fuzz_target!(|data: &[u8]| {
    let _ = (Manifest::from_bytes(data), SubjectRecord::from_bytes(data));
    if let Ok(manifest) = Manifest::from_bytes(&sealed(MANIFEST, data)) {
        let again = Manifest::from_bytes(&manifest.to_bytes().expect("what was read can be written"));
        assert_eq!(again.expect("what was written can be read"), manifest);
    }
    if let Ok(subject) = SubjectRecord::from_bytes(&sealed(SUBJECT, data)) {
        let again = SubjectRecord::from_bytes(&subject.to_bytes().expect("what was read can be written"));
        assert_eq!(again.expect("what was written can be read"), subject);
    }
});
