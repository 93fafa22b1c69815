//! The files that the screen writes while it runs: diagnosis state, view state, ssh log and signal log.

use crate::app::{App, ViewState};
use crate::cli::CommandError;
use crate::cli::background_writer::{BackgroundWriter, END_LIMIT};
use crate::cli::exit::one_line;
use crate::cli::saved_state::{SavedStateFile, StateFileError, read_state};
use crate::fleet::{Fleet, LogLine, Moment};
use crate::store::{Directories, append_line, write_atomic};
use crate::wire::SafeText;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The files that exist in this run.
pub(super) struct PersistentFiles {
    diagnosis: Option<BackgroundWriter<SavedStateFile>>,
    view: Option<BackgroundWriter<ViewFile>>,
    log: Option<LogFile>,
    signals: Option<SignalLog>,
    /// The diagnosis state must be saved again, because it changed during a write.
    save_diagnosis_again: bool,
}

impl PersistentFiles {
    /// Wraps the files that were opened at the start.
    pub(super) fn new(
        diagnosis: Option<SavedStateFile>,
        view: Option<ViewFile>,
        log: Option<LogFile>,
        signals: Option<SignalLog>,
    ) -> Self {
        Self {
            diagnosis: diagnosis.map(BackgroundWriter::new),
            view: view.map(BackgroundWriter::new),
            log,
            signals,
            save_diagnosis_again: false,
        }
    }

    /// Writes what is due. Errors are reported to the app. Call it once per second.
    pub(super) fn tick(&mut self, app: &mut App, now: Moment) {
        let message = [
            self.diagnosis.as_mut().and_then(BackgroundWriter::take_message),
            self.view.as_mut().and_then(BackgroundWriter::take_message),
            self.signals.as_mut().and_then(SignalLog::tick),
        ];
        for message in message.into_iter().flatten() {
            app.report_message(message, now);
        }
        let is_due = self.diagnosis.as_mut().and_then(BackgroundWriter::idle_file).is_some_and(|file| file.is_due(now));
        if is_due || self.save_diagnosis_again {
            self.save_diagnosis_state(app, now);
        }
        if let Some(view) = &mut self.view
            && let Some(file) = view.idle_file().filter(|file| file.is_due(now))
        {
            let state = app.view_state();
            if file.has_changed(&state, now) {
                view.start_write(move |file| file.save(state, now));
            }
        }
        if let Some(failed) = self.log.as_mut().and_then(|log| log.tick(app.live_fleet())) {
            app.report_message(failed, now);
            self.log = None;
        }
    }

    /// Saves the diagnosis state, or notes that this is still to be done if a write is in progress.
    pub(super) fn save_diagnosis_state(&mut self, app: &App, now: Moment) {
        let Some(diagnosis) = &mut self.diagnosis else { return };
        self.save_diagnosis_again = diagnosis.idle_file().is_none();
        if !self.save_diagnosis_again {
            let state = app.memory(now);
            diagnosis.start_write(move |file| file.save(state, now));
        }
    }

    /// Appends a signal request or its outcome to the signal log.
    pub(super) fn log_signal(&mut self, line: &SafeText) {
        if let Some(log) = &mut self.signals {
            log.take(line);
        }
    }

