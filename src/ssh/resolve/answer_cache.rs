//! Answers of `ssh -G`, kept until the configuration changes: a host that is down is tried again every few seconds, and each
//! `ssh -G` takes 5 ms of CPU.
//!
//! An answer depends on the configuration files, on what `Match exec` and `Match localnetwork` find, and on name resolution if
//! names are canonicalized (ssh_config(5)). With one of the latter, nothing is kept.

use crate::ssh::aliases::{matching_entries, split_line};
use crate::store::read_regular;
use std::collections::{HashMap, HashSet};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::timeout;

/// Where builds of OpenSSH look for the configuration of the system: Linux and macOS, /usr/local, Homebrew, MacPorts, SUSE.
const SYSTEM_FILES: [&str; 5] = [
    "/etc/ssh/ssh_config",
    "/usr/local/etc/ssh/ssh_config",
    "/opt/homebrew/etc/ssh/ssh_config",
    "/opt/local/etc/ssh/ssh_config",
    "/usr/etc/ssh/ssh_config",
];
/// An answer is used at most this long: a build of OpenSSH may read yet another file.
const MAX_AGE: Duration = Duration::from_secs(600);
/// How long looking at the files may take. They may be on a file server that hangs.
const LIMIT: Duration = Duration::from_secs(1);
/// With more files and directories than this, or a larger one, nothing is kept.
const MAX_FILES: usize = 100;
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Requests with more different arguments than this are not noted. An answer takes about 4 kB.
const MAX_ANSWERS: usize = 4096;

/// A configuration file with which `ssh` begins, and the directory of its relative `Include` paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Root {
    file: PathBuf,
    include_directory: PathBuf,
}

impl Root {
    /// The files that `ssh` reads: `config_file` if it is given (`-F`), otherwise those of the user and the system.
    /// `user_directory` is the user's `.ssh`.
    pub(super) fn all(config_file: Option<&Path>, user_directory: &Path) -> Vec<Self> {
        let root = |file: &Path, directory: &Path| Self { file: file.into(), include_directory: directory.into() };
        if let Some(file) = config_file {
            return vec![root(file, user_directory)];
        }
        let system = SYSTEM_FILES.iter().map(Path::new).map(|file| root(file, file.parent().unwrap_or(file)));
        std::iter::once(root(&user_directory.join("config"), user_directory)).chain(system).collect()
    }
}

/// Returns the user's `.ssh` from an output of `ssh -G`: `ssh` asks the user database for the home directory, not HOME.
pub(super) fn user_directory(ssh_g: &str) -> Option<PathBuf> {
    let files = ssh_g.lines().find_map(|line| line.strip_prefix("userknownhostsfile "))?;
    let directory = Path::new(files.split(' ').next()?).parent()?;
    directory.is_absolute().then(|| directory.to_owned())
}

/// Identifies a version of a file or directory. In the store of NixOS all files have the same time of modification.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// `None` for a file that is not there.
    fn of(path: &Path) -> Option<Self> {
        let stamp = |file: Metadata| Self {
            device: file.dev(),
            inode: file.ino(),
            bytes: file.len(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        };
        fs::metadata(path).ok().map(stamp)
    }
}

/// All files and directories that decide the answers, and their versions.
#[derive(Debug)]
pub(super) struct Fingerprint(Vec<(PathBuf, Option<Stamp>)>);

impl Fingerprint {
    /// Reads the configuration. Returns `None` if answers depend on more than files, or on files that this reader cannot
    /// find.
    async fn read(roots: Vec<Root>, turn: &Arc<AsyncMutex<()>>) -> Option<Arc<Self>> {
        look_at_files(turn, move || read(roots)).await?.map(Arc::new)
    }

    async fn is_current(self: Arc<Self>, turn: &Arc<AsyncMutex<()>>) -> bool {
        let same = move || self.0.iter().all(|(path, stamp)| Stamp::of(path) == *stamp);
        look_at_files(turn, same).await == Some(true)
    }
}

/// Looks at files on another thread, within a limit. `turn` belongs to all hosts, so that at most one thread hangs if the
/// file server does.
async fn look_at_files<T: Send + 'static>(
    turn: &Arc<AsyncMutex<()>>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let looking = async {
        let turn = Arc::clone(turn).lock_owned().await;
        let work = move || {
            let _turn = turn;
            work()
        };
        tokio::task::spawn_blocking(work).await.ok()
    };
    timeout(LIMIT, looking).await.ok()?
}

