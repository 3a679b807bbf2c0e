//! Child processes of the benchmark: `serve`, and a receiver of webhooks (the sink). They end when the benchmark does.

use std::process::Stdio;
use std::time::Duration;

use postcommit_server::output::Exit;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStderr, Command};

use crate::failure::Failure;
use crate::run::Bench;

/// How long a process may take to start.
const START: Duration = Duration::from_secs(30);

/// A `serve` process on the benchmark's database.
pub struct ServeProcess {
    process: Child,
    /// The address of the process's health endpoints.
    address: String,
}

impl ServeProcess {
    /// Starts a process and waits until it is ready.
    pub async fn start(bench: &Bench) -> Result<Self, Failure> {
        Self::spawn(command(bench)).await
    }

    /// Starts a process that serves requests without a rate limit and delivers nothing.
    pub async fn start_api(bench: &Bench) -> Result<Self, Failure> {
        let mut command = command(bench);
        command.args(["--role", "api"]).env("POSTCOMMIT_API_REQUESTS_PER_S", "0");
        Self::spawn(command).await
    }

    /// Starts a process that delivers, and serves requests without a rate limit.
    pub async fn start_unlimited(bench: &Bench) -> Result<Self, Failure> {
        let mut command = command(bench);
        command.env("POSTCOMMIT_API_REQUESTS_PER_S", "0");
        Self::spawn(command).await
    }

    async fn spawn(mut command: Command) -> Result<Self, Failure> {
        let mut process = command.stderr(Stdio::piped()).spawn()?;
        let stderr = process.stderr.take().ok_or_else(|| failed("`postcommit serve` has no stderr"))?;
        let mut lines = BufReader::new(stderr).lines();
        let address = tokio::time::timeout(START, find_address(&mut lines))
            .await
            .map_err(|_| failed("`postcommit serve` did not print its address in time"))??;
        // The process's stderr is read to the end, so that the process never blocks on a full pipe.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let server = Self { process, address };
        tokio::time::timeout(START, server.until_ready())
            .await
            .map_err(|_| failed("`postcommit serve` did not become ready in time"))?;
        Ok(server)
    }

    async fn until_ready(&self) {
        while !matches!(ask(&self.address).await, Ok(answer) if answer.starts_with("HTTP/1.1 200")) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns a value of `/proc/<pid>/status` in bytes, such as `VmRSS`.
    pub fn memory(&self, field: &str) -> Option<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()?)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()? * 1024.0)
    }

    pub async fn stop(mut self) -> Result<(), Failure> {
        Ok(self.process.kill().await?)
    }
}

/// Returns the command that runs `serve` on the benchmark's database, with the secrets key and the settings of this
/// run. The database URL may contain a password, so it is passed in the environment.
fn command(bench: &Bench) -> Command {
    let mut command = Command::new(&bench.program);
    command.args(["serve", "--no-migrate", "--while-stdin", "--listen", "127.0.0.1:0"]);
    let ours = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("POSTCOMMIT_"));
    for (name, _) in ours {
        command.env_remove(name);
    }
    let dispatch = &bench.dispatch;
    for (name, value) in [
        ("DATABASE_URL", bench.workspace.url()),
        ("SECRETS_KEY_FILE", bench.workspace.key_file().display().to_string()),
        ("EGRESS_ALLOW", "127.0.0.0/8".to_owned()),
        ("LOG_LEVEL", "error".to_owned()),
        ("DISPATCH_INTERVAL_MS", dispatch.interval_ms.to_string()),
        ("DISPATCH_LEASE_S", dispatch.lease_s.to_string()),
        ("DISPATCH_BATCH", dispatch.batch.to_string()),
    ] {
        command.env(format!("POSTCOMMIT_{name}"), value);
    }
    // The working directory has no settings file that `serve` could read. The stdin is a pipe: with `--while-stdin`,
    // `serve` ends when the pipe closes, even if the benchmark is killed.
    command.current_dir(bench.workspace.folder()).stdin(Stdio::piped()).stdout(Stdio::null()).kill_on_drop(true);
    command
}

/// Reads the output of `serve` up to the line with the URL of its health endpoints, and returns the address in it.
async fn find_address(lines: &mut Lines<BufReader<ChildStderr>>) -> Result<String, Failure> {
    let mut last = String::new();
    while let Some(line) = lines.next_line().await? {
        if let Some(address) = line.split_once("http://").and_then(|(_, rest)| rest.strip_suffix("/healthz")) {
            return Ok(address.to_owned());
        }
        last = line;
    }
    Err(failed(&format!("`postcommit serve` ended early: {last}")))
}

async fn ask(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// A receiver of webhooks in a process of its own.
pub struct SinkProcess {
    _process: Child,
    pub port: u16,
}

impl SinkProcess {
    pub async fn start() -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        // The sink ends when its stdin closes, even if the benchmark is killed.
        command.arg("--sink").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut process = command.spawn()?;
        let stdout = process.stdout.take().ok_or_else(|| failed("the receiver of the webhooks has no stdout"))?;
        let line = BufReader::new(stdout).lines().next_line().await?.unwrap_or_default();
        let port = line.trim().parse().map_err(|_| failed("the receiver of the webhooks did not print its port"))?;
        Ok(Self { _process: process, port })
    }
}

fn failed(what: &str) -> Failure {
    Failure::new(Exit::Failed, what)
}
