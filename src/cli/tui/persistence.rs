//! The files that are written while the screen is shown: what diagnosis remembers, how the view stands, logs.

use crate::app::{App, ViewState};
use crate::cli::CommandError;
use crate::cli::background_writer::{BackgroundWriter, END_LIMIT};
use crate::cli::saved_state::SavedStateFile;
use crate::fleet::{Fleet, LogLine, Moment};
use crate::store::{Directories, append_line, read_text, rename_bad_file, write_atomic};
use crate::wire::SafeText;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The files; those that there are.
pub(super) struct PersistentFiles {
    memory: Option<BackgroundWriter<SavedStateFile>>,
    view: Option<BackgroundWriter<ViewFile>>,
    log: Option<LogFile>,
    signals: Option<SignalLog>,
    /// What diagnosis remembers has changed in a way that is to be kept, while it was being written.
    save_memory_again: bool,
}

impl PersistentFiles {
    /// These files, as they were read.
    pub(super) fn new(
        memory: Option<SavedStateFile>,
        view: Option<ViewFile>,
        log: Option<LogFile>,
        signals: Option<SignalLog>,
    ) -> Self {
        Self {
            memory: memory.map(BackgroundWriter::new),
            view: view.map(BackgroundWriter::new),
            log,
            signals,
            save_memory_again: false,
        }
    }

    /// Each second: writes what is due. The app says what could not be written.
    pub(super) fn tick(&mut self, app: &mut App, now: Moment) {
        let message = [
            self.memory.as_mut().and_then(BackgroundWriter::take_message),
            self.view.as_mut().and_then(BackgroundWriter::take_message),
            self.signals.as_mut().and_then(SignalLog::tick),
        ];
        for message in message.into_iter().flatten() {
            app.report_message(message, now);
        }
        let is_due = self.memory.as_mut().and_then(BackgroundWriter::idle_file).is_some_and(|file| file.is_due(now));
        if is_due || self.save_memory_again {
            self.save_memory(app, now);
        }
        if let Some(view) = &mut self.view
            && let Some(file) = view.idle_file().filter(|file| file.is_due(now))
        {
            let remembered = app.view_state();
            if file.has_changed(&remembered, now) {
                view.start_write(move |file| file.save(remembered, now));
            }
        }
        if let Some(failed) = self.log.as_mut().and_then(|log| log.tick(app.live_fleet())) {
            app.report_message(failed, now);
            self.log = None;
        }
    }

    /// Writes what diagnosis remembers; that it cannot be written is said once.
    pub(super) fn save_memory(&mut self, app: &App, now: Moment) {
        let Some(memory) = &mut self.memory else { return };
        self.save_memory_again = memory.idle_file().is_none();
        if !self.save_memory_again {
            let remembered = app.memory(now);
            memory.start_write(move |file| file.save(remembered, now));
        }
    }

    /// Writes down a signal that was asked for, or its outcome.
    pub(super) fn log_signal(&mut self, line: &SafeText) {
        if let Some(log) = &mut self.signals {
            log.take(line);
        }
    }

    /// The program ends: everything is written once more. There is nobody left to tell if that fails, and the next start
    /// begins with what was written before.
    pub(super) async fn finish(self, app: &mut App, now: Moment) {
        app.acknowledge_ended_jobs(now);
        let (view, memory, fleet) = (app.view_state(), app.memory(now), app.live_fleet());
        let view = async {
            if let Some(file) = self.view {
                let _said = file.finish(END_LIMIT, move |file| file.save(view, now)).await;
            }
        };
        let memory = async {
            if let Some(file) = self.memory {
                let _said = file.finish(END_LIMIT, move |file| file.save(memory, now)).await;
            }
        };
        let log = async {
            if let Some(file) = self.log {
                file.finish(fleet, END_LIMIT).await;
            }
        };
        let signals = async {
            if let Some(log) = self.signals {
                log.finish(END_LIMIT).await;
            }
        };
        // All at once: a file server that does not answer delays the end by one limit.
        tokio::join!(view, memory, log, signals);
    }
}

/// The name of the file in the state directory.
const VIEW_NAME: &str = "view.json";
/// More than the bounds of what is remembered ever take.
const VIEW_MAX_BYTES: u64 = 4 * 1024 * 1024;
/// What has changed is written this often, so that a crash loses little.
const SAVE_EVERY: Duration = Duration::from_secs(10);

