//! What the HTTP server records of a request: each one as `request`, and the pages that people look at as a custom
//! event `page.view`, which is also how a server of your own would define one.
//!
//! `defrost events NAME --name page.view --format '{.path} from {.referrer}'` lists them,
//! `defrost events NAME --summary` counts them. It must not know what is served.

use std::time::Duration;

use axum::body::HttpBody;
use axum::extract::Request;
use axum::http::header;
use axum::response::Response;

use crate::events::{Draft, Typed};

/// The longest path and referrer that are kept, in characters.
const SHOWN: usize = 256;

/// What programs ask for, and people do not look at.
const MACHINES: &[&str] = &["/healthz", "/readyz", "/metrics"];

/// Whether a route is one that people look at.
pub(super) fn is_page(route: &str) -> bool {
    !MACHINES.contains(&route)
}

/// Somebody looked at a page.
#[derive(Debug)]
pub(super) struct PageView {
    path: String,
    /// The page that led there; empty when the browser did not say.
    referrer: String,
}

impl Typed for PageView {
    const NAME: &'static str = "page.view";
    const LABEL: &'static str = "a page was viewed";
    const FIELDS: &'static [&'static str] = &["path", "referrer"];

    fn fields(self, draft: Draft) -> Draft {
        draft.with("path", self.path).with("referrer", self.referrer)
    }
}

/// What is remembered of a request until it is answered.
#[derive(Debug)]
pub(super) struct Asked {
    method: String,
    path: String,
    referrer: String,
}

impl Asked {
    pub(super) fn of(request: &Request) -> Self {
        let referrer = request.headers().get(header::REFERER).map(|value| value.as_bytes());
        let referrer = String::from_utf8_lossy(referrer.unwrap_or_default());
        Self {
            method: request.method().to_string(),
            path: shown(request.uri().path()),
            referrer: shown(&referrer),
        }
    }

    /// The event of the request.
    pub(super) fn answered(&self, response: &Response, took: Duration) -> Draft {
        let draft = Draft::new("request").label("a request was answered");
        let draft = draft.with("method", self.method.clone()).with("path", self.path.clone());
        let draft = draft.with("status", response.status().as_u16()).took(took);
        draft.with_some("bytes", response.body().size_hint().exact())
    }

    /// The event of the page.
    pub(super) fn view(self) -> PageView {
        PageView { path: self.path, referrer: self.referrer }
    }
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}
