//! The files that are written while the screen is shown: what diagnosis remembers, how the view stands, logs.

use super::log_file::LogFile;
use super::memory::MemoryFile;
use super::signal_log::SignalLog;
use super::view_file::ViewFile;
use super::written::{END_LIMIT, Written};
use crate::app::App;
use crate::fleet::Moment;
use crate::wire::SafeText;

/// The files; those that there are.
pub(super) struct KeptFiles {
    memory: Option<Written<MemoryFile>>,
    view: Option<Written<ViewFile>>,
    log: Option<LogFile>,
    signals: Option<SignalLog>,
    /// What diagnosis remembers has changed in a way that is to be kept, while it was being written.
    remember_again: bool,
}

impl KeptFiles {
    /// These files, as they were read.
    pub(super) fn new(
        memory: Option<MemoryFile>,
        view: Option<ViewFile>,
        log: Option<LogFile>,
        signals: Option<SignalLog>,
    ) -> Self {
        Self { memory: memory.map(Written::new), view: view.map(Written::new), log, signals, remember_again: false }
    }

    /// Each second: writes what is due. The app says what could not be written.
    pub(super) fn tick(&mut self, app: &mut App, now: Moment) {
        let said = [
            self.memory.as_mut().and_then(Written::said),
            self.view.as_mut().and_then(Written::said),
            self.signals.as_mut().and_then(SignalLog::tick),
        ];
        for said in said.into_iter().flatten() {
            app.report_message(said, now);
        }
        let is_due = self.memory.as_mut().and_then(Written::idle).is_some_and(|file| file.is_due(now));
        if is_due || self.remember_again {
            self.remember(app, now);
        }
        if let Some(view) = &mut self.view
            && let Some(file) = view.idle().filter(|file| file.is_due(now))
        {
            let remembered = app.view_state();
            if file.has_changed(&remembered, now) {
                view.begin(move |file| file.save(remembered, now));
            }
        }
        if let Some(failed) = self.log.as_mut().and_then(|log| log.tick(app.live_fleet())) {
            app.report_message(failed, now);
            self.log = None;
        }
    }

    /// Writes what diagnosis remembers; that it cannot be written is said once.
    pub(super) fn remember(&mut self, app: &App, now: Moment) {
        let Some(memory) = &mut self.memory else { return };
        self.remember_again = memory.idle().is_none();
        if !self.remember_again {
            let remembered = app.memory(now);
            memory.begin(move |file| file.save(remembered, now));
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
