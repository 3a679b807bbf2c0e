//! Logs, on stderr: for people on a terminal, JSON elsewhere.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::settings::LogSettings;

/// Starts logging. A filter that cannot be read falls back to `info`.
pub fn start(settings: &LogSettings) {
    let filter = EnvFilter::try_new(&settings.level).unwrap_or_else(|_| EnvFilter::new("info"));
    let terminal = std::io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(terminal && std::env::var_os("NO_COLOR").is_none());
    let json = settings.format == "json" || (settings.format == "auto" && !terminal);
    let started = if json { builder.json().try_init() } else { builder.compact().try_init() };
    if let Err(problem) = started {
        eprintln!("postcommit: logging could not start: {problem}");
    }
}