    /// Writes everything once more at the end of the program. Errors cannot be shown any more.
    pub(super) async fn finish(self, app: &mut App, now: Moment) {
        app.acknowledge_ended_jobs(now);
        let (view, diagnosis, fleet) = (app.view_state(), app.memory(now), app.live_fleet());
        let view = async {
            if let Some(file) = self.view {
                let _said = file.finish(END_LIMIT, move |file| file.save(view, now)).await;
            }
        };
        let diagnosis = async {
            if let Some(file) = self.diagnosis {
                let _said = file.finish(END_LIMIT, move |file| file.save(diagnosis, now)).await;
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
        // In parallel, so that a file server that does not answer delays the end only once.
        tokio::join!(view, diagnosis, log, signals);
    }
}

/// The name of the view state file in the state directory.
const VIEW_NAME: &str = "view.json";
/// The maximum size of the view state file, above the bounds of a view state.
const VIEW_MAX_BYTES: u64 = 4 * 1024 * 1024;
/// How often the view state is saved, so that a crash loses little.
const SAVE_EVERY: Duration = Duration::from_secs(10);

/// The saved view state.
#[derive(Debug)]
pub(super) struct ViewFile {
    path: PathBuf,
    saved: ViewState,
    compared_at: Moment,
    /// A write has failed and was reported.
    has_failed: bool,
}

impl ViewFile {
    /// Reads the file. Returns no file without a state directory or if the disk does not answer, and a message if the file
    /// is unusable.
    pub(super) fn load(directories: &Directories, now: Moment) -> (Option<Self>, Option<ViewState>, Option<String>) {
        let Ok(directory) = directories.state() else { return (None, None, None) };
        let path = directory.join(VIEW_NAME);
        let (state, message) = match read_view_state(&path) {
            Ok(state) => (state, None),
            Err(error) if error.disk_is_silent() => return (None, None, Some(error.to_string())),
            Err(error) => (None, Some(error.to_string())),
        };
        let saved = state.clone().unwrap_or_default();
        (Some(Self { path, saved, compared_at: now, has_failed: false }), state, message)
    }

    /// Whether it is time to compare the view state again.
    pub(super) fn is_due(&self, now: Moment) -> bool {
        now.since(self.compared_at) >= SAVE_EVERY
    }

    /// Whether the view state must be saved. Restarts the time of [`ViewFile::is_due`].
    pub(super) fn has_changed(&mut self, state: &ViewState, now: Moment) -> bool {
        self.compared_at = now;
        *state != self.saved
    }

    /// Saves the view state if it has changed. Returns a message for the first failure.
    pub(super) fn save(&mut self, state: ViewState, now: Moment) -> Option<String> {
        if !self.has_changed(&state, now) {
            return None;
        }
        let text = match serde_json::to_vec_pretty(&state) {
            Ok(text) => text,
            Err(error) => return Some(format!("cannot encode the view state: {error}")),
        };
        match write_atomic(&self.path, &text) {
            Ok(()) => {
                self.saved = state;
                None
            }
            Err(error) => {
                let is_first = !std::mem::replace(&mut self.has_failed, true);
                is_first.then(|| one_line(&error))
            }
        }
    }
}

fn read_view_state(path: &Path) -> Result<Option<ViewState>, StateFileError> {
    read_state(path, VIEW_MAX_BYTES, "the screen", ViewState::parse)
}

/// `--log FILE`: the ssh logs of all hosts, and how many lines of each are in the file.
pub(super) struct LogFile {
    file: BackgroundWriter<File>,
    written: Vec<u64>,
}

impl LogFile {
    /// Opens the file for appending. A new file is private, because it contains host and account names.
    pub(super) fn open(path: &Path) -> Result<Self, CommandError> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
        let file = file.map_err(|error| CommandError::failed(format!("cannot write {}: {error}", path.display())))?;
        Ok(Self { file: BackgroundWriter::new(file), written: Vec::new() })
    }

    /// Writes the new lines on a blocking thread. During a write, new lines stay in the logs of the hosts. Returns a
    /// message if the file cannot be written. Call it once per second within a tokio runtime.
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

    /// Writes the remaining lines and waits for the disk at most `limit`.
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
                    // The host logged more lines than its log keeps.
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
    Some(format!("cannot write the ssh log any more: {error}"))
}

fn time(line: &LogLine) -> String {
    let seconds = i64::try_from(line.at.unix.as_secs()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| "-".to_owned(), |time| time.to_string())
}

/// The name of the signal log in the state directory.
const SIGNALS_NAME: &str = "signals.log";
/// The log is rotated at this size; one old file is kept.
const SIGNALS_MAX_BYTES: u64 = 1024 * 1024;

/// The maximum number of lines that wait for the disk; further ones are only counted.
const MAX_WAITING: usize = 256;

/// `signals.log` in the state directory: one line for each signal request and for each outcome.
#[derive(Debug)]
pub(super) struct SignalLog {
    file: BackgroundWriter<PathBuf>,
    waiting: Vec<String>,
    left_out: u64,
}

impl SignalLog {
    /// Returns the log; `None` without a state directory.
    pub(super) fn find(directories: &Directories) -> Option<Self> {
        directories.state().ok().map(|directory| Self::at(directory.join(SIGNALS_NAME)))
    }

