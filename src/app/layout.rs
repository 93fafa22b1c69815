//! Layout of the overview and of the view of one host: pure geometry in columns and rows, for input and drawing.
//!
//! ```text
//! header                                1 row
//! ┌ pane ┐┌ pane ┐┌ pane ┐              grid: as many rows as its detail level needs
//! └──────┘└──────┘└──────┘
//! list of processes                     the rest, at least 30 % and 7 rows
//! hint bar                              1 row
//! ```

/// The smallest screen with a layout: columns, rows.
pub const MIN_SIZE: (u16, u16) = (40, 10);
/// A body with fewer rows shows either the grid or the list.
pub const SHARED_BODY_ROWS: u16 = 18;
/// The fewest rows of the list below a grid.
const LIST_MIN_ROWS: u16 = 7;
/// Columns between two columns of GPU lines in a pane.
pub const INNER_GAP: u16 = 2;
/// The number of GPUs per host to assume before any host has reported.
const ASSUMED_GPUS: usize = 8;

/// How much one GPU line shows. All panes of a grid have the same level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DetailLevel {
    /// One line per host.
    Line,
    /// Two GPUs per line.
    Pairs,
    /// A short bar and used memory (27 columns).
    Short,
    /// A full bar and total memory (36 columns).
    Medium,
    /// With power (46 columns).
    Power,
    /// With a sparkline (54 columns).
    Sparkline,
}

impl DetailLevel {
    /// Returns the fewest columns of a GPU line at this level.
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

/// The frame of a pane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PaneFrame {
    /// No frame: the pane is one line.
    Bare,
    /// A line with the title above the pane.
    Rule,
    /// A box with the title in its top edge and the host's readings in its bottom edge.
    Boxed,
}

/// The grid of host panes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GridLayout {
    /// The detail level of the panes.
    pub level: DetailLevel,
    /// The frame of the panes.
    pub frame: PaneFrame,
    /// Panes side by side.
    pub per_row: u16,
    /// GPU lines side by side within a pane.
    pub inner_columns: u16,
    /// Columns of one GPU line.
    pub cell_columns: u16,
    /// Columns of one pane, including its frame and the gap beside it.
    pub pane_columns: u16,
    /// Rows of one pane, including its frame.
    pub pane_rows: u16,
    /// Visible rows of panes.
    pub visible_rows: u16,
    /// All rows of panes.
    pub total_rows: u16,
}

impl GridLayout {
    /// Returns the rows of the screen that the grid takes, including the line that counts the hosts outside of it.
    pub fn rows(&self) -> u16 {
        self.visible_rows * self.pane_rows + u16::from(self.overflows())
    }

    /// Returns whether some hosts are not visible.
    pub fn overflows(&self) -> bool {
        self.visible_rows < self.total_rows
    }

    /// Returns the number of visible panes.
    pub fn visible_panes(&self) -> usize {
        usize::from(self.visible_rows) * usize::from(self.per_row)
    }
}

/// The division of the screen between grid and list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScreenLayout {
    /// Columns and rows of the whole screen.
    pub size: (u16, u16),
    /// The grid, or `None` if the list has the whole body.
    pub grid: Option<GridLayout>,
    /// Rows of the list, including its frame. 0 if the grid has the whole body.
    pub list_rows: u16,
}

/// The values, besides the screen size, that the layout depends on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LayoutInputs {
    /// Hosts in the grid.
    pub hosts: usize,
    /// The highest number of GPUs of a host, 0 before any host has reported.
    pub gpus: usize,
    /// The list has the focus. On a small screen it then has the whole body.
    pub is_list_focused: bool,
    /// The density.
    pub density: Density,
}

/// Computes the layout of the overview.
///
/// A higher detail level than that of `previous`, the current grid, needs some spare room. Otherwise the panes would
/// alternate between two levels while the user resizes the terminal.
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

/// Returns a grid with two GPUs per line if all hosts fit, otherwise one line per host.
fn compact_grid(columns: u16, rows: u16, hosts: u16, gpus: u16) -> GridLayout {
    candidates(columns, hosts, gpus)
        .filter(|layout| {
            layout.level == DetailLevel::Pairs && layout.total_rows.saturating_mul(layout.pane_rows) <= rows
        })
        .max_by_key(|layout| (layout.frame, std::cmp::Reverse(layout.total_rows)))
        .unwrap_or_else(|| line_grid(columns, rows, hosts, gpus))
}

