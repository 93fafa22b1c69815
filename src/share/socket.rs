//! The unix socket of the collector: where it is, who may use it, and the tasks that serve it.
//!
//! Permissions of the file and the credentials of the peer (`SO_PEERCRED`, or `getpeereid` on macOS) decide. Nothing that
//! a viewer sends has an effect beyond its own connection.

use super::frame::{ViewerHello, decode_query, encode_reply};
use super::history::HistoryService;
use super::hub::LineQueue;
use super::privacy::Audience;
use crate::fleet::Clock;
use crate::store::Directories;
use crate::wire::codec::LineBuffer;
use crate::wire::format::io_cause;
use rustix::fs::{Gid, Mode, chmod, chown};
use std::fmt;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// The name of the socket in the state directory.
const NAME: &str = "collect.sock";
/// The socket of a collector that runs as a service of the system.
const SYSTEM_SOCKET: &str = "/run/gpufleet/collect.sock";
/// Names another socket, for all programs of a session.
const VARIABLE: &str = "GPUFLEET_SOCKET";
/// Time limit for the first line of a viewer.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
/// The maximum length of a line of a viewer.
const MAX_VIEWER_LINE_BYTES: usize = 4096;
/// Time limit for writing one line, and for the end of a connection.
const WRITE_LIMIT: Duration = Duration::from_secs(30);
/// Connections that may be open at once, those that have not introduced themselves included.
const MAX_CONNECTIONS: usize = 128;

/// The socket that a collector offers unless `--socket` names another one: `collect.sock` in the state directory.
pub fn default_socket(directories: &Directories) -> Option<PathBuf> {
    directories.state().ok().map(|state| state.join(NAME))
}

/// The sockets that a viewer tries, in order: that of `GPUFLEET_SOCKET`, that of the own account, that of the system.
pub fn socket_candidates(directories: &Directories) -> Vec<PathBuf> {
    let named = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    match named {
        Some(path) => vec![path],
        None => default_socket(directories).into_iter().chain([PathBuf::from(SYSTEM_SOCKET)]).collect(),
    }
}

/// A group whose members may connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketGroup {
    /// The name, as given.
    pub name: String,
    /// The number.
    pub gid: u32,
}

impl SocketGroup {
    /// Finds a group by its name or number. Starts `getent`, so that groups of a directory service are found.
    ///
    /// # Errors
    /// There is no such group: a message with a way out.
    pub fn find(name: &str) -> Result<Self, String> {
        let of_line = |line: &str| {
            let mut fields = line.split(':');
            let is_it = fields.next() == Some(name);
            fields.nth(1)?.parse().ok().filter(|_| is_it)
        };
        let files = std::fs::read_to_string("/etc/group").unwrap_or_default();
        let known = name.parse().ok().or_else(|| files.lines().find_map(of_line)).or_else(|| {
            let output = std::process::Command::new("getent").args(["group", "--", name]).output().ok()?;
            String::from_utf8_lossy(&output.stdout).lines().find_map(of_line)
        });
        known.map(|gid| Self { name: name.to_owned(), gid }).ok_or_else(|| {
            format!("there is no group `{name}` on this machine\n  hint: `getent group` lists the groups")
        })
    }
}

/// Why the collector cannot offer its socket.
#[derive(Debug)]
pub struct BindError {
    path: PathBuf,
    cause: String,
    hint: &'static str,
}

impl fmt::Display for BindError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, cause, hint } = self;
        write!(formatter, "cannot offer the socket {}: {cause}\n  hint: {hint}", path.display())
    }
}

impl std::error::Error for BindError {}

/// The socket of a collector. Dropping it removes the file.
#[derive(Debug)]
pub struct BoundSocket {
    listener: UnixListener,
    path: PathBuf,
    /// The inode of the file, so that another collector's socket is not removed.
    inode: Option<u64>,
    group: Option<SocketGroup>,
}

