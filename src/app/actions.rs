//! What each action of the keymap does.

use super::help::help_lines;
use super::screen::{HISTORY_FRAME_ROWS, help_page, moved};
use super::users::users_shown;
use super::wall::WallPlace;
use super::{Action, App, Density, Effect, Focus, Mode, Palette, View};
use crate::fleet::{HeadKey, HostId, Link, Moment, Unfold};
use crate::wire::{Request, Signal};
use std::time::Duration;

/// The intervals that `+` and `-` step through, in milliseconds.
const INTERVALS_MS: [u64; 8] = [250, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000];

impl App {
    /// Performs an action of the mode that has the keys.
    pub(super) fn act(&mut self, action: Action, now: Moment) -> Vec<Effect> {
        // Whatever letter follows `o`, the menu is over.
        if std::mem::take(&mut self.screen.sort_menu) && action == Action::Back {
            return Vec::new();
        }
        if std::mem::take(&mut self.screen.signal_menu) && action == Action::Back {
            return Vec::new();
        }
        if self.palette.is_some() && !matches!(action, Action::Quit | Action::Repaint | Action::Suspend) {
            return self.act_in_palette(action, now);
        }
        match action {
            Action::Interrupt => self.ask_signal(Signal::Interrupt, now),
            Action::Terminate => self.ask_signal(Signal::Terminate, now),
            Action::Kill => self.ask_signal(Signal::Kill, now),
            Action::SignalMenu => self.screen.signal_menu = true,
            Action::Quit => return vec![Effect::Quit],
            Action::Repaint => return vec![Effect::Repaint],
            Action::Suspend => return vec![Effect::Suspend],
            Action::Help => self.screen.help = Some(0),
            Action::Back => self.back(),
            Action::Enter => self.enter(now),
            Action::NextFocus | Action::PreviousFocus => {
                self.screen.next_focus();
                self.rearrange();
            }
            Action::Overview => self.show(View::Overview),
            Action::Wall => self.show(View::Wall),
            Action::Log => {
                // Of the selected host, or of the one whose view this is.
                let id = self.screen.only_host().unwrap_or(HostId(self.screen.host as u32));
                if self.fleet.host(id).is_some() {
                    self.screen.log_back = 0;
                    self.screen.enter(View::Log(id));
                }
            }
            Action::Users => self.show(View::Users),
            Action::Processes => self.show(View::Processes),
            Action::Findings => self.show(View::Findings),
            Action::Filter => self.narrowing.open_line(),
            Action::Mine | Action::IdleOnly | Action::Problems | Action::ShowAll => self.narrow(action),
            Action::UserPicker => self.screen.user_picker = Some(self.picked_user()),
            Action::Tag => self.tag(now),
            Action::UntagAll => self.screen.list.keep_tags(|_| false),
            Action::Follow => {
                self.screen.list.toggle_follow();
                let follows = self.screen.list.follows();
                let words =
                    if follows { "the selection follows its process" } else { "the selection stays on its line" };
                self.notify(words, now);
            }
            Action::Snooze | Action::SnoozeUntilItChanges => {
                return self.snooze(action == Action::SnoozeUntilItChanges, now);
            }
            Action::History => {
                self.screen.enter(View::History);
                self.view_changed();
            }
            Action::NextHost => self.beside(1),
            Action::PreviousHost => self.beside(-1),
            Action::Metric => self.screen.metric = self.screen.metric.next(),
            Action::Span => self.screen.span = self.screen.span.next(),
            Action::Unfold => self.fold(true),
            Action::Fold => self.fold(false),
            Action::SortMenu => self.screen.sort_menu = true,
            Action::SortBy(key) => {
                self.screen.list.sort_by(key);
                self.refresh_rows();
            }
            Action::SortLeft | Action::SortRight | Action::SortReverse if self.mode() == Mode::Users => {
                self.users.sort(action);
                self.refresh_users();
            }
            Action::SortLeft | Action::SortRight => {
                self.screen.list.sort_beside(if action == Action::SortRight { 1 } else { -1 });
                self.refresh_rows();
            }
            Action::SortReverse => {
                self.screen.list.reverse();
                self.refresh_rows();
            }
            Action::Group => {
                self.screen.list.next_group();
                self.refresh_rows();
            }
            Action::Prompts => {
                if self.prompts.count() == 0 {
                    self.notify("no question waits", now);
                }
                self.prompts.open(now);
            }
            Action::Freeze => return self.freeze(now),
            Action::Mouse => {
                self.has_mouse = !self.has_mouse;
                let words = if self.has_mouse {
                    "the mouse selects here; M leaves it to the terminal"
                } else {
                    "the mouse is the terminal's; M takes it back"
                };
                self.notify(words, now);
                return vec![Effect::Mouse(self.has_mouse)];
            }
            Action::Hide => self.hide(now),
            Action::ShowHidden => self.show_hidden(now),
            Action::Pin => self.pin(now),
            Action::DensityAuto => self.set_density(Density::Auto, now),
            Action::DensityCompact => self.set_density(Density::Compact, now),
            Action::DensityFull => self.set_density(Density::Full, now),
            Action::Palette => self.palette = Some(Palette::new(self.mode())),
            Action::Shell => return self.shell(now),
            Action::Copy => return self.copy(now),
            Action::RetryHost => return self.retry_host(now),
            Action::RetryAll => return self.retry_all(now),
            Action::Refresh => {
                let live = self.fleet.hosts().iter().filter(|host| matches!(host.link, Link::Live));
                return live.map(|host| Effect::Request(host.id, Request::Resend)).collect();
            }
            Action::Faster | Action::Slower => return self.change_interval(action == Action::Faster, now),
            Action::Up
            | Action::Down
            | Action::Left
            | Action::Right
            | Action::PageUp
            | Action::PageDown
            | Action::HalfPageUp
            | Action::HalfPageDown
            | Action::First
            | Action::Last => self.go(action),
            // Dialogs perform these themselves.
            Action::Skip
            | Action::TrustOnce
            | Action::Submit
            | Action::EraseCharacter
            | Action::EraseNext
            | Action::EraseWord
            | Action::EraseLine => {}
        }
        Vec::new()
    }

