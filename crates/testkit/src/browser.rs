//! A real browser: headless Chromium, driven through chromedriver's HTTP interface.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::{Child, GUARD};

/// How long a script may wait for a condition, in milliseconds. It is shorter than [`crate::GUARD`], so that the
/// browser can still report the content of the page.
const PATIENCE_MS: u64 = 40_000;

/// Flags for Chromium. With them it makes no connections by itself and needs neither a display nor a sandbox.
const FLAGS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--force-color-profile=srgb",
];

/// A browser with an empty profile. Dropping it closes the browser.
pub struct Browser {
    driver: SocketAddr,
    session: String,
    /// Whether the scripts of pages are disabled. Scripts of the test still run.
    is_scriptless: Cell<bool>,
    _profile: tempfile::TempDir,
    // Dropped last, because closing the session needs chromedriver.
    _process: Child,
}

impl Browser {
    /// Starts a browser whose pages have this size in pixels.
    ///
    /// # Panics
    /// When chromedriver or Chromium is missing or reports an error. All other methods panic on errors as well.
    pub fn start(width: u32, height: u32) -> Self {
        let mut command = Command::new("chromedriver");
        command.arg("--port=0");
        let process = Child::spawn(command);
        let line = process.wait_for_line("started successfully on port");
        let port: u16 = line
            .rsplit(' ')
            .next()
            .and_then(|port| port.trim_end_matches('.').parse().ok())
            .expect("chromedriver logs its port");
        let driver = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let profile = tempfile::tempdir().expect("a folder for the profile");
        let mut arguments: Vec<String> = FLAGS.map(str::to_owned).into();
        arguments.push(format!("--window-size={width},{height}"));
        arguments.push(format!("--user-data-dir={}", profile.path().display()));
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments},
            "timeouts": {"script": PATIENCE_MS},
        }}});
        let (_, begun) = ask(driver, "POST", "/session", Some(&wanted)).expect("chromedriver answers");
        let session = begun["value"]["sessionId"].as_str().unwrap_or_else(|| panic!("no session: {begun}")).to_owned();
        let browser = Self { driver, session, is_scriptless: Cell::new(false), _profile: profile, _process: process };
        // Chromium's windows are at least 500 pixels wide. The override allows the narrower pages of phones.
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        browser.command("Emulation.setDeviceMetricsOverride", &size);
        assert_eq!(browser.run("return innerWidth"), width);
        browser
    }

    /// Opens a page and waits until it is loaded.
    pub fn open(&self, url: &str) {
        self.tell("url", &json!({"url": url}));
    }

    /// Loads the page again.
    pub fn reload(&self) {
        self.tell("refresh", &json!({}));
    }

    /// Runs a script in the page and returns its result.
    pub fn run(&self, script: &str) -> Value {
        self.tell("execute/sync", &json!({"script": script, "args": []}))
    }

    /// Runs a script in the page. The script's last argument is a callback; returns the value that the script passes to
    /// it.
    pub fn run_async(&self, script: &str) -> Value {
        self.tell("execute/async", &json!({"script": script, "args": []}))
    }

    /// From the next page on, pages run no scripts, as in a browser with JavaScript disabled.
    pub fn disable_scripts(&self) {
        self.command("Emulation.setScriptExecutionDisabled", &json!({"value": true}));
        self.is_scriptless.set(true);
    }

    /// Sets the colour scheme that the system prefers: `light` or `dark`.
    pub fn prefer(&self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.command("Emulation.setEmulatedMedia", &json!({"features": features}));
    }

    /// Clicks on the first element that matches the selector, as a mouse does, and waits for the page that it opens.
    pub fn click(&self, selector: &str) {
        let found = self.tell("element", &json!({"using": "css selector", "value": selector}));
        let id = found.as_object().and_then(|found| found.values().next()?.as_str()).expect("the id of an element");
        self.tell(&format!("element/{id}/click"), &json!({}));
    }

    /// Waits until a JavaScript expression is true in the page.
    pub fn until(&self, expression: &str) {
        let deadline = Instant::now() + Duration::from_millis(PATIENCE_MS);
        while !self.holds(expression) {
            assert!(
                Instant::now() < deadline,
                "never true: {expression}; the page says {}",
                self.run("return document.documentElement.outerHTML")
            );
        }
    }

    /// Returns whether a JavaScript expression is true in the page, or becomes true before the page is left. With
    /// scripts disabled it does not wait, because the page's timers do not run.
    fn holds(&self, expression: &str) -> bool {
        let held = format!("let held = false; try {{ held = Boolean({expression}); }} catch {{ }}");
        if self.is_scriptless.get() {
            return self.run(&format!("{held} return held")) == true;
        }
        let script = format!(
            "const done = arguments[arguments.length - 1]; const look = () => {{ {held} \
             if (held) done(true); else setTimeout(look, 10); }}; look();"
        );
        // If the page is left, the script ends with an error, and the caller checks the next page.
        self.ask("POST", "execute/async", Some(&json!({"script": script, "args": []}))).0 == 200
    }

    /// Presses and releases a key: a character, or a WebDriver key code such as `\u{E007}` (Enter).
    pub fn press(&self, key: &str) {
        let actions = json!([{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]);
        self.tell("actions", &json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]}));
    }

    /// Saves a screenshot of the window.
    pub fn picture(&self, path: &Path) {
        let (_, answer) = self.ask("GET", "screenshot", None);
        let bytes = STANDARD.decode(answer["value"].as_str().unwrap_or_default()).expect("base64");
        std::fs::write(path, bytes).expect("the picture is written");
    }

    /// Sends a command of the DevTools protocol.
    fn command(&self, name: &str, parameters: &Value) {
        self.tell("goog/cdp/execute", &json!({"cmd": name, "params": parameters}));
    }

    fn tell(&self, command: &str, body: &Value) -> Value {
        let (status, said) = self.ask("POST", command, Some(body));
        assert_eq!(status, 200, "{command}: {said}");
        said["value"].clone()
    }

    fn ask(&self, method: &str, command: &str, body: Option<&Value>) -> (u16, Value) {
        let path = format!("/session/{}/{command}", self.session);
        ask(self.driver, method, &path, body).unwrap_or_else(|problem| panic!("{method} {path}: {problem}"))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends the session, because otherwise Chromium would keep running after chromedriver has ended.
        let _ = ask(self.driver, "DELETE", &format!("/session/{}", self.session), None);
    }
}

/// Sends one request to chromedriver. Chromedriver keeps connections open even when asked to close them, so the end of
/// the response is found by its content length.
fn ask(driver: SocketAddr, method: &str, path: &str, body: Option<&Value>) -> io::Result<(u16, Value)> {
    let body = body.map(Value::to_string).unwrap_or_default();
    let mut socket = TcpStream::connect(driver)?;
    socket.set_read_timeout(Some(GUARD))?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {driver}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(format!("{head}{body}").as_bytes())?;
    let mut answer = BufReader::new(socket);
    let mut line = String::new();
    answer.read_line(&mut line)?;
    let status = line
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .ok_or_else(|| io::Error::other(format!("not an HTTP response: {line:?}")))?;
    let mut length = 0;
    while !line.trim().is_empty() {
        line.clear();
        answer.read_line(&mut line)?;
        if let Some((_, value)) = line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("content-length")) {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    let mut bytes = vec![0; length];
    answer.read_exact(&mut bytes)?;
    Ok((status, serde_json::from_slice(&bytes).unwrap_or_default()))
}
