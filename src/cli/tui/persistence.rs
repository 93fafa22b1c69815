//! The files that are written while the screen is shown: what diagnosis remembers, how the view stands, logs.

use super::log_file::LogFile;
use super::signal_log::SignalLog;
use super::view_file::ViewFile;
use crate::app::App;
use crate::cli::background_writer::{BackgroundWriter, END_LIMIT};
use crate::cli::diagnosis_memory::MemoryFile;
use crate::fleet::Moment;
use crate::wire::SafeText;

/// The files; those that there are.
pub(super) struct PersistentFiles {
    memory: Option<BackgroundWriter<MemoryFile>>,
    view: Option<BackgroundWriter<ViewFile>>,
    log: Option<LogFile>,
    signals: Option<SignalLog>,
    /// What diagnosis remembers has changed in a way that is to be kept, while it was being written.
    save_memory_again: bool,
}

impl PersistentFiles {
    /// These files, as they were read.
    pub(super) fn new(
        memory: Option<MemoryFile>,
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
