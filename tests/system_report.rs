//! Tier 2: pages of records and images, made by the command and read by a browser: in the light and in the dark, on
//! paper and on a narrow screen, by keyboard, and without anything loaded or run.
//!
//! `KEEP=FOLDER` keeps the pages and pictures of them, to be looked at.

#![allow(clippy::unwrap_used, reason = "a test says by a panic what is wrong")]

mod report;
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use defrost::bench::record::Record;
use report::sample;
use serde_json::json;
use support::browser::Browser;
use support::client::requests;
use support::host::Done;
use support::server::{NAME, Server};
use support::{Host, info};

const DEFROST: &str = env!("CARGO_BIN_EXE_defrost");

/// `defrost report` of these records.
fn make(records: &[PathBuf], page: &Path) -> Done {
    let mut command = Command::new(DEFROST);
    command.arg("report").args(records).arg("--html").arg(page);
    Done::of(command.stdin(Stdio::null()))
}

fn keep(folder: &Path, name: &str, record: &Record) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, serde_json::to_vec(record).unwrap()).unwrap();
    path
}

/// What holds for every page, however it is looked at.
#[track_caller]
fn is_good(browser: &mut Browser, page: &Path, name: &str) {
    let address = format!("file://{}", page.display());
    browser.open(&address);
    assert_eq!(browser.requests(), [address], "it loads nothing");
    for (look, width) in [("light", 1200), ("dark", 1200), ("narrow", 400), ("print", 720)] {
        browser.window(width, 800);
        let media =
            json!([{"name": "prefers-color-scheme", "value": if look == "dark" { "dark" } else { "light" }}]);
        let kind = if look == "print" { "print" } else { "screen" };
        browser.ask("Emulation.setEmulatedMedia", json!({"media": kind, "features": media}));
        let height = browser.value("document.documentElement.scrollHeight").as_u64().unwrap();
        browser.window(width, u32::try_from(height).unwrap());
        if let Some(folder) = std::env::var_os("KEEP") {
            browser.screenshot(&Path::new(&folder).join(format!("{name}-{look}.png")));
            fs::copy(page, Path::new(&folder).join(format!("{name}.html"))).unwrap();
        }
        assert_eq!(browser.value(WIDER), json!([]), "{look}: nothing is wider than the window");
        assert_eq!(browser.value(OVERLAPS), json!([]), "{look}: no text of a figure lies upon another");
        assert_eq!(browser.value(BELOW), json!([]), "{look}: no grid reaches below its figure");
        assert_eq!(browser.value(PALE), json!([]), "{look}: text stands out from its ground");
    }
    let tables = browser.value("[...document.querySelectorAll('table')].every(t => t.offsetHeight > 0)");
    assert_eq!(tables, true, "the numbers are printed too");
    browser.ask("Emulation.setEmulatedMedia", json!({"media": "screen"}));
    assert_eq!(browser.said(), [""; 0]);
    let numbers = browser.value("document.body.innerHTML.match(/NaN|Infinity|undefined/)");
    assert!(numbers.is_null(), "{numbers}");
}

/// Elements that reach over the right edge, other than within what scrolls by itself, which nothing does on paper.
const WIDER: &str = "[...document.querySelectorAll('body *')]
    .filter(e => !e.closest(matchMedia('print').matches ? '.skip' : '.scroll, .skip'))
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 200))";

/// Pairs of texts of one picture that share some place.
const OVERLAPS: &str = "[...document.querySelectorAll('svg')].flatMap(svg => {
    const boxes = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
    return boxes.flatMap(([one, a], at) => boxes.slice(at + 1)
        .filter(([, b]) => a.width && b.width && a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
        .map(([other]) => one + ' / ' + other));
})";

/// Grids that end below the rows that they are for.
const BELOW: &str = "[...document.querySelectorAll('.under svg')]
    .filter(e => e.getBoundingClientRect().bottom > e.closest('.rows').getBoundingClientRect().bottom + 1)
    .map(e => e.getBoundingClientRect().bottom - e.closest('.rows').getBoundingClientRect().bottom)";

/// Text with a contrast of less than 4.5 to the ground of the page (WCAG 2, level AA).
const PALE: &str = "(() => {
    const light = text => {
        const parts = text.match(/[\\d.]+/g).slice(0, 3).map(n => n / 255)
            .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
    };
    const ground = light(getComputedStyle(document.body).backgroundColor);
    const all = [...document.querySelectorAll('h1, h2, h3, h4, p, li, a, td, th, summary, small, strong, dt, dd, svg text')];
    return all.filter(e => {
        const style = getComputedStyle(e);
        const own = light(e instanceof SVGElement ? style.fill : style.color);
        return (Math.max(own, ground) + 0.05) / (Math.min(own, ground) + 0.05) < 4.5;
    }).map(e => e.outerHTML.slice(0, 100));
})()";

