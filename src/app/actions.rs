//! What each action of the keymap does; `navigation` has those that move about.

use super::{Action, App, Density, Effect, Mode, Palette, View};
use crate::fleet::{GroupKey, HostId, Link, Moment};
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
            Action::Interrupt => self.open_signal_dialog(Signal::Interrupt, now),
            Action::Terminate => self.open_signal_dialog(Signal::Terminate, now),
            Action::Kill => self.open_signal_dialog(Signal::Kill, now),
            Action::SignalMenu => self.screen.signal_menu = true,
            Action::Quit => return vec![Effect::Quit],
            Action::Repaint => return vec![Effect::Repaint],
            Action::Suspend => return vec![Effect::Suspend],
            Action::Help => self.screen.help = Some(0),
            Action::Back => self.back(),
            Action::Enter => self.enter(now),
            Action::NextFocus | Action::PreviousFocus => {
                self.screen.next_focus();
                self.refresh_layout();
            }
            Action::Overview => self.show(View::Overview),
            Action::Wall => self.show(View::Wall),
            Action::Log => {
                // Of the selected host, or of the one whose view this is.
                let id = self.screen.list_host().unwrap_or(HostId(self.screen.host as u32));
                if self.fleet.host(id).is_some() {
                    self.screen.log_scroll = 0;
                    self.screen.enter(View::Log(id));
                }
            }
            Action::Users => self.show(View::Users),
            Action::Processes => self.show(View::Processes),
            Action::Findings => self.show(View::Findings),
            Action::Filter => self.list_filter.open_line(),
            Action::Mine | Action::IdleOnly | Action::Problems | Action::ShowAll => self.toggle_list_filter(action),
            Action::UserPicker => self.screen.user_picker = Some(self.picker_selection()),
            Action::Tag => self.tag(now),
            Action::UntagAll => self.screen.list.retain_tags(|_| false),
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
            Action::NextHost => self.show_adjacent_host(1),
            Action::PreviousHost => self.show_adjacent_host(-1),
            Action::Metric => self.screen.metric = self.screen.metric.next(),
            Action::Span => self.screen.span = self.screen.span.next(),
            Action::FoldState => self.fold(true),
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
                self.screen.list.sort_by_adjacent_column(if action == Action::SortRight { 1 } else { -1 });
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
            Action::OpenPrompts => {
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
            | Action::Last => self.navigate(action),
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

    fn toggle_list_filter(&mut self, action: Action) {
        let list_filter = &mut self.list_filter;
        match action {
            Action::Mine => list_filter.mine = !list_filter.mine,
            Action::IdleOnly => list_filter.idle = !list_filter.idle,
            Action::Problems => list_filter.problems = !list_filter.problems,
            _ => {
                list_filter.clear();
            }
        }
        self.list_filter_changed();
    }

    /// Another part of the list is shown.
    pub(super) fn list_filter_changed(&mut self) {
        self.refresh_visible_hosts();
        self.refresh_rows();
        self.refresh_layout();
    }

    /// The line of the chosen user among those to choose from.
    fn picker_selection(&self) -> usize {
        let users = self.user_totals();
        let picked = self.list_filter.user.as_ref();
        picked.and_then(|user| users.iter().position(|(name, ..)| name == user)).map_or(0, |index| index + 1)
    }

    fn tag(&mut self, now: Moment) {
        let Some(row) = self.rows.get(self.screen.list.index()) else { return };
        if matches!(row.key.group, Some(GroupKey::User(_) | GroupKey::Host)) {
            self.notify("unfold it and tag the jobs below", now);
            return;
        }
        self.screen.list.tag(&self.rows);
        self.navigate(Action::Down);
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
