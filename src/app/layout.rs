//! How the screen is divided: pure geometry in columns and rows, known to the keys as well as to the drawing.
//!
//! ```text
//! header                                1 row
//! ┌ pane ┐┌ pane ┐┌ pane ┐              grid: the rows that its level needs
//! └──────┘└──────┘└──────┘
//! list of processes                     the rest, never under 30 % nor 7 rows
//! hints                                 1 row
//! ```

use super::Density;

/// The smallest screen on which anything but a line can be shown: columns, rows.
pub const MIN_SIZE: (u16, u16) = (40, 10);
/// A body with fewer rows shows the grid or the list, not both.
pub const SHARED_BODY_ROWS: u16 = 18;
/// The list never has fewer rows beside a grid.
const LIST_MIN_ROWS: u16 = 7;
/// Columns between two inner columns of a pane.
pub const INNER_GAP: u16 = 2;
/// GPUs a host is taken to have before any has said.
const ASSUMED_GPUS: usize = 8;

/// How much each GPU line shows. All panes of a grid share one level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DetailLevel {
    /// One line a host.
    Line,
    /// Two GPUs a line.
    Pairs,
    /// A short bar and the used memory (27 columns).
    Short,
    /// A full bar and the memory's total (36 columns).
    Medium,
    /// Power as well (46 columns).
    Power,
    /// A sparkline as well (54 columns).
    Sparkline,
}

impl DetailLevel {
    /// The fewest columns of a GPU line at this level.
    pub fn min_columns(self) -> u16 {
        match self {
            Self::Line | Self::Pairs => 13,
            Self::Short => 27,
            Self::Medium => 36,
            Self::Power => 46,
            Self::Sparkline => 54,
        }
    }

    fn of_columns(columns: u16) -> Option<Self> {
        [Self::Sparkline, Self::Power, Self::Medium, Self::Short, Self::Pairs]
            .into_iter()
            .find(|level| columns >= level.min_columns())
    }
}

/// What surrounds a pane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PaneFrame {
    /// Nothing: the pane is one line.
    Bare,
    /// A rule with the title above.
    Rule,
    /// A box with the title in its top and the host's readings in its bottom.
    Boxed,
}

/// The grid of host panes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GridLayout {
    /// How much each pane shows.
    pub level: DetailLevel,
    /// What surrounds each pane.
    pub frame: PaneFrame,
    /// Panes side by side.
    pub per_row: u16,
    /// GPU lines side by side within a pane.
    pub inner_columns: u16,
    /// Columns of one GPU line.
    pub cell_columns: u16,
    /// Columns of one pane, its frame and the gap beside it included.
    pub pane_columns: u16,
    /// Rows of one pane, its frame included.
    pub pane_rows: u16,
    /// Rows of panes that are on the screen at once.
    pub visible_rows: u16,
    /// Rows of panes in all.
    pub total_rows: u16,
}

impl GridLayout {
    /// Rows of the screen that the grid takes, with the line that counts the hosts which do not fit.
    pub fn rows(&self) -> u16 {
        self.visible_rows * self.pane_rows + u16::from(self.overflows())
    }

    /// Whether some hosts are not on the screen.
    pub fn overflows(&self) -> bool {
        self.visible_rows < self.total_rows
    }

    /// How many panes are on the screen at once.
    pub fn visible_panes(&self) -> usize {
        usize::from(self.visible_rows) * usize::from(self.per_row)
    }
}

/// The division of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScreenLayout {
    /// Columns and rows of the whole screen.
    pub size: (u16, u16),
    /// The grid, unless the list has the whole body.
    pub grid: Option<GridLayout>,
    /// Rows of the list, its frame included; 0 when the grid has the whole body.
    pub list_rows: u16,
}

/// What the division depends on beside the size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LayoutInputs {
    /// Hosts in the grid.
    pub hosts: usize,
    /// The most GPUs that a host has, 0 while none has said.
    pub gpus: usize,
    /// The keys go to the list: on a small screen it has the whole body.
    pub is_list_focused: bool,
    /// How much the panes show.
    pub density: Density,
}

/// Divides the screen. `previous` is the grid until now: a richer level needs slack, so that a border that is dragged
/// does not make the panes jump to and fro.
pub fn compute_layout(size: (u16, u16), layout_inputs: LayoutInputs, previous: Option<&GridLayout>) -> ScreenLayout {
    let (columns, rows) = size;
    let body = rows.saturating_sub(2);
    if columns < MIN_SIZE.0 || rows < MIN_SIZE.1 {
        return ScreenLayout { size, grid: None, list_rows: 0 };
    }
    if body < SHARED_BODY_ROWS {
        if layout_inputs.is_list_focused {
            return ScreenLayout { size, grid: None, list_rows: body };
        }
        return ScreenLayout { size, grid: Some(compute_grid(columns, body, layout_inputs, previous)), list_rows: 0 };
    }
    let list_min_rows = LIST_MIN_ROWS.max((u32::from(body) * 3).div_ceil(10) as u16);
    let grid = compute_grid(columns, body - list_min_rows, layout_inputs, previous);
    ScreenLayout { size, grid: Some(grid), list_rows: body - grid.rows().min(body - list_min_rows) }
}