/// Returns the grid with the highest detail level, or `None` if not even one row of panes fits.
fn full_grid(columns: u16, rows: u16, hosts: u16, gpus: u16) -> Option<GridLayout> {
    let layout = candidates(columns, hosts, gpus)
        .filter(|layout| layout.frame == PaneFrame::Boxed && layout.inner_columns == 1)
        .max_by_key(|layout| (layout.level, layout.per_row))?;
    let fits = layout.total_rows.saturating_mul(layout.pane_rows) <= rows;
    // One row is for the line that counts the hosts outside the grid.
    let visible_rows = if fits { layout.total_rows } else { rows.saturating_sub(1) / layout.pane_rows };
    (visible_rows > 0).then_some(GridLayout { visible_rows, ..layout })
}

/// Returns all grids of this width, whatever their height.
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
            // One narrow column of GPUs would leave half of the pane empty.
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

/// Returns a grid with one line per host, in as many columns as fit, so that the list gets the rows. Hosts that still do
/// not fit are scrolled.
fn line_grid(columns: u16, rows: u16, hosts: u16, gpus: u16) -> GridLayout {
    // A line has a mark, a name of twelve columns, a cell per GPU and a count. Before the grid scrolls, the count is
    // dropped and the name is shortened, as on the wall.
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

/// Rows of the list that show no processes: title, column headers and lower edge.
pub const LIST_FRAME_ROWS: u16 = 3;

/// Rows of the list of findings that show no findings: the column headers.
pub const FINDINGS_HEADER_ROWS: u16 = 1;

/// The layout of the view of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FindingsLayout {
    /// The number of visible findings.
    pub visible: u16,
    /// Rows for the details of the selected finding, including the frame. 0 if there is no room.
    pub detail_rows: u16,
}

/// Computes the layout for a body of this many rows. Details take up to twelve rows and at most half of the body.
pub fn findings_layout(body_rows: u16) -> FindingsLayout {
    const DETAIL_ROWS: u16 = 12;
    let detail_rows = if body_rows >= 14 { DETAIL_ROWS.min(body_rows / 2) } else { 0 };
    FindingsLayout { visible: (body_rows - detail_rows).saturating_sub(FINDINGS_HEADER_ROWS + 2), detail_rows }
}

/// Divides a body of this many rows between the list and the details of the selected process. Returns the rows of each.
pub fn processes_layout(body_rows: u16) -> (u16, u16) {
    const DETAIL_ROWS: u16 = 7;
    let detail_rows = if body_rows >= 20 { DETAIL_ROWS } else { 0 };
    (body_rows - detail_rows, detail_rows)
}

/// The user's choice of how much panes show.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Density {
    /// As much as fits with all hosts visible.
    #[default]
    Auto,
    /// Two GPUs per line, or one line per host.
    Compact,
    /// As much as a pane can show. Hosts that do not fit are scrolled.
    Full,
}

impl Density {
    /// All densities.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Compact, Self::Full];

    /// Returns the name in settings.toml and on the screen.
    pub fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Compact => "compact",
            Self::Full => "full",
        }
    }
}

/// Rows of the GPU table that show no GPUs: title and column headers.
pub const TABLE_HEADER_ROWS: u16 = 2;
/// The fewest columns of a GPU card: readings, axis labels and a chart of forty points.
pub const CARD_MIN_COLUMNS: u16 = 46;
/// The fewest rows of a card: title and four readings.
const CARD_MIN_ROWS: u16 = 5;
/// The most rows of a card in a single row of cards. A higher card shows nothing more.
const CARD_MAX_ROWS: u16 = 13;
/// The most rows of a card in several rows of cards. The rest goes to the selected GPU and the processes.
const CARD_TARGET_ROWS: u16 = 8;
/// The row below the cards with the time axis of their charts.
pub const TIME_AXIS_ROWS: u16 = 1;
/// Rows for the selected GPU below the GPU table.
const DETAIL_ROWS: u16 = 6;
/// The fewest and the most rows for the selected GPU below cards.
const DETAIL_BELOW_CARDS: (u16, u16) = (6, 9);

/// The layout of the view of one host.
///
/// ```text
/// facts of the host              2 to 4 rows
/// GPUs: a card with a chart each if every card has room for four readings
///       or one line each         title, column headers, GPUs
/// details of the selected GPU    up to 9 rows
/// list of its processes          the rest
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostLayout {
    /// Rows for facts of the host.
    pub facts_rows: u16,
    /// The cards, or `None` if the GPUs are in a table.
    pub cards: Option<Cards>,
    /// The number of visible GPUs.
    pub visible_gpus: u16,
    /// Rows for the details of the selected GPU.
    pub detail_rows: u16,
    /// Rows of the list, including its frame.
    pub list_rows: u16,
}

