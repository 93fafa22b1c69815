//! The file systems of home and of the working directories of GPU processes.
//!
//! `statfs` on a dead file server does not come back, so each question is a child of its own (`stat -f`), one a mount at
//! a time. What does not answer is said, with since when.

use super::child::{Answer, Asked, Program, find};
use super::mounts::mount_of;
use crate::probe::blocking::BlockingPool;
use crate::probe::numbers::tenths_f32;
use crate::wire::{Filesystem, SafeText};
use std::path::PathBuf;

/// From one question to the next, of each mount.
const ASK_SECONDS: f64 = 60.0;
/// The same while it does not answer.
const ASK_SILENT_SECONDS: f64 = 10.0;
/// How long a question may take before it counts as unanswered.
const LIMIT_SECONDS: f64 = 5.0;
/// The most mounts that are asked.
const MAX_MOUNTS: usize = 16;
/// While one is silent, how that stands is said again after so long.
const SAY_SECONDS: f64 = 10.0;

/// What is known of each mount.
#[derive(Debug)]
pub(crate) struct Filesystems {
    pool: BlockingPool,
    program: Program,
    asked: Vec<Asking>,
    looked_at: Option<f64>,
    told_at: f64,
}

#[derive(Debug)]
struct Asking {
    known: Filesystem,
    /// A path on it, by which it is asked.
    path: String,
    child: Option<Asked>,
    /// When the question was asked that has had no answer yet.
    since: f64,
    silence: Silence,
    due: f64,
    /// It is still somebody's.
    wanted: bool,
    answered: bool,
}

/// How it stands with the answers of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Silence {
    /// The last question was answered, or has time left.
    None,
    /// The one before this ran out of time.
    Before,
    /// This one did.
    Now,
}

impl Filesystems {
    pub(crate) fn new(pool: BlockingPool) -> Self {
        let program = Program::new(stat);
        Self { pool, program, asked: Vec::new(), looked_at: None, told_at: 0.0 }
    }

    /// Goes on asking. The file systems, when there is something new to say, or when `resend` asks for it. The
    /// directories are those of processes, each with a process that works there.
    pub(crate) fn step<'a>(
        &mut self,
        now: f64,
        resend: bool,
        directories: impl Iterator<Item = (u32, &'a SafeText)>,
    ) -> Vec<Filesystem> {
        if self.looked_at.is_none_or(|then| now - then >= ASK_SECONDS) {
            self.looked_at = Some(now);
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            let home = std::env::var("HOME").ok().map(|home| (home.clone(), home));
            // A job's processes work in the same directory.
            let mut last = None;
            let directories = directories
                .filter(|&(_, path)| last.replace(path) != Some(path))
                .map(|(pid, path)| (path.to_string(), format!("/proc/{pid}/cwd")));
            self.want(&mounts, now, home.into_iter().chain(directories));
        }
        let mut news = resend;
        for asking in &mut self.asked {
            news |= asking.step(&self.pool, &self.program, now);
        }
        self.asked.retain(|asking| asking.wanted || asking.child.is_some());
        let silent = self.asked.iter().any(Asking::is_silent);
        let say_again = silent && now - self.told_at >= SAY_SECONDS;
        if !(news || say_again) {
            return Vec::new();
        }
        self.told_at = now;
        let known = self.asked.iter().filter(|asking| asking.wanted && (asking.answered || asking.is_silent()));
        known.map(|asking| asking.tell(now)).collect()
    }

    /// The children that are asked.
    pub(super) fn children(&self) -> impl Iterator<Item = &Asked> {
        self.asked.iter().filter_map(|asking| asking.child.as_ref())
    }

