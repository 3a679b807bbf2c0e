//! A real mail server: Postfix with its own configuration, queue and mailbox. It ends with the test. Debian's package
//! `postfix` must be installed and need not be configured. Postfix starts only as root, so another user needs `sudo`
//! without a password.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::process::Child;

/// The domain whose mail the server accepts.
pub const DOMAIN: &str = "guest.example";
/// The user and group `nobody` of Debian, to whom the mailbox belongs if the test runs as root.
const NOBODY: u32 = 65_534;

/// A running Postfix. It puts all mail for [`DOMAIN`] into one mailbox.
pub struct Postfix {
    folder: TempDir,
    addr: SocketAddr,
    server: Child,
}

impl Postfix {
    /// Starts Postfix on a free port of 127.0.0.1.
    ///
    /// # Panics
    /// If Postfix is not installed, or does not start.
    pub fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder for Postfix");
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let addr = free.local_addr().expect("the address of the free port");
        drop(free);
        prepare(folder.path(), addr);
        let conf = folder.path().join("conf");
        let server = Child::spawn(as_root(&["postfix", "-c", &conf.display().to_string(), "start-fg"]));
        server.wait_for_line("daemon started");
        Self { folder, addr, server }
    }

    /// The address that the server listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Waits until `n` mails are in the mailbox. Returns them as Postfix stored them: lines end with LF, and headers of
    /// the transport come first.
    ///
    /// # Panics
    /// After [`GUARD`](crate::GUARD). The message shows the log of Postfix.
    pub fn wait_for(&self, n: usize) -> Vec<Vec<u8>> {
        self.server.wait_for_lines("status=sent (delivered to maildir)", n);
        let files = fs::read_dir(self.folder.path().join("mail/all/new")).expect("the mailbox");
        let mut paths: Vec<PathBuf> = files.map(|file| file.expect("a mail").path()).collect();
        paths.sort();
        paths.iter().map(|path| fs::read(path).expect("a mail")).collect()
    }
}

impl Drop for Postfix {
    fn drop(&mut self) {
        // The child is a shell script, and the server that it has started would outlive it.
        if let Ok(pid) = fs::read_to_string(self.folder.path().join("spool/pid/master.pid")) {
            let _ = as_root(&["kill", pid.trim()]).status();
            self.server.wait();
        }
    }
}

fn prepare(folder: &Path, addr: SocketAddr) {
    for name in ["conf", "spool", "data", "mail"] {
        fs::create_dir(folder.join(name)).expect("a folder for Postfix");
    }
    // Processes of Postfix that run as other users must be able to enter this folder.
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("the folder's permissions");
    let data = folder.join("data").display().to_string();
    assert!(
        as_root(&["chown", "postfix", &data]).status().is_ok_and(|done| done.success()),
        "Postfix is not installed"
    );
    let owner = if is_root() { NOBODY } else { own_id() };
    chown(folder.join("mail"), Some(owner), None).expect("the mailbox's owner");
    fs::write(folder.join("conf/main.cf"), main_cf(folder, owner)).expect("main.cf");
    fs::write(folder.join("conf/master.cf"), master_cf(addr)).expect("master.cf");
}

fn main_cf(folder: &Path, owner: u32) -> String {
    let folder = folder.display();
    format!(
        "compatibility_level = 3.6
queue_directory = {folder}/spool
data_directory = {folder}/data
command_directory = /usr/sbin
daemon_directory = /usr/lib/postfix/sbin
maillog_file = /dev/stdout
inet_protocols = ipv4
myhostname = mail.example
mydestination =
alias_maps =
alias_database =
virtual_mailbox_domains = {DOMAIN}
virtual_mailbox_base = {folder}/mail
virtual_mailbox_maps = static:all/
virtual_minimum_uid = 1
virtual_uid_maps = static:{owner}
virtual_gid_maps = static:{NOBODY}
"
    )
}

/// Returns the list of Postfix processes that accept mail and put it into a mailbox. None of them connects to another
/// host.
fn master_cf(addr: SocketAddr) -> String {
    format!(
        "{addr} inet n - n - - smtpd
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
anvil unix - - n - 1 anvil
proxymap unix - - n - - proxymap
virtual unix - n n - - virtual
error unix - - n - - error
retry unix - - n - - error
postlog unix-dgram n - n - 1 postlogd
"
    )
}

fn as_root(words: &[&str]) -> Command {
    let words = if is_root() { words.to_vec() } else { [&["sudo", "-n"], words].concat() };
    let mut command = Command::new(words[0]);
    // Debian installs Postfix outside the PATH of most users.
    let path = std::env::var("PATH").unwrap_or_default();
    command.args(&words[1..]).env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

fn is_root() -> bool {
    own_id() == 0
}

/// Returns the id of the user that runs the test.
fn own_id() -> u32 {
    fs::metadata("/proc/self").map_or(0, |own| own.uid())
}
