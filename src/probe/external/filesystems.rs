//! Sizes of the file systems that hold the home directory and the working directories of GPU processes.
//!
//! `statfs` on a dead file server does not return, so each query is a child process (`stat -f`), one per mount at a
//! time. A file system that does not answer is reported with the time since it last did.

use super::child::{ChildProcess, ChildStatus, ProgramPath, find_program};
use crate::probe::blocking::BlockingPool;
use crate::probe::decimal::round_to_tenth_f32;
use crate::probe::procfs::mounts;
use crate::wire::{Filesystem, SafeText};
use std::path::PathBuf;

/// Query period of each mount.
const QUERY_SECONDS: f64 = 60.0;
/// Query period while a mount does not answer.
const RETRY_SILENT_SECONDS: f64 = 10.0;
/// Timeout of a query.
const TIMEOUT_SECONDS: f64 = 5.0;
/// Maximum number of mounts.
const MAX_MOUNTS: usize = 16;
/// Report period while a mount does not answer.
const REPORT_SECONDS: f64 = 10.0;

/// The mounts in use and their queries.
#[derive(Debug)]
pub(crate) struct Filesystems {
    pool: BlockingPool,
    program: ProgramPath,
    queries: Vec<MountQuery>,
    mounts_read_at: Option<f64>,
    reported_at: f64,
}

#[derive(Debug)]
struct MountQuery {
    filesystem: Filesystem,
    /// A path on the mount, passed to `stat -f`.
    path: String,
    child: Option<ChildProcess>,
    /// Start time of the oldest query without an answer.
    unanswered_since: f64,
    timeout_state: TimeoutState,
    due: f64,
    /// A process or the home directory uses the mount.
    in_use: bool,
    answered: bool,
}

/// Whether queries of a mount have timed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TimeoutState {
    /// The last query was answered or has not timed out yet.
    None,
    /// The previous query timed out; a new one is in progress.
    Earlier,
    /// The last query timed out.
    Current,
}

impl Filesystems {
    pub(crate) fn new(pool: BlockingPool) -> Self {
        let program = ProgramPath::new(find_stat);
        Self { pool, program, queries: Vec::new(), mounts_read_at: None, reported_at: 0.0 }
    }

    /// Polls and starts queries. Returns the file systems if a value has changed or if `resend`, else an empty list.
    /// `directories` are those of processes, each with the pid of its process.
    pub(crate) fn advance<'a>(
        &mut self,
        now: f64,
        resend: bool,
        directories: impl Iterator<Item = (u32, &'a SafeText)>,
    ) -> Vec<Filesystem> {
        if self.mounts_read_at.is_none_or(|then| now - then >= QUERY_SECONDS) {
            self.mounts_read_at = Some(now);
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            let home = std::env::var("HOME").ok().map(|home| (home.clone(), home));
            // Processes of one job often share a directory.
            let mut last = None;
            let directories = directories
                .filter(|&(_, path)| last.replace(path) != Some(path))
                .map(|(pid, path)| (path.to_string(), format!("/proc/{pid}/cwd")));
            self.set_mounts(&mounts, now, home.into_iter().chain(directories));
        }
        let mut changed = resend;
        for query in &mut self.queries {
            changed |= query.advance(&self.pool, &self.program, now);
        }
        self.queries.retain(|query| query.in_use || query.child.is_some());
        let silent = self.queries.iter().any(MountQuery::is_silent);
        let report_again = silent && now - self.reported_at >= REPORT_SECONDS;
        if !(changed || report_again) {
            return Vec::new();
        }
        self.reported_at = now;
        let reported = self.queries.iter().filter(|query| query.in_use && (query.answered || query.is_silent()));
        reported.map(|query| query.report(now)).collect()
    }

    /// Returns the queries in progress.
    pub(super) fn children(&self) -> impl Iterator<Item = &ChildProcess> {
        self.queries.iter().filter_map(|query| query.child.as_ref())
    }