    /// Takes in which mounts are of interest: those of these directories, each with the path to ask by.
    fn want(&mut self, mountinfo: &str, now: f64, directories: impl Iterator<Item = (String, String)>) {
        for asking in &mut self.asked {
            asking.wanted = false;
        }
        for (directory, path) in directories {
            let Some(mount) = mount_of(mountinfo, &directory) else { continue };
            let (point, kind) = (SafeText::new(&mount.point), SafeText::new(&mount.kind));
            if let Some(asking) = self.asked.iter_mut().find(|asking| asking.known.mount_point == point) {
                // The process that it was asked by may have ended.
                if !asking.wanted {
                    asking.path = path;
                }
                asking.wanted = true;
                asking.known.kind = kind;
            } else if self.asked.len() < MAX_MOUNTS {
                self.asked.push(Asking {
                    known: Filesystem { mount_point: point, kind, ..Filesystem::default() },
                    path,
                    child: None,
                    since: now,
                    silence: Silence::None,
                    due: now,
                    wanted: true,
                    answered: false,
                });
            }
        }
    }
}

/// Where `stat` is. Not by `PATH` first: a directory there may lie on the very file server that does not answer.
fn stat() -> Option<PathBuf> {
    let usual = ["/usr/bin/stat", "/bin/stat"].map(PathBuf::from);
    usual.into_iter().find(|program| program.is_file()).or_else(|| find("stat", &[]))
}

impl Asking {
    fn is_silent(&self) -> bool {
        self.silence != Silence::None
    }

    /// Looks after the child, or starts one; whether something is new.
    fn step(&mut self, pool: &BlockingPool, program: &Program, now: f64) -> bool {
        let Some(child) = &mut self.child else {
            if self.wanted && now >= self.due {
                let arguments = ["-f", "-c", "%S %b %a", &self.path];
                self.child = Asked::start(pool, program, &arguments, now, LIMIT_SECONDS);
                if self.is_silent() {
                    (self.due, self.silence) = (now + ASK_SILENT_SECONDS, Silence::Before);
                } else {
                    (self.due, self.since) = (now + ASK_SECONDS, now);
                }
            }
            return false;
        };
        match child.look(now) {
            Answer::Pending => false,
            Answer::Said(text) => {
                self.child = None;
                let sizes = sizes(&text);
                let (total, available) = sizes.unzip();
                let news = self.is_silent() || !self.answered || self.known.available_bytes != available;
                (self.known.total_bytes, self.known.available_bytes) = (total, available);
                (self.silence, self.answered, self.known.timeouts) = (Silence::None, sizes.is_some(), None);
                news
            }
            // The process whose directory it was is gone, or the file system is; or a child came back that was killed.
            Answer::Failed => {
                self.child = None;
                false
            }
            Answer::Late => {
                // While one question hangs, no other is asked; each time that one would have been counts as one.
                let again = now >= self.due;
                if self.silence == Silence::Now && !again {
                    return false;
                }
                if again || self.silence == Silence::None {
                    self.due = now + ASK_SILENT_SECONDS;
                }
                self.silence = Silence::Now;
                self.known.timeouts = Some(self.known.timeouts.unwrap_or(0).saturating_add(1));
                true
            }
        }
    }

    fn tell(&self, now: f64) -> Filesystem {
        let mut known = self.known.clone();
        if self.is_silent() {
            (known.total_bytes, known.available_bytes) = (None, None);
            known.silent_seconds = Some(tenths_f32(now - self.since));
        }
        known
    }
}

/// Total and available bytes in the answer: block size, blocks, blocks for ordinary users.
fn sizes(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.split_ascii_whitespace().map(|word| word.parse::<u64>().ok());
    let mut number = || numbers.next().flatten();
    let (size, blocks, available) = (number()?, number()?, number()?);
    // Some, such as those of /proc, have no blocks at all.
    (blocks > 0).then_some((size.checked_mul(blocks)?, size.checked_mul(available)?))
}

#[cfg(test)]
mod tests {
    use super::super::child::script;
    use super::*;
    use std::time::{Duration, Instant};

    const TABLE: &str = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n40 22 0:50 / /home rw - nfs4 server:/home rw\n";

    /// With a `stat` that is this script.
    fn with_stat(text: &str) -> (Filesystems, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let program = script(folder.path(), "stat", text);
        let filesystems = Filesystems {
            program: Program::at(Some(program)),
            looked_at: Some(0.0),
            ..Filesystems::new(BlockingPool::new())
        };
        (filesystems, folder)
    }