/// The file of what the screen remembers.
#[derive(Debug)]
pub(super) struct ViewFile {
    path: PathBuf,
    saved: ViewState,
    looked: Moment,
    /// It could not be written; said once.
    has_failed: bool,
}

impl ViewFile {
    /// Reads the file. The text is for a person: what is wrong with it, and where it has gone. `None` where there is no
    /// state directory, because there is no home.
    pub(super) fn load(directories: &Directories, now: Moment) -> (Option<Self>, Option<ViewState>, Option<String>) {
        let Ok(directory) = directories.state() else { return (None, None, None) };
        let path = directory.join(VIEW_NAME);
        let (remembered, message) = match read(&path) {
            Ok(remembered) => (remembered, None),
            Err(why) => (None, Some(why)),
        };
        let saved = remembered.clone().unwrap_or_default();
        (Some(Self { path, saved, looked: now, has_failed: false }), remembered, message)
    }

    /// Whether it is time to look again for what has changed.
    pub(super) fn is_due(&self, now: Moment) -> bool {
        now.since(self.looked) >= SAVE_EVERY
    }

    /// Whether it is to be written; it is looked at again after the usual time.
    pub(super) fn has_changed(&mut self, remembered: &ViewState, now: Moment) -> bool {
        self.looked = now;
        *remembered != self.saved
    }

    /// Writes what has changed. The text is for a person, the first time that it fails.
    pub(super) fn save(&mut self, remembered: ViewState, now: Moment) -> Option<String> {
        if !self.has_changed(&remembered, now) {
            return None;
        }
        let text = match serde_json::to_vec_pretty(&remembered) {
            Ok(text) => text,
            Err(error) => return Some(format!("cannot write what the screen remembers: {error}")),
        };
        match write_atomic(&self.path, &text) {
            Ok(()) => {
                self.saved = remembered;
                None
            }
            Err(error) => {
                let is_first = !std::mem::replace(&mut self.has_failed, true);
                is_first.then(|| error.to_string().lines().next().unwrap_or_default().to_owned())
            }
        }
    }
}

/// What is in the file, `None` when there is none. What cannot be used is kept aside.
fn read(path: &Path) -> Result<Option<ViewState>, String> {
    let why = match read_text(path, VIEW_MAX_BYTES) {
        Ok(text) => match ViewState::parse(&text) {
            Ok(remembered) => return Ok(Some(remembered)),
            Err(why) => why,
        },
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => error.to_string().lines().next().unwrap_or_default().to_owned(),
    };
    let shown = crate::wire::SafeText::new(&path.to_string_lossy());
    Err(match rename_bad_file(path) {
        Ok(aside) => format!("the screen begins as new, what it remembered is kept as {aside}: {why} ({shown})"),
        Err(error) => format!("the screen begins as new, its file cannot be kept aside ({error}): {why} ({shown})"),
    })
}

/// The file, and how much of each host's log stands in it.
pub(super) struct LogFile {
    file: BackgroundWriter<File>,
    written: Vec<u64>,
}

impl LogFile {
    /// Opens the file to append to it; a new one is for its owner alone, for it names hosts and accounts.
    pub(super) fn open(path: &Path) -> Result<Self, CommandError> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
        let file = file.map_err(|error| CommandError::failed(format!("cannot write {}: {error}", path.display())))?;
        Ok(Self { file: BackgroundWriter::new(file), written: Vec::new() })
    }

    /// Writes what has come since the last call, on a thread; while an earlier text is being written the hosts' logs hold
    /// what comes. To be called each second, within a tokio runtime. The answer is for a person: the file could not be
    /// written.
    pub(super) fn tick(&mut self, fleet: &Fleet) -> Option<String> {
        let failed = self.file.take_message();
        if self.file.idle_file().is_some() {
            let news = self.news(fleet);
            if !news.is_empty() {
                self.file.start_write(move |file| append_text(file, &news));
            }
        }
        failed
    }

    /// Writes what has come since, and waits for the disk no longer than `limit`.
    pub(super) async fn finish(mut self, fleet: &Fleet, limit: Duration) {
        let news = self.news(fleet);
        let _failed = self.file.finish(limit, move |file| append_text(file, &news)).await;
    }

    fn news(&mut self, fleet: &Fleet) -> Vec<u8> {
        let mut text = Vec::new();
        self.written.resize(fleet.hosts().len(), 0);
        for (host, written) in fleet.hosts().iter().zip(&mut self.written) {
            let log = host.log();
            let new = usize::try_from(log.count() - *written).unwrap_or(usize::MAX);
            let kept = new.min(log.lines().len());
            for (place, line) in log.lines().skip(log.lines().len() - kept).enumerate() {
                let time = time(line);
                if place == 0 && kept < new {
                    // The host said more than its log holds.
                    text.extend_from_slice(
                        format!("{time} {} ({} lines left out)\n", host.name(), new - kept).as_bytes(),
                    );
                }
                text.extend_from_slice(format!("{time} {} {}\n", host.name(), line.text).as_bytes());
            }
            *written = log.count();
        }
        text
    }
}