fn read(roots: Vec<Root>) -> Option<Fingerprint> {
    let mut reader = Reader { seen: HashSet::new(), stamps: Vec::new(), roots };
    while let Some(root) = reader.roots.pop() {
        reader.file(root)?;
    }
    Some(Fingerprint(reader.stamps))
}

struct Reader {
    seen: HashSet<PathBuf>,
    stamps: Vec<(PathBuf, Option<Stamp>)>,
    /// The files that are still to be read.
    roots: Vec<Root>,
}

impl Reader {
    /// Reads one file. `None` if the answers cannot be kept.
    fn file(&mut self, Root { file, include_directory }: Root) -> Option<()> {
        if !self.stamp(&file)? {
            return Some(());
        }
        let text = read_regular(&file, MAX_FILE_BYTES).ok()?;
        for line in String::from_utf8_lossy(&text).lines() {
            let Some((keyword, values)) = split_line(line) else { continue };
            match keyword.trim_matches('"').to_ascii_lowercase().as_str() {
                "match" if values.iter().any(|value| depends_on_more_than_files(value)) => return None,
                "canonicalizehostname"
                    if !matches!(&*values.concat().to_ascii_lowercase(), "no" | "none" | "false") =>
                {
                    return None;
                }
                "include" => {
                    for pattern in &values {
                        self.include(pattern, &include_directory)?;
                    }
                }
                _ => {}
            }
        }
        Some(())
    }

    /// Notes the version of a file or directory. Returns whether it is there and new, or `None` if there are too many.
    fn stamp(&mut self, path: &Path) -> Option<bool> {
        if !self.seen.insert(path.to_owned()) {
            return Some(false);
        }
        let stamp = Stamp::of(path);
        let is_there = stamp.is_some();
        self.stamps.push((path.to_owned(), stamp));
        (self.stamps.len() <= MAX_FILES).then_some(is_there)
    }

    /// Adds the files that match a pattern, and notes the versions of the directories in which files may be added.
    fn include(&mut self, pattern: &str, include_directory: &Path) -> Option<()> {
        // Tokens, variables, and the parts of glob(7) that this reader does not know.
        if pattern.contains(['%', '$', '[', '\\', '\'']) {
            return None;
        }
        let path = match pattern.strip_prefix('~') {
            // Only the user's own home directory is known; `.ssh` is in it.
            Some(rest) => include_directory.parent()?.join(rest.strip_prefix('/')?),
            None => include_directory.join(pattern),
        };
        let mut paths = vec![PathBuf::new()];
        for part in &path {
            if part.to_string_lossy().contains(['*', '?']) {
                for directory in &paths {
                    self.stamp(directory)?;
                }
            }
            paths = paths.iter().flat_map(|path| matching_entries(path, part)).collect();
        }
        let include_directory = include_directory.to_owned();
        self.roots.extend(paths.into_iter().map(|file| Root { file, include_directory: include_directory.clone() }));
        Some(())
    }
}

/// Whether a word after `Match` names a criterion that a file does not decide.
fn depends_on_more_than_files(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    let criterion = word.trim_start_matches('!');
    criterion.starts_with("exec") || criterion.starts_with("localnetwork")
}

#[derive(Debug)]
struct Entry {
    output: String,
    fingerprint: Arc<Fingerprint>,
    since: Instant,
}

/// The configuration file of `-F`, and the other arguments.
pub(super) type Arguments = (Option<PathBuf>, Vec<String>);

/// The answers, by the arguments of `ssh`. Only the second answer to the same arguments is kept: most hosts are up, and
/// connect once.
#[derive(Debug, Default)]
pub(in crate::ssh) struct AnswerCache {
    entries: Mutex<HashMap<Arguments, Option<Entry>>>,
    /// Held by the host that looks at the files.
    turn: Arc<AsyncMutex<()>>,
}

