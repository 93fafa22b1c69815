//! The state of the interactive program and how events change it.
//!
//! [`App::update`] is the only way to change the state. It applies the event, then recomputes the derived state whose
//! inputs changed. Host updates are the exception: hundreds of them arrive between two frames, so
//! [`App::refresh_derived_state`] applies them together before the next frame is drawn.

use super::action::Mode;
use super::derived_state::{Changes, DerivedState, Inputs};
use super::dialogs::Prompts;
use super::event::{Effect, Event};
use super::findings::Findings;
use super::hang_report::HangReport;
use super::help::{HelpDialog, HelpRow, help_blocks, help_rows};
use super::host_summary::{HostSummary, LinkCounts};
use super::keymap::Keymap;
use super::layout::{Density, HostLayout, ScreenLayout, compute_host_layout, compute_layout, findings_layout};
use super::list_filter::ListFilter;
use super::messages::{EventLog, StartupSummary};
use super::palette::Palette;
use super::process_details::{self, ProcessDetails};
use super::screen::{ChartSpan, Focus, HostVisibility, Screen, View, help_columns};
use super::settings::{DisplaySettings, SettingsFile};
use super::signals::Signals;
use super::stored_charts::StoredCharts;
use super::users::Users;
use super::wall::{WallLayout, WallLine};
use crate::config::HostConfig;
use crate::diagnosis::proof::investigations::Investigations;
use crate::diagnosis::{Engine, Finding, FindingNotification, FindingVerdict, SavedState, Transition, UnusedReason};
use crate::fleet::{
    Fleet, HistoryReply, Host, HostChange, HostId, HostUpdate, JobKey, JobRows, Link, LinkError, LinkErrorKind,
    ListRow, Moment, Row, RowKey, Totals, UsageLedger,
};
use crate::ssh::prompt::PromptKind;
use crate::wire::SafeText;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The largest part of a terminal that is drawn, in columns and rows. A terminal may report up to 65,535 of each, and a
/// frame of that size takes gigabytes.
pub(crate) const MAX_DRAWN_SIZE: (u16, u16) = (1000, 500);
/// How long the answer to a key stays in the hint bar.
const NOTICE_DURATION: Duration = Duration::from_secs(4);
/// How long the result of an action that took time stays in the hint bar.
const RESULT_DURATION: Duration = Duration::from_secs(10);
/// How long the summary at the start stays in the hint bar. The history keeps it.
const SUMMARY_DURATION: Duration = Duration::from_secs(15);
/// How long a message that answers no key stays in the hint bar: the user may be looking elsewhere.
const PROBLEM_DURATION: Duration = Duration::from_secs(60);

/// The state of the interactive program. Drawing only reads it.
#[derive(Debug)]
pub struct App {
    /// Time of the last event.
    pub(super) now: Moment,
    /// Columns and rows of the terminal.
    pub(super) size: (u16, u16),
    /// Time between samples.
    pub(super) interval: Duration,
    /// How the screen is drawn. The event loop keeps the offset from UTC current.
    pub settings: DisplaySettings,
    pub(super) preferences: SettingsFile,

    // Data.
    pub(super) fleet: Fleet,
    pub(super) frozen: Option<Frozen>,
    pub(super) engine: Engine,
    pub(super) ledger: UsageLedger,
    pub(super) stored_charts: StoredCharts,

    // The user's choices.
    pub(super) screen: Screen,
    pub(super) list_filter: ListFilter,
    pub(super) host_visibility: HostVisibility,
    pub(super) density: Density,
    /// The number of lines by which the last drawn view of a process could be scrolled.
    pub(super) process_scroll_limit: usize,