    /// Updates the list of mounts to those that contain these directories, each with a path for its query.
    fn set_mounts(&mut self, mountinfo: &str, now: f64, directories: impl Iterator<Item = (String, String)>) {
        for query in &mut self.queries {
            query.in_use = false;
        }
        for (directory, path) in directories {
            let Some((point, kind)) = mount_containing(mountinfo, &directory) else { continue };
            let (point, kind) = (SafeText::new(&point), SafeText::new(&kind));
            if let Some(query) = self.queries.iter_mut().find(|query| query.filesystem.mount_point == point) {
                // The process whose path was used may have ended.
                if !query.in_use {
                    query.path = path;
                }
                query.in_use = true;
                query.filesystem.kind = kind;
            } else if self.queries.len() < MAX_MOUNTS {
                self.queries.push(MountQuery {
                    filesystem: Filesystem { mount_point: point, kind, ..Filesystem::default() },
                    path,
                    child: None,
                    unanswered_since: now,
                    timeout_state: TimeoutState::None,
                    due: now,
                    in_use: true,
                    answered: false,
                });
            }
        }
    }
}

/// Finds `stat`. It searches `PATH` last: a directory in it may be on the file server that does not answer.
fn find_stat() -> Option<PathBuf> {
    let usual = ["/usr/bin/stat", "/bin/stat"].map(PathBuf::from);
    usual.into_iter().find(|program| program.is_file()).or_else(|| find_program("stat", &[]))
}

impl MountQuery {
    fn is_silent(&self) -> bool {
        self.timeout_state != TimeoutState::None
    }

    /// Polls the child or starts one. Returns whether a value has changed.
    fn advance(&mut self, pool: &BlockingPool, program: &ProgramPath, now: f64) -> bool {
        let Some(child) = &mut self.child else {
            if self.in_use && now >= self.due {
                let arguments = ["-f", "-c", "%S %b %a", &self.path];
                self.child = ChildProcess::start(pool, program, &arguments, now, TIMEOUT_SECONDS);
                if self.is_silent() {
                    (self.due, self.timeout_state) = (now + RETRY_SILENT_SECONDS, TimeoutState::Earlier);
                } else {
                    (self.due, self.unanswered_since) = (now + QUERY_SECONDS, now);
                }
            }
            return false;
        };
        match child.poll(now) {
            ChildStatus::Running => false,
            ChildStatus::Finished(text) => {
                self.child = None;
                let sizes = sizes(&text);
                let (total, available) = sizes.unzip();
                let changed = self.is_silent() || !self.answered || self.filesystem.available_bytes != available;
                (self.filesystem.total_bytes, self.filesystem.available_bytes) = (total, available);
                (self.timeout_state, self.answered, self.filesystem.timeouts) =
                    (TimeoutState::None, sizes.is_some(), None);
                changed
            }
            // The process whose directory was used, or the file system, is gone; or a killed child has ended.
            ChildStatus::Failed => {
                self.child = None;
                false
            }
            ChildStatus::TimedOut => {
                // While a query hangs, no other starts. Each query that would have started counts as a timeout.
                let is_retry_due = now >= self.due;
                if self.timeout_state == TimeoutState::Current && !is_retry_due {
                    return false;
                }
                if is_retry_due || self.timeout_state == TimeoutState::None {
                    self.due = now + RETRY_SILENT_SECONDS;
                }
                self.timeout_state = TimeoutState::Current;
                self.filesystem.timeouts = Some(self.filesystem.timeouts.unwrap_or(0).saturating_add(1));
                true
            }
        }
    }

    fn report(&self, now: f64) -> Filesystem {
        let mut filesystem = self.filesystem.clone();
        if self.is_silent() {
            (filesystem.total_bytes, filesystem.available_bytes) = (None, None);
            filesystem.silent_seconds = Some(round_to_tenth_f32(now - self.unanswered_since));
        }
        filesystem
    }
}

