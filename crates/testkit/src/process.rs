//! A program under test as a child process: its output, signals and exit status.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::GUARD;

/// A running child process whose output is captured line by line. Dropping it kills the process.
///
/// Its waits block the thread. The servers of this crate run on their own threads and are not affected.
pub struct Child {
    name: String,
    pid: u32,
    shared: Arc<SharedChildState>,
    waiter: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct SharedChildState {
    state: Mutex<ChildState>,
    changed: Condvar,
}

#[derive(Default)]
struct ChildState {
    lines: Vec<String>,
    /// How many of the streams stdout and stderr are still open.
    open: usize,
    exit: Option<ExitStatus>,
}

impl Child {
    /// Starts `command`, captures its output and gives it an empty stdin.
    ///
    /// # Panics
    /// When the program cannot be started.
    pub fn spawn(mut command: Command) -> Self {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("start {name}: {error}"));
        let shared = Arc::new(SharedChildState::default());
        shared.state().open = 2;
        read_lines(child.stdout.take().expect("stdout is piped"), &shared);
        read_lines(child.stderr.take().expect("stderr is piped"), &shared);
        let pid = child.id();
        let waiter = thread::spawn({
            let shared = shared.clone();
            move || {
                let exit = child.wait().expect("wait for the child");
                shared.change(|state| state.exit = Some(exit));
            }
        });
        Self { name, pid, shared, waiter: Some(waiter) }
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns all lines of stdout and stderr so far, in order of arrival.
    pub fn output(&self) -> Vec<String> {
        self.shared.state().lines.clone()
    }

    /// Blocks until stdout or stderr has had a line that contains `needle`, and returns the line.
    ///
    /// # Panics
    /// After [`GUARD`], or when the output ends without such a line. The message shows the output.
    pub fn wait_for_line(&self, needle: &str) -> String {
        self.wait_for_lines(needle, 1).remove(0)
    }

    /// Waits like [`Child::wait_for_line`], but returns `None` when the output ends without such a line.
    ///
    /// # Panics
    /// After [`GUARD`]; the message shows the output.
    pub fn wait_for_line_or_exit(&self, needle: &str) -> Option<String> {
        let state = self.wait_until(|state| matching(state, needle).count() > 0 || state.finished());
        let line = matching(&state, needle).next().cloned();
        if line.is_none() && !state.finished() {
            self.fail(state, &format!("a line with {needle:?}, or the end"));
        }
        line
    }

    /// Blocks until `count` lines have contained `needle`, and returns all lines that contain it.
    ///
    /// # Panics
    /// In the same cases as [`Child::wait_for_line`].
    pub fn wait_for_lines(&self, needle: &str, count: usize) -> Vec<String> {
        let found = |state: &ChildState| matching(state, needle).count() >= count;
        let state = self.wait_until(|state| found(state) || state.finished());
        if !found(&state) {
            self.fail(state, &format!("{count} line(s) with {needle:?}"));
        }
        matching(&state, needle).cloned().collect()
    }

    /// Kills the process (SIGKILL). The process has ended when this returns.
    pub fn kill9(&self) -> ExitStatus {
        self.signal("KILL");
        self.wait()
    }

    /// Freezes the process (SIGSTOP). The process has stopped when this returns.
    pub fn stop(&self) {
        self.signal("STOP");
        let deadline = Instant::now() + GUARD;
        // The state is polled, because the kernel reports a stop only to the parent's `waitpid`, which is not available
        // without libc.
        while self.run_state() != Some('T') {
            assert!(Instant::now() < deadline, "{} did not stop", self.name);
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets a frozen process continue (SIGCONT).
    pub fn cont(&self) {
        self.signal("CONT");
    }

    /// Asks the process to end (SIGTERM). [`Child::wait`] waits until it does.
    pub fn term(&self) {
        self.signal("TERM");
    }

    /// Sends a signal by its name, such as `"HUP"`. Does nothing when the process has ended.
    pub fn signal(&self, name: &str) {
        if self.shared.state().exit.is_some() {
            return;
        }
        // The shell's built-in `kill` is used, because a minimal Debian has no /bin/kill.
        let _ = Command::new("sh")
            .args(["-c", "kill -s \"$0\" \"$1\"", name])
            .arg(self.pid.to_string())
            .stderr(Stdio::null())
            .status();
    }

    /// Blocks until the process has ended.
    ///
    /// # Panics
    /// After [`GUARD`]; the message shows the output.
    pub fn wait(&self) -> ExitStatus {
        let state = self.wait_until(|state| state.exit.is_some());
        match state.exit {
            Some(exit) => exit,
            None => self.fail(state, "the process to end"),
        }
    }

    /// Blocks until `done` returns true, but at most for [`GUARD`].
    fn wait_until(&self, done: impl Fn(&ChildState) -> bool) -> MutexGuard<'_, ChildState> {
        let state = self.shared.state();
        let (state, _) =
            self.shared.changed.wait_timeout_while(state, GUARD, |state| !done(state)).expect("child state");
        state
    }

    fn fail(&self, state: MutexGuard<'_, ChildState>, wanted: &str) -> ! {
        let output = state.lines.join("\n");
        let exit = state.exit;
        // The lock is released before the panic, because a panic with the lock held would poison it for `drop`.
        drop(state);
        panic!("{}: waited for {wanted}; exit: {exit:?}; output:\n{output}", self.name);
    }

    /// Returns the state letter in `/proc/<pid>/stat`. It follows the process name in parentheses.
    fn run_state(&self) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal("KILL");
        if let Some(waiter) = self.waiter.take() {
            // A panic here would abort a test that is already unwinding.
            let _ = waiter.join();
        }
    }
}

impl SharedChildState {
    fn state(&self) -> MutexGuard<'_, ChildState> {
        self.state.lock().expect("child state")
    }

    fn change(&self, change: impl FnOnce(&mut ChildState)) {
        change(&mut self.state());
        self.changed.notify_all();
    }
}

impl ChildState {
    /// Returns whether no further line can arrive.
    fn finished(&self) -> bool {
        self.exit.is_some() && self.open == 0
    }
}

fn matching<'a>(state: &'a ChildState, needle: &'a str) -> impl Iterator<Item = &'a String> {
    state.lines.iter().filter(move |line| line.contains(needle))
}

fn read_lines(stream: impl Read + Send + 'static, shared: &Arc<SharedChildState>) {
    let shared = shared.clone();
    thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            shared.change(|state| state.lines.push(line));
        }
        shared.change(|state| state.open -= 1);
    });
}
