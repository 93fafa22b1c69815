//! The wall: one cell a GPU, as many hosts on the screen as can be told apart.
//!
//! ```text
//! ─ rack A ─── 3 free ─  ─ rack B ─────────────  groups, then their hosts, from the top of the first column down
//!  n001   ▇ ▇ ▇ ▇ · z ▇   n017   x DOWN 4m
//! legend                                          1 row
//! ╭ the selected GPU ╮╭ free now, findings ╮      the rest
//! ```

use super::Action;
use crate::fleet::Fleet;
use crate::wire::SafeText;

/// A line of the wall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WallLine {
    /// The heading of the group of this host.
    Heading(usize),
    /// The host at this index of the fleet.
    Host(usize),
}

/// How the wall is divided.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WallLayout {
    /// Hosts side by side.
    pub per_row: u16,
    /// Columns of one host, the gap beside it included.
    pub columns: u16,
    /// Columns of its name.
    pub name: u16,
    /// Cells of GPUs that there is room for.
    pub cells: u16,
    /// An empty column stands between two cells.
    pub is_spaced: bool,
    /// Columns for what is wrong or free there, at the end of its line; 0 where there is no room.
    pub status_columns: u16,
    /// Lines below each other.
    pub rows: u16,
    /// Rows of the panels below.
    pub panel_rows: u16,
}

impl WallLayout {
    /// Lines on the screen at once.
    pub fn capacity(&self) -> usize {
        usize::from(self.per_row) * usize::from(self.rows)
    }
}

/// The row that tells what the glyphs mean, and how many hosts are not on the screen.
pub const LEGEND_ROWS: u16 = 1;
/// Columns for what is wrong or free on a host: `2 hung?`.
const STATUS_COLUMNS: u16 = 8;
/// Columns before the name (what is selected), after it (findings), and between two hosts.
const MARKER_COLUMNS: u16 = 4;
/// Rows of the panels: with every GPU of a usual host, or only the figures.
const PANEL_ROWS: [u16; 3] = [16, 9, 0];
/// More cells than these are never shown of a host.
const MAX_CELLS: u16 = 32;

/// Those hosts that are shown by group, in the order in which groups first occur; hosts without one last. Without groups there are no headings.
pub fn wall_lines(fleet: &Fleet, is_shown: impl Fn(usize) -> bool) -> Vec<WallLine> {
    let hosts = fleet.hosts();
    let mut groups: Vec<Option<&SafeText>> = Vec::new();
    for host in hosts {
        let group = host.config.group.as_ref();
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups.sort_by_key(Option::is_none);
    let has_headings = groups.iter().any(Option::is_some);
    let mut lines = Vec::new();
    for group in groups {
        let members =
            || (0..hosts.len()).filter(|index| is_shown(*index) && hosts[*index].config.group.as_ref() == group);
        if has_headings {
            lines.extend(members().next().map(WallLine::Heading));
        }
        lines.extend(members().map(WallLine::Host));
    }
    lines
}

/// Divides a body of this size for so many lines of hosts with up to `gpus` GPUs whose names have up to `name` columns.
/// What is given up first, in this order: the notes, the space between cells, rows of the panels, the panels; what does
/// not fit then is scrolled.
pub fn compute_wall_layout(size: (u16, u16), lines: usize, gpus: usize, name: usize) -> WallLayout {
    let (columns, body) = size;
    let name = name.clamp(6, 12) as u16;
    let gpus = gpus.clamp(1, usize::from(MAX_CELLS)) as u16;
    let room = body.saturating_sub(LEGEND_ROWS);
    let densities = [(true, STATUS_COLUMNS), (true, 0), (false, STATUS_COLUMNS), (false, 0)];
    let layout = |panel: u16, (is_spaced, status_columns): (bool, u16)| {
        let cell_columns = if is_spaced { 2 * gpus - 1 } else { gpus };
        let status_columns = if status_columns > 0 { status_columns + 1 } else { 0 };
        let least = MARKER_COLUMNS + name + cell_columns + status_columns;
        let max_per_row = (columns / least).max(1);
        let rows = room.saturating_sub(panel).max(1);
        let per_row = lines.div_ceil(usize::from(rows)).clamp(1, usize::from(max_per_row)) as u16;
        // As evenly as the columns allow: a last column with one host looks like a mistake.
        let needed = lines.div_ceil(usize::from(per_row)).max(1);
        let fits = needed <= usize::from(rows) && least <= columns;
        let per_row = if fits { max_per_row.min(spread(lines, max_per_row, rows)) } else { per_row };
        let width = columns / per_row;
        let used = MARKER_COLUMNS + name + status_columns;
        let cells = gpus.min(width.saturating_sub(used).div_ceil(if is_spaced { 2 } else { 1 })).max(1);
        let rows = if fits { lines.div_ceil(usize::from(per_row)).max(1) as u16 } else { rows };
        let panel_rows = if panel == 0 { 0 } else { room - rows };
        let status_columns = status_columns.saturating_sub(1);
        (fits, WallLayout { per_row, columns: width, name, cells, is_spaced, status_columns, rows, panel_rows })
    };
    PANEL_ROWS
        .into_iter()
        .filter(|panel| *panel < room)
        .flat_map(|panel| densities.map(|density| layout(panel, density)))
        .find_map(|(fits, layout)| fits.then_some(layout))
        .unwrap_or_else(|| layout(0, (false, 0)).1)
}

/// Hosts side by side: as many as it takes to need no more rows than half of those there are, where that can be had.
fn spread(lines: usize, max_per_row: u16, rows: u16) -> u16 {
    let wanted = usize::from(rows / 2).max(1);
    (lines.div_ceil(wanted).max(1) as u16).min(max_per_row)
}

/// The cursor on the wall: a host, one of its GPUs, and what is on the screen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WallCursor {
    /// Index of the host in the fleet.
    pub host: usize,
    /// Position of the GPU.
    pub gpu: usize,
    /// The first line on the screen.
    pub top: usize,
}