fn append_text(file: &mut File, text: &[u8]) -> Option<String> {
    let error = file.write_all(text).err()?;
    Some(format!("the log is no longer written: {error}"))
}

fn time(line: &LogLine) -> String {
    let seconds = i64::try_from(line.at.unix.as_secs()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| "-".to_owned(), |time| time.to_string())
}

/// The file's name.
const SIGNALS_NAME: &str = "signals.log";
/// From this size on a new one is begun; one old one is kept.
const SIGNALS_MAX_BYTES: u64 = 1024 * 1024;

/// Lines that wait while the disk does not answer; further ones are counted.
const MAX_WAITING: usize = 256;

/// Where signals are logged.
#[derive(Debug)]
pub(super) struct SignalLog {
    file: BackgroundWriter<PathBuf>,
    waiting: Vec<String>,
    left_out: u64,
}

impl SignalLog {
    /// The log; `None` where there is no state directory, because there is no home.
    pub(super) fn find(directories: &Directories) -> Option<Self> {
        directories.state().ok().map(|directory| Self::at(directory.join(SIGNALS_NAME)))
    }

    fn at(path: PathBuf) -> Self {
        Self { file: BackgroundWriter::new(path), waiting: Vec::new(), left_out: 0 }
    }

    /// Adds a line with the time. It is written at once, on a thread, unless earlier ones are being written. To be called
    /// within a tokio runtime.
    pub(super) fn take(&mut self, line: &SafeText) {
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push(format!("{:.0} {line}\n", jiff::Timestamp::now()));
        } else {
            self.left_out += 1;
        }
        self.write();
    }

    /// Writes what still waits, and returns what a person should know of the last write. To be called each second.
    pub(super) fn tick(&mut self) -> Option<String> {
        let message = self.file.take_message();
        self.write();
        message
    }

    /// Writes what still waits, and waits for the disk no longer than `limit`.
    pub(super) async fn finish(mut self, limit: Duration) {
        let lines = self.lines();
        let _said = self.file.finish(limit, move |path| append_lines(path, &lines)).await;
    }

    fn write(&mut self) {
        if self.file.idle_file().is_some() && !self.waiting.is_empty() {
            let lines = self.lines();
            self.file.start_write(move |path| append_lines(path, &lines));
        }
    }

    fn lines(&mut self) -> Vec<String> {
        let mut lines = std::mem::take(&mut self.waiting);
        let left_out = std::mem::take(&mut self.left_out);
        if left_out > 0 {
            lines.push(format!("{:.0} {left_out} lines left out: the disk gave no answer\n", jiff::Timestamp::now()));
        }
        lines
    }
}

