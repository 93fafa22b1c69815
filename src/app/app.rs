//! The whole state of the program, and how an event changes it.

use super::host_layout::HostLayout;
use super::host_visibility::Frozen;
use super::layout::{LayoutInputs, ScreenLayout, compute_layout};
use super::row_sparklines::RowSparklines;
use super::signals::Signals;
use super::snooze::StartupSummary;
use super::{
    Density, DisplaySettings, Effect, Event, EventLog, Findings, HostSummary, HostVisibility, Keymap, LinkCounts,
    ListFilter, MessageTemplate, Palette, Prompts, Screen, SettingsFile, Users,
};
use crate::config::HostConfig;
use crate::diagnosis::Engine;
use crate::fleet::{Fleet, HostChange, HostId, HostUpdate, ListRow, Moment, RowCache, Totals, UsageLedger};
use crate::wire::SafeText;
use std::time::Duration;
use zeroize::Zeroizing;

/// How long a notice stays in the hint bar.
const NOTICE_DURATION: Duration = Duration::from_secs(4);

/// How long it stays when it says what came of a key that took its time.
const RESULT_DURATION: Duration = Duration::from_secs(10);

/// How long it stays when it says what nobody has asked for.
const PROBLEM_DURATION: Duration = Duration::from_secs(60);

/// The program's state. [`App::update`] is the only way in; the drawing only reads.
#[derive(Debug)]
pub struct App {
    /// When the last event happened.
    pub(super) now: Moment,
    /// How the screen shall look. The event loop keeps the offset from UTC current.
    pub settings: DisplaySettings,
    pub(super) fleet: Fleet,
    pub(super) screen: Screen,
    pub(super) prompts: Prompts,
    pub(super) rows: Vec<ListRow>,
    /// Jobs, or processes, that the list shows, and all of them.
    pub(super) row_counts: (usize, usize),
    pub(super) list_filter: ListFilter,
    pub(super) row_sparklines: RowSparklines,
    pub(super) signals: Signals,
    /// The hosts that are shown, in order.
    pub(super) visible_hosts: Vec<usize>,
    pub(super) host_visibility: HostVisibility,
    pub(super) density: Density,
    pub(super) frozen: Option<Frozen>,
    pub(super) palette: Option<Palette>,
    pub(super) keymap: Keymap,
    /// Clicks and the wheel are ours.
    pub(super) has_mouse: bool,
    /// The note to somebody whose GPU is idle or may hang.
    pub(super) message_template: MessageTemplate,
    pub(super) interval: Duration,
    pub(super) size: (u16, u16),
    pub(super) previous_inputs: LayoutInputs,
    pub(super) screen_layout: ScreenLayout,
    pub(super) host_layout: HostLayout,
    pub(super) engine: Engine,
    pub(super) findings: Findings,
    pub(super) event_log: EventLog,
    pub(super) startup_summary: StartupSummary,
    pub(super) rows_view: RowCache,
    pub(super) users: Users,
    pub(super) ledger: UsageLedger,
    pub(super) host_summaries: Vec<HostSummary>,
    pub(super) totals: Totals,
    pub(super) links: LinkCounts,
    /// A host changed since the sums and the list were computed.
    pub(super) derived_state_is_stale: bool,
    pub(super) notice: Option<(String, Moment)>,
}

impl App {
    /// The state before anything has happened.
    pub fn new(fleet: Fleet, settings: DisplaySettings, engine: Engine, now: Moment) -> Self {
        let interval = fleet.hosts().iter().map(|host| host.config.interval).min();
        let mut app = Self {
            now,
            settings,
            host_summaries: vec![HostSummary::default(); fleet.hosts().len()],
            fleet,
            screen: Screen::default(),
            prompts: Prompts::default(),
            rows: Vec::new(),
            row_counts: (0, 0),
            list_filter: ListFilter::default(),
            row_sparklines: RowSparklines::default(),
            signals: Signals::default(),
            visible_hosts: Vec::new(),
            host_visibility: HostVisibility::default(),
            density: Density::default(),
            frozen: None,
            palette: None,
            keymap: Keymap::default(),
            has_mouse: true,
            message_template: MessageTemplate::default(),
            interval: interval.unwrap_or(HostConfig::DEFAULT_INTERVAL),
            size: (0, 0),
            previous_inputs: LayoutInputs::default(),
            screen_layout: compute_layout((0, 0), LayoutInputs::default(), None),
            host_layout: HostLayout::default(),
            startup_summary: StartupSummary::new(engine.last_run_at().is_some(), now),
            engine,
            findings: Findings::default(),
            event_log: EventLog::default(),
            rows_view: RowCache::default(),
            users: Users::default(),
            ledger: UsageLedger::default(),
            totals: Totals::default(),
            links: LinkCounts::default(),
            derived_state_is_stale: false,
            notice: None,
        };
        for index in 0..app.host_summaries.len() {
            app.refresh_host(HostId(index as u32), now);
        }
        app.refresh_sums();
        app.refresh_visible_hosts();
        app
    }

