//! The whole state of the program, and how an event changes it.

use super::arrange::{Arrangement, Demand, arrange};
use super::attend::Greeting;
use super::host_shape::HostShape;
use super::shown::Frozen;
use super::signals::Signals;
use super::trends::Trends;
use super::{
    Chronicle, Density, Effect, Event, Findings, HostChoice, HostFigures, Keymap, LinkCounts, Narrowing, NoteTemplate,
    Palette, Preferences, Prompts, Screen, Settings, Users,
};
use crate::diagnosis::Engine;
use crate::fleet::{Applied, Fleet, HostId, HostUpdate, ListRow, Moment, RowsView, Totals, UsageLedger};
use crate::hosts::HostConfig;
use crate::wire::SafeText;
use std::time::Duration;
use zeroize::Zeroizing;

/// How long a notice stays in the hint bar.
const NOTICE_STAYS: Duration = Duration::from_secs(4);

/// How long it stays when it says what came of a key that took its time.
const DONE_STAYS: Duration = Duration::from_secs(10);

/// How long it stays when it says what nobody has asked for.
const TROUBLE_STAYS: Duration = Duration::from_secs(60);

/// The program's state. [`App::update`] is the only way in; the drawing only reads.
#[derive(Debug)]
pub struct App {
    /// When the last event happened.
    pub(super) now: Moment,
    /// How the screen shall look. The event loop keeps the offset from UTC current.
    pub settings: Settings,
    pub(super) fleet: Fleet,
    pub(super) screen: Screen,
    pub(super) prompts: Prompts,
    pub(super) rows: Vec<ListRow>,
    /// Jobs, or processes, that the list shows, and all of them.
    pub(super) rows_kept: (usize, usize),
    pub(super) narrowing: Narrowing,
    pub(super) trends: Trends,
    pub(super) signals: Signals,
    /// The hosts that are shown, in order.
    pub(super) shown: Vec<usize>,
    pub(super) hosts: HostChoice,
    pub(super) density: Density,
    pub(super) frozen: Option<Frozen>,
    pub(super) palette: Option<Palette>,
    pub(super) keymap: Keymap,
    /// Clicks and the wheel are ours.
    pub(super) has_mouse: bool,
    /// The note to somebody whose GPU is idle or may hang.
    pub(super) note: NoteTemplate,
    pub(super) interval: Duration,
    pub(super) size: (u16, u16),
    pub(super) demanded: Demand,
    pub(super) arrangement: Arrangement,
    pub(super) host_shape: HostShape,
    pub(super) engine: Engine,
    pub(super) findings: Findings,
    pub(super) chronicle: Chronicle,
    pub(super) greeting: Greeting,
    pub(super) rows_view: RowsView,
    pub(super) users: Users,
    pub(super) ledger: UsageLedger,
    pub(super) figures: Vec<HostFigures>,
    pub(super) totals: Totals,
    pub(super) links: LinkCounts,
    /// A host changed since the sums and the list were computed.
    pub(super) unsettled: bool,
    pub(super) notice: Option<(String, Moment)>,
}

impl App {
    /// The state before anything has happened.
    pub fn new(fleet: Fleet, settings: Settings, engine: Engine, now: Moment) -> Self {
        let interval = fleet.hosts().iter().map(|host| host.config.interval).min();
        let mut app = Self {
            now,
            settings,
            figures: vec![HostFigures::default(); fleet.hosts().len()],
            fleet,
            screen: Screen::default(),
            prompts: Prompts::default(),
            rows: Vec::new(),
            rows_kept: (0, 0),
            narrowing: Narrowing::default(),
            trends: Trends::default(),
            signals: Signals::default(),
            shown: Vec::new(),
            hosts: HostChoice::default(),
            density: Density::default(),
            frozen: None,
            palette: None,
            keymap: Keymap::default(),
            has_mouse: true,
            note: NoteTemplate::default(),
            interval: interval.unwrap_or(HostConfig::DEFAULT_INTERVAL),
            size: (0, 0),
            demanded: Demand::default(),
            arrangement: arrange((0, 0), Demand::default(), None),
            host_shape: HostShape::default(),
            greeting: Greeting::new(engine.looked_last().is_some(), now),
            engine,
            findings: Findings::default(),
            chronicle: Chronicle::default(),
            rows_view: RowsView::default(),
            users: Users::default(),
            ledger: UsageLedger::default(),
            totals: Totals::default(),
            links: LinkCounts::default(),
            unsettled: false,
            notice: None,
        };
        for index in 0..app.figures.len() {
            app.refresh_host(HostId(index as u32), now);
        }
        app.refresh_sums();
        app.refresh_shown();
        app
    }