    /// In the palette Enter does what is selected, Esc nothing; other keys are of its line and its list.
    fn act_in_palette(&mut self, action: Action, now: Moment) -> Vec<Effect> {
        let entries = self.palette_entries();
        match (action, &mut self.palette) {
            (Action::Enter, Some(palette)) => {
                let chosen = entries.get(palette.index()).map(|line| line.action);
                self.palette = None;
                chosen.map_or_else(Vec::new, |action| self.act(action, now))
            }
            (Action::Back, _) => {
                self.palette = None;
                Vec::new()
            }
            (_, Some(palette)) => {
                palette.act(action, entries.len());
                Vec::new()
            }
            (_, None) => Vec::new(),
        }
    }

    fn go(&mut self, action: Action) {
        let capacity = self.list_capacity();
        match self.mode() {
            Mode::Help => {
                let shown = help_page(self.size);
                // The first line of the last page is as far as it goes.
                let places = help_lines(self.settings.is_readonly).len().saturating_sub(shown) + 1;
                self.screen.help = self.screen.help.map(|top| moved(top, action, places, shown));
            }
            Mode::Grid => {
                if let Some(shape) = self.arrangement.grid {
                    self.screen.move_in_grid(action, &self.shown, &shape);
                }
            }
            Mode::Host => {
                self.screen.move_among_gpus(action, self.gpus_in_view(), &self.host_shape);
            }
            Mode::Log => {
                // Up is further back; the drawing stops at the oldest.
                let lines = usize::from(u16::MAX);
                let page = usize::from(self.size.1.saturating_sub(4));
                let turned = match action {
                    Action::Up => Action::Down,
                    Action::Down => Action::Up,
                    Action::PageUp => Action::PageDown,
                    Action::PageDown => Action::PageUp,
                    Action::HalfPageUp => Action::HalfPageDown,
                    Action::HalfPageDown => Action::HalfPageUp,
                    Action::First => Action::Last,
                    Action::Last => Action::First,
                    other => other,
                };
                let most = self.log_rows().saturating_sub(page);
                self.screen.log_back = moved(self.screen.log_back, turned, lines, page).min(most);
            }
            Mode::Users => {
                let page = usize::from(users_shown(self.size.1.saturating_sub(2)));
                self.users.go(action, page);
                self.refresh_users();
            }
            Mode::Wall => {
                let (lines, shape) = (self.wall_lines(), self.wall_shape(self.size));
                let mut place = self.screen.wall;
                let hosts = self.fleet.hosts();
                place.go(action, &lines, &shape, |host| {
                    hosts.get(host).and_then(|host| self.figures(host)).map_or(0, |figures| figures.gpus.len())
                });
                self.screen.wall = place;
                self.screen.host = place.host;
            }
            Mode::Gpu => {
                let step = match action {
                    Action::Left => Action::Up,
                    Action::Right => Action::Down,
                    other => other,
                };
                self.screen.gpu = moved(self.screen.gpu, step, self.gpus_in_view(), 1);
                if let View::Gpu(host, _) = *self.screen.view() {
                    self.screen.replace(View::Gpu(host, self.screen.gpu));
                }
            }
            Mode::UserPicker => {
                let count = self.users().len() + 1;
                self.screen.user_picker = self.screen.user_picker.map(|index| moved(index, action, count, capacity));
            }
            Mode::List | Mode::HostList | Mode::Processes => {
                let index = moved(self.screen.list.index(), action, self.rows.len(), capacity);
                self.screen.list.select(&self.rows, index, capacity);
            }
            Mode::Process => {
                let index = moved(self.screen.list.index(), action, self.rows.len(), capacity);
                self.screen.list.select(&self.rows, index, capacity);
                if let Some(row) = self.rows.get(index) {
                    self.screen.replace(View::Process(row.key.clone()));
                }
            }
            Mode::Findings => {
                let shown = self.findings_shown();
                self.findings.go(action, shown);
            }
            Mode::History => {
                // The frame takes two rows of the body.
                let shown = usize::from(self.size.1.saturating_sub(HISTORY_FRAME_ROWS));
                self.chronicle.go(action, shown);
            }
            Mode::SortMenu
            | Mode::SignalMenu
            | Mode::SignalDialog
            | Mode::FilterLine
            | Mode::Palette
            | Mode::HostKeyDialog
            | Mode::SecretDialog => {}
        }
    }