fn compute_grid(columns: u16, rows: u16, layout_inputs: LayoutInputs, previous: Option<&GridLayout>) -> GridLayout {
    let hosts = layout_inputs.hosts.clamp(1, usize::from(u16::MAX)) as u16;
    let gpus = if layout_inputs.gpus == 0 { ASSUMED_GPUS } else { layout_inputs.gpus }.min(512) as u16;
    let has_slack = |layout: &GridLayout| {
        previous.is_none_or(|previous| {
            layout.level <= previous.level
                || layout.rows() + 2 <= rows
                || layout.cell_columns >= layout.level.min_columns() + 4
        })
    };
    match layout_inputs.density {
        Density::Auto => {}
        Density::Compact => return compact_grid(columns, rows, hosts, gpus),
        Density::Full => {
            if let Some(layout) = full_grid(columns, rows, hosts, gpus) {
                return layout;
            }
        }
    }
    candidates(columns, hosts, gpus)
        .filter(|layout| u32::from(layout.total_rows) * u32::from(layout.pane_rows) <= u32::from(rows))
        .filter(has_slack)
        .max_by_key(|layout| {
            let rows = std::cmp::Reverse(layout.total_rows * layout.pane_rows);
            let (inner, per_row) = (std::cmp::Reverse(layout.inner_columns), std::cmp::Reverse(layout.per_row));
            (layout.level, layout.frame, inner, rows, per_row)
        })
        .unwrap_or_else(|| line_grid(columns, rows, hosts, gpus))
}

/// Two GPUs a line where every host fits like that, else a line a host.
fn compact_grid(columns: u16, rows: u16, hosts: u16, gpus: u16) -> GridLayout {
    candidates(columns, hosts, gpus)
        .filter(|layout| {
            layout.level == DetailLevel::Pairs && layout.total_rows.saturating_mul(layout.pane_rows) <= rows
        })
        .max_by_key(|layout| (layout.frame, std::cmp::Reverse(layout.total_rows)))
        .unwrap_or_else(|| line_grid(columns, rows, hosts, gpus))
}

/// The richest panes, as many side by side as that allows; `None` where not even one row of them fits.
fn full_grid(columns: u16, rows: u16, hosts: u16, gpus: u16) -> Option<GridLayout> {
    let layout = candidates(columns, hosts, gpus)
        .filter(|layout| layout.frame == PaneFrame::Boxed && layout.inner_columns == 1)
        .max_by_key(|layout| (layout.level, layout.per_row))?;
    let fits = layout.total_rows.saturating_mul(layout.pane_rows) <= rows;
    // A row is for the line that counts the hosts which do not fit.
    let visible_rows = if fits { layout.total_rows } else { rows.saturating_sub(1) / layout.pane_rows };
    (visible_rows > 0).then_some(GridLayout { visible_rows, ..layout })
}

/// Every grid of panes, whether it fits into the rows or not.
fn candidates(columns: u16, hosts: u16, gpus: u16) -> impl Iterator<Item = GridLayout> {
    let max_per_row = (columns / DetailLevel::Short.min_columns()).clamp(1, hosts.max(1));
    (1..=max_per_row)
        .flat_map(|per_row| [PaneFrame::Boxed, PaneFrame::Rule].map(|frame| (per_row, frame)))
        .flat_map(|(per_row, frame)| [1, 2].map(|inner_columns| (per_row, frame, inner_columns)))
        .filter_map(move |(per_row, frame, inner_columns)| {
            let pane_columns = columns / per_row;
            let side = if frame == PaneFrame::Boxed { 2 } else { u16::from(per_row > 1) };
            let cell_columns = (pane_columns - side - (inner_columns - 1) * INNER_GAP) / inner_columns;
            let level = DetailLevel::of_columns(cell_columns)?;
            // A single narrow column of GPUs wastes the half of the pane that two would fill.
            if inner_columns > gpus.max(1) || (level == DetailLevel::Pairs && inner_columns == 1) {
                return None;
            }
            let lines = gpus.div_ceil(inner_columns).max(1);
            let pane_rows = lines + if frame == PaneFrame::Boxed { 2 } else { 1 };
            let total_rows = hosts.div_ceil(per_row);
            Some(GridLayout {
                level,
                frame,
                per_row,
                inner_columns,
                cell_columns,
                pane_columns,
                pane_rows,
                visible_rows: total_rows,
                total_rows,
            })
        })
}

