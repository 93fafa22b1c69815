//! Keyboard, paste and mouse input. A dialog or an input line that is open gets the input; otherwise the keymap or the
//! item under the pointer decides which action it triggers.

use super::App;
use super::action::{Action, Mode};
use super::dialogs::DialogKey;
use super::event::Effect;
use super::findings::FindingLine;
use super::layout::{LIST_FRAME_ROWS, TABLE_HEADER_ROWS, processes_layout};
use super::screen::{Focus, View};
use super::users::{USERS_HEADER_ROWS, visible_user_count};
use super::wall::WallLine;
use crate::fleet::Moment;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};

/// Rows by which one step of the wheel moves a list.
const WHEEL_ROWS: usize = 3;

/// An item on the screen that a click selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClickTarget {
    /// The host at this position of the grid.
    Pane(usize),
    /// A GPU in the view of a host.
    Gpu(usize),
    /// A host on the wall and one of its GPUs.
    Cell(usize, usize),
    /// A row of the list, or `None` on the frame of the list.
    Row(Option<usize>),
    /// A finding.
    Finding(usize),
    /// A user.
    User(usize),
}

/// A part of a view that the wheel scrolls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    List,
    Grid,
    /// Nothing in it scrolls.
    Other,
}

impl App {
    pub(super) fn press_key(&mut self, key: &KeyEvent, now: Moment) -> Vec<Effect> {
        // The user has read the notice; the hint bar returns.
        self.notice = None;
        let mode = self.mode();
        if self.screen.is_list_focused() {
            // The user acts on the row that is on the screen. Without this, the cursor stays on the first line.
            self.screen.list.hold(&self.derived.rows);
        }
        let action = self.keymap().action(mode, key);
        let character = match key.code {
            KeyCode::Char(character) if !key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) => {
                Some(character)
            }
            _ => None,
        };
        // A dialog for a host key or a secret: letters that are keys of the dialog are text after the first character.
        if let (Some((_, dialog)), Some(character)) = (self.prompts.open_dialog(), character)
            && (!dialog.input.is_empty() || action.is_none())
        {
            return self.press_prompt_key(DialogKey::Character(character), now);
        }
        match (action, character) {
            (Some(action), _) => self.perform(action, now),
            (None, Some(character)) if mode == Mode::SignalDialog => {
                self.press_signal_key(DialogKey::Character(character), now)
            }
            (None, Some(character)) => {
                self.type_text(character.encode_utf8(&mut [0; 4]));
                Vec::new()
            }
            (None, None) => Vec::new(),
        }
    }

    /// Performs the action of a key or of a click, in the dialog or the input line that is open.
    pub(super) fn perform(&mut self, action: Action, now: Moment) -> Vec<Effect> {
        self.notice = None;
        match self.mode() {
            _ if matches!(action, Action::Quit | Action::Repaint | Action::Suspend) => self.act(action, now),
            Mode::HostKeyDialog | Mode::SecretDialog => self.press_prompt_key(DialogKey::Action(action), now),
            Mode::SignalDialog => self.press_signal_key(DialogKey::Action(action), now),
            Mode::FilterLine if action == Action::Help => {
                self.list_filter.show_help(self.size);
                Vec::new()
            }
            Mode::FilterLine => {
                self.list_filter.act(action);
                Vec::new()
            }
            _ => self.act(action, now),
        }
    }

    fn press_prompt_key(&mut self, key: DialogKey, now: Moment) -> Vec<Effect> {
        self.prompts.act(key, now).map(|(id, answer)| Effect::Answer(id, answer)).into_iter().collect()
    }

    /// Types text into the open input line, if there is one.
    fn type_text(&mut self, text: &str) {
        match (self.mode(), &mut self.palette) {
            (Mode::Palette, Some(palette)) => palette.type_text(text),
            (Mode::FilterLine, _) => self.list_filter.type_text(text),
            _ => {}
        }
    }

    pub(super) fn paste(&mut self, text: &str, now: Moment) {
        if self.mode() == Mode::SecretDialog {
            // A passphrase is often pasted with its newline, which must not act as Enter.
            for character in text.trim_end_matches(['\r', '\n']).chars() {
                self.prompts.act(DialogKey::Character(character), now);
            }
        } else {
            self.type_text(text);
        }
    }

    /// Handles a click or a step of the wheel. A click selects, and a click on the selected item opens it.
    pub(super) fn use_mouse(&mut self, event: MouseEvent, now: Moment) -> Vec<Effect> {
        let target = self.click_target(event.column, event.row);
        match event.kind {
            MouseEventKind::Down(MouseButton::Left) => {
                self.notice = None;
                match target {
                    Some(target) if !self.mode().covers_view() => self.click(target, now),
                    _ => Vec::new(),
                }
            }
            MouseEventKind::ScrollUp => self.turn_wheel(Action::Up, event, now),
            MouseEventKind::ScrollDown => self.turn_wheel(Action::Down, event, now),
            _ => Vec::new(),
        }
    }

    /// Scrolls the part of the view under the pointer. The focus stays, and the selection moves only to stay visible.
    fn turn_wheel(&mut self, action: Action, event: MouseEvent, now: Moment) -> Vec<Effect> {
        let mode = self.mode();
        if mode.covers_view() && !matches!(mode, Mode::Help | Mode::UserPicker | Mode::Palette) {
            return Vec::new();
        }
        if !mode.covers_view() {
            let step = if action == Action::Up { -1 } else { 1 };
            match self.part_at(event.row) {
                Some(Part::List) => {
                    let capacity = self.list_capacity();
                    self.screen.list.scroll(&self.derived.rows, step * WHEEL_ROWS as isize, capacity);
                    return Vec::new();
                }
                Some(Part::Grid) => {
                    if let Some(layout) = self.derived.screen_layout.grid {
                        self.screen.scroll_grid(step, &self.derived.visible_hosts, &layout);
                    }
                    return Vec::new();
                }
                Some(Part::Other) => return Vec::new(),
                None => {}
            }
        }
        let steps = match mode {
            Mode::Gpu | Mode::Wall | Mode::UserPicker | Mode::Palette => 1,
            _ => WHEEL_ROWS,
        };
        (0..steps).flat_map(|_| self.act(action, now)).collect()
    }

    /// Returns the part at a row of a view that has a list, or `None` if the view is one part.
    fn part_at(&self, row: u16) -> Option<Part> {
        let body = self.size.1.saturating_sub(2);
        let row = row.checked_sub(1).filter(|row| *row < body);
        let list = match self.screen.view() {
            View::Overview => {
                let list_rows = self.derived.screen_layout.list_rows;
                body.saturating_sub(list_rows)..body
            }
            View::Host(_) if self.screen.stored_history().is_some() => return None,
            View::Host(_) => {
                let layout = &self.derived.host_layout;
                let start = layout.facts_rows + layout.gpu_rows() + layout.detail_rows;
                start..start + layout.list_rows
            }
            View::Processes => 0..processes_layout(body).0,
            _ => return None,
        };
        Some(match row {
            Some(row) if list.contains(&row) => Part::List,
            Some(_) if self.screen.view() == &View::Overview => Part::Grid,
            _ => Part::Other,
        })
    }

    fn click(&mut self, target: ClickTarget, now: Moment) -> Vec<Effect> {
        let was_selected = self.is_selected(target);
        match target {
            ClickTarget::Pane(position) => {
                self.screen.set_focus(Focus::Panes);
                if let Some(host) = self.derived.visible_hosts.get(position) {
                    self.screen.host = *host;
                }
            }
            ClickTarget::Gpu(position) => {
                self.screen.set_focus(Focus::Panes);
                self.screen.gpu = position;
            }
            ClickTarget::Cell(host, gpu) => {
                self.screen.wall.host = host;
                self.screen.wall.gpu = gpu;
                self.screen.host = host;
            }
            ClickTarget::Row(index) => {
                if matches!(self.screen.view(), View::Overview | View::Host(_)) {
                    self.screen.set_focus(Focus::List);
                }
                if let Some(index) = index {
                    let capacity = self.list_capacity();
                    self.screen.list.select(&self.derived.rows, index, capacity);
                }
            }
            ClickTarget::Finding(index) => {
                let capacity = self.visible_finding_count();
                self.derived.findings.select_index(index, capacity);
            }
            ClickTarget::User(index) => self.derived.users.select_index(index),
        }
        if was_selected { self.act(Action::Enter, now) } else { Vec::new() }
    }

    fn is_selected(&self, target: ClickTarget) -> bool {
        let has_panes_focus = self.screen.focus() == Focus::Panes;
        match target {
            ClickTarget::Pane(position) => {
                has_panes_focus && self.visible_hosts().get(position) == Some(&self.screen.host)
            }
            ClickTarget::Gpu(position) => has_panes_focus && self.screen.gpu == position,
            ClickTarget::Cell(host, gpu) => self.screen.wall.host == host && self.screen.wall.gpu == gpu,
            ClickTarget::Row(index) => {
                let has_list_focus = !has_panes_focus || self.screen.view() == &View::Processes;
                has_list_focus && index == Some(self.screen.list.index())
            }
            ClickTarget::Finding(index) => self.findings().index() == index,
            ClickTarget::User(index) => self.users_view().index() == index,
        }
    }

    /// Returns the item that is drawn at a cell of the screen.
    fn click_target(&self, column: u16, row: u16) -> Option<ClickTarget> {
        let row = row.checked_sub(1)?;
        let body = self.size.1.saturating_sub(2);
        if row >= body || column >= self.size.0 {
            return None;
        }
        match self.screen.view() {
            View::Overview => self.target_in_overview(column, row, body),
            View::Host(_) if self.screen.stored_history().is_some() => None,
            View::Host(_) => self.target_in_host_view(column, row),
            View::Processes => {
                let (rows, _) = processes_layout(body);
                (row < rows).then(|| self.row_at(row))
            }
            View::Wall => self.cell_at(column, row),
            View::Findings => {
                let line = usize::from(row.checked_sub(1)?);
                let capacity = self.visible_finding_count();
                let lines = self.findings().lines();
                match lines.get(self.findings().top(capacity) + line).filter(|_| line < capacity)? {
                    FindingLine::Finding(index) => Some(ClickTarget::Finding(*index)),
                    FindingLine::Heading(_) => None,
                }
            }
            View::Users => {
                let line = usize::from(row.checked_sub(USERS_HEADER_ROWS)?);
                let capacity = usize::from(visible_user_count(body));
                let index = self.users_view().top(capacity) + line;
                (line < capacity && index < self.users_view().list().len()).then_some(ClickTarget::User(index))
            }
            View::Gpu(..) | View::Log(_) | View::History | View::Process(_) | View::HangReport => None,
        }
    }

    fn target_in_overview(&self, column: u16, row: u16, body: u16) -> Option<ClickTarget> {
        let layout = &self.derived.screen_layout;
        let grid_rows = match layout.grid {
            Some(grid) if layout.list_rows == 0 => body.max(grid.rows()),
            Some(grid) => grid.rows(),
            None => 0,
        };
        if row >= grid_rows {
            return Some(self.row_at(row - grid_rows));
        }
        let grid = layout.grid?;
        let (line, position) = (row / grid.pane_rows.max(1), column / grid.pane_columns.max(1));
        if line >= grid.visible_rows || position >= grid.per_row {
            return None;
        }
        let top = self.screen.grid_top.min(grid.total_rows.saturating_sub(grid.visible_rows));
        let position = usize::from(top + line) * usize::from(grid.per_row) + usize::from(position);
        (position < self.visible_hosts().len()).then_some(ClickTarget::Pane(position))
    }

    fn target_in_host_view(&self, column: u16, row: u16) -> Option<ClickTarget> {
        let layout = &self.derived.host_layout;
        let top = layout.findings_rows + layout.facts_rows;
        let list = top + layout.gpu_rows() + layout.detail_rows;
        if row >= list {
            return (row < list + layout.list_rows).then(|| self.row_at(row - list));
        }
        let row = row.checked_sub(top)?;
        let position = if let Some(cards) = layout.cards {
            let card = column / cards.columns.max(1);
            let line = row / cards.rows.max(1);
            (card < cards.per_row && line < cards.rows_of_cards).then(|| line * cards.per_row + card)?
        } else {
            let line = row.checked_sub(TABLE_HEADER_ROWS).filter(|line| *line < layout.visible_gpus)?;
            // A table that does not fit is scrolled so that the selected GPU is its last line.
            line + (self.screen.gpu as u16 + 1).saturating_sub(layout.visible_gpus)
        };
        (usize::from(position) < self.gpus_in_view()).then_some(ClickTarget::Gpu(usize::from(position)))
    }

    /// Returns the list row at `row` rows below the top of the list's frame.
    fn row_at(&self, row: u16) -> ClickTarget {
        let (capacity, count) = (self.list_capacity(), self.rows().len());
        let line = row.checked_sub(LIST_FRAME_ROWS - 1).map(usize::from).filter(|line| *line < capacity);
        let index = line.map(|line| self.screen.list.top(count, capacity) + line);
        ClickTarget::Row(index.filter(|index| *index < count))
    }

    fn cell_at(&self, column: u16, row: u16) -> Option<ClickTarget> {
        let (lines, layout) = (self.wall_lines(), self.wall_layout(self.size));
        let wall_column = column / layout.columns.max(1);
        if row >= layout.rows || wall_column >= layout.per_row {
            return None;
        }
        let position = self.screen.wall.top + usize::from(wall_column) * usize::from(layout.rows) + usize::from(row);
        let Some(WallLine::Host(host)) = lines.get(position) else { return None };
        let step = if layout.is_spaced { 2 } else { 1 };
        let first = layout.name + 3;
        let gpu = (column % layout.columns.max(1)).checked_sub(first).map_or(0, |columns| columns / step);
        let last = self.gpu_count(*host).min(usize::from(layout.cells)).saturating_sub(1);
        Some(ClickTarget::Cell(*host, usize::from(gpu).min(last)))
    }
}

#[cfg(test)]
#[path = "input_tests.rs"]
mod tests;
