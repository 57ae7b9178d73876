//! The service's requests.
//!
//! It must not know listeners or connections, nor how a text is highlighted.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, FromRequest, Query, Request as HttpRequest, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use syntect::html::css_for_theme_with_class_style;

use super::grammars::DEFAULT_THEME;
use super::render::{CLASSES, Request, Style};
use super::{Failure, Highlight, samples};

/// How long a client may take to send its text.
const BODY_LIMIT: Duration = Duration::from_secs(10);

/// What the page may do: show itself and ask the server that it is from.
const PAGE_POLICY: &str = include_str!("page.policy");

/// An answer opened as a page of its own shows its colours and nothing else.
const ANSWER_POLICY: &str = include_str!("answer.policy");

type Shared = State<Arc<Highlight>>;

/// The routes:
///
/// | path | answer |
/// |---|---|
/// | `/` | a page to paste code into |
/// | `POST /highlight?lang=L&file=F&theme=T&style=classes\|inline` | the text as HTML |
/// | `/languages`, `/themes` | JSON |
/// | `/theme.css?theme=T` | the style sheet for `style=classes` |
/// | `/sample?lang=L` | a text to try |
/// | `/instance` | JSON: which restore of which state answers |
/// | `/licenses` | those of the grammars and themes |
pub(in crate::server) fn router<S>(highlight: Arc<Highlight>) -> Router<S> {
    let limit = DefaultBodyLimit::max(highlight.options.text_limit);
    Router::new()
        .route("/", get(page))
        .route("/highlight", post(answer).layer(limit))
        .route("/languages", get(languages))
        .route("/themes", get(themes))
        .route("/theme.css", get(style_sheet))
        .route("/sample", get(sample))
        .route("/instance", get(instance))
        .route("/licenses", get(licenses))
        .with_state(highlight)
}

#[derive(Debug, Default, Deserialize)]
struct Asked {
    lang: Option<String>,
    file: Option<String>,
    theme: Option<String>,
    style: Option<Style>,
}

/// A refusal: its status, and the cause in words.
type Refusal = (StatusCode, String);

async fn answer(
    State(highlight): Shared,
    asked: Result<Query<Asked>, QueryRejection>,
    request: HttpRequest,
) -> Response {
    let asked = match asked {
        Ok(Query(asked)) => asked,
        Err(error) => return refuse((error.status(), error.body_text())),
    };
    match highlighted(&highlight, asked, request).await {
        Ok(response) => response,
        Err(refusal) => refuse(refusal),
    }
}

fn refuse((status, cause): Refusal) -> Response {
    let mut response = (status, cause + "\n").into_response();
    match status {
        StatusCode::SERVICE_UNAVAILABLE => {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        StatusCode::UNSUPPORTED_MEDIA_TYPE => {
            response.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        // What is left of the text is not read.
        StatusCode::REQUEST_TIMEOUT | StatusCode::PAYLOAD_TOO_LARGE => {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        _ => {}
    }
    response
}

async fn highlighted(
    highlight: &Arc<Highlight>,
    asked: Asked,
    request: HttpRequest,
) -> Result<Response, Refusal> {
    is_text(request.headers())?;
    let theme = asked.theme.as_deref().unwrap_or(DEFAULT_THEME);
    let (theme, _) = highlight.grammars.theme(theme).ok_or_else(|| no_theme(theme))?;
    let named = asked.lang.as_deref().filter(|name| !name.is_empty());
    let named = named.map(|name| highlight.grammars.named(name));
    let named = named.transpose().map_err(|error| {
        (StatusCode::UNPROCESSABLE_ENTITY, format!("{error}; GET /languages lists those that are known"))
    })?;

    let text = text(request, highlight.options.text_limit).await?;
    let syntax = named.unwrap_or_else(|| highlight.grammars.guess(asked.file.as_deref(), &text));
    let language = syntax.name.clone();
    let request =
        Request { language: language.clone(), theme, style: asked.style.unwrap_or(Style::Classes), text };
    let (html, cached) = highlight.highlight(request).await.map_err(|failure| refusal(highlight, failure))?;

    let mut response = Html(html.to_string()).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(ANSWER_POLICY.trim_ascii_end()));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert("x-cache", HeaderValue::from_static(if cached { "hit" } else { "miss" }));
    if let Ok(language) = HeaderValue::from_str(&language) {
        headers.insert("x-language", language);
    }
    Ok(response)
}

/// Whether a body is declared as text, or not as anything. `curl --data-binary` says that it is a form.
fn is_text(headers: &HeaderMap) -> Result<(), Refusal> {
    let refused = |what: String| Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, what));
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING)
        && encoding != "identity"
    {
        return refused("the text must not be compressed".to_owned());
    }
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let kind = kind.to_str().unwrap_or("?").to_ascii_lowercase();
    let (media, parameters) = kind.split_once(';').unwrap_or((&kind, ""));
    let textual = ["text/", "application/"].iter().any(|start| media.trim().starts_with(start));
    if !textual {
        return refused(format!("{} is not source text; send text/plain", media.trim()));
    }
    let charset = parameters.split(';').find_map(|parameter| parameter.trim().strip_prefix("charset="));
    match charset.map(|charset| charset.trim_matches('"')) {
        None | Some("utf-8" | "utf8" | "us-ascii") => Ok(()),
        Some(charset) => refused(format!("the text must be in UTF-8, not {charset}")),
    }
}