impl BoundSocket {
    /// Creates the socket, with mode 0600, or 0660 for a group. A socket that nobody serves any more is replaced. Must be
    /// called within a tokio runtime.
    ///
    /// # Errors
    /// Another collector serves it, or it cannot be created.
    pub fn bind(path: &Path, group: Option<SocketGroup>) -> Result<Self, BindError> {
        let failed = |cause: String, hint| BindError { path: path.to_owned(), cause, hint };
        let io_failed = |error: &io::Error| {
            let hint = match error.kind() {
                ErrorKind::PermissionDenied => "name a path in a directory of this account: --socket PATH",
                ErrorKind::InvalidInput => "the path is too long for a socket: --socket PATH names a shorter one",
                _ => "--socket PATH names another path",
            };
            failed(io_cause(error), hint)
        };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|error| io_failed(&error))?;
        }
        match std::fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(failed("there is a file of this name".to_owned(), "remove it, or use --socket PATH"));
            }
            Ok(_) if UnixStream::connect(path).is_ok() => {
                let hint = "stop the other one, or use --socket PATH for a second one";
                return Err(failed("another collector serves it".to_owned(), hint));
            }
            Ok(_) => std::fs::remove_file(path).map_err(|error| io_failed(&error))?,
            Err(_) => {}
        }
        let listener = UnixListener::bind(path).map_err(|error| io_failed(&error))?;
        let mode = if group.is_some() { 0o660 } else { 0o600 };
        // Until then, the credentials of a peer protect the socket as well.
        chmod(path, Mode::from_raw_mode(mode)).map_err(|error| io_failed(&error.into()))?;
        if let Some(group) = &group {
            chown(path, None, Some(Gid::from_raw(group.gid))).map_err(|error| {
                let cause = format!("cannot give it to the group `{}`: {}", group.name, io_cause(&error.into()));
                failed(cause, "only a member of a group may give a file to it")
            })?;
        }
        let inode = std::fs::symlink_metadata(path).ok().map(|found| found.ino());
        Ok(Self { listener, path: path.to_owned(), inode, group })
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The first directory of the path that the group may not enter; `None` without a group.
    pub fn unreachable_directory(&self) -> Option<&Path> {
        let group = self.group.as_ref()?;
        let is_closed = |folder: &&Path| {
            std::fs::metadata(folder)
                .is_ok_and(|found| found.mode() & 0o001 == 0 && (found.gid() != group.gid || found.mode() & 0o010 == 0))
        };
        self.path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty()).find(is_closed)
    }

    /// Who a peer with this uid is; `None` if it may not connect.
    fn audience(&self, uid: u32) -> Option<Audience> {
        let own = rustix::process::geteuid().as_raw();
        match uid {
            0 => Some(Audience::Own),
            uid if uid == own => Some(Audience::Own),
            // The mode of the file has admitted a member of the group.
            _ => self.group.as_ref().map(|_| Audience::Group),
        }
    }
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path).ok().map(|found| found.ino()) == self.inode {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Serves viewers until the future is dropped. `join` gets the hello of each viewer and returns its queue, or `None` if
/// the collector ends. `history` answers requests for histories; its clock is that of the collector.
pub async fn serve<J, F>(socket: BoundSocket, history: Option<(HistoryService, Clock)>, join: J)
where
    J: Fn(ViewerHello, Audience) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Option<Arc<LineQueue>>> + Send,
{
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= MAX_CONNECTIONS {
            connections.join_next().await;
            continue;
        }
        let Ok((stream, _)) = socket.listener.accept().await else {
            // Too many open files, for example; the reason may pass.
            tokio::time::sleep(Duration::from_millis(200)).await;
            continue;
        };
        let Ok(credentials) = stream.peer_cred() else { continue };
        let Some(audience) = socket.audience(credentials.uid()) else { continue };
        let (join, history) = (join.clone(), history.clone());
        connections.spawn(async move { serve_viewer(stream, audience, history, &join).await });
    }
}

async fn serve_viewer<J, F>(
    mut stream: tokio::net::UnixStream,
    audience: Audience,
    history: Option<(HistoryService, Clock)>,
    join: &J,
) where
    J: Fn(ViewerHello, Audience) -> F,
    F: Future<Output = Option<Arc<LineQueue>>>,
{
    let hello = timeout_at(Instant::now() + HELLO_LIMIT, read_hello(&mut stream)).await;
    let Ok(Some((hello, lines))) = hello else { return };
    let Some(queue) = join(hello, audience).await else { return };
    let (mut input, mut output) = stream.split();
    // One answer waits at a time: until it is written, the next request is not read.
    let (answers, mut answered) = mpsc::channel::<Vec<u8>>(1);
    let write = async {
        loop {
            let line = tokio::select! {
                line = queue.next() => line,
                Some(answer) = answered.recv() => Some(Arc::from(answer)),
            };
            let Some(line) = line else { break };
            match timeout_at(Instant::now() + WRITE_LIMIT, output.write_all(&line)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return,
            }
        }
        let _ = output.shutdown().await;
    };
    tokio::select! {
        () = write => {}
        () = answer_requests(&mut input, lines, history, &answers) => {}
    }
    queue.close();
}

/// Answers the requests of a viewer until its stream ends, one after the other. Lines that are not requests are signs of
/// life, or come from a newer viewer.
async fn answer_requests(
    input: &mut (impl AsyncRead + Unpin),
    mut lines: LineBuffer,
    history: Option<(HistoryService, Clock)>,
    answers: &mpsc::Sender<Vec<u8>>,
) {
    let mut chunk = [0; 1024];
    loop {
        loop {
            let query = match lines.next_line() {
                Ok(Some(line)) => decode_query(line),
                Ok(None) => break,
                Err(_) => return,
            };
            if let (Some(query), Some((service, clock))) = (query, &history)
                && let Some(line) = encode_reply(service.answer(query, clock.now().unix).await)
                && answers.send(line).await.is_err()
            {
                return;
            }
        }
        match input.read(&mut chunk).await {
            Ok(count @ 1..) => lines.push(&chunk[..count]),
            Ok(_) | Err(_) => return,
        }
    }
}