    /// Takes over what the settings say.
    pub fn prefer(&mut self, preferences: &Preferences) {
        self.keymap = preferences.keymap.clone();
        self.note = preferences.note.clone();
        self.has_mouse = preferences.mouse;
        self.density = preferences.density.unwrap_or(self.density);
        self.rearrange();
    }

    /// Takes an event and says what shall be done.
    pub fn update(&mut self, event: Event, now: Moment) -> Vec<Effect> {
        self.now = now;
        let before = self.screen.list.top(self.rows.len(), self.list_capacity());
        let effects = self.take(event, now);
        if self.screen.list.top(self.rows.len(), self.list_capacity()) != before {
            self.refresh_trends();
        }
        effects
    }

    fn take(&mut self, event: Event, now: Moment) -> Vec<Effect> {
        match event {
            Event::Key(key) => return self.key(key, now),
            Event::Pasted(text) => self.paste(&Zeroizing::new(text), now),
            Event::Mouse(event) => return self.mouse(event, now),
            Event::Resized(columns, rows) => {
                self.size = (columns, rows);
                self.rearrange();
                return vec![Effect::Repaint];
            }
            Event::Host(id, update) => return self.host_updated(id, *update, now),
            Event::Prompted(prompt) => {
                let nothing_live = self.fleet.hosts().iter().all(|host| host.snapshot.is_none());
                self.prompts.add(prompt, nothing_live, now);
            }
            Event::PromptWithdrawn(id) => self.prompts.withdraw(id, now),
            Event::WentWrong(text) => self.trouble(text, now),
            Event::Done(text) => self.notify_for(text.as_str(), DONE_STAYS, now),
            Event::Ticked => return self.tick(now),
            Event::Resumed => {
                self.say("resumed, reconnecting", now);
                let mut effects = self.tick(now);
                effects.push(Effect::Repaint);
                return effects;
            }
        }
        Vec::new()
    }

    /// Somebody has seen, or could have, all that has ended so far.
    pub fn told_ended(&mut self, now: Moment) {
        self.engine.told_ended(now);
    }

    /// Tells the person something in the place of the hints, for a minute, and writes it into the history.
    pub fn say(&mut self, text: impl Into<SafeText>, now: Moment) {
        self.trouble(text.into(), now);
    }

    /// The same for a minute: nobody may be looking now.
    pub(super) fn notify_long(&mut self, text: impl Into<String>, now: Moment) {
        self.notice = Some((text.into(), now.plus(TROUBLE_STAYS)));
    }

    pub(super) fn notify(&mut self, text: impl Into<String>, now: Moment) {
        self.notify_for(text, NOTICE_STAYS, now);
    }

    pub(super) fn notify_for(&mut self, text: impl Into<String>, stays: Duration, now: Moment) {
        self.notice = Some((text.into(), now.plus(stays)));
    }

    fn host_updated(&mut self, id: HostId, update: HostUpdate, now: Moment) -> Vec<Effect> {
        if let HostUpdate::Reply(reply) = &update {
            return self.signal_answered(id, reply, now);
        }
        match self.live_fleet_mut().apply(id, update, now) {
            Applied::Nothing => Vec::new(),
            Applied::Link | Applied::Data | Applied::FirstData => {
                let fleet = self.frozen.as_ref().map_or(&self.fleet, Frozen::live);
                let transitions = self.engine.step(fleet, id, now);
                if self.frozen.is_none() {
                    self.refresh_host(id, now);
                    self.unsettled = true;
                }
                self.tell(&transitions)
            }
        }
    }

    fn tick(&mut self, now: Moment) -> Vec<Effect> {
        let fleet = self.frozen.as_ref().map_or(&self.fleet, Frozen::live);
        let transitions = self.engine.tick(fleet, now);
        if self.frozen.is_none() {
            self.tick_figures(now);
        }
        self.notice.take_if(|(_, until)| *until <= now);
        let mut effects = self.tell(&transitions);
        effects.extend(self.greet(now));
        effects.extend(self.tick_signals(now));
        effects
    }
}