    fn show(&mut self, view: View) {
        if self.screen.show(view) {
            self.view_changed();
        }
    }

    fn narrow(&mut self, action: Action) {
        let narrowing = &mut self.narrowing;
        match action {
            Action::Mine => narrowing.mine = !narrowing.mine,
            Action::IdleOnly => narrowing.idle = !narrowing.idle,
            Action::Problems => narrowing.problems = !narrowing.problems,
            _ => {
                narrowing.clear();
            }
        }
        self.narrowed();
    }

    /// Another part of the list is shown.
    pub(super) fn narrowed(&mut self) {
        self.refresh_shown();
        self.refresh_rows();
        self.rearrange();
    }

    /// The line of the chosen user among those to choose from.
    fn picked_user(&self) -> usize {
        let users = self.users();
        let picked = self.narrowing.user.as_ref();
        picked.and_then(|user| users.iter().position(|(name, ..)| name == user)).map_or(0, |place| place + 1)
    }

    fn tag(&mut self, now: Moment) {
        let Some(row) = self.rows.get(self.screen.list.index()) else { return };
        if matches!(row.key.head, Some(HeadKey::User(_) | HeadKey::Host)) {
            self.notify("unfold it and tag the jobs below", now);
            return;
        }
        self.screen.list.tag(&self.rows);
        self.go(Action::Down);
    }

    fn enter(&mut self, now: Moment) {
        if let Some(line) = self.screen.user_picker.take() {
            let users = self.users();
            self.narrowing.user = line.checked_sub(1).and_then(|place| users.get(place)).map(|(user, ..)| user.clone());
            self.narrowed();
            return;
        }
        if self.screen.view() == &View::Findings {
            self.enter_finding(now);
            return;
        }
        if let (&View::Host(id), Focus::Panes) = (self.screen.view(), self.screen.focus()) {
            if self.gpus_in_view() > 0 {
                self.screen.enter(View::Gpu(id, self.screen.gpu));
            } else {
                self.notify("no GPU to look at", now);
            }
            return;
        }
        if self.screen.view() == &View::Users {
            let Some(who) = self.users.selected().map(|user| user.sum.who.clone()) else { return };
            self.narrowing.user = Some(who);
            self.screen.enter(View::Processes);
            self.view_changed();
            return;
        }
        if self.screen.view() == &View::Wall {
            let place = self.screen.wall;
            self.screen.host = place.host;
            let id = HostId(place.host as u32);
            if self.fleet.host(id).is_some() {
                self.screen.enter(View::Host(id));
                self.screen.gpu = place.gpu;
                self.view_changed();
            }
            return;
        }
        match self.screen.focus() {
            Focus::Panes => {
                let id = HostId(self.screen.host as u32);
                if self.fleet.host(id).is_some() {
                    self.screen.enter(View::Host(id));
                    self.view_changed();
                }
            }
            Focus::List => match self.rows.get(self.screen.list.index()) {
                Some(row) if row.unfold == Unfold::Folded => self.fold(true),
                Some(row) if matches!(row.key.head, Some(HeadKey::User(_))) => self.fold(false),
                Some(row) if row.key.head == Some(HeadKey::Host) => {
                    let host = row.key.host;
                    self.screen.host = host.0 as usize;
                    self.screen.enter(View::Host(host));
                    self.view_changed();
                }
                Some(row) => {
                    let key = row.key.clone();
                    self.screen.enter(View::Process(key));
                }
                None => self.notify("no process to look at", now),
            },
        }
    }