/// The body, within its limits of size and time. The size is seen to while it is read; here it is only named.
async fn text(request: HttpRequest, limit: usize) -> Result<String, Refusal> {
    let read = tokio::time::timeout(BODY_LIMIT, Bytes::from_request(request, &()));
    let bytes = match read.await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(error)) if error.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            return Err((error.status(), format!("the text is longer than the limit of {limit} bytes")));
        }
        Ok(Err(error)) => return Err((error.status(), error.body_text())),
        Err(_) => {
            let cause = format!("the text did not arrive within {} s", BODY_LIMIT.as_secs());
            return Err((StatusCode::REQUEST_TIMEOUT, cause));
        }
    };
    String::from_utf8(bytes.into()).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        (StatusCode::BAD_REQUEST, format!("the text is not UTF-8 from byte {at} on"))
    })
}

fn no_theme(name: &str) -> Refusal {
    let cause = format!("no theme is named {name:?}; GET /themes lists those that are known");
    (StatusCode::UNPROCESSABLE_ENTITY, cause)
}

fn refusal(highlight: &Highlight, failure: Failure) -> Refusal {
    match failure {
        Failure::Busy => {
            (StatusCode::SERVICE_UNAVAILABLE, "too many texts are waiting; try again".to_owned())
        }
        // The same text would take as long the next time.
        Failure::Slow => (
            StatusCode::UNPROCESSABLE_ENTITY,
            format!("the text takes more than {:?} to highlight", highlight.options.time_limit),
        ),
        Failure::Large => (StatusCode::UNPROCESSABLE_ENTITY, "the HTML would be too long".to_owned()),
        Failure::Broken(cause) => (StatusCode::INTERNAL_SERVER_ERROR, cause),
    }
}

async fn page() -> Response {
    let policy = (header::CONTENT_SECURITY_POLICY, PAGE_POLICY.trim_ascii_end());
    ([policy], Html(include_str!("page.html"))).into_response()
}

async fn languages(State(highlight): Shared) -> Response {
    Json(highlight.grammars.languages()).into_response()
}

async fn themes(State(highlight): Shared) -> Response {
    Json(highlight.grammars.themes()).into_response()
}

async fn style_sheet(State(highlight): Shared, Query(asked): Query<Asked>) -> Response {
    let name = asked.theme.as_deref().unwrap_or(DEFAULT_THEME);
    let Some((_, theme)) = highlight.grammars.theme(name) else { return refuse(no_theme(name)) };
    match css_for_theme_with_class_style(theme, CLASSES) {
        Ok(css) => ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], css).into_response(),
        Err(error) => refuse((StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
    }
}

async fn sample(State(highlight): Shared, Query(asked): Query<Asked>) -> Response {
    let name = asked.lang.as_deref().unwrap_or("Rust");
    match highlight.grammars.named(name) {
        Ok(syntax) => samples::sample(&syntax.name).into_response(),
        Err(error) => refuse((StatusCode::UNPROCESSABLE_ENTITY, error.to_string())),
    }
}

#[derive(Debug, Serialize)]
struct Instance {
    instance: String,
    generation: u64,
    uptime_seconds: f64,
    /// `null` in an original.
    since_restore_seconds: Option<f64>,
    ready: bool,
    /// `ready`, or how far the warm-up is.
    state: String,
}

async fn instance(State(highlight): Shared) -> Response {
    let identity = highlight.subject.identity();
    let ready = highlight.subject.is_ready();
    let warming = highlight.warmup.as_ref().and_then(|warmup| warmup.warming().why_not());
    let state = warming.unwrap_or_else(|| if ready { "ready" } else { "not ready" }.to_owned());
    let instance = Instance {
        instance: identity.instance.to_string(),
        generation: identity.generation,
        uptime_seconds: identity.uptime().as_secs_f64(),
        since_restore_seconds: identity.since_restore().map(|since| since.as_secs_f64()),
        ready,
        state,
    };
    ([(header::CACHE_CONTROL, "no-store")], Json(instance)).into_response()
}

async fn licenses() -> Response {
    let text = two_face::acknowledgement::listing().to_md();
    ([(header::CONTENT_TYPE, "text/markdown; charset=utf-8")], text).into_response()
}