    fn none() -> impl Iterator<Item = (u32, &'static SafeText)> {
        std::iter::empty()
    }

    /// Steps at one moment until something is said.
    fn said(filesystems: &mut Filesystems, now: f64) -> Vec<Filesystem> {
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            let said = filesystems.step(now, false, none());
            if !said.is_empty() {
                return said;
            }
            std::thread::yield_now();
        }
        panic!("nothing is said")
    }

    fn home() -> impl Iterator<Item = (String, String)> {
        let twice = [("/home/alice", "/home/alice"), ("/home/bob/run", "/proc/7/cwd")];
        twice.into_iter().map(|(directory, path)| (directory.to_owned(), path.to_owned()))
    }

    #[test]
    fn sizes_are_told_once_and_again_when_they_change() {
        let (mut filesystems, folder) = with_stat("echo 4096 1000 250");
        filesystems.want(TABLE, 0.0, home());
        let expected = Filesystem {
            mount_point: "/home".into(),
            kind: "nfs4".into(),
            total_bytes: Some(4_096_000),
            available_bytes: Some(1_024_000),
            ..Filesystem::default()
        };
        let expected = [expected];
        assert_eq!(said(&mut filesystems, 1.0), expected, "two directories, one mount");
        assert_eq!(filesystems.step(1.0, true, none()), expected);
        script(folder.path(), "stat", "echo 4096 1000 249");
        filesystems.looked_at = Some(61.0);
        assert_eq!(said(&mut filesystems, 61.0)[0].available_bytes, Some(4096 * 249));
    }

    #[test]
    fn one_that_does_not_answer_is_silent_and_is_asked_by_one_child_only() {
        let (mut filesystems, folder) = with_stat("echo x >>\"$0.asked\"; exec sleep 600");
        filesystems.want(TABLE, 0.0, home());
        assert_eq!(filesystems.step(0.0, false, none()), []);
        filesystems.pool.settle(Instant::now() + Duration::from_secs(30));
        assert_eq!(filesystems.step(4.9, true, none()), [], "nothing is known yet");
        let silent = filesystems.step(5.0, false, none());
        assert_eq!((silent[0].silent_seconds, silent[0].timeouts), (Some(5.0), Some(1)));
        assert_eq!((silent[0].total_bytes, &*silent[0].mount_point), (None, "/home"));
        // A sleeper can be killed, a process in a dead mount cannot: play that the child does not end.
        let child = filesystems.asked[0].child.take();
        let sleep = Program::at(Some("/bin/sleep".into()));
        filesystems.asked[0].child = Asked::start(&filesystems.pool, &sleep, &["600"], 0.0, 5.0);
        drop(child);
        filesystems.pool.settle(Instant::now() + Duration::from_secs(30));
        assert_eq!(filesystems.step(14.9, false, none()), []);
        let silent = filesystems.step(15.0, false, none());
        assert_eq!((silent[0].silent_seconds, silent[0].timeouts), (Some(15.0), Some(2)));
        let asked = std::fs::read_to_string(folder.path().join("stat.asked")).unwrap_or_default();
        assert!(asked.lines().count() <= 1, "{asked}");
    }

    #[test]
    fn this_host_answers() {
        let mut filesystems = Filesystems::new(BlockingPool::new());
        let root = SafeText::new("/");
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut said = Vec::new();
        while said.is_empty() && Instant::now() < deadline {
            said = filesystems.step(0.0, false, std::iter::once((std::process::id(), &root)));
            std::thread::yield_now();
        }
        assert!(said.iter().any(|one| one.total_bytes > one.available_bytes), "{said:?}");
    }

    #[test]
    fn answers_are_read() {
        assert_eq!(sizes("4096 10 3\n"), Some((40960, 12288)));
        for bad in ["", "4096 10", "x y z", "4096 0 0", "18446744073709551615 2 1"] {
            assert_eq!(sizes(bad), None, "{bad}");
        }
    }
}