/// Reads the first line. Returns it with the bytes that follow.
async fn read_hello(stream: &mut tokio::net::UnixStream) -> Option<(ViewerHello, LineBuffer)> {
    let mut lines = LineBuffer::with_limit(MAX_VIEWER_LINE_BYTES);
    let mut chunk = [0; 1024];
    loop {
        if let Some(line) = lines.next_line().ok()? {
            let hello = ViewerHello::decode(line).ok()?;
            return Some((hello, lines));
        }
        match stream.read(&mut chunk).await {
            Ok(count @ 1..) => lines.push(&chunk[..count]),
            Ok(_) | Err(_) => return None,
        }
    }
}

/// Why there is no connection to a collector on this machine.
#[derive(Debug)]
pub enum ConnectError {
    /// Nobody serves any of these sockets.
    NoCollector(Vec<PathBuf>),
    /// A socket exists, but cannot be used.
    Failed(PathBuf, io::Error),
}

impl ConnectError {
    /// Whether the permissions of the socket are the cause.
    pub fn is_not_permitted(&self) -> bool {
        matches!(self, Self::Failed(_, error) if error.kind() == ErrorKind::PermissionDenied)
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCollector(paths) => {
                let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
                write!(formatter, "no collector runs here: nobody serves {}", paths.join(" or "))
            }
            Self::Failed(path, error) => {
                write!(formatter, "cannot use the socket {}: {}", path.display(), io_cause(error))
            }
        }
    }
}

impl std::error::Error for ConnectError {}

/// A collector that has taken a connection and does not answer. Its text is a sentence without its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SilentCollector {
    /// Its process, if the system tells.
    pid: Option<u32>,
    /// The process was stopped by a signal (SIGSTOP, Ctrl-Z or a debugger).
    is_stopped: bool,
}

impl SilentCollector {
    /// The collector at the other end. Asks the kernel and does not wait.
    pub fn find(stream: &UnixStream) -> Self {
        let pid = peer_pid(stream);
        let stat = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok());
        Self { pid, is_stopped: stat.is_some_and(|stat| is_stopped(&stat)) }
    }

    /// The way out.
    pub fn hint(self) -> String {
        match self.pid {
            Some(pid) if self.is_stopped => format!("continue it there: kill -CONT {pid}"),
            _ => "restart it there: systemctl --user restart gpufleet".to_owned(),
        }
    }
}

impl fmt::Display for SilentCollector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the collector ")?;
        if let Some(pid) = self.pid {
            write!(formatter, "(process {pid}) ")?;
        }
        formatter.write_str(if self.is_stopped { "is stopped" } else { "does not answer" })
    }
}

/// The process that listens at the other end.
#[cfg(target_os = "linux")]
fn peer_pid(stream: &UnixStream) -> Option<u32> {
    let credentials = rustix::net::sockopt::socket_peercred(stream).ok()?;
    u32::try_from(credentials.pid.as_raw_nonzero().get()).ok()
}

#[cfg(not(target_os = "linux"))]
fn peer_pid(_: &UnixStream) -> Option<u32> {
    None
}

/// Whether the text of `/proc/PID/stat` is of a stopped or traced process. The name of the program may have parentheses.
fn is_stopped(stat: &str) -> bool {
    stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with(['T', 't']))
}

/// Connects to the first of these sockets that a collector serves.
pub fn connect(paths: &[PathBuf]) -> Result<UnixStream, ConnectError> {
    for path in paths {
        match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {}
            Err(error) => return Err(ConnectError::Failed(path.clone(), error)),
        }
    }
    Err(ConnectError::NoCollector(paths.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_collector_and_a_silent_one_have_their_own_ways_out() {
        let text = |pid, is_stopped| {
            let silent = SilentCollector { pid, is_stopped };
            (silent.to_string(), silent.hint())
        };
        let restart = "restart it there: systemctl --user restart gpufleet".to_owned();
        assert_eq!(
            text(Some(7), true),
            ("the collector (process 7) is stopped".to_owned(), "continue it there: kill -CONT 7".to_owned())
        );
        assert_eq!(text(Some(7), false), ("the collector (process 7) does not answer".to_owned(), restart.clone()));
        assert_eq!(text(None, false), ("the collector does not answer".to_owned(), restart));
        assert!(is_stopped("7 (a) R) T 1 7 7 0") && is_stopped("7 (x) t 1"));
        assert!(!is_stopped("7 (T) S 1 7 7 0") && !is_stopped(""));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_process_behind_a_socket_is_found() {
        let (here, _there) = UnixStream::pair().expect("a pair");
        let expected = SilentCollector { pid: Some(std::process::id()), is_stopped: false };
        assert_eq!(SilentCollector::find(&here), expected);
    }
}
