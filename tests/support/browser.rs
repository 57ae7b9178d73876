//! A page in a real browser: Chromium without a window, driven by its DevTools protocol over two pipes.
//!
//! It reaches nothing but this host, and notes every address that a page asks for.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use base64::Engine as _;
use command_fds::{CommandFdExt, FdMapping};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::host::skip;
use super::process::Running;
use super::within;

/// How long the browser may take for one thing. It is slow to start where everything else is at work too.
const LIMIT: Duration = Duration::from_secs(60);

/// Where the protocol has the browser read and write.
const READS: i32 = 3;
const WRITES: i32 = 4;

/// What keeps it to itself, and to this host.
const FLAGS: &[&str] = &[
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-pipe",
    "about:blank",
];

/// A browser that shows one page, and ends when dropped.
pub struct Browser {
    process: Running,
    to: std::io::PipeWriter,
    from: Receiver<Value>,
    session: Option<String>,
    asked: u64,
    requests: Vec<String>,
    said: Vec<String>,
    _profile: TempDir,
}

impl Browser {
    /// A browser, if this host has one. Otherwise the test is skipped with its reason.
    #[track_caller]
    pub fn for_test(name: &str) -> Option<Self> {
        let Some(program) = found() else {
            skip(name, "no chromium was found; scripts/setup --browser installs it");
            return None;
        };
        Some(Self::start(&program))
    }

    #[track_caller]
    fn start(program: &Path) -> Self {
        let profile = tempfile::Builder::new().prefix("defrost-browser-").tempdir().unwrap();
        let ((reads, to), (from, writes)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        let mut command = Command::new(program);
        command.args(FLAGS).arg(format!("--user-data-dir={}", profile.path().display()));
        command.env("HOME", profile.path()).current_dir(profile.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mappings = vec![
            FdMapping { parent_fd: reads.into(), child_fd: READS },
            FdMapping { parent_fd: writes.into(), child_fd: WRITES },
        ];
        command.fd_mappings(mappings).unwrap();
        let process = Running::start(&mut command);
        // It holds the browser's ends, without which the end of the browser is seen.
        drop(command);
        let (told, heard) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(from).split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else { return };
                if told.send(message).is_err() {
                    return;
                }
            }
        });
        let (requests, said) = (Vec::new(), Vec::new());
        let mut browser =
            Self { process, to, from: heard, session: None, asked: 0, requests, said, _profile: profile };
        let target = browser.ask("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.ask("Target.attachToTarget", attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.ask(&format!("{domain}.enable"), json!({}));
        }
        browser.window(1000, 800);
        browser
    }

    /// One command of the protocol; its result.
    #[track_caller]
    pub fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.asked += 1;
        let id = self.asked;
        let mut message = json!({"id": id, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        let answer = self.until(method, |message| message["id"] == id);
        assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
        answer["result"].clone()
    }

    /// Waits for a message, and notes what the others tell.
    #[track_caller]
    fn until(&mut self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + LIMIT;
        loop {
            let message = match self.from.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => panic!("the browser: {what} took more than {LIMIT:?}"),
                Err(RecvTimeoutError::Disconnected) => panic!("the browser ended during {what}"),
            };
            let told = &message["params"];
            match message["method"].as_str() {
                Some("Network.requestWillBeSent") => self.requests.extend(text(&told["request"]["url"])),
                Some("Runtime.exceptionThrown") => self.said.push(told["exceptionDetails"].to_string()),
                Some("Log.entryAdded") => self.said.push(told["entry"].to_string()),
                Some("Runtime.consoleAPICalled") => self.said.push(told["args"].to_string()),
                _ => {}
            }
            if is_it(&message) {
                return message;
            }
        }
    }

    /// Opens an address, `http://127.0.0.1:…`, `file:///…`, and waits until it is loaded.
    #[track_caller]
    pub fn open(&mut self, address: &str) {
        let result = self.ask("Page.navigate", json!({"url": address}));
        assert!(result["errorText"].is_null(), "{address}: {}", result["errorText"]);
        self.within(&format!("the loading of {address}"), "document.readyState === 'complete'");
    }

    /// The value of an expression in the page, awaited if it is a promise.
    #[track_caller]
    pub fn value(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.ask("Runtime.evaluate", asked);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {}", result["exceptionDetails"]);
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub fn within(&mut self, what: &str, expression: &str) {
        let done = within(LIMIT, || self.value(expression) == true);
        assert!(done, "{what}: not within {LIMIT:?}: {expression}; the page said {:?}", self.said);
    }

    /// The document as it is now.
    #[track_caller]
    pub fn dom(&mut self) -> String {
        text(&self.value("document.documentElement.outerHTML")).unwrap_or_default()
    }

    /// Types into what has the focus.
    #[track_caller]
    pub fn types(&mut self, words: &str) {
        self.ask("Input.insertText", json!({"text": words}));
    }

    /// Presses a key by its name, such as `Tab` or `Enter`, with these modifiers: 1 Alt, 2 Ctrl, 8 Shift.
    #[track_caller]
    pub fn press(&mut self, key: &str, code: u32, modifiers: u32) {
        let mut event =
            json!({"key": key, "code": key, "modifiers": modifiers, "windowsVirtualKeyCode": code});
        for kind in ["keyDown", "keyUp"] {
            event["type"] = json!(kind);
            if key == "Enter" && modifiers == 0 && kind == "keyDown" {
                event["text"] = json!("\r");
            }
            self.ask("Input.dispatchKeyEvent", event.clone());
        }
    }

    /// Prefers `dark` or `light`, as a reader's system would.
    #[track_caller]
    pub fn prefers(&mut self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.ask("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// The size of the window, in CSS pixels.
    #[track_caller]
    pub fn window(&mut self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.ask("Emulation.setDeviceMetricsOverride", size);
    }

    /// Writes what the window shows to a PNG file.
    #[track_caller]
    pub fn screenshot(&mut self, file: &Path) {
        let shot = self.ask("Page.captureScreenshot", json!({"format": "png"}));
        let encoded = shot["data"].as_str().unwrap();
        std::fs::write(file, base64::engine::general_purpose::STANDARD.decode(encoded).unwrap()).unwrap();
    }

    /// All addresses that its pages have asked for.
    pub fn requests(&self) -> &[String] {
        &self.requests
    }

    /// What went wrong in its pages, and what they wrote to the console.
    pub fn said(&self) -> &[String] {
        &self.said
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its other processes end with it, when it may end by itself; the drop of the process kills.
        let _ = self.to.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        within(Duration::from_secs(10), || self.process.has_ended().is_some());
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// The first that starts, of those that scripts/setup looks for.
fn found() -> Option<PathBuf> {
    let named = std::env::var_os("DEFROST_BROWSER").map(PathBuf::from);
    let usual = ["chromium", "chromium-browser", "google-chrome"].map(PathBuf::from);
    named.into_iter().chain(usual).find(|program| {
        let mut command = Command::new(program);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    })
}
