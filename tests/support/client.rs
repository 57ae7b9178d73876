//! Clients: an echo that checks every answer, and HTTP in its simplest form.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::{PATIENCE, within};

/// A connection to an echo server.
pub struct Echo {
    stream: BufReader<TcpStream>,
    count: u32,
}

impl Echo {
    /// Connects, for as long as nobody listens yet.
    #[track_caller]
    pub fn connect(port: u16) -> Self {
        let mut connected = None;
        within(PATIENCE, || {
            connected = TcpStream::connect(("127.0.0.1", port)).ok();
            connected.is_some()
        });
        let stream = connected.unwrap_or_else(|| panic!("nobody listens on port {port}"));
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream: BufReader::new(stream), count: 0 }
    }

    /// One request with its answer checked; `false` when the connection is closed.
    pub fn ask(&mut self) -> bool {
        self.count += 1;
        let line = format!("request {} of {:?}\n", self.count, std::thread::current().id());
        if self.stream.get_mut().write_all(line.as_bytes()).is_err() {
            return false;
        }
        let mut answer = String::new();
        match self.stream.read_line(&mut answer) {
            Ok(0) | Err(_) => false,
            Ok(_) => {
                assert_eq!(answer, line, "a wrong answer");
                true
            }
        }
    }

    /// Whether the server has closed the connection by now, having said nothing more.
    pub fn is_closed(&mut self) -> bool {
        self.stream.get_mut().set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut rest = String::new();
        matches!(self.stream.read_line(&mut rest), Ok(0) | Err(_)) && rest.is_empty()
    }
}

/// That many requests, each answered.
#[track_caller]
pub fn requests(port: u16, count: u32) {
    let mut echo = Echo::connect(port);
    for number in 0..count {
        assert!(echo.ask(), "request {number} of {count} had no answer");
    }
}

/// Whether one request is answered within this time.
pub fn answers_within(port: u16, limit: Duration) -> bool {
    within(limit, || {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
        stream.set_read_timeout(Some(limit)).unwrap();
        let mut answer = [0; 3];
        stream.write_all(b"up\n").is_ok() && stream.read_exact(&mut answer).is_ok() && &answer == b"up\n"
    })
}

/// Status and body of `GET PATH`.
#[track_caller]
pub fn get(port: u16, path: &str) -> (u16, String) {
    let mut echo = Echo::connect(port);
    let stream = echo.stream.get_mut();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    (status.unwrap_or_else(|| panic!("no HTTP answer: {answer}")), body.unwrap_or_default())
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
