//! The whole state of the program, and how an event changes it.

use super::arrange::{Arrangement, Demand, arrange, findings_shape};
use super::attend::Greeting;
use super::host_shape::{HostShape, arrange_host};
use super::keymap::{Binding, changes_hosts};
use super::narrowing::About;
use super::prompts::DialogKey;
use super::screen::list_capacity;
use super::shown::Frozen;
use super::signals::{SignalKey, Signals};
use super::trends::Trends;
use super::wall::{WallLine, WallShape, arrange_wall, wall_lines};
use super::{
    Action, Chronicle, Density, Effect, Event, Findings, Focus, HostChoice, HostFigures, Keymap, LinkCounts, Mode,
    Narrowing, NoteTemplate, Palette, Preferences, Prompts, Screen, Settings, Users, View,
};
use crate::diagnosis::{Engine, Memory};
use crate::fleet::{
    Applied, Fleet, Group, Host, HostId, HostUpdate, JobRows, Link, ListRow, Moment, Row, RowKey, RowsView, Totals,
    UsageLedger, jobs_across,
};
use crate::hosts::HostConfig;
use crate::ssh::prompt::PromptKind;
use crate::wire::SafeText;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::sync::Arc;
use std::time::Duration;
use unicode_width::UnicodeWidthStr;
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
    demanded: Demand,
    pub(super) arrangement: Arrangement,
    pub(super) host_shape: HostShape,
    pub(super) engine: Engine,
    pub(super) findings: Findings,
    pub(super) chronicle: Chronicle,
    pub(super) greeting: Greeting,
    pub(super) rows_view: RowsView,
    pub(super) users: Users,
    ledger: UsageLedger,
    figures: Vec<HostFigures>,
    totals: Totals,
    links: LinkCounts,
    /// A host changed since the sums and the list were computed.
    unsettled: bool,
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

    /// All hosts.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// The figures of one host; those of an unknown one are empty.
    pub fn figures(&self, host: &Host) -> Option<&HostFigures> {
        self.figures.get(host.id.0 as usize)
    }

    /// What was learned of a GPU's power, in words and watts: with a context and no work, and at the healthy work of its
    /// present job.
    pub fn learned_watts(&self, host: HostId, position: usize) -> impl Iterator<Item = (&'static str, f32)> {
        let idle = self.engine.idle_watts(host, position).map(|watts| ("idle", watts));
        let healthy = self.engine.healthy_watts(host, position).map(|watts| ("healthy", watts));
        idle.into_iter().chain(healthy)
    }

    /// The sums over all hosts.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// How many hosts are in each state of their connection.
    pub fn links(&self) -> LinkCounts {
        self.links
    }

    /// The rows of the list in the present view.
    pub fn rows(&self) -> &[ListRow] {
        &self.rows
    }

    /// How many jobs, or processes where there are no groups, the list shows, and how many there are.
    pub fn rows_kept(&self) -> (usize, usize) {
        self.rows_kept
    }

    /// What the list is narrowed to.
    pub fn narrowing(&self) -> &Narrowing {
        &self.narrowing
    }

    /// The recent SM share of a row that is on the screen, the oldest point first.
    pub fn trend(&self, row: &RowKey) -> Option<&[Option<f32>]> {
        self.trends.of(row)
    }

    /// Everybody who has processes: how much GPU memory, how many jobs; the most memory first.
    pub fn users(&self) -> Vec<(SafeText, u64, usize)> {
        let mut users: Vec<(SafeText, u64, usize)> = Vec::new();
        let jobs = self.fleet.hosts().iter().flat_map(|host| self.rows_view.jobs(host.id));
        for row in jobs.map(|job| &job.row).filter(|row| row.ended_at.is_none()) {
            let bytes = row.gpu_memory_bytes.unwrap_or(0);
            match users.iter_mut().find(|(user, ..)| *user == row.who) {
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

    /// What diagnosis wants kept for the next run of the program.
    pub fn memory(&self, now: Moment) -> Memory {
        self.engine.memory(self.live_fleet(), now)
    }

    /// Somebody has seen, or could have, all that has ended so far.
    pub fn told_ended(&mut self, now: Moment) {
        self.engine.told_ended(now);
    }

    /// What has happened in this run.
    pub fn chronicle(&self) -> &Chronicle {
        &self.chronicle
    }

    /// Tells the person something in the place of the hints, for a minute, and writes it into the history.
    pub fn say(&mut self, text: impl Into<SafeText>, now: Moment) {
        self.trouble(text.into(), now);
    }

    /// What diagnosis says.
    pub fn findings(&self) -> &Findings {
        &self.findings
    }

    /// How many findings the view of them shows at once.
    pub(super) fn findings_shown(&self) -> usize {
        usize::from(findings_shape(self.size.1.saturating_sub(2)).shown)
    }

    /// Which view is shown and where the keys go.
    pub fn screen(&self) -> &Screen {
        &self.screen
    }

    /// The questions that wait.
    pub fn prompts(&self) -> &Prompts {
        &self.prompts
    }

    /// Time between samples.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// What the last key came to, for a few seconds.
    pub fn notice(&self, now: Moment) -> Option<&str> {
        self.notice.as_ref().filter(|(_, until)| now < *until).map(|(text, _)| text.as_str())
    }

    /// The division of a screen of this size.
    pub fn arrangement(&self, size: (u16, u16)) -> Arrangement {
        if size == self.arrangement.size { self.arrangement } else { arrange(size, self.demand(), None) }
    }

    /// The division of a screen of this size that shows one host in full.
    pub fn host_shape(&self, size: (u16, u16)) -> HostShape {
        arrange_host(size, self.gpus_in_view(), self.screen.list_focused())
    }

    /// Who holds what; worked out while the view of users is shown.
    pub fn user_view(&self) -> &Users {
        &self.users
    }

    /// All jobs on a host, whatever the list shows of them.
    pub fn jobs(&self, id: HostId) -> &[JobRows] {
        self.rows_view.jobs(id)
    }

    /// The lines of the wall.
    pub fn wall_lines(&self) -> Vec<WallLine> {
        wall_lines(&self.fleet, |index| self.shown.contains(&index))
    }

    /// The division of a screen of this size that shows the wall.
    pub fn wall_shape(&self, size: (u16, u16)) -> WallShape {
        let name = self.fleet.hosts().iter().map(|host| host.name().width()).max().unwrap_or(0);
        let lines = self.wall_lines().len();
        arrange_wall((size.0, size.1.saturating_sub(2)), lines, self.demand().gpus, name)
    }

    /// The host that is shown in full.
    pub fn host_in_view(&self) -> Option<&Host> {
        match self.screen.view() {
            View::Host(id) | View::Gpu(id, _) => self.fleet.host(*id),
            _ => None,
        }
    }

    /// The command palette, while it is open.
    pub fn palette(&self) -> Option<&Palette> {
        self.palette.as_ref()
    }

    /// What the palette offers for what has been typed.
    pub fn palette_entries(&self) -> Vec<&'static Binding> {
        let is_offered = |line: &Binding| !(self.settings.is_readonly && changes_hosts(line.action));
        self.palette.as_ref().map_or_else(Vec::new, |palette| palette.entries(is_offered))
    }

    /// The keys in force.
    pub fn keymap(&self) -> &Keymap {
        &self.keymap
    }

    /// What has the keys.
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
        if self.narrowing.line().is_some() {
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
            (View::Process(_), _) => Mode::Process,
        }
    }

    fn key(&mut self, key: KeyEvent, now: Moment) -> Vec<Effect> {
        // What was said there is read, and the line is for the keys again.
        self.notice = None;
        let mode = self.mode();
        let Some((_, dialog)) = self.prompts.open_dialog() else {
            if mode == Mode::SignalDialog {
                return match (self.keymap.action(mode, &key), key.code) {
                    (Some(action @ (Action::Quit | Action::Repaint | Action::Suspend)), _) => self.act(action, now),
                    (Some(action), _) => self.signal_key(SignalKey::Action(action), now),
                    (None, KeyCode::Char(character))
                        if !key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) =>
                    {
                        self.signal_key(SignalKey::Character(character), now)
                    }
                    (None, _) => Vec::new(),
                };
            }
            if mode == Mode::FilterLine {
                return self.filter_key(&key, now);
            }
            if mode == Mode::Palette {
                return self.palette_key(&key, now);
            }
            return self.keymap.action(mode, &key).map_or_else(Vec::new, |action| self.act(action, now));
        };
        // Letters that are keys of the dialog are text once something has been typed.
        let typed = match key.code {
            KeyCode::Char(character)
                if !key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT)
                    && (!dialog.input.is_empty() || self.keymap.action(mode, &key).is_none()) =>
            {
                DialogKey::Character(character)
            }
            _ => match self.keymap.action(mode, &key) {
                Some(action @ (Action::Quit | Action::Repaint | Action::Suspend)) => return self.act(action, now),
                Some(action) => DialogKey::Action(action),
                None => return Vec::new(),
            },
        };
        self.prompts.act(typed, now).map(|(id, answer)| Effect::Answer(id, answer)).into_iter().collect()
    }

    /// A key of the filter's line: one of its own, or text.
    fn filter_key(&mut self, key: &KeyEvent, now: Moment) -> Vec<Effect> {
        match (self.keymap.action(Mode::FilterLine, key), key.code) {
            (Some(action @ (Action::Quit | Action::Repaint | Action::Suspend | Action::Help)), _) => {
                return self.act(action, now);
            }
            (Some(action), _) => self.narrowing.act(action),
            (None, KeyCode::Char(character))
                if !key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) =>
            {
                self.narrowing.type_text(character.encode_utf8(&mut [0; 4]));
            }
            (None, _) => return Vec::new(),
        }
        self.narrowed();
        Vec::new()
    }

    /// A key of the palette: one of its own, or text.
    fn palette_key(&mut self, key: &KeyEvent, now: Moment) -> Vec<Effect> {
        match (self.keymap.action(Mode::Palette, key), key.code) {
            (Some(action), _) => return self.act(action, now),
            (None, KeyCode::Char(character))
                if !key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) =>
            {
                if let Some(palette) = &mut self.palette {
                    palette.type_text(character.encode_utf8(&mut [0; 4]));
                }
            }
            (None, _) => {}
        }
        Vec::new()
    }

    fn paste(&mut self, text: &str, now: Moment) {
        if let Some(palette) = &mut self.palette {
            palette.type_text(text);
            return;
        }
        if self.mode() == Mode::FilterLine {
            self.narrowing.type_text(text);
            self.narrowed();
            return;
        }
        if self.mode() == Mode::SecretDialog {
            // A passphrase is often pasted with the end of its line, which must not be taken for Enter.
            for character in text.trim_end_matches(['\r', '\n']).chars() {
                self.prompts.act(DialogKey::Character(character), now);
            }
        }
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

    /// Computes what rests on all hosts, if any of them changed: sums, the list, the division of the screen. To be called
    /// once after a batch of events and before drawing: 256 hosts send as many updates between two frames, and each would
    /// otherwise sort the rows of all others.
    pub fn settle(&mut self) {
        if std::mem::take(&mut self.unsettled) {
            self.refresh_sums();
            // A filter may ask for free GPUs.
            self.refresh_shown();
            let shown = self.findings_shown();
            self.findings.refresh(&self.engine, shown);
            self.refresh_rows();
            self.refresh_users();
            self.rearrange();
        }
    }

    /// Computes the view of users, while it is shown.
    pub(super) fn refresh_users(&mut self) {
        if self.screen.view() != &View::Users {
            return;
        }
        self.users.refresh(&self.figures, &self.ledger);
        let who = self.users.selected().map(|user| user.sum.who.clone());
        let jobs = self.fleet.hosts().iter().flat_map(|host| self.rows_view.jobs(host.id));
        let mut rows: Vec<Arc<Row>> = jobs
            .map(|job| &job.row)
            .filter(|row| Some(&row.who) == who.as_ref() && row.ended_at.is_none())
            .cloned()
            .collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.gpu_memory_bytes));
        self.users.set_rows(rows);
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

    fn tick_figures(&mut self, now: Moment) {
        for (host, figures) in self.fleet.hosts().iter().zip(&mut self.figures) {
            let states = self.engine.states(host.id);
            if self.rows_view.tick(host, states, now) {
                *figures = HostFigures::of(host, &self.engine, self.rows_view.jobs(host.id), now);
            }
        }
        let seen = self.figures.iter().filter(|figures| figures.is_fresh);
        self.ledger.tick(seen.map(|figures| figures.users.users.as_slice()), now);
        // Findings come and go with time alone.
        self.unsettled = true;
    }

    /// Computes everything anew that rests on the hosts.
    pub(super) fn refresh_all(&mut self, now: Moment) {
        for index in 0..self.figures.len() {
            self.refresh_host(HostId(index as u32), now);
        }
        self.unsettled = true;
        self.settle();
    }

    pub(super) fn refresh_host(&mut self, id: HostId, now: Moment) {
        let (Some(host), Some(figures)) = (self.fleet.host(id), self.figures.get_mut(id.0 as usize)) else { return };
        self.rows_view.update(host, self.engine.states(id), now);
        *figures = HostFigures::of(host, &self.engine, self.rows_view.jobs(id), now);
    }

    fn refresh_sums(&mut self) {
        self.totals = Totals::default();
        for figures in &self.figures {
            self.totals.add(&figures.totals);
        }
        self.links = LinkCounts::default();
        for host in self.fleet.hosts() {
            *match host.link {
                // It is well, and counts as none that is missing.
                Link::Down { .. } if host.link.is_refused() => continue,
                Link::Connecting { .. } => &mut self.links.connecting,
                Link::Live => &mut self.links.live,
                Link::Stale { .. } => &mut self.links.stale,
                Link::Down { .. } => &mut self.links.down,
                Link::NeedsUser { .. } => &mut self.links.needs_user,
            } += 1;
        }
    }

    /// Computes the list anew: after new data, and after a key that changes what is in it.
    pub(super) fn refresh_rows(&mut self) {
        let now = self.shown_at(self.now);
        let only = self.screen.only_host();
        let list = &self.screen.list;
        let (findings, narrowing) = (&self.findings, &self.narrowing);
        let looked_at = if let View::Process(key) = self.screen.view() { Some(key) } else { None };
        let keep = |row: &Row| {
            let is_looked_at =
                || looked_at.is_some_and(|key| key.host == row.key.host && key.process == row.key.process);
            let is_kept = || {
                let host = self.fleet.host(row.key.host).zip(self.figures.get(row.key.host.0 as usize));
                host.is_some_and(|(host, figures)| narrowing.keeps(row, &About { host, figures, findings, now }))
            };
            let is_hidden =
                || self.fleet.host(row.key.host).is_some_and(|host| self.hosts.hidden.contains(host.name()));
            only.map_or_else(|| !is_hidden(), |id| row.key.host == id)
                && (!narrowing.is_narrow() || is_kept() || is_looked_at())
        };
        let across = if list.order().group == Group::Across { jobs_across(&self.fleet) } else { Vec::new() };
        let rank = |row: &Row| findings.rank_of_row(row);
        let listed = self.rows_view.list(list.order(), list.open(), &across, keep, rank);
        self.rows = listed.rows;
        // Of one host in full only its own count.
        let total = only.map_or(listed.total, |id| match list.order().group {
            Group::None => self.rows_view.jobs(id).iter().map(|job| job.processes.len()).sum(),
            _ => self.rows_view.jobs(id).len(),
        });
        self.rows_kept = (listed.kept, total);
        let rows_view = &self.rows_view;
        self.screen.list.keep_tags(|key| rows_view.has(key));
        let capacity = self.list_capacity();
        self.screen.list.follow(&self.rows, capacity);
        self.refresh_trends();
    }

    /// Works out the history of the rows on the screen.
    fn refresh_trends(&mut self) {
        let capacity = self.list_capacity();
        let top = self.screen.list.top(self.rows.len(), capacity);
        let shown = self.rows.iter().skip(top).take(capacity);
        self.trends.refresh(&self.fleet, &self.rows_view, shown.map(|row| &**row), self.now);
    }

    pub(super) fn list_capacity(&self) -> usize {
        list_capacity(&self.screen, &self.arrangement, &self.host_shape)
    }

    /// Divides the screen anew: after a resize, when the focus moves, when a host turns out to have more GPUs. Never
    /// because of readings.
    pub(super) fn rearrange(&mut self) {
        let demand = self.demand();
        let previous = self.arrangement.grid.filter(|_| self.demanded == demand);
        self.arrangement = arrange(self.size, demand, previous.as_ref());
        self.demanded = demand;
        self.host_shape = self.host_shape(self.size);
        if let Some(shape) = self.arrangement.grid {
            let place = self.shown.iter().position(|host| *host == self.screen.host).unwrap_or(0);
            self.screen.show_host(place, &shape);
        }
        let capacity = self.list_capacity();
        self.screen.list.follow(&self.rows, capacity);
    }

    fn demand(&self) -> Demand {
        let gpus = self.figures.iter().map(|figures| figures.gpus.len()).max().unwrap_or(0);
        Demand { hosts: self.shown.len(), gpus, list_focused: self.screen.list_focused(), density: self.density }
    }

    pub(super) fn gpus_in_view(&self) -> usize {
        self.host_in_view().and_then(|host| self.figures(host)).map_or(0, |figures| figures.gpus.len())
    }
}
