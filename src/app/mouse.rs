//! What lies under the mouse: a click selects, on what is selected it goes in, the wheel moves.

use super::host_layout::TABLE_HEADER_ROWS;
use super::layout::{FINDINGS_HEADER_ROWS, LIST_FRAME_ROWS, processes_layout};
use super::users::{USERS_HEADER_ROWS, visible_user_count};
use super::wall::WallLine;
use super::{Action, App, Effect, Focus, Mode, View};
use crate::fleet::Moment;
use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};

/// Rows that one step of the wheel moves a list by.
const WHEEL_ROWS: usize = 3;

/// Something on the screen that can be selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClickTarget {
    /// The host at this position of the grid.
    Pane(usize),
    /// A GPU of the host in full.
    Gpu(usize),
    /// A host on the wall, and one of its GPUs.
    Cell(usize, usize),
    /// A row of the list; `None` on its frame.
    Row(Option<usize>),
    /// A finding.
    Finding(usize),
    /// A user.
    User(usize),
}

impl App {
    /// A click, or a step of the wheel.
    pub(super) fn mouse(&mut self, event: MouseEvent, now: Moment) -> Vec<Effect> {
        let target = self.click_target(event.column, event.row);
        match event.kind {
            MouseEventKind::Down(MouseButton::Left) => {
                self.notice = None;
                match target {
                    Some(target) if self.can_be_clicked() => self.click(target, now),
                    _ => Vec::new(),
                }
            }
            MouseEventKind::ScrollUp => self.wheel(Action::Up, target, now),
            MouseEventKind::ScrollDown => self.wheel(Action::Down, target, now),
            _ => Vec::new(),
        }
    }

    /// What lies over the views has its keys alone.
    fn can_be_clicked(&self) -> bool {
        !matches!(
            self.mode(),
            Mode::HostKeyDialog
                | Mode::SecretDialog
                | Mode::SignalDialog
                | Mode::SignalMenu
                | Mode::SortMenu
                | Mode::FilterLine
                | Mode::Palette
                | Mode::Help
                | Mode::UserPicker
        )
    }

    fn wheel(&mut self, action: Action, target: Option<ClickTarget>, now: Moment) -> Vec<Effect> {
        let is_overlay = matches!(self.mode(), Mode::Help | Mode::UserPicker | Mode::Palette);
        if !is_overlay && !self.can_be_clicked() {
            return Vec::new();
        }
        let is_list = matches!(target, Some(ClickTarget::Row(_)));
        if !is_overlay && matches!(self.screen.view(), View::Overview | View::Host(_)) && target.is_some() {
            self.focus_on(if is_list { Focus::List } else { Focus::Panes });
        }
        let steps = match self.mode() {
            Mode::Grid | Mode::Host | Mode::Gpu | Mode::Wall | Mode::Process | Mode::UserPicker | Mode::Palette => 1,
            _ => WHEEL_ROWS,
        };
        (0..steps).flat_map(|_| self.act(action, now)).collect()
    }

    fn focus_on(&mut self, focus: Focus) {
        if self.screen.focus() != focus {
            self.screen.next_focus();
            self.refresh_layout();
        }
    }

    fn click(&mut self, target: ClickTarget, now: Moment) -> Vec<Effect> {
        let is_again = self.is_selected(target);
        match target {
            ClickTarget::Pane(position) => {
                self.focus_on(Focus::Panes);
                if let Some(host) = self.visible_hosts().get(position) {
                    self.screen.host = *host;
                }
            }
            ClickTarget::Gpu(position) => {
                self.focus_on(Focus::Panes);
                self.screen.gpu = position;
            }
            ClickTarget::Cell(host, gpu) => {
                self.screen.wall.host = host;
                self.screen.wall.gpu = gpu;
                self.screen.host = host;
            }
            ClickTarget::Row(index) => {
                if matches!(self.screen.view(), View::Overview | View::Host(_)) {
                    self.focus_on(Focus::List);
                }
                if let Some(index) = index {
                    let capacity = self.list_capacity();
                    self.screen.list.select(&self.rows, index, capacity);
                }
            }
            ClickTarget::Finding(index) => {
                let shown = self.visible_finding_count();
                self.findings.select_index(index, shown);
            }
            ClickTarget::User(index) => {
                self.users.select_index(index);
                self.refresh_users();
            }
        }
        if is_again { self.act(Action::Enter, now) } else { Vec::new() }
    }

    fn is_selected(&self, target: ClickTarget) -> bool {
        let panes = self.screen.focus() == Focus::Panes;
        match target {
            ClickTarget::Pane(position) => panes && self.visible_hosts().get(position) == Some(&self.screen.host),
            ClickTarget::Gpu(position) => panes && self.screen.gpu == position,
            ClickTarget::Cell(host, gpu) => self.screen.wall.host == host && self.screen.wall.gpu == gpu,
            ClickTarget::Row(index) => {
                let has_keys = !panes || self.screen.view() == &View::Processes;
                has_keys && index == Some(self.screen.list.index())
            }
            ClickTarget::Finding(index) => self.findings.index() == index,
            ClickTarget::User(index) => self.users.index() == index,
        }
    }

