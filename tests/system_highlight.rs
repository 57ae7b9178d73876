//! Tier 2: the highlighting service as its clients and a reader of its page see it, before a checkpoint and after
//! both ways of restoring it.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test says by a panic what is wrong")]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use support::browser::Browser;
use support::client::{get, requests};
use support::host::Done;
use support::process::end;
use support::restored::Restored;
use support::server::{NAME, info};
use support::{Host, PATIENCE, Server, until};

const CODE: &str = "fn main() {\n    println!(\"{} <b>\", 1 + 0x1F); // a comment\n}\n";

/// The answer to one request.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    #[track_caller]
    fn read(mut stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { status, head: head.to_lowercase(), body: body.to_owned() }
    }

    /// A header, empty if it is not there.
    fn header(&self, name: &str) -> &str {
        let line = self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or_default()
    }

    /// It worked; its HTML.
    #[track_caller]
    fn html(self) -> String {
        assert_eq!(self.status, 200, "{self:?}");
        self.body
    }
}

/// Sends the head of a `POST /highlight?QUERY` with these further header lines, and some of its text.
fn begun(http: u16, query: &str, headers: &str, length: usize, text: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", http)).unwrap();
    let head = format!(
        "POST /highlight?{query} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(text).unwrap();
    stream
}

fn post(http: u16, query: &str, text: impl AsRef<[u8]>) -> Answer {
    let text = text.as_ref();
    Answer::read(begun(http, query, "", text.len(), text))
}

fn post_as(http: u16, headers: &str) -> Answer {
    Answer::read(begun(http, "", headers, 1, b"x"))
}

fn figure(http: u16, name: &str) -> u64 {
    info(http)["highlight"][name].as_u64().unwrap()
}

/// A text that takes seconds, line by line.
fn slow_text() -> String {
    let line =
        "<?php $a = \"x {$b['c']} y\"; if ($a->b(1 + 2.5e3) !== null) { echo 'z', <<<T\n  t $a\n  T; } ?>\n";
    line.repeat(4000)
}

#[test]
fn it_highlights_in_both_styles_and_guesses_the_language() {
    let Some(host) = Host::for_test("it_highlights_in_both_styles_and_guesses_the_language") else { return };
    let server = Server::start(&host, &["--highlight"]);
    let answer = post(server.http, "lang=rust", CODE);
    assert_eq!((answer.header("x-language"), answer.header("x-cache")), ("rust", "miss"));
    assert_eq!(answer.header("content-type"), "text/html; charset=utf-8");
    assert!(answer.header("content-security-policy").contains("sandbox"), "{}", answer.head);
    let html = answer.html();
    assert!(html.starts_with("<pre class=\"hl-code\"><code>") && html.ends_with("</code></pre>\n"), "{html}");
    assert!(html.contains("hl-comment") && html.contains("&lt;b&gt;") && !html.contains("<b>"), "{html}");
    assert_eq!(post(server.http, "lang=rust&theme=Nord", CODE).header("x-cache"), "hit");

    let inline = post(server.http, "file=src/main.rs&style=inline&theme=Nord", CODE);
    assert_eq!((inline.header("x-language"), inline.header("x-cache")), ("rust", "miss"));
    let inline = inline.html();
    assert!(inline.starts_with("<pre style=\"background-color:#2e3440;\">"), "{inline}");
    assert_ne!(inline, post(server.http, "lang=Rust&style=inline", CODE).html());
    for (query, text, language) in [
        ("", "#!/usr/bin/env python3\nprint(1)\n", "python"),
        ("file=Makefile", "all:\n", "makefile"),
        ("file=a.toml&lang=", "a = 1\n", "toml"),
        ("lang=JSON&file=a.rs", "{}", "json"),
        ("", "just words\n", "plain text"),
        ("", "<!doctype html>\n<p>words\n", "html"),
        ("file=a/App.mjs", "let a\n", "javascript"),
    ] {
        assert_eq!(post(server.http, query, text).header("x-language"), language, "{query}");
    }

    let list = |path: &str| serde_json::from_str::<Vec<Value>>(&get(server.http, path).1).unwrap();
    let languages = list("/languages");
    assert!(languages.len() > 150, "{} languages", languages.len());
    assert!(languages.iter().any(|language| language["name"] == "Rust" && language["extensions"][0] == "rs"));
    assert!(list("/themes").iter().any(|theme| theme["name"] == "Nord" && theme["dark"] == true));
    let (status, css) = get(server.http, "/theme.css?theme=Nord");
    assert!(status == 200 && css.contains(".hl-comment") && css.contains(".hl-code"), "{css}");
    assert!(get(server.http, "/licenses").1.contains("Permission"), "no licence");
    assert_eq!(figure(server.http, "requests"), 11);
    let metrics = get(server.http, "/metrics").1;
    assert!(metrics.contains("\ndefrost_highlight_requests_total 11\n"), "{metrics}");
}

#[test]
fn what_it_cannot_take_is_refused_with_the_reason() {
    let Some(host) = Host::for_test("what_it_cannot_take_is_refused_with_the_reason") else { return };
    let server = Server::start(&host, &["--highlight", "--text-limit", "16"]);
    let http = server.http;
    // The client goes on in a moment; the rest of the test need not wait for it.
    let late = begun(http, "", "", 10, b"half");
    for (query, text, status, words) in [
        ("lang=nope", &b"x"[..], 422, "/languages"),
        ("theme=nope", b"x", 422, "/themes"),
        ("style=nope", b"x", 400, "classes"),
        ("", b"\xff", 400, "not UTF-8 from byte 0 on"),
        ("", b"a\xc3", 400, "not UTF-8 from byte 1 on"),
        ("", &[b'a'; 16 * 1024 + 1], 413, "limit of 16384 bytes"),
    ] {
        let answer = post(http, query, text);
        assert!(answer.status == status && answer.body.contains(words), "{query}: {answer:?}");
    }
    assert_eq!(post(http, "", [b'a'; 16 * 1024]).status, 200);
    assert_eq!(post(http, "lang=json", "").html(), "<pre class=\"hl-code\"><code></code></pre>\n");
    for headers in [
        "Content-Type: image/png\r\n",
        "Content-Encoding: gzip\r\n",
        "Content-Type: text/plain; charset=latin1\r\n",
    ] {
        let answer = post_as(http, headers);
        assert_eq!((answer.status, answer.header("accept-encoding")), (415, "identity"), "{headers}");
    }
    assert_eq!(post_as(http, "Content-Type: application/x-www-form-urlencoded\r\n").status, 200);
    assert_eq!(post_as(http, "Content-Type: text/x-rust; charset=UTF-8\r\n").status, 200);
    assert_eq!(get(http, "/highlight").0, 405);
    assert_eq!(get(http, "/theme.css?theme=nope").0, 422);

    // A line made by a program is shown as it is, and the next one in colour again.
    let long = format!("\"{}<\"\n// the next\n", "ab".repeat(4000));
    let html = post(http, "lang=rust", &long).html();
    assert!(html.contains("ab&lt;&quot;\n") && html.contains("hl-comment"), "{html}");
    let late = Answer::read(late);
    assert!(late.status == 408 && late.body.contains("did not arrive"), "{late:?}");

    let unknown = host.run(["serve", "--http", "0", "--highlight", "--warm", "rust,nope"]).failed(2);
    assert!(
        unknown.contains("--warm: no grammar is named \"nope\"") && unknown.contains("hint: "),
        "{unknown}"
    );
    assert_eq!(host.run(["serve", "--echo", "0", "--warm", "rust"]).status, 2);
}

#[test]
fn a_text_that_takes_too_long_is_given_up_and_a_full_queue_is_told() {
    let name = "a_text_that_takes_too_long_is_given_up_and_a_full_queue_is_told";
    let Some(host) = Host::for_test(name) else { return };
    let limits = ["--highlight", "--jobs", "1", "--queue", "0", "--time-limit", "3", "--cache-mib", "0"];
    let server = Server::start(&host, &limits);
    let text = slow_text();
    let slow = begun(server.http, "lang=php", "", text.len(), text.as_bytes());
    until("the work on the slow text", || figure(server.http, "jobs") == 1);
    let refused = post(server.http, "lang=json", "{}");
    assert_eq!((refused.status, refused.header("retry-after")), (503, "1"), "{refused:?}");
    let slow = Answer::read(slow);
    assert!(slow.status == 422 && slow.body.contains("more than 3s"), "{slow:?}");
    // The work has really ended, and its place is free.
    until("the end of the work", || figure(server.http, "jobs") == 0);
    assert_eq!(post(server.http, "lang=json", "{}").status, 200);

    // A client that goes away takes its work along, long before the limit.
    drop(begun(server.http, "lang=php", "", text.len(), text.as_bytes()));
    until("the end of work that nobody waits for", || figure(server.http, "jobs") == 0);
    let figures = info(server.http)["highlight"].clone();
    assert_eq!((&figures["refused"], &figures["given_up"]), (&1.into(), &1.into()), "{figures}");
    assert_eq!(figures["cache_entries"], 0, "{figures}");
}

#[test]
fn a_warmed_service_answers_alike_after_either_restore() {
    let Some(host) = Host::for_test("a_warmed_service_answers_alike_after_either_restore") else { return };
    let server = Server::start(&host, &["--highlight", "--warm", "rust,toml"]);
    until("the warm-up", || get(server.http, "/readyz").0 == 200);
    assert!(host.run(["status", NAME]).worked().contains(" ready"));
    let patterns = figure(server.http, "patterns");
    assert!(patterns > 250, "{patterns} patterns");
    let query = "lang=rust&style=inline&theme=Nord";
    let before = post(server.http, query, CODE).html();
    let instance = info(server.http)["instance"].clone();
    let first = server.checkpoint(&host, "img");

    let restored = Restored::plain(&host, &first);
    let answer = post(first.http, query, CODE);
    assert_eq!(answer.header("x-cache"), "hit");
    assert_eq!(answer.html(), before);
    // And what was not in the cache.
    assert_eq!(post(first.http, query, format!("{CODE}{CODE}")).header("x-cache"), "miss");
    let now = info(first.http);
    assert_ne!(now["instance"], instance);
    assert_eq!((&now["generation"], &now["highlight"]["patterns"]), (&1.into(), &patterns.into()));
    restored.stop();

    for memory in ["map", "copy"] {
        let arguments = ["restore", "img", "--wait-ready", "--engine", "instant", "--memory", memory];
        Done::of(&mut host.defrost(arguments)).worked();
        requests(first.echo, 3);
        assert_eq!(post(first.http, query, CODE).html(), before, "{memory}");
        let told: Value = serde_json::from_str(&get(first.http, "/instance").1).unwrap();
        assert!(told["generation"] == 1 && told["instance"] != instance, "{told}");
        assert!(told["since_restore_seconds"].as_f64() > Some(0.0) && told["ready"] == true, "{told}");
        end(first.pid);
    }
}

#[test]
fn a_dropped_cache_is_empty_afterwards_and_work_under_way_is_finished_first() {
    let name = "a_dropped_cache_is_empty_afterwards_and_work_under_way_is_finished_first";
    let Some(host) = Host::for_test(name) else { return };
    let addresses = ["--echo", "127.0.0.1:0", "--http", "127.0.0.1:0"];
    let mut command = host.defrost(["serve", "--name", NAME, "--drain", "20"].iter().chain(&addresses));
    command.args(["--highlight", "--cache", "drop", "--time-limit", "20"]);
    let server = Server::started(command.stdout(Stdio::piped()).stderr(Stdio::null()));
    assert_eq!(post(server.http, "lang=json", "[1]").status, 200);
    assert_eq!(post(server.http, "lang=json", "[1]").header("x-cache"), "hit");
    let text = slow_text();
    let text = &text[..text.len() / 40];
    let under_way = begun(server.http, "lang=php", "", text.len(), text.as_bytes());
    until("the work", || figure(server.http, "jobs") == 1);
    let answer = std::thread::spawn(move || Answer::read(under_way));
    let dumped = server.checkpoint(&host, "img");
    assert_eq!(answer.join().unwrap().status, 200);
    let restored = Restored::plain(&host, &dumped);
    assert_eq!(figure(dumped.http, "cache_entries"), 0);
    assert_eq!(post(dumped.http, "lang=json", "[1]").header("x-cache"), "miss");
    restored.stop();
}

#[test]
fn the_page_shows_how_far_the_warm_up_is() {
    let name = "the_page_shows_how_far_the_warm_up_is";
    let Some(mut browser) = Browser::for_test(name) else { return };
    let Some(host) = Host::for_test(name) else { return };
    // Seconds of work for all processors, and the browser is there already.
    let server = Server::start(&host, &["--highlight", "--warm", "all"]);
    browser.open(&format!("http://127.0.0.1:{}/", server.http));
    let pattern = r"/^warming up: \d+ of \d+ patterns$/.test(state.textContent)";
    browser.within("the progress", &format!("{pattern} && !warming.hidden"));
    browser.within("its end", "warming.hidden");
    assert_eq!(get(server.http, "/readyz").0, 200);
    assert_eq!(browser.said(), [""; 0]);
}

#[test]
fn a_reader_pastes_code_and_sees_which_instance_answers() {
    let name = "a_reader_pastes_code_and_sees_which_instance_answers";
    let Some(mut browser) = Browser::for_test(name) else { return };
    let Some(host) = Host::for_test(name) else { return };
    let server = Server::start(&host, &["--highlight"]);
    browser.prefers("light");
    browser.open(&format!("http://127.0.0.1:{}/", server.http));
    browser.within("the lists", "document.documentElement.dataset.ready === 'yes'");
    browser.within("the instance", "instance.textContent.length === 32");
    let instance = server.info()["instance"].clone();
    assert_eq!(browser.value("instance.textContent"), instance);
    assert_eq!(browser.value("theme.value"), "InspiredGitHub");
    assert_eq!(browser.value("document.querySelector('#since-what').textContent"), "running for");

    // By the keyboard alone: three fields and buttons before the text.
    let focus = "document.activeElement.id || document.activeElement.type";
    let mut order = Vec::new();
    for _ in 0..6 {
        browser.press("Tab", 9, 0);
        order.push(browser.value(focus));
    }
    assert_eq!(order, ["language", "theme", "submit", "try", "text", "shown"]);
    browser.press("Tab", 9, 8);
    browser.types("#!/usr/bin/env python3\nprint('<i>')  # a comment\n");
    browser.press("Enter", 13, 2);
    browser.within("the colours", "shown.querySelectorAll('span').length > 3");
    browser.within("the verdict", "said.textContent.startsWith('Python, ')");
    assert_eq!(browser.value("shown.textContent.includes(\"print('<i>')  # a comment\")"), true);
    let background = "shown.querySelector('pre').style.backgroundColor";
    assert_eq!(browser.value(background), "rgb(255, 255, 255)");
    browser.prefers("dark");
    browser.within("the dark theme", "theme.value === 'TwoDark'");
    browser
        .within("the dark colours", "shown.querySelector('pre').style.backgroundColor === 'rgb(40, 44, 52)'");
    browser.value("language.value = 'nope', language.dispatchEvent(new Event('change'))");
    browser.within("the refusal", "said.className === 'bad' && said.textContent.includes('nope')");
    browser.value("language.value = '', document.querySelector('#try').click()");
    browser.within("the sample", "said.textContent.startsWith('Rust, ')");
    if let Some(folder) = std::env::var_os("DEFROST_SCREENSHOTS") {
        let folder = std::path::PathBuf::from(folder);
        browser.screenshot(&folder.join("highlight-dark.png"));
        browser.prefers("light");
        browser.within("the light colours", &format!("{background} === 'rgb(255, 255, 255)'"));
        browser.screenshot(&folder.join("highlight-light.png"));
        browser.window(420, 900);
        browser.screenshot(&folder.join("highlight-narrow.png"));
    }
    let unlabelled = "[...document.querySelectorAll('input, select, textarea')].filter((field) => !field.labels.length).length";
    assert_eq!(browser.value(unlabelled), 0);

    // The page outlives the server, and shows that another instance answers.
    let dumped = server.checkpoint(&host, "img");
    let restored = Restored::plain(&host, &dumped);
    browser.within(
        "the new instance",
        &format!("instance.textContent.length === 32 && instance.textContent !== {instance}"),
    );
    assert_eq!(browser.value("generation.textContent"), "1");
    assert_eq!(browser.value("document.querySelector('#since-what').textContent"), "since its restore");
    let own = format!("http://127.0.0.1:{}/", dumped.http);
    let strange: Vec<_> = browser
        .requests()
        .iter()
        .filter(|address| !address.starts_with(&own) && *address != "data:,")
        .collect();
    assert!(strange.is_empty(), "{strange:?}");
    drop(browser);
    std::thread::sleep(Duration::from_millis(100));
    restored.stop();
}

#[test]
fn a_browser_shows_a_page_and_runs_its_script() {
    let Some(mut browser) = Browser::for_test("a_browser_shows_a_page_and_runs_its_script") else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.html");
    let page = "<!doctype html><title>A page</title><input autofocus onkeydown=\"if(event.key==='Enter')title='sent'\">\
                <script>console.log('hello')</script>";
    std::fs::write(&file, page).unwrap();
    browser.open(&format!("file://{}", file.display()));
    assert_eq!(browser.value("document.title"), "A page");
    browser.value("document.querySelector('input').focus()");
    browser.types("words");
    browser.press("Enter", 13, 0);
    assert_eq!(browser.value("document.querySelector('input').value"), "words");
    assert_eq!(browser.value("document.querySelector('input').title"), "sent");
    assert!(browser.dom().contains("<title>A page</title>"));
    browser.prefers("dark");
    assert_eq!(browser.value("matchMedia('(prefers-color-scheme: dark)').matches"), true);
    browser.screenshot(&folder.path().join("shot.png"));
    assert!(std::fs::read(folder.path().join("shot.png")).unwrap().starts_with(b"\x89PNG"));
    assert!(browser.said().iter().any(|said| said.contains("hello")), "{:?}", browser.said());
    assert!(
        browser.requests().iter().all(|address| address.starts_with("file://")),
        "{:?}",
        browser.requests()
    );
}
