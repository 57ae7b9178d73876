//! The parts of the service, without a server around them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::samples::SAMPLES;
use super::*;
use crate::resource::{Cycle, Resource};
use crate::wake::Wake;
use render::Style;

/// Nothing here may take this long.
const LIMIT: Duration = Duration::from_secs(60);

/// Long enough for others to go on.
const SHORT: Duration = Duration::from_millis(20);

/// What has been compiled of them differs between the tests that share them.
fn grammars() -> &'static Grammars {
    static LOADED: OnceLock<Grammars> = OnceLock::new();
    LOADED.get_or_init(Grammars::load)
}

fn request(language: &str, style: Style, text: &str) -> Request {
    let language = grammars().named(language).unwrap().name.clone();
    Request { language, theme: "Nord", style, text: text.to_owned() }
}

fn rendered(language: &str, style: Style, text: &str) -> String {
    request(language, style, text).render(grammars(), &|| false).unwrap()
}

/// The text that a browser shows.
fn shown(html: &str) -> String {
    let mut text = String::new();
    for part in html.split('<') {
        text.push_str(part.split_once('>').map_or(part, |(_, text)| text));
    }
    let entities = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")];
    entities.iter().fold(text, |text, (entity, character)| text.replace(entity, character))
}

#[test]
fn a_browser_shows_the_text_that_was_given() {
    for name in ["JSON", "TOML", "C", "Diff", "Makefile", "Plain Text", "XML"] {
        let text = samples::sample(name);
        let html = rendered(name, Style::Classes, text);
        assert_eq!(shown(&html).trim_end(), text.trim_end(), "{name}");
        assert_eq!(html.matches("<span").count(), html.matches("</span>").count(), "{name}");
        let html = rendered(name, Style::Inline, text);
        assert_eq!(shown(&html).trim(), text.trim(), "{name}");
    }
    for text in ["", "no newline", "\n\n", "a\r\nb\r\n", "\0\u{feff}é\t<&>\n"] {
        for style in [Style::Classes, Style::Inline] {
            let html = rendered("toml", style, text);
            assert_eq!(shown(&html).trim(), text.trim(), "{text:?}");
        }
    }
}

#[test]
fn long_lines_are_shown_as_they_are() {
    let long = "<".repeat(render::LINE_LIMIT + 1);
    for style in [Style::Classes, Style::Inline] {
        let html = rendered("toml", style, &format!("{long}\na = 1\n"));
        assert!(html.contains(&"&lt;".repeat(render::LINE_LIMIT + 1)));
        assert!(html.matches("<span").count() > 2, "the next line has no colours: {html}");
    }
}

#[test]
fn it_stops_between_lines_and_before_the_html_is_too_long() {
    let request = request("toml", Style::Classes, "a = 1\nb = 2\nc = 3\n");
    let asked = std::cell::Cell::new(0);
    let stop = || asked.replace(asked.get() + 1) == 1;
    assert!(matches!(request.render(grammars(), &stop), Err(Stopped::Asked)));
    assert_eq!(asked.get(), 2);
    let large = Request { text: format!("{}\n", "&".repeat(4000)).repeat(2000), ..request };
    assert!(matches!(large.render(grammars(), &|| false), Err(Stopped::Large)));
}

#[test]
fn languages_are_found_by_name_alias_file_and_first_line() {
    for (name, expected) in [
        ("rust", "Rust"),
        ("RS", "Rust"),
        ("c++", "C++"),
        ("golang", "Go"),
        ("C", "C"),
        ("shell", "Bourne Again Shell (bash)"),
    ] {
        assert_eq!(grammars().named(name).unwrap().name, expected);
    }
    assert_eq!(grammars().named("nope").err(), Some(UnknownLanguage("nope".into())));
    for (file, text, expected) in [
        (Some("a/b.rs"), "", "Rust"),
        (Some("C:\\a\\Makefile"), "", "Makefile"),
        (Some("a.unknown"), "#!/bin/bash\n", "Bourne Again Shell (bash)"),
        (None, "<?xml version=\"1.0\"?>\n", "XML"),
        (None, "words", "Plain Text"),
        (Some(""), "", "Plain Text"),
    ] {
        assert_eq!(grammars().guess(file, text).name, expected, "{file:?} {text}");
    }
    for (name, text) in SAMPLES {
        assert_eq!(grammars().named(name).unwrap().name, *name);
        assert!(text.ends_with('\n') && text.lines().count() >= 8, "{name}");
    }
}