/// The text is for a person where that fails.
fn append_lines(path: &Path, lines: &[String]) -> Option<String> {
    let failed = lines.iter().find_map(|line| append_line(path, line.as_bytes(), SIGNALS_MAX_BYTES).err())?;
    Some(failed.to_string().lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HostConfig;
    use crate::fleet::{ConnectPhase, HostId, HostUpdate};
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::Arc;

    fn at(seconds: u64) -> Moment {
        Moment::new(Duration::from_secs(seconds), Duration::from_secs(1_700_000_000 + seconds))
    }

    #[test]
    fn what_has_changed_is_written_for_its_owner_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state").join(VIEW_NAME);
        assert_eq!(read(&path), Ok(None));
        let mut file = ViewFile { path: path.clone(), saved: ViewState::default(), looked: at(0), has_failed: false };
        assert_eq!(file.save(ViewState::default(), at(1)), None);
        assert!(!path.exists(), "nothing has changed");
        let changed = ViewState::parse("{\"version\":1,\"filter\":\"mem>1G\"}").expect("is right");
        assert!(!file.is_due(at(10)) && file.is_due(at(11)));
        assert_eq!(file.save(changed.clone(), at(11)), None);
        assert_eq!(std::fs::metadata(&path).expect("is there").permissions().mode() & 0o777, 0o600);
        assert_eq!(read(&path), Ok(Some(changed)));
    }

    #[test]
    fn a_broken_file_is_kept_aside_and_said() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(VIEW_NAME);
        std::fs::write(&path, "{\"version\":9}").expect("writes");
        assert_eq!(
            read(&path),
            Err(format!(
                "the screen begins as new, what it remembered is kept as view.json.bad-1: it is of version 9, this \
                 gpufleet reads 1 ({})",
                path.display()
            ))
        );
        assert_eq!(read(&path), Ok(None));
        let aside = folder.path().join("view.json.bad-1");
        assert_eq!(std::fs::read_to_string(aside).expect("is kept"), "{\"version\":9}");
    }

    const DEADLINE: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn each_line_is_written_once_in_the_order_of_the_hosts() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ssh.log");
        let mut file = LogFile::open(&path).expect("opens");
        let configs = ["a", "b"].map(|name| Arc::new(HostConfig::named(name)));
        let now = Moment::new(Duration::ZERO, Duration::from_secs(1_763_000_000));
        let mut fleet = Fleet::new(&configs, false, now);
        let mut step = |file: &mut LogFile, host: u32, phase: ConnectPhase| {
            fleet.apply(HostId(host), HostUpdate::Connecting { attempt: 1, phase }, now);
            assert_eq!(file.tick(&fleet), None);
        };
        step(&mut file, 1, ConnectPhase::Name);
        let (release, released) = std::sync::mpsc::channel::<()>();
        while file.file.idle_file().is_none() {
            assert_eq!(file.file.take_message(), None);
            tokio::task::yield_now().await;
        }
        // The disk does not answer: what comes meanwhile is written later.
        file.file.start_write(move |_| released.recv().err().and(None));
        step(&mut file, 0, ConnectPhase::Tcp);
        step(&mut file, 0, ConnectPhase::Login);
        drop(release);
        file.finish(&fleet, DEADLINE).await;
        let expected = "\
2025-11-13T02:13:20Z b try 1: name
2025-11-13T02:13:20Z a try 1: tcp
2025-11-13T02:13:20Z a login
";
        assert_eq!(std::fs::read_to_string(&path).expect("reads"), expected);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_told() {
        let Err(failure) = LogFile::open(Path::new("/nowhere/ssh.log")) else { panic!("opened") };
        assert_eq!(
            failure.to_string(),
            "gpufleet: cannot write /nowhere/ssh.log: No such file or directory (os error 2)\n"
        );
    }

    #[tokio::test]
    async fn lines_wait_in_order_while_the_disk_does_not_answer_and_too_many_are_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(SIGNALS_NAME);
        let mut log = SignalLog::at(path.clone());
        let (release, released) = std::sync::mpsc::channel::<()>();
        log.file.start_write(move |_| released.recv().err().map(|_| "slow".to_owned()));
        for number in 0..MAX_WAITING + 3 {
            log.take(&SafeText::new(&format!("line {number}")));
        }
        assert_eq!(log.tick(), None);
        assert!(!path.exists());
        drop(release);
        log.finish(DEADLINE).await;
        let text = std::fs::read_to_string(&path).expect("was written");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), MAX_WAITING + 1);
        assert!(lines[0].ends_with("Z line 0") && lines[MAX_WAITING - 1].ends_with("Z line 255"), "{text}");
        assert!(lines[MAX_WAITING].ends_with("Z 3 lines left out: the disk gave no answer"), "{text}");
    }

    #[tokio::test]
    async fn a_line_is_written_at_once_and_a_failure_is_said() {
        let folder = tempfile::tempdir().expect("a folder");
        // A file stands where the directory should be.
        std::fs::write(folder.path().join("state"), "").expect("writes");
        let mut log = SignalLog::at(folder.path().join("state").join(SIGNALS_NAME));
        log.take(&SafeText::new("line"));
        let end = tokio::time::Instant::now() + DEADLINE;
        let message = loop {
            if let Some(message) = log.tick() {
                break message;
            }
            assert!(tokio::time::Instant::now() < end, "nothing is said");
            tokio::task::yield_now().await;
        };
        assert!(message.starts_with("cannot write "), "{message}");
    }
}
