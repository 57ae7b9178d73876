//! Files whose records are followed by bytes: what is in pipes and in the queues of sockets.

use std::fs;
use std::path::Path;

use criu_images::*;
use prost::Message;

const QUEUES: [u32; 2] = [0x5456_4319, 0x5626_4026];

/// A file of these records, each with the bytes that follow it.
fn file<M: Message>(magics: [u32; 2], records: &[(M, &[u8])]) -> Vec<u8> {
    let mut bytes: Vec<u8> = magics.iter().flat_map(|magic| magic.to_le_bytes()).collect();
    for (record, contents) in records {
        let record = record.encode_to_vec();
        bytes.extend(u32::try_from(record.len()).unwrap().to_le_bytes());
        bytes.extend(record);
        bytes.extend(*contents);
    }
    bytes
}

fn packet(file_id: u32, length: u32) -> Packet {
    Packet { file_id, length, control: Vec::new(), sender: None }
}

fn queues(bytes: &[u8]) -> Result<Vec<(Packet, Vec<u8>)>, ReadError> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("sk-queues.img"), bytes).unwrap();
    ImageDir::open(folder.path()).unwrap().socket_queues()
}

#[test]
fn pipes_of_a_real_image_have_what_was_in_them() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/rich");
    let image = ImageDir::open(fixture).unwrap();
    let [(data, contents)] = <[_; 1]>::try_from(image.pipes_data().unwrap()).unwrap();
    assert_eq!((contents.as_slice(), data.capacity), (b"hello".as_slice(), Some(65536)));
    let [(data, contents)] = <[_; 1]>::try_from(image.fifos_data().unwrap()).unwrap();
    assert_eq!((contents.as_slice(), data.length), (b"".as_slice(), 0));
    assert!(image.socket_queues().unwrap().is_empty(), "there is no such file");
}

#[test]
fn a_file_without_a_name_is_read_with_its_contents() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/rich");
    let (ghost, contents) = ImageDir::open(&fixture).unwrap().ghost_file(1).unwrap();
    assert_eq!((ghost.mode, ghost.uid, contents), (0o100_644, 0, vec![b'z'; 100]));
    assert!(ghost.modified.unwrap().sec > 1_700_000_000);
    let whole = fs::read(fixture.join("ghost-file-1.img")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for end in 0..whole.len() - 100 {
        // The id is in hexadecimal.
        fs::write(folder.path().join("ghost-file-1a.img"), &whole[..end]).unwrap();
        assert!(ImageDir::open(folder.path()).unwrap().ghost_file(0x1a).is_err(), "cut at {end}");
    }
}

#[test]
fn packets_come_in_order_with_what_came_beside_them() {
    let passed = Packet {
        control: vec![ControlMessage { kind: 1, file_ids: vec![4, 5] }],
        sender: Some(SenderCredentials { uid: 1, gid: 2, pid: 3 }),
        ..packet(7, 0)
    };
    let bytes = file(QUEUES, &[(packet(7, 5), b"hello"), (passed.clone(), b""), (packet(8, 1), b"x")]);
    let read = queues(&bytes).unwrap();
    assert_eq!(read, [(packet(7, 5), b"hello".to_vec()), (passed, vec![]), (packet(8, 1), b"x".to_vec())]);
}

#[test]
fn a_file_that_is_cut_within_a_record_or_its_bytes_is_refused() {
    let bytes = file(QUEUES, &[(packet(7, 5), b"hello"), (packet(8, 3), b"abc")]);
    let first = file(QUEUES, &[(packet(7, 5), b"hello")]).len();
    for end in 0..bytes.len() {
        let read = queues(&bytes[..end]);
        assert_eq!(read.is_ok(), end == 8 || end == first, "cut at {end}: {read:?}");
    }
}

#[test]
fn a_length_beyond_the_end_is_not_believed() {
    let error = queues(&file(QUEUES, &[(packet(7, u32::MAX), b"hello")])).unwrap_err();
    assert!(matches!(error, ReadError::Cut { expected, .. } if expected == u64::from(u32::MAX)), "{error}");
}