/// One line a host, in as many columns as there is room for whole lines, so that the rows go to the list, and in as many
/// as are needed; what still does not fit is scrolled.
fn line_grid(columns: u16, rows: u16, hosts: u16, gpus: u16) -> GridLayout {
    // A mark, a name of twelve columns, a cell for each GPU, a count; before anything is scrolled the count goes and the
    // name is shortened, as on the wall.
    let wanted = hosts.div_ceil(rows.max(1));
    let max_per_row = |least: u16| (columns / least.min(columns)).max(1);
    let whole = max_per_row(40 + gpus).min(hosts.max(1));
    let fits = wanted <= max_per_row(24 + gpus);
    let per_row = if fits { wanted.max(whole) } else { wanted.min(max_per_row(10 + gpus)) }.max(1);
    let total_rows = hosts.div_ceil(per_row);
    let visible_rows = if total_rows <= rows { total_rows } else { rows.saturating_sub(1).max(1) };
    let pane_columns = columns / per_row;
    GridLayout {
        level: DetailLevel::Line,
        frame: PaneFrame::Bare,
        per_row,
        inner_columns: 1,
        cell_columns: pane_columns - u16::from(per_row > 1),
        pane_columns,
        pane_rows: 1,
        visible_rows,
        total_rows,
    }
}

/// Rows of the list that are not processes: its title, its column heads, its lower edge.
pub const LIST_FRAME_ROWS: u16 = 3;

/// Rows of the list of findings that are not findings: its column heads.
pub const FINDINGS_HEADER_ROWS: u16 = 1;

/// The division of the view of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FindingsLayout {
    /// Findings that are on the screen at once.
    pub visible: u16,
    /// Rows for the selected one, its frame included; 0 where there is no room.
    pub detail_rows: u16,
}

/// Divides a body of so many rows: the detail has up to twelve, and never more than half.
pub fn findings_layout(body_rows: u16) -> FindingsLayout {
    const DETAIL_ROWS: u16 = 12;
    let detail_rows = if body_rows >= 14 { DETAIL_ROWS.min(body_rows / 2) } else { 0 };
    FindingsLayout { visible: (body_rows - detail_rows).saturating_sub(FINDINGS_HEADER_ROWS + 2), detail_rows }
}