    // Dialogs and messages.
    pub(super) prompts: Prompts,
    pub(super) signals: Signals,
    pub(super) palette: Option<Palette>,
    /// The report about a job that looks hung. It remains when its view is left.
    pub(super) hang_report: Option<Box<HangReport>>,
    /// The examinations of jobs that look hung.
    pub(super) investigations: Investigations,
    /// The verdicts of collectors about jobs of their hosts.
    collector_verdicts: Vec<(HostId, JobKey, FindingVerdict)>,
    /// The variables and the log of the process on the screen.
    pub(super) process_details: Option<Box<ProcessDetails>>,
    /// The id of the last request for such details. It never falls: a late reply must not be taken for that of another process.
    pub(super) last_details_request: u64,
    pub(super) notice: Option<(String, Moment)>,
    pub(super) event_log: EventLog,
    pub(super) startup_summary: StartupSummary,
    /// The number of hosts with current readings and of hangs when the summary was shown, while it is shown.
    summary_basis: Option<(usize, usize)>,

    /// Boxed to keep `App`, and the future of the event loop, small.
    pub(super) derived: Box<DerivedState>,
    /// Data that changed since `derived` was last updated.
    pub(super) changes: Changes,
}

/// A frozen view: `App::fleet` keeps the readings of one moment while this fleet continues to update.
#[derive(Debug)]
pub(super) struct Frozen {
    since: Moment,
    pub(super) live: Fleet,
}

impl App {
    /// Returns the state before the first event.
    pub fn new(fleet: Fleet, settings: DisplaySettings, engine: Engine, now: Moment) -> Self {
        let interval = fleet.hosts().iter().map(|host| host.config.interval).min();
        let mut app = Self {
            now,
            size: (0, 0),
            interval: interval.unwrap_or(HostConfig::DEFAULT_INTERVAL),
            settings,
            preferences: SettingsFile::default(),
            derived: Box::new(DerivedState::new(fleet.hosts().len())),
            fleet,
            frozen: None,
            startup_summary: StartupSummary::new(engine.last_run_at().is_some(), now),
            summary_basis: None,
            engine,
            ledger: UsageLedger::default(),
            stored_charts: StoredCharts::default(),
            screen: Screen::default(),
            list_filter: ListFilter::default(),
            host_visibility: HostVisibility::default(),
            density: Density::default(),
            process_scroll_limit: 0,
            prompts: Prompts::default(),
            signals: Signals::default(),
            palette: None,
            hang_report: None,
            investigations: Investigations::default(),
            collector_verdicts: Vec::new(),
            process_details: None,
            last_details_request: process_details::FIRST_REQUEST_ID,
            notice: None,
            event_log: EventLog::default(),
            changes: Changes::default(),
        };
        app.refresh_all_hosts(now);
        app.refresh_derived_state();
        app
    }

    /// Applies `settings.toml`.
    pub fn apply_settings_file(&mut self, settings_file: &SettingsFile) {
        self.preferences = settings_file.clone();
        self.density = settings_file.density.unwrap_or(self.density);
        self.update_derived_state(Changes::default());
    }

    /// Applies an event and returns what the event loop must do.
    pub fn update(&mut self, event: Event, now: Moment) -> Vec<Effect> {
        self.now = now;
        let is_host_update = matches!(event, Event::Host(..));
        // The event loop reports these while it performs an effect, and performs no further ones.
        let takes_effects = !matches!(event, Event::Resized(..) | Event::ActionFinished(_));
        let mut effects = self.apply_event(event, now);
        self.screen.end_stored_history();
        self.select_wanted_gpu();
        if takes_effects {
            effects.extend(self.request_history(now));
        }
        if takes_effects && !is_host_update {
            effects.extend(self.continue_process_details(now));
        }
        if !is_host_update {
            let findings = std::mem::take(&mut self.changes.findings);
            self.update_derived_state(Changes { readings: false, findings });
        }
        effects
    }

