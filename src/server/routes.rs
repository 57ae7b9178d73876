//! What is served by HTTP.
//!
//! It must not know listeners, connections, or when to finish one.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use super::cycles::Cycles;
use super::metrics::{CONTENT_TYPE, Metrics};
use super::motd::Motd;
use super::views::{Asked, PageView, is_page};
use super::warm::{Checked, Warm};
use super::warming::Warming;
use crate::Subject;
use crate::adapters::Rng;
use crate::events::Kind;
use crate::wake::Origin;

/// What the routes answer from.
#[derive(Debug)]
pub(super) struct App {
    pub(super) subject: Subject,
    pub(super) random: Rng,
    pub(super) cycles: Arc<Cycles>,
    pub(super) motd: Option<Motd>,
    pub(super) warm: Option<Arc<Warm>>,
    /// All that there is to warm up.
    pub(super) warmings: Vec<Arc<Warming>>,
    #[cfg(feature = "highlight")]
    pub(super) highlight: Option<Arc<super::highlight::Highlight>>,
    pub(super) metrics: Metrics,
    pub(super) views: Kind<PageView>,
    /// One checksum at a time: each keeps a core busy.
    pub(super) checking: Semaphore,
}

type Shared = State<Arc<App>>;

/// The routes:
///
/// | path | answer |
/// |---|---|
/// | `/healthz` | 200 while the process serves at all |
/// | `/readyz` | 200 when it is ready, else 503 and why not |
/// | `/info` | JSON: which process, instance and generation, and what it has registered |
/// | `/metrics` | figures for Prometheus |
/// | `/random` | 16 bytes of a registered generator, in hexadecimal |
/// | `/checksum` | JSON: whether the warmed memory is what it was; 500 if not |
/// | `/touch?pages=N&seed=S` | JSON: the sum of the first words of that many random pages of the warmed memory |
/// | `/motd` | the text of the file, at most as old as allowed |
///
/// and, where it highlights, those of `highlight::routes`.
pub(super) fn router(app: Arc<App>) -> Router {
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/info", get(info))
        .route("/metrics", get(metrics))
        .route("/random", get(random))
        .route("/checksum", get(checksum))
        .route("/touch", get(touch))
        .route("/motd", get(motd));
    #[cfg(feature = "highlight")]
    let router = match &app.highlight {
        Some(highlight) => router.merge(super::highlight::routes::router(Arc::clone(highlight))),
        None => router,
    };
    router
        .fallback(|| async { (StatusCode::NOT_FOUND, "there is nothing at this path\n") })
        .layer(from_fn_with_state(Arc::clone(&app), count))
        .with_state(app)
}

async fn count(State(app): Shared, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let events = app.subject.events();
    let asked = events.is_on().then(|| Asked::of(&request));
    let started = Instant::now();
    let response = next.run(request).await;
    let (took, status) = (started.elapsed(), response.status());
    app.metrics.count(route.as_ref().map(MatchedPath::as_str), status.as_u16());
    let Some(asked) = asked else { return response };
    events.record(|| asked.answered(&response, took));
    if route.is_some_and(|route| status.is_success() && is_page(route.as_str())) {
        app.views.record(|| asked.view());
    }
    response
}

async fn readyz(State(app): Shared) -> Response {
    let why_not = match app.warmings.iter().find_map(|warming| warming.why_not()) {
        Some(why_not) => why_not,
        // Also while a cycle that has taken everything up again has yet to end.
        None if app.subject.is_ready() => return "ready\n".into_response(),
        None if app.subject.is_checkpointing() => "a checkpoint is running".to_owned(),
        None => "not ready".to_owned(),
    };
    (StatusCode::SERVICE_UNAVAILABLE, why_not + "\n").into_response()
}

#[derive(Debug, Serialize)]
struct Info {
    name: String,
    pid: u32,
    instance: String,
    generation: u64,
    ready: bool,
    /// What dumps it.
    engine: String,
    uptime_seconds: f64,
    /// `null` in an original.
    since_restore_seconds: Option<f64>,
    resources: Vec<ResourceInfo>,
    /// Only where it highlights.
    #[cfg(feature = "highlight")]
    #[serde(skip_serializing_if = "Option::is_none")]
    highlight: Option<super::highlight::Figures>,
    /// `null` in an original.
    restore: Option<RestoreInfo>,
}

#[derive(Debug, Serialize)]
struct ResourceInfo {
    name: String,
    description: String,
}