    fn at(path: PathBuf) -> Self {
        Self { file: BackgroundWriter::new(path), waiting: Vec::new(), left_out: 0 }
    }

    /// Appends a line with the current time. It is written at once on a blocking thread unless a write is in progress.
    /// Must be called within a tokio runtime.
    pub(super) fn take(&mut self, line: &SafeText) {
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push(format!("{:.0} {line}\n", jiff::Timestamp::now()));
        } else {
            self.left_out += 1;
        }
        self.write();
    }

    /// Writes waiting lines and returns the message of the last write. Call it once per second.
    pub(super) fn tick(&mut self) -> Option<String> {
        let message = self.file.take_message();
        self.write();
        message
    }

    /// Writes waiting lines and waits for the disk at most `limit`.
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
            lines.push(format!(
                "{:.0} {left_out} lines left out because the disk did not answer\n",
                jiff::Timestamp::now()
            ));
        }
        lines
    }
}

/// Returns a message on failure.
fn append_lines(path: &Path, lines: &[String]) -> Option<String> {
    let failed = lines.iter().find_map(|line| append_line(path, line.as_bytes(), SIGNALS_MAX_BYTES).err())?;
    Some(one_line(&failed))
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
    fn a_changed_view_state_is_written_to_a_private_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state").join(VIEW_NAME);
        assert_eq!(read_view_state(&path), Ok(None));
        let mut file =
            ViewFile { path: path.clone(), saved: ViewState::default(), compared_at: at(0), has_failed: false };
        assert_eq!(file.save(ViewState::default(), at(1)), None);
        assert!(!path.exists(), "nothing has changed");
        let changed = ViewState::parse("{\"version\":1,\"filter\":\"mem>1G\"}").expect("is right");
        assert!(!file.is_due(at(10)) && file.is_due(at(11)));
        assert_eq!(file.save(changed.clone(), at(11)), None);
        assert_eq!(std::fs::metadata(&path).expect("is there").permissions().mode() & 0o777, 0o600);
        assert_eq!(read_view_state(&path), Ok(Some(changed)));
    }

    #[test]
    fn an_unusable_view_file_is_renamed_and_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(VIEW_NAME);
        std::fs::write(&path, "{\"version\":9}").expect("writes");
        assert_eq!(
            read_view_state(&path),
            Err(StateFileError::Unusable(format!(
                "the screen starts without saved state, the unusable file is kept as view.json.bad-1: it has version 9, but this \
                 gpufleet reads version 1 ({})",
                path.display()
            )))
        );
        assert_eq!(read_view_state(&path), Ok(None));
        let aside = folder.path().join("view.json.bad-1");
        assert_eq!(std::fs::read_to_string(aside).expect("is kept"), "{\"version\":9}");
    }

    const DEADLINE: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn each_log_line_is_written_once() {
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
        // The disk does not answer; new lines are written later.
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
    fn a_log_file_that_cannot_be_opened_is_an_error() {
        let Err(failure) = LogFile::open(Path::new("/nowhere/ssh.log")) else { panic!("opened") };
        assert_eq!(
            failure.to_string(),
            "gpufleet: cannot write /nowhere/ssh.log: No such file or directory (os error 2)\n"
        );
    }

    #[tokio::test]
    async fn signal_lines_wait_in_order_and_are_bounded() {
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
        assert!(lines[MAX_WAITING].ends_with("Z 3 lines left out because the disk did not answer"), "{text}");
    }

    #[tokio::test]
    async fn a_write_error_of_the_signal_log_is_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        // A file is in the place of the directory.
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
