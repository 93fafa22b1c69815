//! Real OpenSSH servers on loopback.

// clippy exempts test functions, but not their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use rustix::event::{PollFd, PollFlags};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long any step may take before the test fails.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// The passphrase of [`Sshd::locked_key`].
pub(crate) const PASSPHRASE: &str = "correct horse battery staple";

/// An sshd with its own host keys and log. Dropping it kills the server and all of its sessions.
pub(crate) struct Sshd {
    folder: TempDir,
    address: SocketAddrV4,
    user: String,
    process: Option<Child>,
    /// The log of the server and its sessions.
    log: Log,
    /// Shell commands that run before sshd in a separate mount namespace.
    mounts: Option<String>,
}

impl Sshd {
    /// A server on 127.0.0.1 and a free port.
    pub(crate) fn start() -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST, &[])
    }

    /// A server on this address of 127.0.0.0/8 and a free port. The lines of `configuration` come first in its
    /// configuration, so they take precedence.
    pub(crate) fn start_at(address: Ipv4Addr, configuration: &[&str]) -> Self {
        Self::start_in(address, configuration, |_| None)
    }

    /// Like [`Self::start_at`], in a separate mount namespace if `mounts` returns shell commands. It gets the path of the
    /// server's folder. This needs root.
    pub(crate) fn start_in(
        address: Ipv4Addr,
        configuration: &[&str],
        mounts: impl FnOnce(&Path) -> Option<String>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        make_key(&folder.path().join("host_ed25519"), "ed25519", "");
        copy_shared_keys(folder.path());
        let authorized: Vec<_> = ["client", "locked"]
            .iter()
            .map(|name| fs::read_to_string(folder.path().join(format!("{name}.pub"))).unwrap())
            .collect();
        fs::write(folder.path().join("authorized_keys"), authorized.concat()).unwrap();
        let user = output(Command::new("id").arg("-un"));
        let mounts = mounts(folder.path());
        let address_of = SocketAddrV4::new(address, 0);
        let mut sshd = Self { folder, address: address_of, user, process: None, log: Log::default(), mounts };
        fs::write(sshd.file("known_hosts"), sshd.known_hosts_line("ed25519")).unwrap();
        // Another program may take the port before sshd binds it.
        for _ in 0..5 {
            sshd.address.set_port(free_port(address));
            fs::write(sshd.file("known_hosts"), sshd.known_hosts_line("ed25519")).unwrap();
            fs::write(sshd.file("sshd_config"), sshd.configuration(configuration)).unwrap();
            if sshd.launch() {
                return sshd;
            }
        }
        panic!("sshd does not start:\n{}", sshd.log());
    }

    /// Kills the server and all sessions, as if the host had lost power.
    pub(crate) fn stop(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        for pid in descendants(process.id()) {
            kill(pid);
        }
        let _ = process.kill();
        let _ = process.wait();
    }

    /// The processes of the server's sessions.
    pub(crate) fn descendants(&self) -> Vec<u32> {
        self.process.as_ref().map(|process| descendants(process.id())).unwrap_or_default()
    }

    /// Starts the server again on the same port with the same keys.
    pub(crate) fn restart(&mut self) {
        self.stop();
        let deadline = Instant::now() + TIMEOUT;
        while !self.launch() {
            assert!(Instant::now() < deadline, "sshd does not start again:\n{}", self.log());
        }
    }

    /// Replaces the host keys. Takes effect with [`Sshd::restart`].
    pub(crate) fn change_host_keys(&self) {
        for kind in ["ed25519", "ecdsa", "rsa"] {
            make_key(&self.file(&format!("host_{kind}")), kind, "");
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address.into()
    }

    /// The IP address as text.
    pub(crate) fn ip(&self) -> String {
        self.address.ip().to_string()
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// The user that runs the tests; the keys log in as this user.
    pub(crate) fn user(&self) -> String {
        self.user.clone()
    }

    /// An authorized private key.
    pub(crate) fn client_key(&self) -> PathBuf {
        self.file("client")
    }

    /// An authorized private key with [`PASSPHRASE`].
    pub(crate) fn locked_key(&self) -> PathBuf {
        self.file("locked")
    }

    /// A private key that is not authorized.
    pub(crate) fn stranger_key(&self) -> PathBuf {
        self.file("stranger")
    }

    /// A known_hosts file with the server's ed25519 key.
    pub(crate) fn known_hosts(&self) -> PathBuf {
        self.file("known_hosts")
    }

    /// A path in the server's folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Type and base64 of one of the host keys: `ed25519`, `ecdsa` or `rsa`.
    pub(crate) fn host_key(&self, kind: &str) -> String {
        let text = fs::read_to_string(self.file(&format!("host_{kind}.pub"))).unwrap();
        text.split(' ').take(2).collect::<Vec<_>>().join(" ").trim().to_owned()
    }

    /// `SHA256:...` of one of the host keys.
    pub(crate) fn fingerprint(&self, kind: &str) -> String {
        fingerprint(&self.file(&format!("host_{kind}.pub")))
    }

    /// The known_hosts line of the server for one of its keys.
    pub(crate) fn known_hosts_line(&self, kind: &str) -> String {
        format!("[{}]:{} {}\n", self.ip(), self.port(), self.host_key(kind))
    }

    /// The log since the last start.
    pub(crate) fn log(&self) -> String {
        self.log.text()
    }

    fn configuration(&self, added: &[&str]) -> String {
        let path = |name: &str| self.file(name).display().to_string();
        // All lines after a `Match` belong to it, so these come last.
        let (matches, added): (Vec<&str>, Vec<&str>) = added.iter().partition(|line| line.starts_with("Match "));
        let mut lines: Vec<String> = added.iter().map(|line| (*line).to_owned()).collect();
        lines.push(format!("ListenAddress {}:{}", self.ip(), self.port()));
        lines.extend(["ed25519", "ecdsa", "rsa"].map(|kind| format!("HostKey {}", path(&format!("host_{kind}")))));
        lines.push(format!("AuthorizedKeysFile {}", path("authorized_keys")));
        lines.extend(
            [
                "PidFile none",
                // The folder is in a world-writable directory.
                "StrictModes no",
                "UsePAM no",
                "PermitRootLogin yes",
                "PasswordAuthentication no",
                "KbdInteractiveAuthentication no",
                "LogLevel VERBOSE",
                // The exchange that `ssh` prefers takes 20 ms of CPU on either side.
                "KexAlgorithms -sntrup*",
                // bash reads .bashrc for a command only at the outermost shell level.
                "SetEnv SHLVL=5",
            ]
            .map(str::to_owned),
        );
        // For MaxStartups sshd uses the last line, not the first.
        if !added.iter().any(|line| line.starts_with("MaxStartups")) {
            lines.push("MaxStartups 100".to_owned());
        }
        lines.extend(matches.into_iter().map(str::to_owned));
        lines.join("\n") + "\n"
    }

    /// Starts sshd and returns whether it listens.
    fn launch(&mut self) -> bool {
        // The privilege separation directory of sshd; only root needs it.
        let _ = fs::create_dir_all("/run/sshd");
        let (reads, writes) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut program = match &self.mounts {
            // Neither unshare nor the shell forks, so the child process becomes sshd.
            Some(mounts) => {
                let mut unshare = Command::new("unshare");
                unshare.args(["--mount", "/bin/sh", "-c", &format!("set -e\ncd /\n{mounts}\nexec \"$0\" \"$@\"")]);
                unshare.arg(sshd_program());
                unshare
            }
            None => Command::new(sshd_program()),
        };
        let mut process = program
            .args(["-D", "-e", "-f"])
            .arg(self.file("sshd_config"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::from(writes))
            .spawn()
            .unwrap();
        self.log = Log::follow(reads);
        if self.log.wait(|text| text.contains("Server listening on")) {
            self.process = Some(process);
            return true;
        }
        let _ = process.kill();
        let _ = process.wait();
        false
    }
}

/// The standard error of a server and its sessions, read by a thread so that the pipe never fills up.
#[derive(Clone, Default)]
struct Log(Arc<(Mutex<LogState>, Condvar)>);

#[derive(Default)]
struct LogState {
    pipe: Option<OwnedFd>,
    bytes: Vec<u8>,
}

impl Log {
    fn follow(pipe: OwnedFd) -> Self {
        rustix::fs::fcntl_setfl(&pipe, OFlags::NONBLOCK).unwrap();
        let watched = pipe.try_clone().unwrap();
        let log = Self(Arc::new((Mutex::new(LogState { pipe: Some(pipe), bytes: Vec::new() }), Condvar::new())));
        let thread = log.clone();
        std::thread::spawn(move || {
            loop {
                let _ = rustix::event::poll(&mut [PollFd::new(&watched, PollFlags::IN)], None);
                let mut state = thread.0.0.lock().unwrap();
                state.take();
                thread.0.1.notify_all();
                if state.pipe.is_none() {
                    return;
                }
            }
        });
        log
    }

    /// The text so far.
    fn text(&self) -> String {
        let mut state = self.0.0.lock().unwrap();
        state.take();
        String::from_utf8_lossy(&state.bytes).into_owned()
    }

    /// Waits until the text satisfies the condition. Returns false at the end of the log or after the timeout.
    fn wait(&self, condition: impl Fn(&str) -> bool) -> bool {
        let deadline = Instant::now() + TIMEOUT;
        let mut state = self.0.0.lock().unwrap();
        loop {
            if condition(&String::from_utf8_lossy(&state.bytes)) {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if state.pipe.is_none() || left.is_zero() {
                return false;
            }
            state = self.0.1.wait_timeout(state, left).unwrap().0;
        }
    }
}

impl LogState {
    /// Reads all available bytes and drops the pipe at its end.
    fn take(&mut self) {
        let Some(pipe) = &self.pipe else { return };
        let mut chunk = [0; 4096];
        loop {
            match rustix::io::read(pipe, &mut chunk) {
                Ok(count @ 1..) => self.bytes.extend_from_slice(&chunk[..count]),
                Err(Errno::AGAIN | Errno::INTR) => return,
                Ok(0) | Err(_) => break,
            }
        }
        self.pipe = None;
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A server that accepts one TCP connection and never sends anything.
pub(crate) struct MuteServer {
    listener: TcpListener,
}

impl MuteServer {
    pub(crate) fn start() -> Self {
        // The kernel completes connections in the backlog without accept.
        Self { listener: TcpListener::bind("127.0.0.1:0").unwrap() }
    }

    pub(crate) fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }

    /// Waits until the client has closed its connection.
    pub(crate) fn wait_for_end(&self) {
        let (mut stream, _) = self.listener.accept().unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        // The data does not matter; a reset ends the connection, too.
        match stream.read_to_end(&mut Vec::new()) {
            Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("the connection stays open: {error}"),
            _ => {}
        }
    }
}

/// A port of this address on which nothing listens.
pub(crate) fn free_port(address: Ipv4Addr) -> u16 {
    TcpListener::bind((address, 0)).unwrap().local_addr().unwrap().port()
}

/// `SHA256:...` of a key file.
pub(crate) fn fingerprint(path: &Path) -> String {
    let line = output(Command::new("ssh-keygen").arg("-lf").arg(path));
    line.split(' ').nth(1).unwrap().to_owned()
}

fn make_key(path: &Path, kind: &str, passphrase: &str) {
    let _ = fs::remove_file(path);
    let mut command = Command::new("ssh-keygen");
    // One KDF round is fast and enough for tests.
    command.args(["-q", "-t", kind, "-a", "1", "-C", kind, "-N", passphrase, "-f"]).arg(path);
    if kind == "rsa" {
        command.args(["-b", "2048"]);
    }
    assert!(command.status().unwrap().success());
}

/// Only one test at a time may have hosts without a cache for the probe: they put it into a directory of this user in `/tmp`, where
/// each of them finds it.
pub(crate) fn lock_probe_in_tmp() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The keys that all servers of this process share: generating one takes the CPU 15 ms, and a second for RSA.
const SHARED_KEYS: [(&str, &str, &str); 5] = [
    ("host_rsa", "rsa", ""),
    ("host_ecdsa", "ecdsa", ""),
    ("client", "ed25519", ""),
    ("locked", "ed25519", PASSPHRASE),
    ("stranger", "ed25519", ""),
];

fn copy_shared_keys(folder: &Path) {
    static KEYS: LazyLock<Vec<(Vec<u8>, Vec<u8>)>> = LazyLock::new(|| {
        let folder = tempfile::tempdir().unwrap();
        let make = |(name, kind, passphrase)| {
            let path = folder.path().join(name);
            make_key(&path, kind, passphrase);
            (fs::read(&path).unwrap(), fs::read(path.with_extension("pub")).unwrap())
        };
        SHARED_KEYS.map(make).into()
    });
    for ((name, ..), (private, public)) in SHARED_KEYS.iter().zip(KEYS.iter()) {
        let path = folder.join(name);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).unwrap();
        file.write_all(private).unwrap();
        fs::write(path.with_extension("pub"), public).unwrap();
    }
}

fn output(command: &mut Command) -> String {
    String::from_utf8(command.output().unwrap().stdout).unwrap().trim().to_owned()
}

fn sshd_program() -> PathBuf {
    ["/usr/sbin/sshd", "/usr/bin/sshd", "/usr/local/sbin/sshd"]
        .iter()
        .map(PathBuf::from)
        .find(|path| path.exists())
        .expect("these tests need OpenSSH's server: apt-get install openssh-server")
}

/// The processes below `pid`, children before grandchildren.
pub(crate) fn descendants(pid: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let parent = stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect();
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

fn kill(pid: u32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}