#[test]
fn records_become_a_page_for_every_reader() {
    let Some(mut browser) = Browser::for_test("records_become_a_page_for_every_reader") else { return };
    let folder = tempfile::tempdir().unwrap();
    let records = [(11, 2), (18, 2), (20, 8), (24, 2), (27, 8)]
        .map(|(day, cores)| keep(folder.path(), &format!("{day}-{cores}.json"), &sample(day, cores)));
    let page = folder.path().join("page.html");
    make(&records, &page).worked();
    is_good(&mut browser, &page, "runs");
    let text = browser.value("document.querySelector('.findings').innerText");
    assert!(text.as_str().unwrap().contains("times sooner"), "{text}");
    assert_eq!(browser.value("document.querySelectorAll('#history figure').length"), 3);
    // Three runs of one host and two of another.
    let lines = "document.querySelector('#history .strip').querySelectorAll('line.curve').length";
    assert_eq!(browser.value(lines), 3, "different hosts are not joined by a line");

    // By keyboard: first the way to the contents, and every table can be opened.
    browser.press("Tab", 9, 0);
    assert_eq!(browser.value("document.activeElement.getAttribute('href')"), "#main");
    browser.value("document.querySelector('summary').focus()");
    browser.press("Enter", 13, 0);
    browser.within("the first table", "document.querySelector('table').offsetHeight > 0");
}

#[test]
fn an_image_becomes_a_page_with_its_names_as_text() {
    let name = "an_image_becomes_a_page_with_its_names_as_text";
    let Some(host) = Host::for_test(name) else { return };
    let Some(mut browser) = Browser::for_test(name) else { return };
    let odd = "<img src=x onerror=document.title=1>&\"'";
    fs::create_dir(host.path(odd)).unwrap();
    let program = host.deploy(&format!("{odd}/server"));
    let mut command = Command::new(program);
    command.args(Server::arguments(&["--warm-mib", "32"]));
    let mut command = host.at_home(command);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let server = Server::started(&mut command);
    assert!(info(server.http)["pid"].is_number());
    requests(server.echo, 1);
    let image = server.checkpoint(&host, "img").image;
    let page = host.path("page.html");
    host.run(["inspect".as_ref(), "--html".as_ref(), page.as_os_str(), image.as_os_str()]).worked();
    is_good(&mut browser, &page, "image");
    assert_eq!(browser.value("document.querySelectorAll('img').length"), 0);
    assert_eq!(browser.value("document.title"), format!("Image of {NAME}"));
    let text = browser.value("document.body.innerText");
    let text = text.as_str().unwrap();
    for said in [odd, "anonymous", "by mapping", "quiesce"] {
        assert!(text.contains(said), "{said}: {text}");
    }

    fs::write(image.join("files.img"), "damaged").unwrap();
    let before = fs::read(&page).unwrap();
    let said =
        host.run(["inspect".as_ref(), "--html".as_ref(), page.as_os_str(), image.as_os_str()]).failed(4);
    assert!(said.contains("files.img"), "{said}");
    assert_eq!(fs::read(&page).unwrap(), before);
}

#[test]
fn what_is_no_record_leaves_the_page_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    fs::write(&page, "an earlier page").unwrap();
    let good = keep(folder.path(), "good.json", &sample(1, 2));
    let whole = fs::read(&good).unwrap();
    let file = |name: &str, text: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let cases = [
        (folder.path().join("missing.json"), "missing.json"),
        (folder.path().to_owned(), "directory"),
        (file("empty.json", b""), "no record of a benchmark"),
        (file("cut.json", &whole[..whole.len() / 2]), "no record of a benchmark"),
        (keep(folder.path(), "later.json", &Record { format: 9, ..sample(1, 2) }), "form 9"),
    ];
    for (bad, said) in cases {
        let error = make(&[good.clone(), bad], &page).failed(1);
        assert!(error.contains(said), "{said}: {error}");
        assert_eq!(fs::read_to_string(&page).unwrap(), "an earlier page");
    }
    assert_eq!(make(&[], &page).status, 2);
    make(&[good], &folder.path().join("none/page.html")).failed(1);
}

#[test]
fn a_record_without_answers_is_a_page_that_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let said = |record: &Record, what: &str| {
        make(&[keep(folder.path(), "run.json", record)], &page).worked();
        let text = fs::read_to_string(&page).unwrap();
        assert!(text.contains(what) && !text.contains("NaN"), "{what}: {text}");
    };
    let mut record = sample(1, 2);
    for way in record.services.iter_mut().flat_map(|service| &mut service.ways) {
        for start in &mut way.starts {
            start.answer = None;
            start.failure = Some("\nno <b>answer</b> within 30 s".to_owned());
        }
    }
    said(&record, "every start failed");
    said(&record, "15 of 15 starts failed: no &lt;b&gt;answer&lt;/b&gt; within 30 s");
    record.services.iter_mut().flat_map(|service| &mut service.ways).for_each(|way| way.starts.clear());
    said(&record, "never started");
    record.services[0].ways.clear();
    said(&record, "There are no starts of this service");
    record.services.clear();
    said(&record, "The record is empty");
}
