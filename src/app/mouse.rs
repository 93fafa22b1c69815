//! What lies under the mouse: a click selects, on what is selected it goes in, the wheel moves.

use super::arrange::{FINDINGS_HEAD_ROWS, LIST_FRAME_ROWS, processes_shape};
use super::host_shape::TABLE_HEAD_ROWS;
use super::users::{USERS_HEAD_ROWS, users_shown};
use super::wall::WallLine;
use super::{Action, App, Effect, Focus, Mode, View};
use crate::fleet::Moment;
use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};

/// Rows that one step of the wheel moves a list by.
const WHEEL_ROWS: usize = 3;

/// Something on the screen that can be selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spot {
    /// The host at this place of the grid.
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
        let spot = self.spot(event.column, event.row);
        match event.kind {
            MouseEventKind::Down(MouseButton::Left) => {
                self.notice = None;
                match spot {
                    Some(spot) if self.can_be_clicked() => self.click(spot, now),
                    _ => Vec::new(),
                }
            }
            MouseEventKind::ScrollUp => self.wheel(Action::Up, spot, now),
            MouseEventKind::ScrollDown => self.wheel(Action::Down, spot, now),
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

    fn wheel(&mut self, action: Action, spot: Option<Spot>, now: Moment) -> Vec<Effect> {
        let is_over = matches!(self.mode(), Mode::Help | Mode::UserPicker | Mode::Palette);
        if !is_over && !self.can_be_clicked() {
            return Vec::new();
        }
        let is_list = matches!(spot, Some(Spot::Row(_)));
        if !is_over && matches!(self.screen.view(), View::Overview | View::Host(_)) && spot.is_some() {
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
            self.rearrange();
        }
    }

    fn click(&mut self, spot: Spot, now: Moment) -> Vec<Effect> {
        let is_again = self.is_selected(spot);
        match spot {
            Spot::Pane(place) => {
                self.focus_on(Focus::Panes);
                if let Some(host) = self.shown_hosts().get(place) {
                    self.screen.host = *host;
                }
            }
            Spot::Gpu(position) => {
                self.focus_on(Focus::Panes);
                self.screen.gpu = position;
            }
            Spot::Cell(host, gpu) => {
                self.screen.wall.host = host;
                self.screen.wall.gpu = gpu;
                self.screen.host = host;
            }
            Spot::Row(index) => {
                if matches!(self.screen.view(), View::Overview | View::Host(_)) {
                    self.focus_on(Focus::List);
                }
                if let Some(index) = index {
                    let capacity = self.list_capacity();
                    self.screen.list.select(&self.rows, index, capacity);
                }
            }
            Spot::Finding(index) => {
                let shown = self.findings_shown();
                self.findings.point(index, shown);
            }
            Spot::User(index) => {
                self.users.point(index);
                self.refresh_users();
            }
        }
        if is_again { self.act(Action::Enter, now) } else { Vec::new() }
    }

    fn is_selected(&self, spot: Spot) -> bool {
        let panes = self.screen.focus() == Focus::Panes;
        match spot {
            Spot::Pane(place) => panes && self.shown_hosts().get(place) == Some(&self.screen.host),
            Spot::Gpu(position) => panes && self.screen.gpu == position,
            Spot::Cell(host, gpu) => self.screen.wall.host == host && self.screen.wall.gpu == gpu,
            Spot::Row(index) => {
                let has_keys = !panes || self.screen.view() == &View::Processes;
                has_keys && index == Some(self.screen.list.index())
            }
            Spot::Finding(index) => self.findings.index() == index,
            Spot::User(index) => self.users.index() == index,
        }
    }

    /// What is drawn at a cell of the screen.
    fn spot(&self, column: u16, row: u16) -> Option<Spot> {
        let row = row.checked_sub(1)?;
        let body = self.size.1.saturating_sub(2);
        if row >= body || column >= self.size.0 {
            return None;
        }
        match self.screen.view() {
            View::Overview => {
                let grid_rows = match self.arrangement.grid {
                    Some(grid) if self.arrangement.list_rows == 0 => body.max(grid.rows()),
                    Some(grid) => grid.rows(),
                    None => 0,
                };
                if row >= grid_rows {
                    return Some(self.row_at(row - grid_rows));
                }
                let grid = self.arrangement.grid?;
                let (line, place) = (row / grid.pane_rows.max(1), column / grid.pane_columns.max(1));
                if line >= grid.visible_rows || place >= grid.across {
                    return None;
                }
                let top = self.screen.grid_top.min(grid.total_rows.saturating_sub(grid.visible_rows));
                let place = usize::from(top + line) * usize::from(grid.across) + usize::from(place);
                (place < self.shown_hosts().len()).then_some(Spot::Pane(place))
            }
            View::Host(_) => {
                let shape = &self.host_shape;
                let list = shape.facts_rows + shape.gpu_rows() + shape.detail_rows;
                if row >= list {
                    return (row < list + shape.list_rows).then(|| self.row_at(row - list));
                }
                let row = row.checked_sub(shape.facts_rows)?;
                let position = if let Some(cards) = shape.cards {
                    let across = column / cards.columns.max(1);
                    let line = row / cards.rows.max(1);
                    (across < cards.across && line < cards.down).then(|| line * cards.across + across)?
                } else {
                    let line = row.checked_sub(TABLE_HEAD_ROWS).filter(|line| *line < shape.gpus_shown)?;
                    // The table is scrolled so far that the selected GPU is its last line.
                    line + (self.screen.gpu as u16 + 1).saturating_sub(shape.gpus_shown)
                };
                (usize::from(position) < self.gpus_in_view()).then_some(Spot::Gpu(usize::from(position)))
            }
            View::Processes => {
                let (rows, _) = processes_shape(body);
                (row < rows).then(|| self.row_at(row))
            }
            View::Wall => self.cell_at(column, row),
            View::Findings => {
                let line = usize::from(row.checked_sub(1 + FINDINGS_HEAD_ROWS)?);
                let shown = self.findings_shown();
                let index = self.findings.top(shown) + line;
                (line < shown && index < self.findings.list().len()).then_some(Spot::Finding(index))
            }
            View::Users => {
                let line = usize::from(row.checked_sub(USERS_HEAD_ROWS)?);
                let shown = usize::from(users_shown(body));
                let index = self.users.top(shown) + line;
                (line < shown && index < self.users.list().len()).then_some(Spot::User(index))
            }
            View::Gpu(..) | View::Log(_) | View::History | View::Process(_) => None,
        }
    }

    /// The row of the list whose frame begins `row` rows above.
    fn row_at(&self, row: u16) -> Spot {
        let capacity = self.list_capacity();
        let line = row.checked_sub(LIST_FRAME_ROWS - 1).map(usize::from).filter(|line| *line < capacity);
        let index = line.map(|line| self.screen.list.top(self.rows.len(), capacity) + line);
        Spot::Row(index.filter(|index| *index < self.rows.len()))
    }

    fn cell_at(&self, column: u16, row: u16) -> Option<Spot> {
        let (lines, shape) = (self.wall_lines(), self.wall_shape(self.size));
        let across = column / shape.columns.max(1);
        if row >= shape.rows || across >= shape.across {
            return None;
        }
        let place = self.screen.wall.top + usize::from(across) * usize::from(shape.rows) + usize::from(row);
        let Some(WallLine::Host(host)) = lines.get(place) else { return None };
        let gpus = self.fleet.hosts().get(*host).and_then(|host| self.figures(host)).map_or(0, |host| host.gpus.len());
        let step = if shape.is_spaced { 2 } else { 1 };
        let first = shape.name + 3;
        let gpu = (column % shape.columns.max(1)).checked_sub(first).map_or(0, |columns| columns / step);
        let last = gpus.min(usize::from(shape.cells)).saturating_sub(1);
        Some(Spot::Cell(*host, usize::from(gpu).min(last)))
    }
}

#[cfg(test)]
#[path = "mouse_tests.rs"]
mod tests;