/// Divides a body of so many rows between the combined list and the selected process: rows of each.
pub fn processes_layout(body_rows: u16) -> (u16, u16) {
    const DETAIL_ROWS: u16 = 7;
    let detail_rows = if body_rows >= 20 { DETAIL_ROWS } else { 0 };
    (body_rows - detail_rows, detail_rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layout(size: (u16, u16), hosts: usize, gpus: usize) -> (DetailLevel, PaneFrame, u16, u16) {
        let screen_layout =
            compute_layout(size, LayoutInputs { hosts, gpus, is_list_focused: false, ..LayoutInputs::default() }, None);
        let grid = screen_layout.grid.expect("a grid");
        (grid.level, grid.frame, grid.per_row, grid.inner_columns)
    }

    #[test]
    fn the_sizes_of_the_sheet() {
        use DetailLevel::{Line, Medium, Pairs, Power, Sparkline};
        use PaneFrame::{Bare, Boxed, Rule};
        assert_eq!(layout((80, 24), 4, 4), (Medium, Boxed, 2, 1));
        assert_eq!(layout((80, 24), 6, 8), (Pairs, Rule, 2, 2));
        assert_eq!(layout((80, 24), 16, 8), (Line, Bare, 2, 1));
        assert_eq!(layout((200, 60), 64, 8), (Line, Bare, 4, 1));
        assert_eq!(layout((120, 40), 1, 8), (Sparkline, Boxed, 1, 1));
        assert_eq!(layout((120, 40), 4, 8), (Sparkline, Boxed, 2, 1));
        assert_eq!(layout((120, 40), 6, 8), (Medium, Boxed, 3, 1));
        assert_eq!(layout((200, 60), 6, 8), (Sparkline, Boxed, 3, 1));
        assert_eq!(layout((200, 60), 16, 8), (Power, Boxed, 4, 1));
    }

    #[test]
    fn sixteen_gpus_stand_in_two_columns_before_anything_is_dropped() {
        assert_eq!(layout((120, 40), 1, 16), (DetailLevel::Sparkline, PaneFrame::Boxed, 1, 1));
        assert_eq!(layout((200, 60), 4, 16), (DetailLevel::Sparkline, PaneFrame::Boxed, 2, 1));
        assert_eq!(layout((120, 26), 1, 16), (DetailLevel::Sparkline, PaneFrame::Boxed, 1, 2));
    }

    #[test]
    fn the_list_keeps_its_share() {
        for hosts in 1..65 {
            let screen_layout = compute_layout(
                (120, 40),
                LayoutInputs { hosts, gpus: 8, is_list_focused: false, ..LayoutInputs::default() },
                None,
            );
            let grid = screen_layout.grid.expect("a grid").rows();
            assert!(screen_layout.list_rows >= 12, "{hosts} hosts: {}", screen_layout.list_rows);
            assert_eq!(grid + screen_layout.list_rows, 38);
        }
    }

    #[test]
    fn a_small_body_shows_the_grid_or_the_list() {
        let layout_inputs = LayoutInputs { hosts: 4, gpus: 8, is_list_focused: false, ..LayoutInputs::default() };
        let grid = compute_layout((80, 19), layout_inputs, None);
        assert!(grid.grid.is_some() && grid.list_rows == 0);
        let list = compute_layout((80, 19), LayoutInputs { is_list_focused: true, ..layout_inputs }, None);
        assert_eq!((list.grid, list.list_rows), (None, 17));
        let both = compute_layout((80, 20), layout_inputs, None);
        assert!(both.grid.is_some() && both.list_rows >= 7);
    }

    #[test]
    fn a_richer_level_needs_slack_and_the_same_level_none() {
        let tight = LayoutInputs { hosts: 6, gpus: 8, is_list_focused: false, ..LayoutInputs::default() };
        // All rows are used, 2 x 9 of 18, and a column more than the level needs is left.
        let fresh = compute_layout((114, 29), tight, None).grid.expect("a grid");
        assert_eq!(fresh.level, DetailLevel::Medium);
        let before = GridLayout { level: DetailLevel::Short, ..fresh };
        let held = compute_layout((114, 29), tight, Some(&before)).grid.expect("a grid");
        assert!(held.level < DetailLevel::Medium, "{held:?}");
        let kept = compute_layout((114, 29), tight, Some(&fresh)).grid.expect("a grid");
        assert_eq!(kept, fresh);
    }

    #[test]
    fn what_does_not_fit_is_scrolled_and_counted() {
        let grid = compute_layout(
            (40, 10),
            LayoutInputs { hosts: 64, gpus: 8, is_list_focused: false, ..LayoutInputs::default() },
            None,
        )
        .grid
        .expect("a grid");
        assert_eq!((grid.level, grid.per_row, grid.total_rows, grid.visible_rows), (DetailLevel::Line, 2, 32, 7));
        assert!(grid.overflows());
        assert_eq!(grid.rows(), 8);
    }

    #[test]
    fn the_person_has_a_say_in_how_much_panes_show() {
        let layout = |density, size| {
            let layout_inputs = LayoutInputs { hosts: 6, gpus: 8, density, ..LayoutInputs::default() };
            compute_layout(size, layout_inputs, None).grid.expect("a grid")
        };
        let auto = layout(Density::Auto, (120, 40));
        let compact = layout(Density::Compact, (120, 40));
        assert!(compact.level <= DetailLevel::Pairs && compact.rows() < auto.rows(), "{compact:?}");
        let full = layout(Density::Full, (120, 40));
        assert_eq!((full.level, full.frame, full.per_row), (DetailLevel::Sparkline, PaneFrame::Boxed, 2));
        assert!(full.overflows() && full.rows() <= 40, "{full:?}");
        // Where no full pane fits it is as without a say.
        assert_eq!(layout(Density::Full, (80, 12)), layout(Density::Auto, (80, 12)));
    }

    proptest! {
        #[test]
        fn every_division_stays_within_the_screen(
            columns in 1u16..300, rows in 1u16..90, hosts in 0usize..70, gpus in 0usize..20, is_list_focused: bool,
            density in proptest::sample::select(Density::ALL.to_vec())
        ) {
            let screen_layout = compute_layout((columns, rows), LayoutInputs { hosts, gpus, is_list_focused, density }, None);
            let body = rows.saturating_sub(2);
            let grid_rows = screen_layout.grid.map_or(0, |grid| grid.rows());
            prop_assert!(grid_rows + screen_layout.list_rows <= body);
            if let Some(grid) = screen_layout.grid {
                prop_assert!(grid.per_row * grid.pane_columns <= columns);
                prop_assert!(grid.cell_columns <= grid.pane_columns);
                prop_assert!(grid.visible_rows >= 1);
                prop_assert!(usize::from(grid.total_rows) * usize::from(grid.per_row) >= hosts);
            }
        }
    }
}
