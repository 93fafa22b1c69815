//! From view to view, and about within each.

use super::help::help_lines;
use super::screen::{HISTORY_FRAME_ROWS, help_page_rows, move_index};
use super::users::visible_user_count;
use super::wall::WallCursor;
use super::{Action, App, Focus, Mode, View};
use crate::fleet::{FoldState, GroupKey, HostId, Moment};

impl App {
    pub(super) fn navigate(&mut self, action: Action) {
        let capacity = self.list_capacity();
        match self.mode() {
            Mode::Help => {
                let shown = help_page_rows(self.size);
                // The first line of the last page is as far as it goes.
                let places = help_lines(self.settings.is_readonly).len().saturating_sub(shown) + 1;
                self.screen.help = self.screen.help.map(|top| move_index(top, action, places, shown));
            }
            Mode::Grid => {
                if let Some(layout) = self.screen_layout.grid {
                    self.screen.move_in_grid(action, &self.visible_hosts, &layout);
                }
            }
            Mode::Host => {
                self.screen.move_among_gpus(action, self.gpus_in_view(), &self.host_layout);
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
                self.screen.log_scroll = move_index(self.screen.log_scroll, turned, lines, page).min(most);
            }
            Mode::Users => {
                let page = usize::from(visible_user_count(self.size.1.saturating_sub(2)));
                self.users.navigate(action, page);
                self.refresh_users();
            }
            Mode::Wall => {
                let (lines, layout) = (self.wall_lines(), self.wall_layout(self.size));
                let mut cursor = self.screen.wall;
                let hosts = self.fleet.hosts();
                cursor.navigate(action, &lines, &layout, |host| {
                    hosts.get(host).and_then(|host| self.host_summary(host)).map_or(0, |summary| summary.gpus.len())
                });
                self.screen.wall = cursor;
                self.screen.host = cursor.host;
            }
            Mode::Gpu => {
                let step = match action {
                    Action::Left => Action::Up,
                    Action::Right => Action::Down,
                    other => other,
                };
                self.screen.gpu = move_index(self.screen.gpu, step, self.gpus_in_view(), 1);
                if let View::Gpu(host, _) = *self.screen.view() {
                    self.screen.replace(View::Gpu(host, self.screen.gpu));
                }
            }
            Mode::UserPicker => {
                let count = self.user_totals().len() + 1;
                self.screen.user_picker =
                    self.screen.user_picker.map(|index| move_index(index, action, count, capacity));
            }
            Mode::List | Mode::HostList | Mode::Processes => {
                let index = move_index(self.screen.list.index(), action, self.rows.len(), capacity);
                self.screen.list.select(&self.rows, index, capacity);
            }
            Mode::Process => {
                let index = move_index(self.screen.list.index(), action, self.rows.len(), capacity);
                self.screen.list.select(&self.rows, index, capacity);
                if let Some(row) = self.rows.get(index) {
                    self.screen.replace(View::Process(row.key.clone()));
                }
            }
            Mode::Findings => {
                let shown = self.visible_finding_count();
                self.findings.navigate(action, shown);
            }
            Mode::History => {
                // The frame takes two rows of the body.
                let shown = usize::from(self.size.1.saturating_sub(HISTORY_FRAME_ROWS));
                self.event_log.navigate(action, shown);
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

    pub(super) fn show(&mut self, view: View) {
        if self.screen.show(view) {
            self.view_changed();
        }
    }

    pub(super) fn enter(&mut self, now: Moment) {
        if let Some(line) = self.screen.user_picker.take() {
            let users = self.user_totals();
            self.list_filter.user =
                line.checked_sub(1).and_then(|index| users.get(index)).map(|(user, ..)| user.clone());
            self.list_filter_changed();
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
            self.list_filter.user = Some(who);
            self.screen.enter(View::Processes);
            self.view_changed();
            return;
        }
        if self.screen.view() == &View::Wall {
            let cursor = self.screen.wall;
            self.screen.host = cursor.host;
            let id = HostId(cursor.host as u32);
            if self.fleet.host(id).is_some() {
                self.screen.enter(View::Host(id));
                self.screen.gpu = cursor.gpu;
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
                Some(row) if row.fold_state == FoldState::Folded => self.fold(true),
                Some(row) if matches!(row.key.group, Some(GroupKey::User(_))) => self.fold(false),
                Some(row) if row.key.group == Some(GroupKey::Host) => {
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

    pub(super) fn back(&mut self) {
        if self.screen.user_picker.take().is_some() {
            return;
        }
        if self.screen.help.take().is_none() && self.screen.back() {
            self.view_changed();
        }
    }

    pub(super) fn show_adjacent_host(&mut self, step: isize) {
        let count = self.visible_hosts.len() as isize;
        if count > 0 {
            let index = self.visible_hosts.iter().position(|host| *host == self.screen.host).unwrap_or(0) as isize;
            self.screen.host = self.visible_hosts[(index + step).rem_euclid(count) as usize];
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
        self.refresh_layout();
    }

    /// Rows of the log that is shown, as if no line were wider than the screen.
    fn log_rows(&self) -> usize {
        let View::Log(id) = *self.screen.view() else { return 0 };
        self.fleet.host(id).map_or(0, |host| host.log().lines().len())
    }

    /// The wall shows the host that was selected elsewhere.
    fn show_wall(&mut self) {
        let (lines, layout) = (self.wall_lines(), self.wall_layout(self.size));
        let host = self.screen.host;
        let gpu = if self.screen.wall.host == host { self.screen.wall.gpu } else { 0 };
        self.screen.wall = WallCursor { host, gpu, ..self.screen.wall };
        self.screen.wall.show(&lines, &layout);
    }

    pub(super) fn fold(&mut self, unfold: bool) {
        let rows = std::mem::take(&mut self.rows);
        let changed = if unfold { self.screen.list.unfold(&rows) } else { self.screen.list.fold(&rows) };
        self.rows = rows;
        if changed {
            self.refresh_rows();
        }
    }
}
