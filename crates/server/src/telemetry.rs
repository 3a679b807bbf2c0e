//! Logs, on stderr: for people on a terminal, JSON elsewhere. Nobody reading them is no reason to stop working.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::EnvFilter;

use crate::settings::LogSettings;

/// stderr that cannot fail: a reader that went away, or a full disk, loses lines, not the process.
struct Quiet;

impl Write for Quiet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = io::stderr().flush();
        Ok(())
    }
}

/// Prints a line for people to stderr, if anybody reads it.
macro_rules! say {
    ($($what:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($what)*);
    }};
}
pub(crate) use say;

/// Starts logging.
pub fn start(settings: &LogSettings) {
    let filter = EnvFilter::try_new(&settings.level).unwrap_or_else(|_| EnvFilter::new("info"));
    let terminal = io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Quiet).with_target(false).log_internal_errors(false);
    let builder = builder.with_ansi(terminal && std::env::var_os("NO_COLOR").is_none());
    let json = settings.format == "json" || (settings.format == "auto" && !terminal);
    let started = if json { builder.json().try_init() } else { builder.compact().try_init() };
    if let Err(problem) = started {
        say!("postcommit: logging could not start: {problem}");
    }
    // A panic is a log line too; the default hook would panic again on a stderr that nobody reads.
    std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "a task panicked")));
}