    /// Takes over what the settings say.
    pub fn apply_settings_file(&mut self, settings_file: &SettingsFile) {
        self.keymap = settings_file.keymap.clone();
        self.message_template = settings_file.message_template.clone();
        self.has_mouse = settings_file.mouse;
        self.density = settings_file.density.unwrap_or(self.density);
        self.refresh_layout();
    }

    /// Takes an event and says what shall be done.
    pub fn update(&mut self, event: Event, now: Moment) -> Vec<Effect> {
        self.now = now;
        let before = self.screen.list.top(self.rows.len(), self.list_capacity());
        let effects = self.handle_event(event, now);
        if self.screen.list.top(self.rows.len(), self.list_capacity()) != before {
            self.refresh_sparklines();
        }
        effects
    }

    fn handle_event(&mut self, event: Event, now: Moment) -> Vec<Effect> {
        match event {
            Event::Key(key) => return self.key(key, now),
            Event::Pasted(text) => self.paste(&Zeroizing::new(text), now),
            Event::Mouse(event) => return self.mouse(event, now),
            Event::Resized(columns, rows) => {
                self.size = (columns, rows);
                self.refresh_layout();
                return vec![Effect::Repaint];
            }
            Event::Host(id, update) => return self.on_host_update(id, *update, now),
            Event::Prompted(prompt) => {
                let nothing_live = self.fleet.hosts().iter().all(|host| host.snapshot.is_none());
                self.prompts.add(prompt, nothing_live, now);
            }
            Event::PromptWithdrawn(id) => self.prompts.withdraw(id, now),
            Event::ProblemReported(text) => self.notify_and_log(text, now),
            Event::ActionFinished(text) => self.notify_for(text.as_str(), RESULT_DURATION, now),
            Event::Ticked => return self.tick(now),
            Event::Resumed => {
                self.report_message("resumed, reconnecting", now);
                let mut effects = self.tick(now);
                effects.push(Effect::Repaint);
                return effects;
            }
        }
        Vec::new()
    }

    /// Somebody has seen, or could have, all that has ended so far.
    pub fn acknowledge_ended_jobs(&mut self, now: Moment) {
        self.engine.mark_job_ends_reported(now);
    }

    /// Tells the person something in the place of the hints, for a minute, and writes it into the history.
    pub fn report_message(&mut self, text: impl Into<SafeText>, now: Moment) {
        self.notify_and_log(text.into(), now);
    }

    /// The same for a minute: nobody may be looking now.
    pub(super) fn notify_for_a_minute(&mut self, text: impl Into<String>, now: Moment) {
        self.notice = Some((text.into(), now.plus(PROBLEM_DURATION)));
    }

    pub(super) fn notify(&mut self, text: impl Into<String>, now: Moment) {
        self.notify_for(text, NOTICE_DURATION, now);
    }

    pub(super) fn notify_for(&mut self, text: impl Into<String>, duration: Duration, now: Moment) {
        self.notice = Some((text.into(), now.plus(duration)));
    }

    fn on_host_update(&mut self, id: HostId, update: HostUpdate, now: Moment) -> Vec<Effect> {
        if let HostUpdate::Reply(reply) = &update {
            return self.on_signal_reply(id, reply, now);
        }
        match self.live_fleet_mut().apply(id, update, now) {
            HostChange::Nothing => Vec::new(),
            HostChange::Link | HostChange::Data | HostChange::FirstData => {
                let fleet = self.frozen.as_ref().map_or(&self.fleet, Frozen::live);
                let transitions = self.engine.evaluate_host(fleet, id, now);
                if self.frozen.is_none() {
                    self.refresh_host(id, now);
                    self.derived_state_is_stale = true;
                }
                self.handle_transitions(&transitions)
            }
        }
    }

    fn tick(&mut self, now: Moment) -> Vec<Effect> {
        let fleet = self.frozen.as_ref().map_or(&self.fleet, Frozen::live);
        let transitions = self.engine.tick(fleet, now);
        if self.frozen.is_none() {
            self.tick_summaries(now);
        }
        self.notice.take_if(|(_, until)| *until <= now);
        let mut effects = self.handle_transitions(&transitions);
        effects.extend(self.show_startup_summary(now));
        effects.extend(self.tick_signals(now));
        effects
    }
}