/// The layout of GPUs as cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cards {
    /// Cards side by side.
    pub per_row: u16,
    /// Rows of cards.
    pub rows_of_cards: u16,
    /// Columns of one card, including the gap beside it.
    pub columns: u16,
    /// Rows of one card, including its title.
    pub rows: u16,
}

impl Cards {
    /// Returns the rows of all cards and the time axis.
    pub fn all_rows(&self) -> u16 {
        self.rows_of_cards * self.rows + TIME_AXIS_ROWS
    }
}

impl HostLayout {
    /// Returns the rows of the table or the cards.
    pub fn gpu_rows(&self) -> u16 {
        match self.cards {
            Some(cards) => cards.all_rows(),
            None if self.visible_gpus == 0 => 0,
            None => self.visible_gpus + TABLE_HEADER_ROWS,
        }
    }
}

/// Computes the layout of the view of one host on a screen of this size.
pub fn compute_host_layout(size: (u16, u16), gpus: usize, is_list_focused: bool) -> HostLayout {
    let body = size.1.saturating_sub(2);
    let facts_rows = match body {
        0..SHARED_BODY_ROWS => 2.min(body),
        SHARED_BODY_ROWS..32 => 3,
        _ => 4,
    };
    let rest = body - facts_rows;
    let gpus = gpus.clamp(1, 512) as u16;
    if body < SHARED_BODY_ROWS {
        if is_list_focused {
            return HostLayout { facts_rows, list_rows: rest, ..HostLayout::default() };
        }
        let visible_gpus = gpus.min(rest.saturating_sub(TABLE_HEADER_ROWS)).max(1);
        let detail_rows = rest.saturating_sub(TABLE_HEADER_ROWS + visible_gpus).min(DETAIL_ROWS);
        return HostLayout { facts_rows, visible_gpus, detail_rows, ..HostLayout::default() };
    }
    // At least two processes must be visible; GPUs come before details.
    let list_min_rows = LIST_FRAME_ROWS + 2;
    let room = rest.saturating_sub(list_min_rows.max(body / 4));
    if let Some(cards) = cards(size.0, room, gpus) {
        let left = room - cards.all_rows();
        let (least, most) = DETAIL_BELOW_CARDS;
        let detail_rows = if left >= least { left.min(most) } else { 0 };
        let list_rows = rest - cards.all_rows() - detail_rows;
        return HostLayout { facts_rows, cards: Some(cards), visible_gpus: gpus, detail_rows, list_rows };
    }
    let visible_gpus = gpus.min(rest - list_min_rows - TABLE_HEADER_ROWS);
    let rest = rest - TABLE_HEADER_ROWS - visible_gpus;
    let detail_rows = (rest - list_min_rows).min(DETAIL_ROWS);
    HostLayout { facts_rows, cards: None, visible_gpus, detail_rows, list_rows: rest - detail_rows }
}

