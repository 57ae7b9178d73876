use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use proptest::prelude::*;

use super::*;

/// A manifest with something in every part.
pub(crate) fn manifest() -> Manifest {
    Manifest {
        defrost: "0.1.0".into(),
        format: MANIFEST.version,
        id: ImageId::known(1),
        created_unix_ns: 1_790_000_000_000_000_000,
        subject: subject(),
        durable: true,
        machine: Machine { architecture: "x86_64".into(), page_size: 4096, ..Machine::default() },
        criu: CriuRecord { version: (4, 2, 1), restore_flags: Vec::new() },
        capabilities: Capabilities { bounding: 0x1_ffff, ..Capabilities::default() },
        processes: vec![ProcessRecord {
            pid: 4711,
            parent: 0,
            group: 4711,
            session: 4711,
            threads: vec![4711, 4712],
            command: "shop".into(),
        }],
        needed: vec![NeededFile {
            path: "/srv/shop".into(),
            need: Need::Program,
            size: Some(1_234_567),
            mode: 0o100_755,
            stamp: Stamp { device: 1, inode: 2, modified_unix_ns: 3, changed_unix_ns: -4 },
            build_id: Some("c0ffee".into()),
            blake3: Some(Digest::of(b"shop")),
        }],
        ancestors: vec![Ancestor {
            image: StoredPath::new(OsStr::from_bytes(b"/srv/not \xff unicode")),
            id: ImageId::known(2),
            files: vec![AncestorFile {
                name: "pages-1.img".into(),
                size: 8192,
                mode: 0o100_600,
                stamp: Stamp { device: 1, inode: 9, modified_unix_ns: 8, changed_unix_ns: 7 },
                blake3: Digest::of(b"earlier pages"),
                mapped_bytes: 4096,
            }],
        }],
        depth: 1,
        listeners: vec![Listen {
            name: String::new(),
            address: "[::1]:9".parse().unwrap(),
            reuse_port: true,
        }],
        files: vec![ImageFile {
            name: "pages-1.img".into(),
            size: 8192,
            blake3: Digest::of(b"pages"),
            bulk: true,
        }],
        present_bytes: 8192,
        seams: vec![0x7f00_0000_0000],
        phases: vec![Phase { name: "hash".into(), micros: 1 }],
    }
}

fn subject() -> SubjectRecord {
    SubjectRecord {
        name: "shop".into(),
        pid: 4711,
        argv: vec!["shop".into(), "--port".into(), "8080".into()],
        exe: "/srv/shop".into(),
        cwd: "/srv".into(),
        instance: "00112233445566778899aabbccddeeff".into(),
        resources: vec![ResourceRecord { name: "http".into(), description: "listener".into() }],
        listens: vec![Listen {
            name: "http".into(),
            address: ([127, 0, 0, 1], 8080).into(),
            reuse_port: false,
        }],
        parameter_pipe: Some(91_234),
        phases: vec![Phase { name: "quiesce".into(), micros: 512 }],
        ..SubjectRecord::default()
    }
}

#[test]
fn a_manifest_comes_back_from_bytes_and_from_json() {
    let mut manifest = manifest();
    assert_eq!(Manifest::from_bytes(&manifest.to_bytes().unwrap()).unwrap(), manifest);
    assert_eq!(manifest.taken_unix_ns(), manifest.created_unix_ns - 1000, "before it was hashed");
    let json = serde_json::to_string(&manifest).unwrap();
    assert!(json.contains("/srv/not \u{fffd} unicode"), "{json}");
    manifest.ancestors[0].image = StoredPath::new("/srv/unicode");
    let json = serde_json::to_string(&manifest).unwrap();
    assert_eq!(serde_json::from_str::<Manifest>(&json).unwrap(), manifest);
    assert!(json.contains(&format!(r#""id":"{}""#, manifest.id)) && manifest.id.to_string().len() == 32);
    assert!(json.contains(r#""need":"program""#) && json.contains(r#""address":"127.0.0.1:8080""#), "{json}");
    let subject = manifest.subject;
    assert_eq!(SubjectRecord::from_bytes(&subject.to_bytes().unwrap()).unwrap(), subject);
}

#[test]
fn a_manifest_cut_anywhere_is_refused() {
    let bytes = manifest().to_bytes().unwrap();
    for len in 0..bytes.len() {
        let error = Manifest::from_bytes(&bytes[..len]).unwrap_err();
        assert!(matches!(error, RecordError::Short { .. }), "cut at {len}: {error}");
    }
}

#[test]
fn no_two_images_have_one_id() {
    assert_ne!(ImageId::fresh().unwrap(), ImageId::fresh().unwrap());
}

#[test]
fn one_record_is_not_taken_for_another() {
    let subject = manifest().subject.to_bytes().unwrap();
    assert!(matches!(Manifest::from_bytes(&subject).unwrap_err(), RecordError::Magic { .. }));
}

proptest! {
    #[test]
    fn a_flipped_bit_is_always_found(at in any::<proptest::sample::Index>(), bit in 0_u8..8) {
        let mut bytes = manifest().to_bytes().unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(Manifest::from_bytes(&bytes).is_err());
    }

    #[test]
    fn a_faulty_body_with_a_right_checksum_is_refused_or_read(
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..9),
    ) {
        let mut bytes = manifest().to_bytes().unwrap();
        let (header, body) = bytes.split_at_mut(record::HEADER_LEN);
        for (at, byte) in changes {
            body[at.index(body.len())] = byte;
        }
        let mut crc = crc32fast::Hasher::new();
        crc.update(&header[..16]);
        crc.update(body);
        header[16..].copy_from_slice(&crc.finalize().to_le_bytes());
        match Manifest::from_bytes(&bytes) {
            Ok(_) | Err(RecordError::Body(_) | RecordError::Trailing(_)) => {}
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}
