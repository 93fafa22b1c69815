//! Implements each [`Action`]. An action only changes choices, dialogs and notices; [`App::update`] recomputes the
//! derived state afterwards, so an action sees the rows and the layout that are on the screen.

use super::App;
use super::action::{Action, Mode};
use super::event::Effect;
use super::help::HelpDialog;
use super::layout::Density;
use super::screen::{Focus, HISTORY_FRAME_ROWS, View, help_page_rows, move_index};
use super::users::visible_user_count;
use crate::diagnosis::SnoozeEnd;
use crate::fleet::{FoldState, GroupKey, HostId, Link, Moment};
use crate::wire::{Request, Signal};
use std::time::Duration;

/// The intervals that `+` and `-` step through, in milliseconds.
const INTERVALS_MS: [u64; 8] = [250, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000];
/// How long `x` snoozes a finding.
const SNOOZE: Duration = Duration::from_secs(3600);

impl App {
    /// Performs an action in the current mode.
    pub(super) fn act(&mut self, action: Action, now: Moment) -> Vec<Effect> {
        // Any key ends the two menus.
        let was_in_menu = std::mem::take(&mut self.screen.sort_menu) | std::mem::take(&mut self.screen.signal_menu);
        if was_in_menu && action == Action::Back {
            return Vec::new();
        }
        if self.palette.is_some() && !matches!(action, Action::Quit | Action::Repaint | Action::Suspend) {
            return self.act_in_palette(action, now);
        }
        match action {
            Action::Interrupt => self.open_signal_dialog(Signal::Interrupt, now),
            Action::Terminate => self.open_signal_dialog(Signal::Terminate, now),
            Action::Kill => self.open_signal_dialog(Signal::Kill, now),
            Action::SignalMenu => self.screen.signal_menu = true,
            Action::Quit => return vec![Effect::Quit],
            Action::Repaint => return vec![Effect::Repaint],
            Action::Suspend => return vec![Effect::Suspend],
            Action::Help => {
                let mode = self.mode();
                self.screen.help = Some(match self.screen.help {
                    Some(open) => HelpDialog { is_all: !open.is_all, top: 0, ..open },
                    None => HelpDialog { mode, is_all: false, top: 0 },
                });
            }
            Action::Back => self.back(),
            Action::Enter => self.enter(now),
            Action::NextFocus | Action::PreviousFocus if self.screen.stored_history().is_some() => {
                let key = self.keymap().first_key(Action::Span).to_owned();
                self.notify(format!("long spans show no processes; {key} chooses the span"), now);
            }
            Action::NextFocus | Action::PreviousFocus => self.screen.next_focus(),
            Action::Overview => self.screen.show(View::Overview),
            Action::Wall => self.screen.show(View::Wall),
            Action::Users => self.screen.show(View::Users),
            Action::Processes => self.screen.show(View::Processes),
            Action::Findings => self.screen.show(View::Findings),
            Action::History => self.screen.enter(View::History),
            Action::Why => return self.open_hang_report(now),
            Action::Log => {
                let id = self.screen.list_host().unwrap_or(self.screen.selected_host());
                if self.fleet.host(id).is_some() {
                    self.screen.log_scroll = 0;
                    self.screen.enter(View::Log(id));
                }
            }
            Action::Filter => self.list_filter.open_line(),
            Action::Mine => self.list_filter.mine = !self.list_filter.mine,
            Action::IdleOnly => self.list_filter.idle = !self.list_filter.idle,
            Action::Problems => self.list_filter.problems = !self.list_filter.problems,
            Action::ShowAll => self.list_filter.clear(),
            Action::UserPicker => self.screen.user_picker = Some(self.picked_user()),
            Action::Tag => self.tag(now),
            Action::UntagAll => self.screen.list.retain_tags(|_| false),
            Action::Follow => {
                self.screen.list.toggle_follow();
                let follows = self.screen.list.follows();
                let notice =
                    if follows { "the selection follows its process" } else { "the selection stays on its line" };
                self.notify(notice, now);
            }
            Action::Snooze | Action::SnoozeUntilItChanges => {
                return self.snooze(action == Action::SnoozeUntilItChanges, now);
            }
            Action::NextHost => self.show_adjacent_host(1),
            Action::PreviousHost => self.show_adjacent_host(-1),
            Action::NextProcess => self.show_adjacent_process(Action::Down),
            Action::PreviousProcess => self.show_adjacent_process(Action::Up),
            Action::Metric => self.screen.metric = self.screen.metric.next(),
            Action::Span => {
                let shows_store = self.screen.host_in_view().is_some() && self.stored_charts.has_store();
                self.screen.span = self.screen.span.next(shows_store);
            }
            Action::Unfold => self.screen.list.unfold(&self.derived.rows),
            Action::Fold => self.screen.list.fold(&self.derived.rows),
            Action::SortMenu => self.screen.sort_menu = true,
            Action::SortBy(key) => self.screen.list.sort_by(key),
            Action::SortUsersBy(sort) => self.derived.users.sort_by(sort),
            Action::SortLeft | Action::SortRight | Action::SortReverse if self.mode() == Mode::Users => {
                self.derived.users.sort(action);
            }
            Action::SortLeft => self.screen.list.sort_by_adjacent_column(-1),
            Action::SortRight => self.screen.list.sort_by_adjacent_column(1),
            Action::SortReverse => self.screen.list.reverse(),
            Action::Group => self.screen.list.next_group(),
            Action::OpenPrompts => {
                if self.prompts.count() == 0 {
                    self.notify("no prompt is waiting", now);
                }
                self.prompts.open(now);
            }
            Action::Freeze => self.toggle_freeze(now),
            Action::Mouse => {
                let is_on = !self.preferences.mouse;
                self.preferences.mouse = is_on;
                let notice = if is_on {
                    "mouse on: clicks select here; M turns it off"
                } else {
                    "mouse off: the terminal selects text; M turns it on"
                };
                self.notify(notice, now);
                return vec![Effect::Mouse(is_on)];
            }
            Action::Hide => self.hide_host(now),
            Action::ShowHidden => self.show_hidden_hosts(now),
            Action::Pin => self.toggle_pin(now),
            Action::DensityAuto => self.set_density(Density::Auto, now),
            Action::DensityCompact => self.set_density(Density::Compact, now),
            Action::DensityFull => self.set_density(Density::Full, now),
            Action::Palette => self.open_palette(),
            Action::Shell => return self.open_shell(now),
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
            | Action::Last => self.navigate(action),
            // Dialogs and input lines perform these.
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

    /// Moves the selection of the current mode, or scrolls.
    fn navigate(&mut self, action: Action) {
        let capacity = self.list_capacity();
        match self.mode() {
            Mode::Help => {
                let Some(mut dialog) = self.screen.help else { return };
                let capacity = help_page_rows(self.size);
                let positions = self.help_rows(&dialog, self.size.0).len().saturating_sub(capacity) + 1;
                dialog.top = move_index(dialog.top, action, positions, capacity);
                self.screen.help = Some(dialog);
            }
            Mode::Grid => {
                if let Some(layout) = self.derived.screen_layout.grid {
                    self.screen.move_in_grid(action, &self.derived.visible_hosts, &layout);
                }
            }
            Mode::Host if self.screen.stored_history().is_some() => {
                let step = match action {
                    Action::Left => Action::Up,
                    Action::Right => Action::Down,
                    other => other,
                };
                self.screen.gpu = move_index(self.screen.gpu, step, self.gpus_in_view(), 1);
            }
            Mode::Host => self.screen.move_among_gpus(action, self.gpus_in_view(), &self.derived.host_layout),
            Mode::Log => {
                // The log is scrolled from its end: up is further back.
                let page = usize::from(self.size.1.saturating_sub(4));
                let positions = self.log_rows().saturating_sub(page) + 1;
                self.screen.log_scroll = move_index(self.screen.log_scroll, action.reversed(), positions, page);
            }
            Mode::Users => {
                let page = usize::from(visible_user_count(self.size.1.saturating_sub(2)));
                self.derived.users.navigate(action, page);
            }
            Mode::Wall => {
                let (lines, layout) = (self.wall_lines(), self.wall_layout(self.size));
                let mut cursor = self.screen.wall;
                cursor.navigate(action, &lines, &layout, |host| self.gpu_count(host));
                self.screen.wall = cursor;
                self.screen.host = cursor.host;
            }
            Mode::Gpu => {
                self.screen.wanted_gpu = None;
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
                let rows = &self.derived.rows;
                let index = move_index(self.screen.list.index(), action, rows.len(), capacity);
                self.screen.list.select(rows, index, capacity);
            }
            Mode::Process => {
                let page = usize::from(self.size.1.saturating_sub(4));
                self.screen.process_top =
                    move_index(self.screen.process_top, action, self.process_scroll_limit + 1, page);
            }
            Mode::HangReport => {
                let page = usize::from(self.size.1.saturating_sub(4));
                let positions = self.process_scroll_limit + 1;
                if let Some(report) = &mut self.hang_report {
                    report.top = move_index(report.top, action, positions, page);
                }
            }
            Mode::Findings => {
                let capacity = self.visible_finding_count();
                self.derived.findings.navigate(action, capacity);
            }
            Mode::History => {
                let capacity = usize::from(self.size.1.saturating_sub(HISTORY_FRAME_ROWS));
                self.event_log.navigate(action, capacity);
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

    /// Returns the number of lines of the log in view, not counting wrapped ones.
    fn log_rows(&self) -> usize {
        let View::Log(id) = *self.screen.view() else { return 0 };
        self.fleet.host(id).map_or(0, |host| host.log().lines().len())
    }

    /// Opens the selected item.
    fn enter(&mut self, now: Moment) {
        if let Some(line) = self.screen.user_picker.take() {
            let users = self.user_totals();
            self.list_filter.user =
                line.checked_sub(1).and_then(|index| users.get(index)).map(|(user, ..)| user.clone());
            return;
        }
        match (self.screen.view(), self.screen.focus()) {
            (View::Findings, _) => self.enter_finding(now),
            (View::Users, _) => {
                let Some(user) = self.derived.users.selected() else { return };
                self.list_filter.user = Some(user.sum.who.clone());
                self.screen.enter(View::Processes);
            }
            (View::Wall, _) => {
                let gpu = self.screen.wall.gpu;
                if self.enter_host(HostId(self.screen.wall.host as u32)) {
                    self.screen.gpu = gpu;
                }
            }
            (&View::Host(id), Focus::Panes) => {
                if self.gpus_in_view() > 0 {
                    self.screen.enter(View::Gpu(id, self.screen.gpu));
                } else {
                    self.notify("this host has no GPU to show", now);
                }
            }
            (_, Focus::Panes) => {
                self.enter_host(self.screen.selected_host());
            }
            (_, Focus::List) => self.enter_row(now),
        }
    }

    /// Opens the view of a host. Returns `false` if there is no such host.
    pub(super) fn enter_host(&mut self, id: HostId) -> bool {
        let is_known = self.fleet.host(id).is_some();
        if is_known {
            self.screen.host = id.0 as usize;
            self.screen.enter(View::Host(id));
        }
        is_known
    }

    fn enter_row(&mut self, now: Moment) {
        let Some(row) = self.derived.rows.get(self.screen.list.index()) else {
            self.notify("no process is selected", now);
            return;
        };
        match &row.key.group {
            _ if row.fold_state == FoldState::Folded => self.screen.list.unfold(&self.derived.rows),
            Some(GroupKey::User(_)) => self.screen.list.fold(&self.derived.rows),
            Some(GroupKey::Host) => {
                self.enter_host(row.key.host);
            }
            Some(GroupKey::DistributedJob) | None => self.screen.enter(View::Process(row.key.clone())),
        }
    }

    /// Opens the process of the selected finding, or its host if the finding is about no process in the list.
    fn enter_finding(&mut self, now: Moment) {
        let findings = &self.derived.findings;
        let Some(finding) = findings.selected() else {
            self.notify("no finding is selected", now);
            return;
        };
        let host = finding.host;
        let is_about_process = finding.job.is_some() || !finding.processes.is_empty();
        let is_about = |row: &&_| -> bool { is_about_process && findings.of_row(row).any(|one| one.id == finding.id) };
        let rows = self.derived.rows.iter().map(|row| &**row);
        let row = rows.filter(|row| row.key.host == host).find(is_about);
        let view = row.map_or(View::Host(host), |row| View::Process(row.key.clone()));
        self.screen.host = host.0 as usize;
        self.screen.enter(view);
    }

    fn back(&mut self) {
        if self.screen.user_picker.take().is_none() && self.screen.help.take().is_none() {
            self.screen.back();
        }
    }

    fn show_adjacent_host(&mut self, step: isize) {
        let hosts = &self.derived.visible_hosts;
        if !hosts.is_empty() {
            let index = hosts.iter().position(|host| *host == self.screen.host).unwrap_or(0) as isize;
            self.screen.host = hosts[(index + step).rem_euclid(hosts.len() as isize) as usize];
            self.screen.gpu = 0;
            self.screen.replace(View::Host(self.screen.selected_host()));
        }
    }

    /// Shows the process beside the one in view. Its key is not one that scrolls: the view must not change to another
    /// process, which the next signal would reach, because its text happens to fit.
    fn show_adjacent_process(&mut self, step: Action) {
        let (rows, capacity) = (&self.derived.rows, self.derived.list_capacity(&self.screen));
        let index = move_index(self.screen.list.index(), step, rows.len(), capacity);
        self.screen.list.select(rows, index, capacity);
        if let Some(row) = rows.get(index) {
            self.screen.replace(View::Process(row.key.clone()));
        }
    }

    /// Returns the line of the user picker for the user that the filter names. Line 0 stands for all users.
    fn picked_user(&self) -> usize {
        let users = self.user_totals();
        let picked = self.list_filter.user.as_ref();
        picked.and_then(|user| users.iter().position(|(name, ..)| name == user)).map_or(0, |index| index + 1)
    }

    fn tag(&mut self, now: Moment) {
        let Some(row) = self.derived.rows.get(self.screen.list.index()) else { return };
        if matches!(row.key.group, Some(GroupKey::User(_) | GroupKey::Host)) {
            self.notify("unfold this row and tag the jobs below it", now);
            return;
        }
        self.screen.list.toggle_tag(&self.derived.rows);
        self.navigate(Action::Down);
    }

    /// Snoozes the selected finding, or ends its snooze if it was snoozed in the same way.
    fn snooze(&mut self, until_it_changes: bool, now: Moment) -> Vec<Effect> {
        let Some(finding) = self.derived.findings.selected().cloned() else {
            self.notify("no finding to snooze", now);
            return Vec::new();
        };
        let host = finding.hosts.first().map(|(_, name)| name.as_str()).unwrap_or_default();
        let what = format!("{} on {host}", finding.rule.word());
        let is_snoozed_so = match finding.snoozed {
            Some(SnoozeEnd::At(_)) => !until_it_changes,
            Some(SnoozeEnd::OnChange) => until_it_changes,
            None => false,
        };
        if is_snoozed_so {
            self.engine.end_snooze(&finding.id, now);
            self.notify(format!("{what} is no longer snoozed"), now);
        } else if self.engine.snooze(&finding.id, (!until_it_changes).then_some(SNOOZE), now) {
            let (span, key) = if until_it_changes { ("until it changes", 'X') } else { ("for 1 hour", 'x') };
            self.notify(format!("{what} is snoozed {span}; {key} undoes it"), now);
        } else {
            self.notify(format!("{what} has ended"), now);
        }
        self.derived.findings.select_id(finding.id);
        self.changes.findings = true;
        vec![Effect::SaveDiagnosisState]
    }

    /// Hides the selected host and selects the one beside it.
    fn hide_host(&mut self, now: Moment) {
        let Some(host) = self.fleet.host(self.screen.selected_host()) else { return };
        let name = host.name().clone();
        let visible = &self.derived.visible_hosts;
        if visible.len() < 2 {
            self.notify("the last visible host cannot be hidden", now);
            return;
        }
        let beside = visible.iter().position(|index| *index == self.screen.host).map(|index| {
            let previous = visible.len().saturating_sub(2);
            visible.get(index + 1).copied().unwrap_or(visible[previous])
        });
        self.screen.host = beside.unwrap_or(self.screen.host);
        self.host_visibility.hidden.insert(name.clone());
        let notice = match self.hidden_count() {
            1 => format!("{name} is hidden; H shows it again"),
            hidden => format!("{name} is hidden, {hidden} hosts in total; H shows them again"),
        };
        self.notify(notice, now);
    }

    fn show_hidden_hosts(&mut self, now: Moment) {
        let notice = match self.hidden_count() {
            0 => "no host is hidden".to_owned(),
            1 => "1 host is shown again".to_owned(),
            count => format!("{count} hosts are shown again"),
        };
        self.host_visibility.hidden.clear();
        self.notify(notice, now);
    }

    fn toggle_pin(&mut self, now: Moment) {
        let Some(host) = self.fleet.host(self.screen.selected_host()) else { return };
        let name = host.name().clone();
        let notice = if self.host_visibility.pinned.remove(&name) {
            format!("{name} is no longer pinned")
        } else {
            self.host_visibility.pinned.insert(name.clone());
            format!("{name} is pinned to the top")
        };
        self.notify(notice, now);
    }

    fn set_density(&mut self, density: Density, now: Moment) {
        self.density = density;
        self.notify(format!("density {}", density.word()), now);
    }

    fn retry_host(&mut self, now: Moment) -> Vec<Effect> {
        let Some(host) = self.fleet.hosts().get(self.screen.host) else { return Vec::new() };
        let (id, name) = (host.id, host.name().clone());
        if matches!(host.link, Link::Live) {
            self.notify(format!("{name} is connected"), now);
            return Vec::new();
        }
        self.notify(format!("connecting to {name}"), now);
        vec![Effect::Retry(id)]
    }

    fn retry_all(&mut self, now: Moment) -> Vec<Effect> {
        let down = self.fleet.hosts().iter().filter(|host| !matches!(host.link, Link::Live | Link::Connecting { .. }));
        let effects: Vec<Effect> = down.map(|host| Effect::Retry(host.id)).collect();
        let notice = match effects.len() {
            0 => "every host is connected or connecting".to_owned(),
            1 => "connecting to 1 host".to_owned(),
            count => format!("connecting to {count} hosts"),
        };
        self.notify(notice, now);
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