    fn apply_event(&mut self, event: Event, now: Moment) -> Vec<Effect> {
        match event {
            Event::Key(key) => return self.press_key(&key, now),
            Event::Pasted(text) => self.paste(&zeroize::Zeroizing::new(text), now),
            Event::Mouse(event) => return self.use_mouse(event, now),
            Event::Clicked(action) => return self.perform(action, now),
            Event::Resized(columns, rows) => {
                self.size = (columns.min(MAX_DRAWN_SIZE.0), rows.min(MAX_DRAWN_SIZE.1));
                return vec![Effect::Repaint];
            }
            Event::Host(id, update) => return self.apply_host_update(id, *update, now),
            Event::HostsAdded(hosts, order) => self.add_hosts(&hosts, &order, now),
            Event::Judged(host, verdicts) => {
                self.take_collector_verdicts(host, verdicts);
                self.add_collector_verdicts(now);
            }
            Event::HistoryRead(reply) => self.take_history(reply, now),
            Event::Prompted(prompt) => {
                let opens_at_once = self.fleet.hosts().iter().all(|host| host.snapshot.is_none());
                self.prompts.add(prompt, opens_at_once, now);
            }
            Event::PromptWithdrawn(id) => self.prompts.withdraw(id, now),
            Event::ProblemReported(text) => self.report_message(text, now),
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

    fn apply_host_update(&mut self, id: HostId, update: HostUpdate, now: Moment) -> Vec<Effect> {
        if let HostUpdate::Reply(reply) = &update {
            if self.take_hang_report_reply(id, reply, now) {
                return self.continue_hang_report(now);
            }
            if self.take_investigation_reply(id, reply, now) {
                return self.examine_suspects(now);
            }
            if self.take_process_details_reply(id, reply, now) {
                return Vec::new();
            }
            return self.receive_signal_reply(id, reply, now);
        }
        let fleet = self.frozen.as_mut().map_or(&mut self.fleet, |frozen| &mut frozen.live);
        let change = fleet.apply(id, update, now);
        if change == HostChange::FirstData {
            self.stored_charts.host_reported(id);
        }
        match change {
            HostChange::Nothing => Vec::new(),
            HostChange::Link | HostChange::Data | HostChange::FirstData => {
                let transitions = self.engine.evaluate_host(fleet, id, now);
                if self.frozen.is_none() {
                    self.refresh_host(id, now);
                }
                self.apply_transitions(&transitions)
            }
        }
    }

    /// Adds hosts, also to a frozen view: a host without readings changes none of its figures.
    fn add_hosts(&mut self, hosts: &[(HostId, Arc<HostConfig>)], order: &[HostId], now: Moment) {
        for (id, config) in hosts {
            self.fleet.set_host(*id, Arc::clone(config), now);
            if let Some(frozen) = &mut self.frozen {
                frozen.live.set_host(*id, Arc::clone(config), now);
            }
            self.engine.reset_host(*id);
        }
        self.fleet.set_order(order);
        if let Some(frozen) = &mut self.frozen {
            frozen.live.set_order(order);
        }
        // The rows of all hosts have their places.
        self.refresh_all_hosts(now);
    }

    /// Tells the app that a store of a collector answers [`Effect::ReadHistory`].
    pub fn offer_history(&mut self) {
        self.stored_charts.set_store(true);
    }

    /// Opens the history of a host, or of its GPU with this index, over one day.
    pub fn open_history(&mut self, id: HostId, gpu: Option<u32>) {
        self.screen.span = ChartSpan::Day;
        if self.enter_host(id)
            && let Some(index) = gpu
        {
            self.screen.gpu = index as usize;
            self.screen.enter(View::Gpu(id, index as usize));
            self.screen.wanted_gpu = Some(index);
        }
        self.update_derived_state(Changes::default());
    }

    /// Returns the histories of the store.
    pub fn stored_charts(&self) -> &StoredCharts {
        &self.stored_charts
    }

    fn take_history(&mut self, reply: HistoryReply, now: Moment) {
        if let Some((id, earlier)) = self.stored_charts.take(reply, now) {
            let fleet = self.frozen.as_mut().map_or(&mut self.fleet, |frozen| &mut frozen.live);
            fleet.fill_history(id, &earlier, now);
            if self.frozen.is_none() {
                self.refresh_host(id, now);
            }
        }
    }

    /// Requests the next history, if one is due.
    fn request_history(&mut self, now: Moment) -> Option<Effect> {
        let fleet = self.frozen.as_ref().map_or(&self.fleet, |frozen| &frozen.live);
        self.stored_charts.next_request(&self.screen, fleet, now).map(Effect::ReadHistory)
    }

    /// Selects the GPU of the command line as soon as its position is known.
    fn select_wanted_gpu(&mut self) {
        let (Some(index), Some((id, Some(_)))) = (self.screen.wanted_gpu, self.screen.stored_history()) else { return };
        let Some(host) = self.fleet.host(id) else { return };
        let gpus = self.stored_charts.gpus(host, self.screen.span);
        if let Some(position) = gpus.iter().position(|gpu| gpu.index == index) {
            self.screen.gpu = position;
            self.screen.replace(View::Gpu(id, position));
            if host.inventory.is_some() {
                self.screen.wanted_gpu = None;
            }
        }
    }

    fn tick(&mut self, now: Moment) -> Vec<Effect> {
        let fleet = self.frozen.as_ref().map_or(&self.fleet, |frozen| &frozen.live);
        let transitions = self.engine.tick(fleet, now);
        if self.frozen.is_none() {
            self.derived.tick(&self.fleet, &self.engine, now);
            let fresh = self.derived.host_summaries.iter().filter(|summary| summary.is_fresh);
            self.ledger.tick(fresh.map(|summary| summary.users.users.as_slice()), now);
            // Findings start and end as time passes, even without readings.
            self.changes.readings = true;
        }
        self.notice.take_if(|(_, until)| *until <= now);
        self.withdraw_outdated_summary(now);
        let mut effects = self.apply_transitions(&transitions);
        effects.extend(self.show_startup_summary(now));
        effects.extend(self.tick_signals(now));
        effects.extend(self.continue_hang_report(now));
        effects.extend(self.examine_suspects(now));
        self.add_collector_verdicts(now);
        effects
    }

    /// Replaces the verdicts of a collector about the jobs of a host, and removes verdicts that it has ended from findings.
    fn take_collector_verdicts(&mut self, host: HostId, verdicts: Vec<(JobKey, FindingVerdict)>) {
        let of_host = self.collector_verdicts.extract_if(.., |(of_host, ..)| *of_host == host);
        for (_, job, ended) in of_host.filter(|(_, job, _)| !verdicts.iter().any(|(listed, _)| listed == job)) {
            let is_from_there = |finding: &Finding| finding.verdict.as_ref().is_some_and(|known| known.at == ended.at);
            self.engine.remove_verdict(|finding| finding.concerns_job(host, &job) && is_from_there(finding));
        }
        self.collector_verdicts.extend(verdicts.into_iter().map(|(job, verdict)| (host, job, verdict)));
    }

    /// Adds the verdicts of collectors to the findings about the jobs, unless the user has examined a job since, or the hang
    /// began later. A hang that this program has watched from its middle may have begun earlier.
    fn add_collector_verdicts(&mut self, now: Moment) {
        self.collector_verdicts.retain(|(.., verdict)| verdict.until > now);
        for (host, job, verdict) in &self.collector_verdicts {
            let is_older =
                |finding: &Finding| finding.verdict.as_ref().is_none_or(|known| known.at.unix < verdict.at.unix);
            let is_same_hang = |finding: &Finding| finding.at_least || !finding.began_after(verdict.at);
            let is_about = |finding: &Finding| finding.concerns_job(*host, job) && is_same_hang(finding);
            self.engine.set_verdict(|finding| is_about(finding) && is_older(finding), verdict);
        }
    }

    /// Records findings that changed and returns the notifications they cause.
    fn apply_transitions(&mut self, transitions: &[Transition]) -> Vec<Effect> {
        self.event_log.record_transitions(transitions);
        let news: Vec<FindingNotification> = self.engine.notifications(transitions);
        if news.is_empty() { Vec::new() } else { vec![Effect::Notify(news)] }
    }

    /// Shows once, as soon as all hosts have reported, what ended and what looks hung since the last run.
    fn show_startup_summary(&mut self, now: Moment) -> Vec<Effect> {
        let Some(text) =
            self.startup_summary.take_when_due(&self.fleet, &self.engine, self.settings.utc_offset_seconds, now)
        else {
            return Vec::new();
        };
        self.engine.mark_job_ends_reported(now);
        self.notify_for(text.as_str(), SUMMARY_DURATION, now);
        self.event_log.record_message(text, now);
        self.summary_basis = Some(self.summary_basis_at(now));
        vec![Effect::SaveDiagnosisState]
    }

    /// Removes the summary once hosts fall silent or jobs hang: it would contradict the screen.
    fn withdraw_outdated_summary(&mut self, now: Moment) {
        let Some((fresh, hangs)) = self.summary_basis else { return };
        let (fresh_now, hangs_now) = self.summary_basis_at(now);
        if fresh_now < fresh || hangs_now > hangs {
            self.notice = None;
        }
        if self.notice.is_none() {
            self.summary_basis = None;
        }
    }

    fn summary_basis_at(&self, now: Moment) -> (usize, usize) {
        let fresh = self.live_fleet().hosts().iter().filter(|host| host.is_fresh(now)).count();
        (fresh, self.engine.findings().filter(|finding| finding.rule.is_hang()).count())
    }

    fn refresh_host(&mut self, id: HostId, now: Moment) {
        if let Some(host) = self.fleet.host(id) {
            self.derived.update_host(host, &self.engine, now);
            self.changes.readings = true;
        }
    }

    fn refresh_all_hosts(&mut self, now: Moment) {
        for index in 0..self.fleet.hosts().len() {
            self.refresh_host(HostId(index as u32), now);
        }
        self.changes.readings = true;
    }

    /// Applies the readings that arrived since the last call to the totals, the list and the layout. Call it once
    /// before drawing: 256 hosts send as many updates between two frames, and each would otherwise sort all rows.
    pub fn refresh_derived_state(&mut self) {
        if self.changes.readings {
            self.changes = Changes::default();
            self.update_derived_state(Changes::ALL);
        }
    }

    pub(super) fn update_derived_state(&mut self, changes: Changes) {
        let inputs = Inputs {
            fleet: &self.fleet,
            engine: &self.engine,
            ledger: &self.ledger,
            list_filter: &self.list_filter,
            host_visibility: &self.host_visibility,
            density: self.density,
            size: self.size,
            now: self.display_time(self.now),
        };
        self.derived.update(&inputs, &mut self.screen, changes);
    }

    /// Freezes the view, or continues with the live fleet. Hosts are monitored in both cases.
    pub(super) fn toggle_freeze(&mut self, now: Moment) {
        if let Some(frozen) = self.frozen.take() {
            self.fleet = frozen.live;
            self.refresh_all_hosts(now);
            self.notify("the view is live again", now);
        } else {
            self.frozen = Some(Frozen { since: now, live: self.fleet.clone() });
        }
    }

    /// Marks all job ends so far as seen by the user, so that the next run does not report them.
    pub fn acknowledge_ended_jobs(&mut self, now: Moment) {
        self.engine.mark_job_ends_reported(now);
    }

    /// Shows a message in the hint bar for a minute and records it in the event log.
    pub fn report_message(&mut self, text: impl Into<SafeText>, now: Moment) {
        let text = text.into();
        self.notify_for(text.as_str(), PROBLEM_DURATION, now);
        self.event_log.record_message(text, now);
    }

    pub(super) fn notify(&mut self, text: impl Into<String>, now: Moment) {
        self.notify_for(text, NOTICE_DURATION, now);
    }

    pub(super) fn notify_for(&mut self, text: impl Into<String>, duration: Duration, now: Moment) {
        // A notice is for a person, also in a simulation that runs faster.
        self.notice = Some((text.into(), now.plus(duration.mul_f64(self.fleet.clock_speed()))));
        self.summary_basis = None;
    }

    /// Returns the notice in place of the hint bar, if there is one.
    pub fn notice(&self, now: Moment) -> Option<&str> {
        self.notice.as_ref().filter(|(_, until)| now < *until).map(|(text, _)| text.as_str())
    }

    /// Returns the fleet that is shown.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Returns the current fleet, also while the view is frozen.
    pub fn live_fleet(&self) -> &Fleet {
        self.frozen.as_ref().map_or(&self.fleet, |frozen| &frozen.live)
    }

    /// Returns the time at which the view was frozen, or `None` if it is live.
    pub fn frozen_since(&self) -> Option<Moment> {
        self.frozen.as_ref().map(|frozen| frozen.since)
    }

    /// Returns the time that the screen shows: `now`, or the time at which the view was frozen.
    pub fn display_time(&self, now: Moment) -> Moment {
        self.frozen_since().unwrap_or(now)
    }

    /// Returns the state of the diagnosis engine to save for the next run.
    pub fn memory(&self, now: Moment) -> SavedState {
        self.engine.to_saved_state(self.live_fleet(), now)
    }

    /// Returns the power in watts that a GPU was seen to draw, with a label: idle, and doing the healthy work of its
    /// current job.
    pub fn learned_watts(&self, host: HostId, position: usize) -> impl Iterator<Item = (&'static str, f32)> {
        let idle = self.engine.idle_watts(host, position).map(|watts| ("idle", watts));
        let healthy = self.engine.healthy_watts(host, position).map(|watts| ("healthy", watts));
        idle.into_iter().chain(healthy)
    }

    /// Returns why a GPU is unused and not free; `None` in another state.
    pub fn unused_reason(&self, host: &Host, position: usize) -> Option<UnusedReason> {
        self.engine.unused_reason(host, position)
    }

    /// Returns the time between samples.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Returns columns and rows of the terminal.
    pub fn size(&self) -> (u16, u16) {
        self.size
    }

    /// Returns the navigation state.
    pub fn screen(&self) -> &Screen {
        &self.screen
    }

    /// Returns what the list is limited to.
    pub fn list_filter(&self) -> &ListFilter {
        &self.list_filter
    }

    /// Returns the prompts that wait for an answer.
    pub fn prompts(&self) -> &Prompts {
        &self.prompts
    }

    /// Returns the state of the signal dialog.
    pub fn signals(&self) -> &Signals {
        &self.signals
    }

    /// Returns the palette, while it is open.
    pub fn palette(&self) -> Option<&Palette> {
        self.palette.as_ref()
    }

    /// Returns the keymap of this run.
    pub fn keymap(&self) -> &Keymap {
        &self.preferences.keymap
    }

    /// Returns the rows of the help on a screen of this many columns.
    pub fn help_rows(&self, dialog: &HelpDialog, screen_columns: u16) -> Vec<HelpRow> {
        let blocks = help_blocks(dialog, self.keymap(), self.settings.is_readonly);
        help_rows(blocks, help_columns(dialog, screen_columns))
    }

    /// Returns the findings and messages of this run.
    pub fn event_log(&self) -> &EventLog {
        &self.event_log
    }

    /// Returns the figures of a host, or `None` if the host is unknown.
    pub fn host_summary(&self, host: &Host) -> Option<&HostSummary> {
        self.derived.host_summaries.get(host.id.0 as usize)
    }

    /// Returns the totals of all hosts.
    pub fn totals(&self) -> &Totals {
        &self.derived.totals
    }

    /// Returns the error of a collector that does not answer and when the last readings of its hosts arrived.
    pub fn silent_collector(&self) -> Option<(&LinkError, Moment)> {
        self.fleet.hosts().iter().find_map(|host| match &host.link {
            Link::Down { error, since, .. } if error.kind == LinkErrorKind::CollectorSilent => Some((error, *since)),
            _ => None,
        })
    }

    /// Returns the collector that relays all hosts, if one does.
    pub fn relaying_collector(&self) -> Option<&SafeText> {
        let mut collectors = self.fleet.hosts().iter().map(|host| host.config.relayed_by.as_ref());
        let first = collectors.next()??;
        collectors.all(|collector| collector == Some(first)).then_some(first)
    }

    /// Returns the number of hosts in each connection state.
    pub fn links(&self) -> LinkCounts {
        self.derived.links
    }

    /// Returns the findings.
    pub fn findings(&self) -> &Findings {
        &self.derived.findings
    }

    /// Returns who holds which GPUs. Up to date while the view of users is shown.
    pub fn users_view(&self) -> &Users {
        &self.derived.users
    }

    /// Returns the rows of the list.
    pub fn rows(&self) -> &[ListRow] {
        &self.derived.rows
    }

    /// Returns the number of jobs that the list shows and the number of all jobs. Counts processes if the list is not
    /// grouped.
    pub fn row_counts(&self) -> (usize, usize) {
        self.derived.row_counts
    }

    /// Returns the recent SM share of a row on the screen, the oldest point first.
    pub fn sparkline(&self, row: &RowKey) -> Option<&[Option<f32>]> {
        self.derived.sparkline(row)
    }

    /// Returns all jobs on a host, whatever the filter.
    pub fn jobs(&self, id: HostId) -> &[JobRows] {
        self.derived.row_cache.jobs(id)
    }

    /// Returns the row of a process or job: that of the list, else one that the list shows in a group or not at all.
    pub fn row(&self, key: &RowKey) -> Option<&Row> {
        let listed = self.rows().iter().find(|row| row.key == *key).map(|row| &**row);
        listed.or_else(|| self.jobs(key.host).iter().map(|job| &*job.row).find(|row| row.key == *key))
    }

    /// Returns each user with processes, the GPU memory held in bytes and the number of jobs, the most memory first.
    pub fn user_totals(&self) -> Vec<(SafeText, u64, usize)> {
        let mut users: Vec<(SafeText, u64, usize)> = Vec::new();
        let mut indexes: HashMap<&SafeText, usize> = HashMap::new();
        let jobs = self.fleet.hosts().iter().flat_map(|host| self.jobs(host.id));
        for row in jobs.map(|job| &job.row).filter(|row| row.ended_at.is_none()) {
            let bytes = row.gpu_memory_bytes.unwrap_or(0);
            let index = *indexes.entry(&row.who).or_insert(users.len());
            match users.get_mut(index) {
                Some((_, held, count)) => {
                    *held = held.saturating_add(bytes);
                    *count += 1;
                }
                None => users.push((row.who.clone(), bytes, 1)),
            }
        }
        users.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        users
    }

    /// Returns the hosts that are shown, by index, in the order of the screen.
    pub fn visible_hosts(&self) -> &[usize] {
        &self.derived.visible_hosts
    }

    /// Returns the number of hosts that the user has hidden, and the number of others that the filter excludes.
    pub fn hidden_host_counts(&self) -> (usize, usize) {
        let hidden = self.hidden_count();
        (hidden, self.fleet.hosts().len().saturating_sub(hidden + self.visible_hosts().len()))
    }

    pub(super) fn hidden_count(&self) -> usize {
        let hidden = &self.host_visibility.hidden;
        self.fleet.hosts().iter().filter(|host| hidden.contains(host.name())).count()
    }

    /// Returns whether the user has pinned this host to the top.
    pub fn is_pinned(&self, name: &SafeText) -> bool {
        self.host_visibility.pinned.contains(name)
    }

    /// Returns the host whose view is shown.
    pub fn host_in_view(&self) -> Option<&Host> {
        self.screen.host_in_view().and_then(|id| self.fleet.host(id))
    }

    pub(super) fn gpus_in_view(&self) -> usize {
        let Some(host) = self.host_in_view() else { return 0 };
        match self.screen.stored_history() {
            Some(_) => self.stored_charts.gpus(host, self.screen.span).len(),
            None => self.gpu_count(host.id.0 as usize),
        }
    }

    pub(super) fn gpu_count(&self, host: usize) -> usize {
        self.derived.host_summaries.get(host).map_or(0, |summary| summary.gpus.len())
    }

    pub(super) fn list_capacity(&self) -> usize {
        self.derived.list_capacity(&self.screen)
    }

    /// Returns the number of lines that the view of findings shows at once.
    pub(super) fn visible_finding_count(&self) -> usize {
        usize::from(findings_layout(self.size.1.saturating_sub(2)).visible)
    }

    /// Sets the number of lines by which the view of a process can be scrolled, which drawing it has shown.
    pub fn set_process_scroll_limit(&mut self, limit: usize) {
        self.process_scroll_limit = limit;
        self.screen.process_top = self.screen.process_top.min(limit);
    }

    /// Returns the layout of a screen of this size.
    pub fn screen_layout(&self, size: (u16, u16)) -> ScreenLayout {
        if size == self.derived.screen_layout.size {
            self.derived.screen_layout
        } else {
            compute_layout(size, self.derived.layout_inputs(&self.fleet, &self.screen, self.density))
        }
    }

    /// Returns the layout of the view of one host on a screen of this size.
    pub fn host_layout(&self, size: (u16, u16)) -> HostLayout {
        let findings = self.screen.host_in_view().map_or(0, |id| self.findings().alerts_of_host(id).count());
        compute_host_layout(size, self.gpus_in_view(), findings, self.screen.is_list_focused())
    }

    /// Returns the lines of the wall.
    pub fn wall_lines(&self) -> Vec<WallLine> {
        self.derived.wall_lines(&self.fleet)
    }

    /// Returns the layout of the wall on a screen of this size.
    pub fn wall_layout(&self, size: (u16, u16)) -> WallLayout {
        self.derived.wall_layout(&self.fleet, size)
    }

    /// Returns the part of the screen that receives keys.
    pub fn mode(&self) -> Mode {
        if let Some((prompt, _)) = self.prompts.open_dialog() {
            return match prompt.kind {
                PromptKind::HostKey { .. } => Mode::HostKeyDialog,
                PromptKind::Passphrase { .. } | PromptKind::Secret { .. } => Mode::SecretDialog,
            };
        }
        if self.signals.dialog().is_some() {
            return Mode::SignalDialog;
        }
        if self.palette.is_some() {
            return Mode::Palette;
        }
        if self.screen.help.is_some() {
            return Mode::Help;
        }
        if self.screen.signal_menu {
            return Mode::SignalMenu;
        }
        if self.screen.user_picker.is_some() {
            return Mode::UserPicker;
        }
        if self.list_filter.line().is_some() {
            return Mode::FilterLine;
        }
        if self.screen.sort_menu {
            return Mode::SortMenu;
        }
        match (self.screen.view(), self.screen.focus()) {
            (View::Overview, Focus::Panes) => Mode::Grid,
            (View::Overview, Focus::List) => Mode::List,
            (View::Host(_), Focus::Panes) => Mode::Host,
            (View::Host(_), Focus::List) => Mode::HostList,
            (View::Gpu(..), _) => Mode::Gpu,
            (View::Processes, _) => Mode::Processes,
            (View::Log(_), _) => Mode::Log,
            (View::Wall, _) => Mode::Wall,
            (View::Users, _) => Mode::Users,
            (View::Findings, _) => Mode::Findings,
            (View::History, _) => Mode::History,
            (View::HangReport, _) => Mode::HangReport,
            (View::Process(_), _) => Mode::Process,
        }
    }
}

#[cfg(test)]
#[path = "app_tests.rs"]
mod tests;
