//! A PostgreSQL cluster of one test, which the test can crash and restart.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::{Postgres, random};
use crate::process::Child;

/// The ports for private clusters. They are outside the kernel's range for outgoing connections, so that no connection
/// takes the port of a stopped cluster.
const PORTS: std::ops::Range<u64> = 20_000..32_000;

/// How many ports are tried. A free port may be taken by another process before the server starts.
const PORT_TRIES: usize = 5;

/// A private cluster on 127.0.0.1, with trust authentication and with fsync on. Dropping it stops the server and
/// removes its files. All methods that start or stop the server block.
pub struct Cluster {
    dir: TempDir,
    port: u16,
    server: Child,
    /// Additional server settings as `name=value`.
    settings: Vec<String>,
}

impl Cluster {
    /// Creates a cluster and starts it, which takes about two seconds. When the test runs as root, PostgreSQL runs as
    /// the user `postgres`, because the server refuses root.
    ///
    /// # Panics
    /// When PostgreSQL is not installed or does not start.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a cluster with server settings such as `max_prepared_transactions=4`. They are kept over restarts.
    ///
    /// # Panics
    /// In the same cases as [`Cluster::start`].
    pub fn start_with(settings: &[&str]) -> Self {
        let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let dir = make_dir();
        initdb(dir.path());
        for _ in 0..PORT_TRIES {
            let port = free_port();
            let server = run_server(dir.path(), port, &settings);
            if came_up(&server) {
                return Self { dir, port, server, settings };
            }
            assert!(
                server.output().iter().any(|line| line.contains("in use")),
                "PostgreSQL does not start: {:#?}",
                server.output()
            );
        }
        panic!("no free port for PostgreSQL after {PORT_TRIES} tries");
    }

    /// Returns the URL of the database `postgres` for its superuser. The URL does not change at a restart.
    pub fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.addr())
    }

    /// Returns the address of the server, as the target of a [`Proxy`](crate::Proxy).
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Returns a handle with which databases are created in this cluster.
    pub fn postgres(&self) -> Postgres {
        Postgres::at(self.url())
    }

    /// Stops the server like a crash: sessions are cut off, nothing is flushed, and the next start recovers from the
    /// WAL. The server has ended when this returns.
    pub fn stop_immediate(&mut self) {
        self.server.signal("QUIT");
        self.server.wait();
    }

    /// Starts the stopped server on the same port. It accepts connections when this returns.
    ///
    /// # Panics
    /// When the server is still running, or does not start.
    pub fn start_again(&mut self) {
        self.server = run_server(self.dir.path(), self.port, &self.settings);
        assert!(came_up(&self.server), "PostgreSQL does not start again: {:#?}", self.server.output());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SIGQUIT is used, because after SIGKILL some server processes would keep running.
        self.server.signal("QUIT");
        if !std::thread::panicking() {
            self.server.wait();
        }
    }
}

fn make_dir() -> TempDir {
    let dir = TempDir::with_prefix("postcommit-pg-").expect("a directory for a cluster");
    if is_root() {
        run(Command::new("chown").arg("postgres").arg(dir.path()));
    }
    dir
}

fn initdb(dir: &Path) {
    let mut initdb = as_postgres("initdb", dir);
    initdb.args(["-U", "postgres", "-A", "trust", "-E", "UTF8"]);
    initdb.args(["--locale=C.UTF-8", "--no-sync", "-D", "data"]);
    run(&mut initdb);
}

fn run_server(dir: &Path, port: u16, settings: &[String]) -> Child {
    let mut server = as_postgres("postgres", dir);
    server.args(["-D", "data", "-p", &port.to_string()]);
    // The socket directory is relative to the data directory, which is the server's working directory.
    for setting in [
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=..",
        "fsync=on",
        "max_connections=100",
        "logging_collector=off",
    ] {
        server.args(["-c", setting]);
    }
    for setting in settings {
        server.args(["-c", setting]);
    }
    Child::spawn(server)
}

/// Waits until the server accepts connections. Returns `false` when it has exited instead.
fn came_up(server: &Child) -> bool {
    let line = server.wait_for_line_or_exit("database system is ready to accept connections");
    line.is_some()
}

/// Builds a command that runs a program of PostgreSQL in `dir`, as a user that the server accepts.
fn as_postgres(program: &str, dir: &Path) -> Command {
    let program = bin_dir().join(program);
    let mut command = if is_root() {
        // Unlike su and runuser, setpriv replaces itself by the program, so that signals reach the program.
        let mut setpriv = Command::new("setpriv");
        setpriv.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "--"]);
        setpriv.arg(program);
        setpriv
    } else {
        Command::new(program)
    };
    // The user `postgres` may not be able to read the working directory of the test.
    command.current_dir(dir).env("LC_ALL", "C.UTF-8");
    command
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}

/// Returns whether this process runs as root, judged by the owner of its entry in /proc.
fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0)
}

/// Returns the directory of PostgreSQL's programs: the one in PATH, else Debian's newest version.
fn bin_dir() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).find_map(|dir| {
        // The entry in PATH may be a link to one program. The link's target is in the directory of all programs.
        let initdb = dir.join("initdb").canonicalize().ok()?;
        let dir = initdb.parent()?;
        dir.join("postgres").exists().then(|| dir.to_owned())
    });
    in_path.or_else(newest_of_debian).expect(
        "PostgreSQL's server programs (initdb, postgres) are neither in PATH nor in \
         /usr/lib/postgresql/*/bin; the Debian package is postgresql",
    )
}

fn newest_of_debian() -> Option<PathBuf> {
    fs::read_dir("/usr/lib/postgresql")
        .ok()?
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let version: u32 = path.file_name()?.to_str()?.parse().ok()?;
            let bin = path.join("bin");
            bin.join("initdb").exists().then_some((version, bin))
        })
        .max()
        .map(|(_, bin)| bin)
}

fn free_port() -> u16 {
    loop {
        let port = PORTS.start + random() % (PORTS.end - PORTS.start);
        let port = u16::try_from(port).expect("the range is of ports");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}