/// What the last restore brought along. Of the environment only the names: values may be secrets.
#[derive(Debug, Serialize)]
struct RestoreInfo {
    /// `null` after a plain `criu restore`.
    by: Option<Origin>,
    suspended_seconds: f64,
    arguments: Vec<String>,
    settings: std::collections::BTreeMap<String, String>,
    environment: Vec<String>,
}

async fn info(State(app): Shared) -> Json<Info> {
    let identity = app.subject.identity();
    let restore = app.cycles.last_restore().map(|restored| RestoreInfo {
        by: restored.origin.as_deref().cloned(),
        suspended_seconds: restored.suspended_for.as_secs_f64(),
        arguments: restored.params.args.clone(),
        settings: restored.params.settings.clone(),
        environment: restored.params.env.keys().cloned().collect(),
    });
    let resources = app.subject.context().resources().into_iter();
    Json(Info {
        name: app.subject.name().to_owned(),
        pid: std::process::id(),
        instance: identity.instance.to_string(),
        generation: identity.generation,
        ready: app.subject.is_ready(),
        engine: app.subject.engine().to_string(),
        uptime_seconds: identity.uptime().as_secs_f64(),
        since_restore_seconds: identity.since_restore().map(|since| since.as_secs_f64()),
        resources: resources
            .map(|resource| ResourceInfo { name: resource.name, description: resource.description })
            .collect(),
        #[cfg(feature = "highlight")]
        highlight: app.highlight.as_ref().map(|highlight| highlight.count()),
        restore,
    })
}

async fn metrics(State(app): Shared) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], app.metrics.text())
}

async fn random(State(app): Shared) -> String {
    let mut bytes = [0; 16];
    app.random.fill(&mut bytes);
    let mut text = String::with_capacity(2 * bytes.len() + 1);
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text.push('\n');
    text
}

#[derive(Debug, Serialize)]
struct Checksum {
    bytes: usize,
    /// BLAKE3, as it was at the end of the warm-up.
    expected: String,
    found: String,
    matches: bool,
}

async fn checksum(State(app): Shared) -> Response {
    let Some(warm) = app.warm.clone() else {
        return (StatusCode::NOT_FOUND, "no memory is kept warm\n").into_response();
    };
    // The semaphore is never closed.
    let _turn = app.checking.acquire().await;
    match tokio::task::spawn_blocking(move || warm.check()).await {
        Ok(Some(Checked { bytes, expected, found })) => {
            let matches = expected == found;
            let checksum =
                Checksum { bytes, expected: expected.to_string(), found: found.to_string(), matches };
            let status = if matches { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
            (status, Json(checksum)).into_response()
        }
        Ok(None) => (StatusCode::SERVICE_UNAVAILABLE, "the memory is not warm\n").into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// The most pages that one request may touch: 4 GiB of them.
const MOST_TOUCHED: u32 = 1 << 20;

#[derive(Debug, Deserialize)]
struct Touch {
    pages: u32,
    #[serde(default)]
    seed: u64,
}

#[derive(Debug, Serialize)]
struct Touched {
    pages: u32,
    sum: u64,
}

async fn touch(State(app): Shared, Query(Touch { pages, seed }): Query<Touch>) -> Response {
    let Some(warm) = app.warm.clone() else {
        return (StatusCode::NOT_FOUND, "no memory is kept warm\n").into_response();
    };
    if pages > MOST_TOUCHED {
        let said = format!("one request may touch {MOST_TOUCHED} pages\n");
        return (StatusCode::BAD_REQUEST, said).into_response();
    }
    // The semaphore is never closed.
    let _turn = app.checking.acquire().await;
    match tokio::task::spawn_blocking(move || warm.touch(pages, seed)).await {
        Ok(Some(sum)) => Json(Touched { pages, sum }).into_response(),
        Ok(None) => (StatusCode::SERVICE_UNAVAILABLE, "the memory is not warm\n").into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn motd(State(app): Shared) -> Response {
    if app.motd.is_none() {
        return (StatusCode::NOT_FOUND, "there is no message of the day\n").into_response();
    }
    let read = tokio::task::spawn_blocking(move || app.motd.as_ref().map(Motd::text)).await;
    match read {
        Ok(Some(Ok(text))) => {
            ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text.as_ref().clone()).into_response()
        }
        Ok(Some(Err(error))) => {
            let said = format!("the message of the day cannot be read: {error}\n");
            (StatusCode::SERVICE_UNAVAILABLE, said).into_response()
        }
        Ok(None) => StatusCode::NOT_FOUND.into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
