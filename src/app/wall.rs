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
pub struct WallShape {
    /// Hosts side by side.
    pub across: u16,
    /// Columns of one host, the gap beside it included.
    pub columns: u16,
    /// Columns of its name.
    pub name: u16,
    /// Cells of GPUs that there is room for.
    pub cells: u16,
    /// An empty column stands between two cells.
    pub is_spaced: bool,
    /// Columns for what is wrong or free there, at the end of its line; 0 where there is no room.
    pub note: u16,
    /// Lines below each other.
    pub rows: u16,
    /// Rows of the panels below.
    pub panel_rows: u16,
}

impl WallShape {
    /// Lines on the screen at once.
    pub fn capacity(&self) -> usize {
        usize::from(self.across) * usize::from(self.rows)
    }
}

/// The row that tells what the glyphs mean, and how many hosts are not on the screen.
pub const LEGEND_ROWS: u16 = 1;
/// Columns for what is wrong or free on a host: `2 hung?`.
const NOTE_COLUMNS: u16 = 8;
/// Columns before the name (what is selected), after it (findings), and between two hosts.
const MARKS: u16 = 4;
/// Rows of the panels: with every GPU of a usual host, or only the figures.
const PANELS: [u16; 3] = [16, 9, 0];
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
pub fn arrange_wall(size: (u16, u16), lines: usize, gpus: usize, name: usize) -> WallShape {
    let (columns, body) = size;
    let name = name.clamp(6, 12) as u16;
    let gpus = gpus.clamp(1, usize::from(MAX_CELLS)) as u16;
    let room = body.saturating_sub(LEGEND_ROWS);
    let densities = [(true, NOTE_COLUMNS), (true, 0), (false, NOTE_COLUMNS), (false, 0)];
    let shape = |panel: u16, (is_spaced, note): (bool, u16)| {
        let cell_columns = if is_spaced { 2 * gpus - 1 } else { gpus };
        let note = if note > 0 { note + 1 } else { 0 };
        let least = MARKS + name + cell_columns + note;
        let most_across = (columns / least).max(1);
        let rows = room.saturating_sub(panel).max(1);
        let across = lines.div_ceil(usize::from(rows)).clamp(1, usize::from(most_across)) as u16;
        // As evenly as the columns allow: a last column with one host looks like a mistake.
        let needed = lines.div_ceil(usize::from(across)).max(1);
        let fits = needed <= usize::from(rows) && least <= columns;
        let across = if fits { most_across.min(spread(lines, most_across, rows)) } else { across };
        let width = columns / across;
        let used = MARKS + name + note;
        let cells = gpus.min(width.saturating_sub(used).div_ceil(if is_spaced { 2 } else { 1 })).max(1);
        let rows = if fits { lines.div_ceil(usize::from(across)).max(1) as u16 } else { rows };
        let panel_rows = if panel == 0 { 0 } else { room - rows };
        let note = note.saturating_sub(1);
        (fits, WallShape { across, columns: width, name, cells, is_spaced, note, rows, panel_rows })
    };
    PANELS
        .into_iter()
        .filter(|panel| *panel < room)
        .flat_map(|panel| densities.map(|density| shape(panel, density)))
        .find_map(|(fits, shape)| fits.then_some(shape))
        .unwrap_or_else(|| shape(0, (false, 0)).1)
}

/// Hosts side by side: as many as it takes to need no more rows than half of those there are, where that can be had.
fn spread(lines: usize, most_across: u16, rows: u16) -> u16 {
    let wanted = usize::from(rows / 2).max(1);
    (lines.div_ceil(wanted).max(1) as u16).min(most_across)
}

/// The place on the wall: a host, one of its GPUs, and what is on the screen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WallPlace {
    /// Index of the host in the fleet.
    pub host: usize,
    /// Position of the GPU.
    pub gpu: usize,
    /// The first line on the screen.
    pub top: usize,
}

impl WallPlace {
    /// Moves; `gpus` says how many GPUs a host has.
    pub fn go(&mut self, action: Action, lines: &[WallLine], shape: &WallShape, gpus: impl Fn(usize) -> usize) {
        let Some(at) = lines.iter().position(|line| *line == WallLine::Host(self.host)) else { return };
        let rows = usize::from(shape.rows).max(1);
        let (last_line, page) = (lines.len() - 1, shape.capacity().max(1));
        let last_gpu = |host: usize| gpus(host).min(usize::from(shape.cells)).saturating_sub(1);
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
        self.show(lines, shape);
    }

    /// Scrolls by whole columns so that the selected host is on the screen.
    pub fn show(&mut self, lines: &[WallLine], shape: &WallShape) {
        let rows = usize::from(shape.rows).max(1);
        let capacity = shape.capacity().max(1);
        let columns = lines.len().div_ceil(rows);
        let most = columns.saturating_sub(usize::from(shape.across)) * rows;
        let at = lines.iter().position(|line| *line == WallLine::Host(self.host)).unwrap_or(0);
        self.top = (self.top / rows * rows).min(most);
        if at < self.top {
            self.top = at / rows * rows;
        } else if at >= self.top + capacity {
            self.top = (at / rows + 1).saturating_sub(usize::from(shape.across)) * rows;
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