#[test]
fn themes_for_terminals_are_left_out() {
    let themes = grammars().themes();
    assert!(themes.len() > 20 && themes.iter().all(|theme| !["ansi", "base16"].contains(&theme.name)));
    assert!(grammars().theme("ansi").is_none());
    assert!(grammars().theme(grammars::DEFAULT_THEME).is_some());
    assert!(themes.iter().any(|theme| theme.name == "Nord" && theme.dark));
    assert!(themes.iter().any(|theme| theme.name == "GitHub" && !theme.dark));
}

/// How many patterns of a grammar and of those embedded in it are compiled, and how many there are. syntect shows it
/// in its debug text only.
fn compiled(grammars: &Grammars, name: &str) -> (usize, usize) {
    let found = grammars.named(name).unwrap();
    let place = grammars.set.syntaxes().iter().position(|syntax| std::ptr::eq(syntax, found)).unwrap();
    let contexts = walk::contexts(&grammars.set, &[place].into());
    let patterns: Vec<_> = contexts.into_iter().flat_map(walk::patterns).collect();
    let compiled = patterns.iter().filter(|pattern| !format!("{:?}", pattern.regex()).contains("Uninit"));
    (compiled.count(), patterns.len())
}

#[tokio::test]
async fn a_warm_up_leaves_no_pattern_to_compile() {
    let grammars = Arc::new(Grammars::load());
    let (before, all) = compiled(&grammars, "toml");
    assert!(before == 0 && all > 20, "{before} of {all}");
    let warm: Warm = "toml,diff".parse().unwrap();
    let warmup = Warmup::new(&warm, &grammars, 2).unwrap().unwrap();
    assert!(warmup.describe().contains("2 grammars to warm"), "{}", warmup.describe());
    let (told, warmed) = std::sync::mpsc::channel();
    Warmup::start(&warmup, move || told.send(()).unwrap());
    warmup.before_checkpoint(&Cycle::new(true)).await.unwrap();
    warmed.recv_timeout(LIMIT).unwrap();
    assert_eq!(compiled(&grammars, "toml"), (all, all));
    let progress = warmup.warming().progress();
    assert!(progress.done == progress.total && progress.done > all as u64, "{progress}");
    assert_eq!(compiled(&grammars, "json").0, 0);
}

#[test]
fn what_is_embedded_is_warmed_too() {
    let html = compiled(grammars(), "html").1;
    assert!(html > compiled(grammars(), "css").1 + compiled(grammars(), "js").1, "{html}");
}

#[test]
fn a_stopped_warm_up_says_so() {
    let warmup = Warmup::new(&Warm::All, &Arc::new(Grammars::load()), 2).unwrap().unwrap();
    warmup.warming().stop();
    Warmup::start(&warmup, || panic!("it was stopped"));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert!(runtime.block_on(warmup.warming().ended()).is_err());
}

#[test]
fn what_to_warm_is_read_from_words() {
    assert_eq!("all".parse(), Ok(Warm::All));
    assert_eq!("common".parse(), Ok(Warm::Common));
    assert_eq!("rust, c#".parse(), Ok(Warm::These(vec!["rust".into(), "c#".into()])));
    assert!("rust,,c".parse::<Warm>().is_err() && "".parse::<Warm>().is_err());
    let unknown = Warmup::new(&Warm::These(vec!["nope".into()]), &Arc::new(Grammars::load()), 1);
    assert_eq!(unknown.unwrap_err(), UnknownLanguage("nope".into()));
}

fn jobs(jobs: usize, queue: usize, drain: Duration) -> Arc<Jobs> {
    Arc::new(Jobs::new(&HighlightOptions { jobs, queue, drain, ..HighlightOptions::default() }))
}