impl AnswerCache {
    fn entries(&self) -> MutexGuard<'_, HashMap<Arguments, Option<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the answer to these arguments, if nothing has changed since.
    pub(super) async fn get(&self, arguments: &Arguments) -> Option<String> {
        let (output, fingerprint) = {
            let entries = self.entries();
            let entry = entries.get(arguments)?.as_ref().filter(|entry| entry.since.elapsed() < MAX_AGE)?;
            (entry.output.clone(), Arc::clone(&entry.fingerprint))
        };
        fingerprint.is_current(&self.turn).await.then_some(output)
    }

    /// Notes a request with these arguments. Returns whether there was one before.
    pub(super) fn is_repeated(&self, arguments: &Arguments) -> bool {
        let mut entries = self.entries();
        if entries.contains_key(arguments) {
            return true;
        }
        if entries.len() < MAX_ANSWERS {
            entries.insert(arguments.clone(), None);
        }
        false
    }

    /// Reads the configuration before `ssh` does.
    pub(super) async fn fingerprint(&self, roots: Vec<Root>) -> Option<Arc<Fingerprint>> {
        Fingerprint::read(roots, &self.turn).await
    }

    /// Keeps the answer to a repeated request. `fingerprint` was read before `ssh` ran, so that a change in between is
    /// noticed.
    pub(super) fn insert(&self, arguments: Arguments, output: &str, fingerprint: Arc<Fingerprint>) {
        self.entries().insert(arguments, Some(Entry { output: output.to_owned(), fingerprint, since: Instant::now() }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HostConfig;
    use crate::ssh::resolve::resolve;
    use crate::ssh::{Context, Interaction, Options};

    struct Configuration {
        directory: tempfile::TempDir,
    }

    impl Configuration {
        fn new(files: &[(&str, &str)]) -> Self {
            let new = Self { directory: tempfile::tempdir().unwrap() };
            for (name, text) in files {
                new.write(name, text);
            }
            new
        }

        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.path(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn fingerprint(&self) -> Option<Fingerprint> {
            read(vec![Root { file: self.path("home/.ssh/config"), include_directory: self.path("home/.ssh") }])
        }

        fn files(&self) -> Vec<String> {
            let base = self.path("home/.ssh");
            let name = |path: &Path| path.strip_prefix(&base).unwrap_or(path).display().to_string();
            let mut files: Vec<_> = self.fingerprint().unwrap().0.iter().map(|(path, _)| name(path)).collect();
            files.sort();
            files
        }
    }

    #[test]
    fn all_files_that_are_read_or_may_be_added_are_watched() {
        let configuration = Configuration::new(&[
            (
                "home/.ssh/config",
                "Host a\nInclude conf.d/*.conf ~/more\ninclude=\"missing\"\nMatch final all\n User x\n",
            ),
            ("home/.ssh/conf.d/a.conf", "Include config nested/b*\n"),
            ("home/.ssh/conf.d/key", "secret"),
            ("home/.ssh/nested/b1", "CanonicalizeHostname no\n"),
            ("home/more", "Match user bob host gpu*\n Port 9\n"),
        ]);
        let outside = configuration.path("home/more").display().to_string();
        assert_eq!(
            configuration.files(),
            [&*outside, "conf.d", "conf.d/a.conf", "config", "missing", "nested", "nested/b1"],
            "and no other file of conf.d"
        );
    }

    #[test]
    fn answers_that_depend_on_more_than_files_are_not_kept() {
        for line in [
            "Match exec \"ip route | grep -q lab\"",
            "match !exec true",
            "Match host gpu* LocalNetwork 10.0.0.0/8",
            "MATCH user=bob exec=true",
            "CanonicalizeHostname yes",
            "canonicalizehostname=always",
            "Include ${CONFIG}/x",
            "Include %d/x",
            "Include [ab].conf",
            "Include ~bob/config",
        ] {
            let configuration = Configuration::new(&[("home/.ssh/config", line)]);
            assert!(configuration.fingerprint().is_none(), "{line}");
            let included = Configuration::new(&[("home/.ssh/config", "Include x\n"), ("home/.ssh/x", line)]);
            assert!(included.fingerprint().is_none(), "{line}");
        }
        let many = "Include ".to_owned() + &(0..MAX_FILES).map(|number| format!("x{number} ")).collect::<String>();
        assert!(Configuration::new(&[("home/.ssh/config", &many)]).fingerprint().is_none());
    }

    #[tokio::test]
    async fn every_change_of_the_files_is_noticed() {
        let files = [("home/.ssh/config", "Include conf.d/* later\n"), ("home/.ssh/conf.d/a", "Port 1\n")];
        let changes: [fn(&Configuration); 6] = [
            |configuration| configuration.write("home/.ssh/config", "Port 7\n"),
            |configuration| configuration.write("home/.ssh/conf.d/a", "Port 22\n"),
            |configuration| configuration.write("home/.ssh/conf.d/b", "Port 3\n"),
            |configuration| configuration.write("home/.ssh/later", ""),
            |configuration| fs::remove_file(configuration.path("home/.ssh/conf.d/a")).unwrap(),
            // Another file of the same size, with the same time of modification.
            |configuration| {
                configuration.write("new", "Port 2\n");
                let (file, old) = (configuration.path("new"), configuration.path("home/.ssh/conf.d/a"));
                let modified = fs::metadata(&old).unwrap().modified().unwrap();
                fs::File::options().write(true).open(&file).unwrap().set_modified(modified).unwrap();
                fs::rename(file, old).unwrap();
            },
        ];
        for (number, change) in changes.iter().enumerate() {
            let configuration = Configuration::new(&files);
            let (fingerprint, turn) = (Arc::new(configuration.fingerprint().unwrap()), Arc::default());
            assert!(Arc::clone(&fingerprint).is_current(&turn).await);
            change(&configuration);
            assert!(!fingerprint.is_current(&turn).await, "change {number}");
        }
    }

    #[tokio::test]
    async fn a_file_server_that_hangs_holds_one_thread() {
        let turn = Arc::default();
        let (release, released) = std::sync::mpsc::channel::<()>();
        assert_eq!(look_at_files(&turn, move || released.recv().is_ok()).await, None);
        assert_eq!(look_at_files(&turn, || panic!("has no turn")).await, None::<()>);
        release.send(()).unwrap();
        // The thread gives its turn back.
        drop(turn.lock().await);
        assert_eq!(look_at_files(&turn, || 7).await, Some(7));
    }

    #[test]
    fn the_files_of_ssh_are_found_through_its_answer() {
        let answer = "globalknownhostsfile /etc/ssh/x\nuserknownhostsfile /home/bob/.ssh/known_hosts /home/bob/.ssh/known_hosts2\n";
        assert_eq!(user_directory(answer), Some("/home/bob/.ssh".into()));
        assert_eq!(user_directory("userknownhostsfile none\n"), None);
        assert_eq!(user_directory(""), None);
        let roots = Root::all(None, Path::new("/home/bob/.ssh"));
        assert_eq!(roots[0].file, Path::new("/home/bob/.ssh/config"));
        assert_eq!(roots[1].file, Path::new("/etc/ssh/ssh_config"));
        assert_eq!(roots[1].include_directory, Path::new("/etc/ssh"));
        let given = Root::all(Some(Path::new("/x/config")), Path::new("/home/bob/.ssh"));
        assert_eq!((given.len(), &*given[0].include_directory), (1, Path::new("/home/bob/.ssh")));
    }

    #[tokio::test]
    async fn ssh_runs_again_only_after_a_change() {
        let configuration = Configuration::new(&[("config", "Host gpu\n Port 2200\n")]);
        let mut options = Options::from_environment(Interaction::Refuse);
        options.ssh_config = Some(configuration.path("config"));
        let (context, _prompts) = Context::with_options(options);
        let host = HostConfig::named("gpu");
        let kept = |context: &Context| context.ssh_g_answers.entries().values().flatten().count();
        for answers in [0, 1, 1] {
            assert_eq!(resolve(&context, &host).await.unwrap().port, 2200);
            assert_eq!(kept(&context), answers);
        }
        for entry in context.ssh_g_answers.entries().values_mut().flatten() {
            entry.output = entry.output.replace("port 2200", "port 2299");
        }
        assert_eq!(resolve(&context, &host).await.unwrap().port, 2299, "the kept answer is used");
        configuration.write("config", "Host gpu\n Port 22022\n");
        assert_eq!(resolve(&context, &host).await.unwrap().port, 22022);
        configuration.write("config", "Match exec true\n Port 2\n");
        assert_eq!(resolve(&context, &host).await.unwrap().port, 2);
    }
}
