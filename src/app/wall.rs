//! The wall: one cell per GPU, with as many hosts as fit. Lines, layout and cursor.
//!
//! ```text
//! ─ rack A ─── 3 free ─  ─ rack B ─────────────  groups and their hosts, column by column
//!  n001   ▇ ▇ ▇ ▇ · z ▇   n017   x DOWN 4m
//! legend                                          1 row
//! ╭ the selected GPU ╮╭ free now, findings ╮      the rest
//! ```

use super::action::Action;
use crate::fleet::Fleet;
use crate::wire::SafeText;

/// A line of the wall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WallLine {
    /// The heading of this host's group.
    Heading(usize),
    /// The host at this index of the fleet.
    Host(usize),
}

/// The layout of the wall.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WallLayout {
    /// Hosts side by side.
    pub per_row: u16,
    /// Columns of one host, including the gap beside it.
    pub columns: u16,
    /// Columns of the host name.
    pub name: u16,
    /// GPU cells per host.
    pub cells: u16,
    /// There is an empty column between two cells.
    pub is_spaced: bool,
    /// Columns at the end of the line for problems or free GPUs. 0 if there is no room.
    pub status_columns: u16,
    /// Lines per column.
    pub rows: u16,
    /// Rows of the panels below the lines.
    pub panel_rows: u16,
}

impl WallLayout {
    /// Returns the number of visible lines.
    pub fn capacity(&self) -> usize {
        usize::from(self.per_row) * usize::from(self.rows)
    }
}

/// The row with the meaning of the glyphs and the number of hosts that do not fit.
pub const LEGEND_ROWS: u16 = 1;
/// Columns for problems or free GPUs: `2 hung?`.
const STATUS_COLUMNS: u16 = 8;
/// Columns before the name (selection), after it (findings) and between two hosts.
const MARKER_COLUMNS: u16 = 4;
/// Rows of the panels: with each GPU of a host, with its values only, or no panels.
const PANEL_ROWS: [u16; 3] = [16, 9, 0];
/// The most cells per host.
const MAX_CELLS: u16 = 32;

/// Returns the visible hosts by group, in the order in which groups first occur, and hosts without a group last. Without
/// groups there are no headings.
pub fn wall_lines(fleet: &Fleet, is_shown: impl Fn(usize) -> bool) -> Vec<WallLine> {
    let hosts = fleet.hosts_in_order();
    let mut groups: Vec<Option<&SafeText>> = Vec::new();
    for host in &hosts {
        let group = host.config.group.as_ref();
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups.sort_by_key(Option::is_none);
    let has_headings = groups.iter().any(Option::is_some);
    let mut lines = Vec::new();
    for group in groups {
        let of_group = hosts.iter().filter(|host| host.config.group.as_ref() == group);
        let shown: Vec<usize> = of_group.map(|host| host.id.0 as usize).filter(|index| is_shown(*index)).collect();
        if has_headings {
            lines.extend(shown.first().copied().map(WallLine::Heading));
        }
        lines.extend(shown.into_iter().map(WallLine::Host));
    }
    lines
}

/// Computes the layout for a body of this size with `lines` lines, up to `gpus` GPUs per host and names of up to `name`
/// columns.
///
/// If there is not enough room, the status is dropped first, then the space between cells, then rows of the panels, then
/// the panels. After that the wall scrolls.
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
        // Even columns: a last column with one host looks like an error.
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

/// Returns the number of hosts side by side that needs at most half of the rows, if possible.
fn spread(lines: usize, max_per_row: u16, rows: u16) -> u16 {
    let wanted = usize::from(rows / 2).max(1);
    (lines.div_ceil(wanted).max(1) as u16).min(max_per_row)
}

/// The cursor of the wall: a host, one of its GPUs and the scroll position.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WallCursor {
    /// Index of the host in the fleet.
    pub host: usize,
    /// Position of the GPU.
    pub gpu: usize,
    /// The first visible line.
    pub top: usize,
}

impl WallCursor {
    /// Moves the cursor. `gpus` returns the number of GPUs of a host.
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