    /// What is drawn at a cell of the screen.
    fn click_target(&self, column: u16, row: u16) -> Option<ClickTarget> {
        let row = row.checked_sub(1)?;
        let body = self.size.1.saturating_sub(2);
        if row >= body || column >= self.size.0 {
            return None;
        }
        match self.screen.view() {
            View::Overview => {
                let grid_rows = match self.screen_layout.grid {
                    Some(grid) if self.screen_layout.list_rows == 0 => body.max(grid.rows()),
                    Some(grid) => grid.rows(),
                    None => 0,
                };
                if row >= grid_rows {
                    return Some(self.row_at(row - grid_rows));
                }
                let grid = self.screen_layout.grid?;
                let (line, position) = (row / grid.pane_rows.max(1), column / grid.pane_columns.max(1));
                if line >= grid.visible_rows || position >= grid.per_row {
                    return None;
                }
                let top = self.screen.grid_top.min(grid.total_rows.saturating_sub(grid.visible_rows));
                let position = usize::from(top + line) * usize::from(grid.per_row) + usize::from(position);
                (position < self.visible_hosts().len()).then_some(ClickTarget::Pane(position))
            }
            View::Host(_) => {
                let layout = &self.host_layout;
                let list = layout.facts_rows + layout.gpu_rows() + layout.detail_rows;
                if row >= list {
                    return (row < list + layout.list_rows).then(|| self.row_at(row - list));
                }
                let row = row.checked_sub(layout.facts_rows)?;
                let position = if let Some(cards) = layout.cards {
                    let per_row = column / cards.columns.max(1);
                    let line = row / cards.rows.max(1);
                    (per_row < cards.per_row && line < cards.rows_of_cards).then(|| line * cards.per_row + per_row)?
                } else {
                    let line = row.checked_sub(TABLE_HEADER_ROWS).filter(|line| *line < layout.visible_gpus)?;
                    // The table is scrolled so far that the selected GPU is its last line.
                    line + (self.screen.gpu as u16 + 1).saturating_sub(layout.visible_gpus)
                };
                (usize::from(position) < self.gpus_in_view()).then_some(ClickTarget::Gpu(usize::from(position)))
            }
            View::Processes => {
                let (rows, _) = processes_layout(body);
                (row < rows).then(|| self.row_at(row))
            }
            View::Wall => self.cell_at(column, row),
            View::Findings => {
                let line = usize::from(row.checked_sub(1 + FINDINGS_HEADER_ROWS)?);
                let shown = self.visible_finding_count();
                let index = self.findings.top(shown) + line;
                (line < shown && index < self.findings.list().len()).then_some(ClickTarget::Finding(index))
            }
            View::Users => {
                let line = usize::from(row.checked_sub(USERS_HEADER_ROWS)?);
                let shown = usize::from(visible_user_count(body));
                let index = self.users.top(shown) + line;
                (line < shown && index < self.users.list().len()).then_some(ClickTarget::User(index))
            }
            View::Gpu(..) | View::Log(_) | View::History | View::Process(_) => None,
        }
    }

    /// The row of the list whose frame begins `row` rows above.
    fn row_at(&self, row: u16) -> ClickTarget {
        let capacity = self.list_capacity();
        let line = row.checked_sub(LIST_FRAME_ROWS - 1).map(usize::from).filter(|line| *line < capacity);
        let index = line.map(|line| self.screen.list.top(self.rows.len(), capacity) + line);
        ClickTarget::Row(index.filter(|index| *index < self.rows.len()))
    }

    fn cell_at(&self, column: u16, row: u16) -> Option<ClickTarget> {
        let (lines, layout) = (self.wall_lines(), self.wall_layout(self.size));
        let per_row = column / layout.columns.max(1);
        if row >= layout.rows || per_row >= layout.per_row {
            return None;
        }
        let position = self.screen.wall.top + usize::from(per_row) * usize::from(layout.rows) + usize::from(row);
        let Some(WallLine::Host(host)) = lines.get(position) else { return None };
        let gpus =
            self.fleet.hosts().get(*host).and_then(|host| self.host_summary(host)).map_or(0, |host| host.gpus.len());
        let step = if layout.is_spaced { 2 } else { 1 };
        let first = layout.name + 3;
        let gpu = (column % layout.columns.max(1)).checked_sub(first).map_or(0, |columns| columns / step);
        let last = gpus.min(usize::from(layout.cells)).saturating_sub(1);
        Some(ClickTarget::Cell(*host, usize::from(gpu).min(last)))
    }
}

#[cfg(test)]
#[path = "mouse_tests.rs"]
mod tests;
