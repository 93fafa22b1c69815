//! The files that are written while the screen is shown: what diagnosis remembers, how the view stands, logs.

use super::log_file::LogFile;
use super::memory::MemoryFile;
use super::signal_log::SignalLog;
use super::view_file::ViewFile;
use crate::app::App;
use crate::fleet::Moment;
use crate::wire::SafeText;

/// The files; those that there are.
pub(super) struct KeptFiles {
    pub(super) memory: Option<MemoryFile>,
    pub(super) view: Option<ViewFile>,
    pub(super) log: Option<LogFile>,
    pub(super) signals: Option<SignalLog>,
}

impl KeptFiles {
    /// Each second: writes what is due. The app says what could not be written.
    pub(super) fn tick(&mut self, app: &mut App, now: Moment) {
        if self.memory.as_ref().is_some_and(|file| file.is_due(now)) {
            self.remember(app, now);
        }
        if let Some(file) = self.view.as_mut().filter(|file| file.is_due(now))
            && let Some(said) = file.save(app.remembered(), now)
        {
            app.say(said, now);
        }
        if let Some(Err(error)) = self.log.as_mut().map(|file| file.write(app.live_fleet())) {
            app.say(format!("the log is no longer written: {error}"), now);
            self.log = None;
        }
    }

    /// Writes what diagnosis remembers; that it cannot be written is said once.
    pub(super) fn remember(&mut self, app: &mut App, now: Moment) {
        if let Some(said) = self.memory.as_mut().and_then(|file| file.save(app.memory(now), now)) {
            app.say(said, now);
        }
    }

    /// Writes down a signal that was asked for, or its outcome.
    pub(super) fn log_signal(&self, line: &SafeText, app: &mut App, now: Moment) {
        if let Some(said) = self.signals.as_ref().and_then(|log| log.write(line)) {
            app.say(said, now);
        }
    }

    /// The program ends: everything is written once more. There is nobody left to tell if that fails, and the next start
    /// begins with what was written before.
    pub(super) fn finish(&mut self, app: &mut App, now: Moment) {
        if let Some(file) = &mut self.log {
            let _written = file.write(app.live_fleet());
        }
        if let Some(file) = &mut self.view {
            let _said = file.save(app.remembered(), now);
        }
        if let Some(file) = &mut self.memory {
            app.told_ended(now);
            let _said = file.save(app.memory(now), now);
        }
    }
}