/// Parses the output of `stat -f -c '%S %b %a'` into total and available bytes: block size, blocks, blocks available to
/// ordinary users.
fn sizes(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.split_ascii_whitespace().map(|word| word.parse::<u64>().ok());
    let mut number = || numbers.next().flatten();
    let (size, blocks, available) = (number()?, number()?, number()?);
    // Some file systems, such as /proc, have no blocks.
    (blocks > 0).then_some((size.checked_mul(blocks)?, size.checked_mul(available)?))
}

/// Returns mount point and file system type of the mount that contains `path`: the one with the longest mount point,
/// and the last of several, which covers the others.
fn mount_containing(mountinfo: &str, path: &str) -> Option<(String, String)> {
    let mut found: Option<(String, String)> = None;
    for mount in mounts(mountinfo.as_bytes()) {
        let point = unescape_octal(mount.point);
        let contains_path =
            point == "/" || path.strip_prefix(&*point).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if contains_path && found.as_ref().is_none_or(|(longest, _)| point.len() >= longest.len()) {
            found = Some((point, mount.kind.to_owned()));
        }
    }
    found
}

/// Decodes the octal escapes of blanks and backslashes (`\040`).
fn unescape_octal(text: &str) -> String {
    let mut pieces = text.split('\\');
    let mut unescaped_text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let byte = piece.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(u8::is_ascii);
        if let Some(byte) = byte {
            unescaped_text.push(char::from(byte));
            unescaped_text.push_str(&piece[3..]);
        } else {
            unescaped_text.push('\\');
            unescaped_text.push_str(piece);
        }
    }
    unescaped_text
}

#[cfg(test)]
mod tests {
    use super::super::child::write_script;
    use super::*;
    use std::time::{Duration, Instant};

    const TABLE: &str = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n40 22 0:50 / /home rw - nfs4 server:/home rw\n";

    /// Uses this script as `stat`.
    fn with_stat(text: &str) -> (Filesystems, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let program = write_script(folder.path(), "stat", text);
        let filesystems = Filesystems {
            program: ProgramPath::at(Some(program)),
            mounts_read_at: Some(0.0),
            ..Filesystems::new(BlockingPool::new())
        };
        (filesystems, folder)
    }

    fn no_directories() -> impl Iterator<Item = (u32, &'static SafeText)> {
        std::iter::empty()
    }

