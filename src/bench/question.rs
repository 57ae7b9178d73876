//! What is asked of a service, and which answer is the correct one.
//!
//! It must not know when or how often it is asked.

use std::net::{SocketAddr, ToSocketAddrs};

use sha2::{Digest, Sha256};

/// The longest answer that is read, in bytes.
pub const LONGEST: usize = 64 << 20;
/// The most header lines of an answer by HTTP.
const HEADERS: usize = 100;
/// How much of a wrong answer is shown, in bytes.
const SHOWN: usize = 80;

/// One request, sent as it stands, and the answer to it.
#[derive(Debug, Clone)]
pub struct Question {
    /// Where it is sent.
    pub address: SocketAddr,
    /// What is sent.
    pub request: Vec<u8>,
    /// What a correct answer is.
    pub expect: Expect,
    /// The question on one line, for people.
    pub text: String,
}

/// What a correct answer is.
#[derive(Debug, Clone)]
pub enum Expect {
    /// An answer by HTTP, which ends with its length or with the connection.
    Http {
        /// Its status.
        status: u16,
        /// Its body.
        body: Body,
    },
    /// Exactly these bytes.
    Bytes(Vec<u8>),
}

/// The body of a correct answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// Any.
    Any,
    /// These bytes, up to a line feed at the end.
    Is(Vec<u8>),
    /// The one with this SHA-256.
    Sha256([u8; 32]),
}

/// What an answer is worth as far as it has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// There may be more of it.
    Incomplete,
    /// It is whole, and correct.
    Correct,
    /// It cannot become correct, because of this.
    Wrong(String),
}

/// Why there is no such question. Nothing was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuestionError {
    /// Not of the form `http://HOST:PORT/PATH`.
    #[error("'{url}' is not of the form http://HOST:PORT/PATH")]
    Url {
        /// As it was given.
        url: String,
    },
    /// No header line.
    #[error("'{line}' is not of the form NAME: VALUE")]
    Header {
        /// As it was given.
        line: String,
    },
    /// Nowhere to send it.
    #[error("{address} is no address: {source}")]
    Address {
        /// As it was given.
        address: String,
        /// Why not.
        source: std::io::Error,
    },
}

/// What is asked by HTTP.
#[derive(Debug, Clone)]
pub struct Http<'a> {
    /// `http://HOST:PORT/PATH`
    pub url: &'a str,
    /// Sent by POST; without it the request is a GET.
    pub body: Option<&'a [u8]>,
    /// More header lines, `NAME: VALUE`.
    pub headers: &'a [String],
    /// The status of a correct answer.
    pub status: u16,
    /// The body of a correct answer.
    pub expect: Body,
}

impl Question {
    /// A request in HTTP 1.0, so that the answer ends with the connection.
    ///
    /// # Errors
    /// [`QuestionError`]
    pub fn http(asked: Http<'_>) -> Result<Self, QuestionError> {
        let wrong = || QuestionError::Url { url: asked.url.to_owned() };
        let uri: axum::http::Uri = asked.url.parse().map_err(|_| wrong())?;
        let host = uri.host().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(wrong)?;
        let port = uri.port_u16().unwrap_or(80);
        let path = uri.path_and_query().map_or("/", axum::http::uri::PathAndQuery::as_str);
        let method = if asked.body.is_some() { "POST" } else { "GET" };
        let mut head = format!("{method} {path} HTTP/1.0\r\nHost: {host}:{port}\r\n");
        for header in asked.headers {
            if !is_header(header) {
                return Err(QuestionError::Header { line: header.clone() });
            }
            head += &format!("{header}\r\n");
        }
        if let Some(body) = asked.body {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        head += "\r\n";
        let mut request = head.into_bytes();
        request.extend(asked.body.unwrap_or_default());
        let text = format!("{method} {} → {} with {}", asked.url, asked.status, asked.expect.text());
        let expect = Expect::Http { status: asked.status, body: asked.expect };
        Ok(Self { address: resolve(&format!("{host}:{port}"))?, request, expect, text })
    }

    /// A line that is answered by another.
    ///
    /// # Errors
    /// [`QuestionError::Address`]
    pub fn bytes(address: &str, send: &[u8], expect: &[u8]) -> Result<Self, QuestionError> {
        let text = format!("{} to {address} → {}", shown(send), shown(expect));
        let expect = Expect::Bytes(expect.to_owned());
        Ok(Self { address: resolve(address)?, request: send.to_owned(), expect, text })
    }

    /// The same, asked elsewhere: of a clone.
    #[must_use]
    pub fn at(&self, address: SocketAddr) -> Self {
        Self { address, ..self.clone() }
    }
}

fn is_header(line: &str) -> bool {
    let Some((name, value)) = line.split_once(':') else { return false };
    axum::http::HeaderName::try_from(name).is_ok() && axum::http::HeaderValue::try_from(value.trim()).is_ok()
}

fn resolve(address: &str) -> Result<SocketAddr, QuestionError> {
    let failed = |source| QuestionError::Address { address: address.to_owned(), source };
    let mut found = address.trim_matches(['[', ']']).to_socket_addrs().map_err(failed)?;
    found.next().ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))
}

impl Expect {
    /// Looks at what has come so far; `ended` says that there is no more.
    #[must_use]
    pub fn judge(&self, answer: &[u8], ended: bool) -> Verdict {
        match self {
            Self::Bytes(expected) if answer == expected.as_slice() => Verdict::Correct,
            Self::Bytes(expected) if expected.starts_with(answer) && !ended => Verdict::Incomplete,
            Self::Bytes(_) => Verdict::Wrong(format!("the answer is {}", shown(answer))),
            Self::Http { status, body } => judge_http(answer, ended, *status, body),
        }
    }
}