    /// Scrolls by whole columns so that the selected host is visible.
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

/// Returns the host at a line, or the nearest one in the given direction, or else in the other.
fn host_near(lines: &[WallLine], at: usize, forward: bool) -> Option<usize> {
    let host = |line: &WallLine| if let WallLine::Host(host) = line { Some(*host) } else { None };
    let after = || lines[at.min(lines.len())..].iter().find_map(host);
    let before = || lines[..(at + 1).min(lines.len())].iter().rev().find_map(host);
    if forward { after().or_else(before) } else { before().or_else(after) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HostConfig;
    use crate::fleet::Moment;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn fleet(groups: &[Option<&str>]) -> Fleet {
        let config = |(index, group): (usize, Option<&str>)| {
            let mut config = HostConfig::named(format!("n{index:03}"));
            config.group = group.map(Into::into);
            Arc::new(config)
        };
        Fleet::new(&groups.iter().copied().enumerate().map(config).collect::<Vec<_>>(), false, Moment::default())
    }

    #[test]
    fn hosts_are_grouped_and_those_without_a_group_come_last() {
        use WallLine::{Heading, Host};
        let lines = wall_lines(&fleet(&[None, Some("b"), Some("a"), Some("b")]), |_| true);
        assert_eq!(lines, [Heading(1), Host(1), Host(3), Heading(2), Host(2), Heading(0), Host(0)]);
        assert_eq!(wall_lines(&fleet(&[None, None]), |_| true), [Host(0), Host(1)]);
        assert_eq!(wall_lines(&fleet(&[]), |_| true), []);
    }

    #[test]
    fn common_screen_sizes() {
        let layout = |size, hosts| {
            let layout = compute_wall_layout(size, hosts, 8, 6);
            (layout.per_row, layout.rows, layout.is_spaced, layout.status_columns > 0, layout.panel_rows > 8)
        };
        assert_eq!(layout((120, 38), 64), (4, 16, true, false, true));
        assert_eq!(layout((80, 22), 64), (4, 16, false, false, false));
        assert_eq!(layout((200, 58), 64), (4, 16, true, true, true));
        assert_eq!(layout((120, 38), 4), (1, 4, true, true, true));
    }

    #[test]
    fn arrows_move_among_gpus_and_hosts() {
        let lines = wall_lines(&fleet(&[Some("a"), Some("a"), Some("b"), Some("b")]), |_| true);
        let layout = WallLayout { per_row: 2, rows: 3, cells: 8, ..WallLayout::default() };
        let mut cursor = WallCursor::default();
        let mut navigate = |actions: &[Action]| {
            for action in actions {
                cursor.navigate(*action, &lines, &layout, |_| 2);
            }
            (cursor.host, cursor.gpu)
        };
        assert_eq!(navigate(&[Action::Right]), (0, 1));
        assert_eq!(navigate(&[Action::Right]), (2, 0), "the host in the next column");
        assert_eq!(navigate(&[Action::Left]), (0, 1), "back to the last GPU of the previous host");
        assert_eq!(navigate(&[Action::Down, Action::Down]), (2, 1), "past the heading");
        assert_eq!(navigate(&[Action::Up, Action::Up, Action::Up]), (0, 1));
        assert_eq!(navigate(&[Action::Last]), (3, 1));
    }

    proptest! {
        #[test]
        fn layout_and_cursor_stay_within_the_screen(
            columns in 40u16..300, body in 8u16..90, hosts in 1usize..500, gpus in 0usize..130, name in 0usize..40,
            steps in proptest::collection::vec(0usize..6, 0..20)
        ) {
            let layout = compute_wall_layout((columns, body), hosts, gpus, name);
            prop_assert!(layout.rows + LEGEND_ROWS + layout.panel_rows <= body, "{:?}", layout);
            prop_assert!(layout.per_row * layout.columns <= columns);
            prop_assert!(layout.rows >= 1 && layout.cells >= 1);
            let lines = wall_lines(&fleet(&vec![None; hosts]), |_| true);
            let mut cursor = WallCursor::default();
            let actions = [Action::Up, Action::Down, Action::Left, Action::Right, Action::PageDown, Action::Last];
            for step in steps {
                cursor.navigate(actions[step], &lines, &layout, |_| gpus);
                prop_assert!(cursor.host < hosts && (gpus == 0 || cursor.gpu < gpus));
                prop_assert!(cursor.top <= cursor.host && cursor.host < cursor.top + layout.capacity().max(1), "{:?}", cursor);
            }
        }
    }
}