/// Returns the cards that fit into this many rows. Prefers high cards, then rows without empty places, then few cards
/// side by side.
fn cards(columns: u16, rows: u16, gpus: u16) -> Option<Cards> {
    let rows = rows.checked_sub(TIME_AXIS_ROWS)?;
    let max_per_row = (columns / CARD_MIN_COLUMNS).min(gpus);
    (1..=max_per_row)
        .filter_map(|per_row| {
            let rows_of_cards = gpus.div_ceil(per_row);
            let most = if rows_of_cards == 1 { CARD_MAX_ROWS } else { CARD_TARGET_ROWS };
            let card_rows = (rows / rows_of_cards).min(most);
            let columns = columns / per_row;
            (card_rows >= CARD_MIN_ROWS).then_some(Cards { per_row, rows_of_cards, columns, rows: card_rows })
        })
        .max_by_key(|cards| {
            let empty = cards.per_row * cards.rows_of_cards - gpus;
            let height = cards.rows.min(CARD_TARGET_ROWS);
            (height, std::cmp::Reverse(empty), std::cmp::Reverse(cards.per_row))
        })
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
    fn common_screen_sizes() {
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
    fn sixteen_gpus_use_two_columns_before_the_level_drops() {
        assert_eq!(layout((120, 40), 1, 16), (DetailLevel::Sparkline, PaneFrame::Boxed, 1, 1));
        assert_eq!(layout((200, 60), 4, 16), (DetailLevel::Sparkline, PaneFrame::Boxed, 2, 1));
        assert_eq!(layout((120, 26), 1, 16), (DetailLevel::Sparkline, PaneFrame::Boxed, 1, 2));
    }

    #[test]
    fn the_list_has_at_least_its_share() {
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
    fn a_small_body_shows_either_grid_or_list() {
        let layout_inputs = LayoutInputs { hosts: 4, gpus: 8, is_list_focused: false, ..LayoutInputs::default() };
        let grid = compute_layout((80, 19), layout_inputs, None);
        assert!(grid.grid.is_some() && grid.list_rows == 0);
        let list = compute_layout((80, 19), LayoutInputs { is_list_focused: true, ..layout_inputs }, None);
        assert_eq!((list.grid, list.list_rows), (None, 17));
        let both = compute_layout((80, 20), layout_inputs, None);
        assert!(both.grid.is_some() && both.list_rows >= 7);
    }

    #[test]
    fn a_higher_level_needs_spare_room_and_the_same_level_does_not() {
        let tight = LayoutInputs { hosts: 6, gpus: 8, is_list_focused: false, ..LayoutInputs::default() };
        // All rows are used (2 x 9 of 18), and one column is spare.
        let fresh = compute_layout((114, 29), tight, None).grid.expect("a grid");
        assert_eq!(fresh.level, DetailLevel::Medium);
        let before = GridLayout { level: DetailLevel::Short, ..fresh };
        let held = compute_layout((114, 29), tight, Some(&before)).grid.expect("a grid");
        assert!(held.level < DetailLevel::Medium, "{held:?}");
        let kept = compute_layout((114, 29), tight, Some(&fresh)).grid.expect("a grid");
        assert_eq!(kept, fresh);
    }

    #[test]
    fn hosts_that_do_not_fit_are_scrolled() {
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
    fn density_overrides_the_level() {
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
        // If no full pane fits, full is the same as auto.
        assert_eq!(layout(Density::Full, (80, 12)), layout(Density::Auto, (80, 12)));
    }

    proptest! {
        #[test]
        fn every_layout_stays_within_the_screen(
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

    fn card_grid(size: (u16, u16), gpus: usize) -> Option<(u16, u16, u16)> {
        compute_host_layout(size, gpus, false).cards.map(|cards| (cards.per_row, cards.rows_of_cards, cards.rows))
    }

    #[test]
    fn cards_are_used_if_each_has_room_for_its_readings() {
        assert_eq!(card_grid((120, 40), 1), Some((1, 1, 13)));
        assert_eq!(card_grid((120, 40), 4), Some((2, 2, 8)));
        assert_eq!(card_grid((120, 40), 8), Some((2, 4, 6)));
        assert_eq!(card_grid((120, 40), 16), None);
        assert_eq!(card_grid((200, 60), 8), Some((2, 4, 8)));
        assert_eq!(card_grid((200, 60), 16), Some((4, 4, 8)));
        assert_eq!(card_grid((80, 24), 8), None);
        assert_eq!(card_grid((80, 24), 1), Some((1, 1, 13)));
    }

    #[test]
    fn a_table_gives_room_to_gpus_then_details_then_processes() {
        let small = compute_host_layout((80, 24), 8, false);
        let expected = HostLayout { facts_rows: 3, cards: None, visible_gpus: 8, detail_rows: 4, list_rows: 5 };
        assert_eq!(small, expected);
        let tiny = compute_host_layout((80, 16), 8, true);
        assert_eq!((tiny.visible_gpus, tiny.list_rows), (0, 12));
    }

    proptest! {
        #[test]
        fn the_host_layout_stays_within_the_screen(
            columns in 1u16..300, rows in 1u16..90, gpus in 0usize..140, is_list_focused: bool
        ) {
            let layout = compute_host_layout((columns, rows), gpus, is_list_focused);
            let used = layout.facts_rows + layout.gpu_rows() + layout.detail_rows + layout.list_rows;
            prop_assert!(rows < MIN_SIZE.1 || used <= rows - 2, "{:?}", layout);
            if let Some(cards) = layout.cards {
                prop_assert!(cards.per_row * cards.columns <= columns);
                prop_assert!(usize::from(cards.per_row * cards.rows_of_cards) >= gpus);
            }
        }
    }
}