    /// To the process that a finding is about, where it is one; else to its host.
    fn enter_finding(&mut self, now: Moment) {
        let Some(finding) = self.findings.selected() else {
            self.notify("no finding to go to", now);
            return;
        };
        let host = finding.host;
        let rows = self.rows.iter();
        let mut about =
            rows.filter(|row| row.key.host == host && self.findings.of_row(row).any(|one| one.id == finding.id));
        let view = match (about.next(), finding.job.is_some() || !finding.processes.is_empty()) {
            (Some(row), true) => View::Process(row.key.clone()),
            _ => View::Host(host),
        };
        self.screen.host = host.0 as usize;
        self.screen.enter(view);
        self.view_changed();
    }

    fn back(&mut self) {
        if self.screen.user_picker.take().is_some() {
            return;
        }
        if self.screen.help.take().is_none() && self.screen.back() {
            self.view_changed();
        }
    }

    fn beside(&mut self, step: isize) {
        let count = self.shown.len() as isize;
        if count > 0 {
            let place = self.shown.iter().position(|host| *host == self.screen.host).unwrap_or(0) as isize;
            self.screen.host = self.shown[(place + step).rem_euclid(count) as usize];
            self.screen.gpu = 0;
            self.screen.replace(View::Host(HostId(self.screen.host as u32)));
            self.view_changed();
        }
    }

    /// Another view has other rows.
    pub(super) fn view_changed(&mut self) {
        if self.screen.view() == &View::Wall {
            self.show_wall();
        }
        self.refresh_users();
        if !matches!(self.screen.view(), View::Process(_)) {
            self.refresh_rows();
        }
        self.rearrange();
    }

    /// Rows of the log that is shown, as if no line were wider than the screen.
    fn log_rows(&self) -> usize {
        let View::Log(id) = *self.screen.view() else { return 0 };
        self.fleet.host(id).map_or(0, |host| host.log().lines().len())
    }

    /// The wall shows the host that was selected elsewhere.
    fn show_wall(&mut self) {
        let (lines, shape) = (self.wall_lines(), self.wall_shape(self.size));
        let host = self.screen.host;
        let gpu = if self.screen.wall.host == host { self.screen.wall.gpu } else { 0 };
        self.screen.wall = WallPlace { host, gpu, ..self.screen.wall };
        self.screen.wall.show(&lines, &shape);
    }

    fn fold(&mut self, unfold: bool) {
        let rows = std::mem::take(&mut self.rows);
        let changed = if unfold { self.screen.list.unfold(&rows) } else { self.screen.list.fold(&rows) };
        self.rows = rows;
        if changed {
            self.refresh_rows();
        }
    }

    fn retry_host(&mut self, now: Moment) -> Vec<Effect> {
        let Some(host) = self.fleet.hosts().get(self.screen.host) else { return Vec::new() };
        let (id, name) = (host.id, host.name().clone());
        if matches!(host.link, Link::Live) {
            self.notify(format!("{name} is connected"), now);
            return Vec::new();
        }
        self.notify(format!("trying {name} again"), now);
        vec![Effect::Retry(id)]
    }

    fn retry_all(&mut self, now: Moment) -> Vec<Effect> {
        let away = self.fleet.hosts().iter().filter(|host| !matches!(host.link, Link::Live | Link::Connecting { .. }));
        let effects: Vec<Effect> = away.map(|host| Effect::Retry(host.id)).collect();
        self.notify(
            match effects.len() {
                0 => "every host is connected, or being connected".to_owned(),
                1 => "trying 1 host again".to_owned(),
                count => format!("trying {count} hosts again"),
            },
            now,
        );
        effects
    }

    fn change_interval(&mut self, faster: bool, now: Moment) -> Vec<Effect> {
        let current = self.interval;
        let mut steps = INTERVALS_MS.map(Duration::from_millis).into_iter();
        let next = if faster { steps.rfind(|step| *step < current) } else { steps.find(|step| *step > current) };
        let Some(next) = next else {
            self.notify(if faster { "this is the shortest interval" } else { "this is the longest interval" }, now);
            return Vec::new();
        };
        self.interval = next;
        vec![Effect::SetInterval(next)]
    }
}
