//! Clients that come while a server is dumped.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::stage::Stage;
use crate::support::{PATIENCE, within};

/// All of them are served afterwards, and none is refused: the listener is held outside of the image meanwhile.
pub fn clients_that_come_during_a_dump_are_served(stage: &Stage) {
    let actor = stage.start("large", &["mib=400"]);
    let asked = actor.ask_aside("checkpoint img leave-running".to_owned());
    stage.diary.read("quiesced", 1);
    let mut clients = Vec::new();
    let over = within(PATIENCE, || {
        clients.push(TcpStream::connect(("127.0.0.1", actor.port)).expect("the backlog is kept"));
        !stage.diary.texts("resumed").is_empty()
    });
    assert!(over, "the dump takes longer than {PATIENCE:?}");
    assert!(clients.len() > 10, "only {} clients came in time", clients.len());
    for (number, client) in clients.iter_mut().enumerate() {
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        writeln!(client, "{number:4}").unwrap();
        let mut answer = [0; 5];
        client.read_exact(&mut answer).unwrap_or_else(|error| panic!("client {number}: {error}"));
        assert_eq!(answer.as_slice(), format!("{number:4}\n").as_bytes());
    }
    let answer = asked.join().unwrap().unwrap();
    assert!(answer.ok, "{answer:?}");
    actor.stop();
    assert_eq!(stage.diary.read("memory", 1), "whole");
}