    /// Advances at one time until file systems are reported.
    fn report_of(filesystems: &mut Filesystems, now: f64) -> Vec<Filesystem> {
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            let reported = filesystems.advance(now, false, no_directories());
            if !reported.is_empty() {
                return reported;
            }
            std::thread::yield_now();
        }
        panic!("nothing is reported")
    }

    fn home_directories() -> impl Iterator<Item = (String, String)> {
        let twice = [("/home/alice", "/home/alice"), ("/home/bob/run", "/proc/7/cwd")];
        twice.into_iter().map(|(directory, path)| (directory.to_owned(), path.to_owned()))
    }

    #[test]
    fn sizes_are_reported_when_they_change() {
        let (mut filesystems, folder) = with_stat("echo 4096 1000 250");
        filesystems.set_mounts(TABLE, 0.0, home_directories());
        let expected = Filesystem {
            mount_point: "/home".into(),
            kind: "nfs4".into(),
            total_bytes: Some(4_096_000),
            available_bytes: Some(1_024_000),
            ..Filesystem::default()
        };
        let expected = [expected];
        assert_eq!(report_of(&mut filesystems, 1.0), expected, "two directories, one mount");
        assert_eq!(filesystems.advance(1.0, true, no_directories()), expected);
        write_script(folder.path(), "stat", "echo 4096 1000 249");
        filesystems.mounts_read_at = Some(61.0);
        assert_eq!(report_of(&mut filesystems, 61.0)[0].available_bytes, Some(4096 * 249));
    }

    #[test]
    fn a_hung_file_system_is_silent_and_has_one_child() {
        let (mut filesystems, folder) = with_stat("echo x >>\"$0.calls\"; exec sleep 600");
        filesystems.set_mounts(TABLE, 0.0, home_directories());
        assert_eq!(filesystems.advance(0.0, false, no_directories()), []);
        filesystems.pool.wait_until_idle(Instant::now() + Duration::from_secs(30));
        assert_eq!(filesystems.advance(4.9, true, no_directories()), [], "the query has not timed out");
        let query = filesystems.queries[0].child.as_ref();
        let first = query.expect("is in progress").deadline();
        let silent = filesystems.advance(first, false, no_directories());
        assert_eq!((silent[0].silent_seconds, silent[0].timeouts), (Some(first as f32), Some(1)));
        assert_eq!((silent[0].total_bytes, &*silent[0].mount_point), (None, "/home"));
        // Replace the child by one that ends only when killed, like a process that hangs in a dead mount.
        let child = filesystems.queries[0].child.take();
        let sleep = ProgramPath::at(Some("/bin/sleep".into()));
        filesystems.queries[0].child = ChildProcess::start(&filesystems.pool, &sleep, &["600"], 0.0, 5.0);
        drop(child);
        filesystems.pool.wait_until_idle(Instant::now() + Duration::from_secs(30));
        let retry = first + RETRY_SILENT_SECONDS;
        assert_eq!(filesystems.advance(retry - 0.1, false, no_directories()), []);
        let silent = filesystems.advance(retry, false, no_directories());
        assert_eq!((silent[0].silent_seconds, silent[0].timeouts), (Some(retry as f32), Some(2)));
        let queries = std::fs::read_to_string(folder.path().join("stat.calls")).unwrap_or_default();
        assert!(queries.lines().count() <= 1, "{queries}");
    }

    #[test]
    fn this_host_has_sizes() {
        let mut filesystems = Filesystems::new(BlockingPool::new());
        let root = SafeText::new("/");
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut reported = Vec::new();
        while reported.is_empty() && Instant::now() < deadline {
            reported = filesystems.advance(0.0, false, std::iter::once((std::process::id(), &root)));
            std::thread::yield_now();
        }
        assert!(reported.iter().any(|one| one.total_bytes > one.available_bytes), "{reported:?}");
    }

    #[test]
    fn stat_output_is_parsed() {
        assert_eq!(sizes("4096 10 3\n"), Some((40960, 12288)));
        for bad in ["", "4096 10", "x y z", "4096 0 0", "18446744073709551615 2 1"] {
            assert_eq!(sizes(bad), None, "{bad}");
        }
    }

    const NESTED_MOUNTS: &str = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:5 / /dev rw shared:2 - devtmpfs udev rw
40 22 0:50 / /home rw,nosuid shared:9 master:3 - nfs4 server:/home rw,vers=4.2
41 22 0:51 / /data\\040one rw - lustre mgs@o2ib:/data rw
42 40 0:52 / /home/alice rw - nfs4 server2:/alice rw
43 40 0:53 / /home/alice rw - fuse.sshfs elsewhere:/ rw
";

    #[test]
    fn the_longest_and_last_mount_that_contains_a_path_is_used() {
        let of = |path| mount_containing(NESTED_MOUNTS, path);
        let expect = |point: &str, kind: &str| Some((point.to_owned(), kind.to_owned()));
        assert_eq!(of("/home/bob/run"), expect("/home", "nfs4"));
        assert_eq!(of("/home"), expect("/home", "nfs4"));
        assert_eq!(of("/homes/bob"), expect("/", "ext4"));
        assert_eq!(of("/home/alice/x"), expect("/home/alice", "fuse.sshfs"));
        assert_eq!(of("/data one/x"), expect("/data one", "lustre"));
        assert_eq!(mount_containing("noise\n", "/"), None);
    }
}