impl WallCursor {
    /// Moves; `gpus` says how many GPUs a host has.
    pub fn navigate(&mut self, action: Action, lines: &[WallLine], layout: &WallLayout, gpus: impl Fn(usize) -> usize) {
        let Some(at) = lines.iter().position(|line| *line == WallLine::Host(self.host)) else { return };
        let rows = usize::from(layout.rows).max(1);
        let (last_line, page) = (lines.len() - 1, layout.capacity().max(1));
        let last_gpu = |host: usize| gpus(host).min(usize::from(layout.cells)).saturating_sub(1);
        let (target, forward) = match action {
            Action::Right if self.gpu < last_gpu(self.host) => {
                self.gpu += 1;
                return;
            }
            Action::Left if self.gpu > 0 => {
                self.gpu -= 1;
                return;
            }
            Action::Right if at + rows <= last_line => {
                self.gpu = 0;
                (at + rows, true)
            }
            Action::Left if at >= rows => {
                self.gpu = usize::MAX;
                (at - rows, false)
            }
            Action::Up => (at.saturating_sub(1), false),
            Action::Down => ((at + 1).min(last_line), true),
            Action::PageUp => (at.saturating_sub(page), false),
            Action::PageDown => ((at + page).min(last_line), true),
            Action::HalfPageUp => (at.saturating_sub(page / 2), false),
            Action::HalfPageDown => ((at + page / 2).min(last_line), true),
            Action::First => (0, true),
            Action::Last => (last_line, false),
            _ => return,
        };
        self.host = host_near(lines, target, forward).unwrap_or(self.host);
        self.gpu = self.gpu.min(last_gpu(self.host));
        self.show(lines, layout);
    }

    /// Scrolls by whole columns so that the selected host is on the screen.
    pub fn show(&mut self, lines: &[WallLine], layout: &WallLayout) {
        let rows = usize::from(layout.rows).max(1);
        let capacity = layout.capacity().max(1);
        let columns = lines.len().div_ceil(rows);
        let most = columns.saturating_sub(usize::from(layout.per_row)) * rows;
        let at = lines.iter().position(|line| *line == WallLine::Host(self.host)).unwrap_or(0);
        self.top = (self.top / rows * rows).min(most);
        if at < self.top {
            self.top = at / rows * rows;
        } else if at >= self.top + capacity {
            self.top = (at / rows + 1).saturating_sub(usize::from(layout.per_row)) * rows;
        }
    }
}

/// The host at a line, or the nearest one after it, or before it.
fn host_near(lines: &[WallLine], at: usize, forward: bool) -> Option<usize> {
    let host = |line: &WallLine| if let WallLine::Host(host) = line { Some(*host) } else { None };
    let after = || lines[at.min(lines.len())..].iter().find_map(host);
    let before = || lines[..(at + 1).min(lines.len())].iter().rev().find_map(host);
    if forward { after().or_else(before) } else { before().or_else(after) }
}

#[cfg(test)]
#[path = "wall_tests.rs"]
mod tests;