fn judge_http(answer: &[u8], ended: bool, expected: u16, body: &Body) -> Verdict {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let start = match head.parse(answer) {
        Ok(httparse::Status::Complete(start)) => start,
        Ok(httparse::Status::Partial) if !ended => return Verdict::Incomplete,
        Ok(httparse::Status::Partial) => return Verdict::Wrong("the answer ends too early".to_owned()),
        Err(error) => return Verdict::Wrong(format!("no HTTP: {error}: {}", shown(answer))),
    };
    let length = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length: Option<usize> =
        length.and_then(|header| std::str::from_utf8(header.value).ok()?.trim().parse().ok());
    let content = match length {
        Some(length) if length <= answer.len() - start => &answer[start..start + length],
        None if ended => &answer[start..],
        _ if !ended => return Verdict::Incomplete,
        _ => return Verdict::Wrong("the answer ends too early".to_owned()),
    };
    match head.code {
        Some(code) if code == expected => body.judge(content),
        code => Verdict::Wrong(format!("status {}: {}", code.unwrap_or_default(), shown(content))),
    }
}

impl Body {
    fn judge(&self, content: &[u8]) -> Verdict {
        let cut = |bytes: &'_ [u8]| bytes.strip_suffix(b"\n").unwrap_or(bytes).to_owned();
        let right = match self {
            Self::Any => true,
            Self::Is(expected) => content == expected.as_slice() || cut(content) == cut(expected),
            Self::Sha256(expected) => Sha256::digest(content).as_slice() == expected,
        };
        if right { Verdict::Correct } else { Verdict::Wrong(format!("the body is {}", shown(content))) }
    }

    fn text(&self) -> String {
        match self {
            Self::Any => "any body".to_owned(),
            Self::Is(expected) => format!("the body {}", shown(expected)),
            Self::Sha256(sum) => {
                format!(
                    "the body of sha256 {}",
                    sum.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
                )
            }
        }
    }
}

/// Bytes on one line.
fn shown(bytes: &[u8]) -> String {
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN)]);
    let more = if bytes.len() > SHOWN { "…" } else { "" };
    format!("{start:?}{more} of {} bytes", bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(body: Body) -> Expect {
        Expect::Http { status: 200, body }
    }

    #[test]
    fn an_answer_is_judged_when_it_is_whole() {
        let expect = http(Body::Is(b"ready".to_vec()));
        let answer = b"HTTP/1.0 200 OK\r\ncontent-length: 6\r\n\r\nready\n";
        for end in 0..answer.len() {
            assert_eq!(expect.judge(&answer[..end], false), Verdict::Incomplete, "{end}");
            assert!(matches!(expect.judge(&answer[..end], true), Verdict::Wrong(_)), "{end}");
        }
        assert_eq!(expect.judge(answer, false), Verdict::Correct);
    }

    #[test]
    fn without_a_length_the_connection_ends_it() {
        let expect = http(Body::Any);
        let answer = b"HTTP/1.0 200 OK\r\n\r\nready\n";
        assert_eq!(expect.judge(answer, false), Verdict::Incomplete);
        assert_eq!(expect.judge(answer, true), Verdict::Correct);
    }

    #[test]
    fn a_wrong_answer_is_wrong() {
        let expect = http(Body::Is(b"ready".to_vec()));
        for answer in [
            &b"HTTP/1.0 503 no\r\ncontent-length: 0\r\n\r\n"[..],
            b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello",
            b"+OK ready\r\n\r\n",
        ] {
            assert!(matches!(expect.judge(answer, false), Verdict::Wrong(_)), "{answer:?}");
        }
        let sum: [u8; 32] = Sha256::digest(b"hello").into();
        let answer = b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello";
        assert_eq!(http(Body::Sha256(sum)).judge(answer, false), Verdict::Correct);
        assert!(matches!(http(Body::Sha256([0; 32])).judge(answer, false), Verdict::Wrong(_)));
    }

    #[test]
    fn a_line_is_compared_byte_by_byte() {
        let expect = Expect::Bytes(b"pong\n".to_vec());
        assert_eq!(expect.judge(b"po", false), Verdict::Incomplete);
        assert_eq!(expect.judge(b"pong\n", false), Verdict::Correct);
        assert!(matches!(expect.judge(b"pong\n\n", false), Verdict::Wrong(_)));
        assert!(matches!(expect.judge(b"po", true), Verdict::Wrong(_)));
    }

    #[test]
    fn a_url_names_where_and_what() {
        let url = "http://127.0.0.1:8080/a?b=c";
        let asked =
            Http { url, body: Some(b"hello"), headers: &["X: y".to_owned()], status: 200, expect: Body::Any };
        let question = Question::http(asked).unwrap();
        assert_eq!(question.address, "127.0.0.1:8080".parse().unwrap());
        let request = String::from_utf8(question.request).unwrap();
        assert!(request.starts_with("POST /a?b=c HTTP/1.0\r\nHost: 127.0.0.1:8080\r\nX: y\r\n"), "{request}");
        assert!(request.ends_with("Content-Length: 5\r\n\r\nhello"), "{request}");
        let asked = Http { url: "ftp://x/", body: None, headers: &[], status: 200, expect: Body::Any };
        assert!(matches!(Question::http(asked), Err(QuestionError::Url { .. })));
    }
}
