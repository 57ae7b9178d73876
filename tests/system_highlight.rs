//! The highlighting service, as its clients and a reader of its page see it.

mod support;

use support::browser::Browser;

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