/// Work that goes on until it is told to end.
async fn busy(jobs: &Arc<Jobs>) -> (Arc<AtomicBool>, tokio::task::JoinHandle<Result<(), Refused>>) {
    let end = Arc::new(AtomicBool::new(false));
    let (waiting, own) = (Arc::clone(&end), Arc::clone(jobs));
    let working = jobs.under_way() + 1;
    let job = tokio::spawn(async move {
        own.run(move |abandoned| {
            while !waiting.load(Ordering::Relaxed) && !abandoned() {
                std::thread::sleep(Duration::from_millis(1));
            }
        })
        .await
    });
    while jobs.under_way() < working {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    (end, job)
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_may_wait_is_refused_and_a_panic_frees_its_place() {
    let jobs = jobs(1, 1, LIMIT);
    let (end, job) = busy(&jobs).await;
    let mut queued = std::pin::pin!(jobs.run(|_| 5));
    assert!(tokio::time::timeout(SHORT, queued.as_mut()).await.is_err());
    assert!(matches!(jobs.run(|_| ()).await, Err(Refused::Busy)));
    end.store(true, Ordering::Relaxed);
    job.await.unwrap().unwrap();
    assert_eq!(queued.await.unwrap(), 5);
    let panicked: Result<(), _> = jobs.run(|_| panic!("on purpose")).await;
    assert!(matches!(panicked, Err(Refused::Panicked(_))), "{panicked:?}");
    assert_eq!(jobs.run(|_| 6).await.unwrap(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_nobody_waits_for_ends() {
    let jobs = jobs(1, 0, LIMIT);
    let (_end, job) = busy(&jobs).await;
    job.abort();
    while jobs.under_way() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_waits_for_the_jobs_and_holds_the_next_ones_up() {
    let patient = jobs(2, 4, LIMIT);
    let (end, job) = busy(&patient).await;
    let hook = {
        let jobs = Arc::clone(&patient);
        tokio::spawn(async move { jobs.before_checkpoint(&Cycle::new(true)).await })
    };
    tokio::time::sleep(SHORT).await;
    assert!(!hook.is_finished());
    end.store(true, Ordering::Relaxed);
    hook.await.unwrap().unwrap();
    job.await.unwrap().unwrap();
    let late = {
        let jobs = Arc::clone(&patient);
        tokio::spawn(async move { jobs.run(|_| 7).await })
    };
    tokio::time::sleep(SHORT).await;
    assert!(!late.is_finished());
    patient.after_restore(&Wake::Aborted).await.unwrap();
    assert_eq!(late.await.unwrap().unwrap(), 7);

    let impatient = jobs(2, 0, Duration::from_millis(10));
    let (_end, _job) = busy(&impatient).await;
    let error = impatient.before_checkpoint(&Cycle::new(true)).await.unwrap_err();
    assert!(error.to_string().starts_with("1 jobs still run"), "{error}");
}

#[tokio::test]
async fn the_cache_is_bounded_and_dropped_where_that_is_asked_for() {
    let html: Arc<str> = "x".repeat(1000).into();
    for keep in [true, false] {
        let cache = Cache::new(8000, keep);
        let keys: Vec<_> =
            (0..50).map(|number| Key::of(&request("toml", Style::Classes, &number.to_string()))).collect();
        for key in &keys {
            cache.put(*key, &html);
        }
        let (entries, bytes) = cache.size();
        assert!((1..=8).contains(&entries) && bytes <= 8000, "{entries} entries of {bytes} bytes");
        assert_eq!(keys.iter().filter(|key| cache.get(key).is_some()).count() as u64, entries);
        cache.before_checkpoint(&Cycle::new(true)).await.unwrap();
        assert_eq!(cache.size().0, if keep { entries } else { 0 });
    }
    let none = Cache::new(0, true);
    let key = Key::of(&request("toml", Style::Inline, "a"));
    none.put(key, &html);
    assert!(none.get(&key).is_none());
    assert_ne!(key, Key::of(&request("toml", Style::Classes, "a")));
    assert_ne!(key, Key::of(&request("json", Style::Inline, "a")));
}
