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
const USUAL_GPUS: usize = 8;

/// How much each GPU line shows. All panes of a grid share one level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
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
    Trend,
}

impl Level {
    /// The fewest columns of a GPU line at this level.
    pub fn min_columns(self) -> u16 {
        match self {
            Self::Line | Self::Pairs => 13,
            Self::Short => 27,
            Self::Medium => 36,
            Self::Power => 46,
            Self::Trend => 54,
        }
    }

    fn of_columns(columns: u16) -> Option<Self> {
        [Self::Trend, Self::Power, Self::Medium, Self::Short, Self::Pairs]
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
pub struct GridShape {
    /// How much each pane shows.
    pub level: Level,
    /// What surrounds each pane.
    pub frame: PaneFrame,
    /// Panes side by side.
    pub across: u16,
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

impl GridShape {
    /// Rows of the screen that the grid takes, with the line that counts the hosts which do not fit.
    pub fn rows(&self) -> u16 {
        self.visible_rows * self.pane_rows + u16::from(self.is_cut())
    }

    /// Whether some hosts are not on the screen.
    pub fn is_cut(&self) -> bool {
        self.visible_rows < self.total_rows
    }

    /// How many panes are on the screen at once.
    pub fn panes_shown(&self) -> usize {
        usize::from(self.visible_rows) * usize::from(self.across)
    }
}

/// The division of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrangement {
    /// Columns and rows of the whole screen.
    pub size: (u16, u16),
    /// The grid, unless the list has the whole body.
    pub grid: Option<GridShape>,
    /// Rows of the list, its frame included; 0 when the grid has the whole body.
    pub list_rows: u16,
}

/// What the division depends on beside the size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Demand {
    /// Hosts in the grid.
    pub hosts: usize,
    /// The most GPUs that a host has, 0 while none has said.
    pub gpus: usize,
    /// The keys go to the list: on a small screen it has the whole body.
    pub list_focused: bool,
    /// How much the panes show.
    pub density: Density,
}

/// Divides the screen. `previous` is the grid until now: a richer level needs slack, so that a border that is dragged
/// does not make the panes jump to and fro.
pub fn arrange(size: (u16, u16), demand: Demand, previous: Option<&GridShape>) -> Arrangement {
    let (columns, rows) = size;
    let body = rows.saturating_sub(2);
    if columns < MIN_SIZE.0 || rows < MIN_SIZE.1 {
        return Arrangement { size, grid: None, list_rows: 0 };
    }
    if body < SHARED_BODY_ROWS {
        if demand.list_focused {
            return Arrangement { size, grid: None, list_rows: body };
        }
        return Arrangement { size, grid: Some(grid_shape(columns, body, demand, previous)), list_rows: 0 };
    }
    let list_least = LIST_MIN_ROWS.max((u32::from(body) * 3).div_ceil(10) as u16);
    let grid = grid_shape(columns, body - list_least, demand, previous);
    Arrangement { size, grid: Some(grid), list_rows: body - grid.rows().min(body - list_least) }
}

fn grid_shape(columns: u16, rows: u16, demand: Demand, previous: Option<&GridShape>) -> GridShape {
    let hosts = demand.hosts.clamp(1, usize::from(u16::MAX)) as u16;
    let gpus = if demand.gpus == 0 { USUAL_GPUS } else { demand.gpus }.min(512) as u16;
    let has_slack = |shape: &GridShape| {
        previous.is_none_or(|previous| {
            shape.level <= previous.level
                || shape.rows() + 2 <= rows
                || shape.cell_columns >= shape.level.min_columns() + 4
        })
    };
    match demand.density {
        Density::Auto => {}
        Density::Compact => return compact_shape(columns, rows, hosts, gpus),
        Density::Full => {
            if let Some(shape) = full_shape(columns, rows, hosts, gpus) {
                return shape;
            }
        }
    }
    candidates(columns, hosts, gpus)
        .filter(|shape| u32::from(shape.total_rows) * u32::from(shape.pane_rows) <= u32::from(rows))
        .filter(has_slack)
        .max_by_key(|shape| {
            let rows = std::cmp::Reverse(shape.total_rows * shape.pane_rows);
            let (inner, across) = (std::cmp::Reverse(shape.inner_columns), std::cmp::Reverse(shape.across));
            (shape.level, shape.frame, inner, rows, across)
        })
        .unwrap_or_else(|| line_shape(columns, rows, hosts, gpus))
}

/// Two GPUs a line where every host fits like that, else a line a host.
fn compact_shape(columns: u16, rows: u16, hosts: u16, gpus: u16) -> GridShape {
    candidates(columns, hosts, gpus)
        .filter(|shape| shape.level == Level::Pairs && shape.total_rows.saturating_mul(shape.pane_rows) <= rows)
        .max_by_key(|shape| (shape.frame, std::cmp::Reverse(shape.total_rows)))
        .unwrap_or_else(|| line_shape(columns, rows, hosts, gpus))
}

/// The richest panes, as many side by side as that allows; `None` where not even one row of them fits.
fn full_shape(columns: u16, rows: u16, hosts: u16, gpus: u16) -> Option<GridShape> {
    let shape = candidates(columns, hosts, gpus)
        .filter(|shape| shape.frame == PaneFrame::Boxed && shape.inner_columns == 1)
        .max_by_key(|shape| (shape.level, shape.across))?;
    let fits = shape.total_rows.saturating_mul(shape.pane_rows) <= rows;
    // A row is for the line that counts the hosts which do not fit.
    let visible_rows = if fits { shape.total_rows } else { rows.saturating_sub(1) / shape.pane_rows };
    (visible_rows > 0).then_some(GridShape { visible_rows, ..shape })
}

/// Every grid of panes, whether it fits into the rows or not.
fn candidates(columns: u16, hosts: u16, gpus: u16) -> impl Iterator<Item = GridShape> {
    let most_across = (columns / Level::Short.min_columns()).clamp(1, hosts.max(1));
    (1..=most_across)
        .flat_map(|across| [PaneFrame::Boxed, PaneFrame::Rule].map(|frame| (across, frame)))
        .flat_map(|(across, frame)| [1, 2].map(|inner_columns| (across, frame, inner_columns)))
        .filter_map(move |(across, frame, inner_columns)| {
            let pane_columns = columns / across;
            let side = if frame == PaneFrame::Boxed { 2 } else { u16::from(across > 1) };
            let cell_columns = (pane_columns - side - (inner_columns - 1) * INNER_GAP) / inner_columns;
            let level = Level::of_columns(cell_columns)?;
            // A single narrow column of GPUs wastes the half of the pane that two would fill.
            if inner_columns > gpus.max(1) || (level == Level::Pairs && inner_columns == 1) {
                return None;
            }
            let lines = gpus.div_ceil(inner_columns).max(1);
            let pane_rows = lines + if frame == PaneFrame::Boxed { 2 } else { 1 };
            let total_rows = hosts.div_ceil(across);
            Some(GridShape {
                level,
                frame,
                across,
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
fn line_shape(columns: u16, rows: u16, hosts: u16, gpus: u16) -> GridShape {
    // A mark, a name of twelve columns, a cell for each GPU, a count; before anything is scrolled the count goes and the
    // name is shortened, as on the wall.
    let wanted = hosts.div_ceil(rows.max(1));
    let most_across = |least: u16| (columns / least.min(columns)).max(1);
    let whole = most_across(40 + gpus).min(hosts.max(1));
    let fits = wanted <= most_across(24 + gpus);
    let across = if fits { wanted.max(whole) } else { wanted.min(most_across(10 + gpus)) }.max(1);
    let total_rows = hosts.div_ceil(across);
    let visible_rows = if total_rows <= rows { total_rows } else { rows.saturating_sub(1).max(1) };
    let pane_columns = columns / across;
    GridShape {
        level: Level::Line,
        frame: PaneFrame::Bare,
        across,
        inner_columns: 1,
        cell_columns: pane_columns - u16::from(across > 1),
        pane_columns,
        pane_rows: 1,
        visible_rows,
        total_rows,
    }
}

/// Rows of the list that are not processes: its title, its column heads, its lower edge.
pub const LIST_FRAME_ROWS: u16 = 3;

/// Rows of the list of findings that are not findings: its column heads.
pub const FINDINGS_HEAD_ROWS: u16 = 1;

/// The division of the view of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FindingsShape {
    /// Findings that are on the screen at once.
    pub shown: u16,
    /// Rows for the selected one, its frame included; 0 where there is no room.
    pub detail_rows: u16,
}

/// Divides a body of so many rows: the detail has up to twelve, and never more than half.
pub fn findings_shape(body_rows: u16) -> FindingsShape {
    const DETAIL_ROWS: u16 = 12;
    let detail_rows = if body_rows >= 14 { DETAIL_ROWS.min(body_rows / 2) } else { 0 };
    FindingsShape { shown: (body_rows - detail_rows).saturating_sub(FINDINGS_HEAD_ROWS + 2), detail_rows }
}

/// Divides a body of so many rows between the combined list and the selected process: rows of each.
pub fn processes_shape(body_rows: u16) -> (u16, u16) {
    const DETAIL_ROWS: u16 = 7;
    let detail_rows = if body_rows >= 20 { DETAIL_ROWS } else { 0 };
    (body_rows - detail_rows, detail_rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shape(size: (u16, u16), hosts: usize, gpus: usize) -> (Level, PaneFrame, u16, u16) {
        let arrangement = arrange(size, Demand { hosts, gpus, list_focused: false, ..Demand::default() }, None);
        let grid = arrangement.grid.expect("a grid");
        (grid.level, grid.frame, grid.across, grid.inner_columns)
    }

    #[test]
    fn the_sizes_of_the_sheet() {
        use Level::{Line, Medium, Pairs, Power, Trend};
        use PaneFrame::{Bare, Boxed, Rule};
        assert_eq!(shape((80, 24), 4, 4), (Medium, Boxed, 2, 1));
        assert_eq!(shape((80, 24), 6, 8), (Pairs, Rule, 2, 2));
        assert_eq!(shape((80, 24), 16, 8), (Line, Bare, 2, 1));
        assert_eq!(shape((200, 60), 64, 8), (Line, Bare, 4, 1));
        assert_eq!(shape((120, 40), 1, 8), (Trend, Boxed, 1, 1));
        assert_eq!(shape((120, 40), 4, 8), (Trend, Boxed, 2, 1));
        assert_eq!(shape((120, 40), 6, 8), (Medium, Boxed, 3, 1));
        assert_eq!(shape((200, 60), 6, 8), (Trend, Boxed, 3, 1));
        assert_eq!(shape((200, 60), 16, 8), (Power, Boxed, 4, 1));
    }

    #[test]
    fn sixteen_gpus_stand_in_two_columns_before_anything_is_dropped() {
        assert_eq!(shape((120, 40), 1, 16), (Level::Trend, PaneFrame::Boxed, 1, 1));
        assert_eq!(shape((200, 60), 4, 16), (Level::Trend, PaneFrame::Boxed, 2, 1));
        assert_eq!(shape((120, 26), 1, 16), (Level::Trend, PaneFrame::Boxed, 1, 2));
    }

    #[test]
    fn the_list_keeps_its_share() {
        for hosts in 1..65 {
            let arrangement =
                arrange((120, 40), Demand { hosts, gpus: 8, list_focused: false, ..Demand::default() }, None);
            let grid = arrangement.grid.expect("a grid").rows();
            assert!(arrangement.list_rows >= 12, "{hosts} hosts: {}", arrangement.list_rows);
            assert_eq!(grid + arrangement.list_rows, 38);
        }
    }

    #[test]
    fn a_small_body_shows_the_grid_or_the_list() {
        let demand = Demand { hosts: 4, gpus: 8, list_focused: false, ..Demand::default() };
        let grid = arrange((80, 19), demand, None);
        assert!(grid.grid.is_some() && grid.list_rows == 0);
        let list = arrange((80, 19), Demand { list_focused: true, ..demand }, None);
        assert_eq!((list.grid, list.list_rows), (None, 17));
        let both = arrange((80, 20), demand, None);
        assert!(both.grid.is_some() && both.list_rows >= 7);
    }

    #[test]
    fn a_richer_level_needs_slack_and_the_same_level_none() {
        let tight = Demand { hosts: 6, gpus: 8, list_focused: false, ..Demand::default() };
        // All rows are used, 2 x 9 of 18, and a column more than the level needs is left.
        let fresh = arrange((114, 29), tight, None).grid.expect("a grid");
        assert_eq!(fresh.level, Level::Medium);
        let before = GridShape { level: Level::Short, ..fresh };
        let held = arrange((114, 29), tight, Some(&before)).grid.expect("a grid");
        assert!(held.level < Level::Medium, "{held:?}");
        let kept = arrange((114, 29), tight, Some(&fresh)).grid.expect("a grid");
        assert_eq!(kept, fresh);
    }

    #[test]
    fn what_does_not_fit_is_scrolled_and_counted() {
        let grid = arrange((40, 10), Demand { hosts: 64, gpus: 8, list_focused: false, ..Demand::default() }, None)
            .grid
            .expect("a grid");
        assert_eq!((grid.level, grid.across, grid.total_rows, grid.visible_rows), (Level::Line, 2, 32, 7));
        assert!(grid.is_cut());
        assert_eq!(grid.rows(), 8);
    }

    #[test]
    fn the_person_has_a_say_in_how_much_panes_show() {
        let shape = |density, size| {
            let demand = Demand { hosts: 6, gpus: 8, density, ..Demand::default() };
            arrange(size, demand, None).grid.expect("a grid")
        };
        let auto = shape(Density::Auto, (120, 40));
        let compact = shape(Density::Compact, (120, 40));
        assert!(compact.level <= Level::Pairs && compact.rows() < auto.rows(), "{compact:?}");
        let full = shape(Density::Full, (120, 40));
        assert_eq!((full.level, full.frame, full.across), (Level::Trend, PaneFrame::Boxed, 2));
        assert!(full.is_cut() && full.rows() <= 40, "{full:?}");
        // Where no full pane fits it is as without a say.
        assert_eq!(shape(Density::Full, (80, 12)), shape(Density::Auto, (80, 12)));
    }

    proptest! {
        #[test]
        fn every_division_stays_within_the_screen(
            columns in 1u16..300, rows in 1u16..90, hosts in 0usize..70, gpus in 0usize..20, list_focused: bool,
            density in proptest::sample::select(Density::ALL.to_vec())
        ) {
            let arrangement = arrange((columns, rows), Demand { hosts, gpus, list_focused, density }, None);
            let body = rows.saturating_sub(2);
            let grid_rows = arrangement.grid.map_or(0, |grid| grid.rows());
            prop_assert!(grid_rows + arrangement.list_rows <= body);
            if let Some(grid) = arrangement.grid {
                prop_assert!(grid.across * grid.pane_columns <= columns);
                prop_assert!(grid.cell_columns <= grid.pane_columns);
                prop_assert!(grid.visible_rows >= 1);
                prop_assert!(usize::from(grid.total_rows) * usize::from(grid.across) >= hosts);
            }
        }
    }
}
