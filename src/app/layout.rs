//! Layout of the overview and of the view of one host: pure geometry in columns and rows, for input and drawing.
//!
//! ```text
//! header                                1 row
//! ┌ pane ┐┌ pane ┐┌ pane ┐              grid: as many rows as its detail level needs
//! └──────┘└──────┘└──────┘
//! list of processes                     the rest, at least ten processes or 60 %
//! hint bar                              1 row
//! ```
//!
//! The layout depends only on the size of the screen, the hosts and the density: a size that the user returns to looks as
//! before.

/// The smallest screen with a layout: columns, rows.
pub const MIN_SIZE: (u16, u16) = (40, 10);
/// A body with fewer rows shows either the grid or the list, unless all hosts fit above a list.
pub const SHARED_BODY_ROWS: u16 = 18;
/// The rows of a list that shows ten processes.
const LIST_WANTED_ROWS: u16 = LIST_FRAME_ROWS + 10;
/// In fewer rows, two GPUs per line leave no room for users: one line per host says more.
const PAIRS_MIN_ROWS: u16 = 16;
/// Columns of a pane besides the host name: frame, pointer, marks and gaps.
const TITLE_COLUMNS: u16 = 8;
/// Longer host names are cut in the middle.
pub const NAME_MAX_COLUMNS: u16 = 40;
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

    /// Returns the rows of all panes, visible or not.
    fn all_rows(&self) -> u16 {
        self.total_rows.saturating_mul(self.pane_rows)
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
    /// Columns of the longest host name.
    pub name_columns: usize,
    /// The list has the focus. On a small screen it then has the whole body.
    pub is_list_focused: bool,
    /// The density.
    pub density: Density,
}

/// Computes the layout of the overview.
pub fn compute_layout(size: (u16, u16), layout_inputs: LayoutInputs) -> ScreenLayout {
    let (columns, rows) = size;
    let body = rows.saturating_sub(2);
    if columns < MIN_SIZE.0 || rows < MIN_SIZE.1 {
        return ScreenLayout { size, grid: None, list_rows: 0 };
    }
    let grid_rows = body - list_min_rows(body, layout_inputs.density);
    let grid = compute_grid(columns, grid_rows, layout_inputs);
    if body >= SHARED_BODY_ROWS || !grid.overflows() {
        return ScreenLayout { size, grid: Some(grid), list_rows: body - grid.rows().min(grid_rows) };
    }
    if layout_inputs.is_list_focused {
        return ScreenLayout { size, grid: None, list_rows: body };
    }
    ScreenLayout { size, grid: Some(compute_grid(columns, body, layout_inputs)), list_rows: 0 }
}

/// Returns the fewest rows of a list below a grid: ten processes or 60 % of a small body, 30 % of a large one, and a
/// single process where the grid needs nearly all rows.
fn list_min_rows(body: u16, density: Density) -> u16 {
    let share = |percent: u32| (u32::from(body) * percent).div_ceil(100) as u16;
    match (body, density) {
        (0..SHARED_BODY_ROWS, _) => LIST_FRAME_ROWS + 1,
        // The user wants high panes.
        (_, Density::Full) => share(30),
        _ => share(60).min(LIST_WANTED_ROWS).max(share(30)),
    }
}

fn compute_grid(columns: u16, rows: u16, layout_inputs: LayoutInputs) -> GridLayout {
    let hosts = layout_inputs.hosts.clamp(1, usize::from(u16::MAX)) as u16;
    let gpus = if layout_inputs.gpus == 0 { ASSUMED_GPUS } else { layout_inputs.gpus }.min(512) as u16;
    let name = layout_inputs.name_columns.min(usize::from(NAME_MAX_COLUMNS)) as u16;
    let has_name = |layout: &GridLayout| layout.pane_columns >= name + TITLE_COLUMNS;
    match layout_inputs.density {
        Density::Auto => {}
        Density::Compact => {
            return candidates(columns, hosts, gpus)
                .filter(|layout| layout.level == DetailLevel::Pairs && layout.all_rows() <= rows && has_name(layout))
                .max_by_key(|layout| (layout.frame, std::cmp::Reverse(layout.total_rows)))
                .unwrap_or_else(|| line_grid(columns, rows, (hosts, gpus, name)));
        }
        Density::Full => {
            if let Some(layout) = full_grid(columns, rows, hosts, gpus) {
                return layout;
            }
        }
    }
    candidates(columns, hosts, gpus)
        .filter(|layout| layout.all_rows() <= rows && has_name(layout))
        .filter(|layout| layout.level != DetailLevel::Pairs || rows >= PAIRS_MIN_ROWS)
        .max_by_key(|layout| {
            let rows = std::cmp::Reverse(layout.all_rows());
            let (inner, per_row) = (std::cmp::Reverse(layout.inner_columns), std::cmp::Reverse(layout.per_row));
            (layout.level, layout.frame, inner, rows, per_row)
        })
        .unwrap_or_else(|| line_grid(columns, rows, (hosts, gpus, name)))
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

/// Columns for the counts and for the users in the line of a host.
const LINE_COUNTS_COLUMNS: u16 = 18;
const LINE_USERS_COLUMNS: u16 = 16;

/// Returns a grid with one line per host, in as many columns as fit, so that the list gets the rows. Hosts that still do
/// not fit are scrolled.
fn line_grid(columns: u16, rows: u16, (hosts, gpus, name): (u16, u16, u16)) -> GridLayout {
    // A line has a pointer, the name, a mark, a cell per GPU, counts and users. Before the grid scrolls, the users are
    // dropped, then the gaps between cells, then the counts. The name is never cut.
    let wanted = hosts.div_ceil(rows.max(1));
    let max_per_row = |least: u16| (columns / least.min(columns)).max(1);
    let lead = name.max(4) + 4;
    let whole = max_per_row(lead + 2 * gpus + LINE_COUNTS_COLUMNS + LINE_USERS_COLUMNS).min(hosts.max(1));
    let fits = wanted <= max_per_row(lead + gpus + LINE_COUNTS_COLUMNS / 2);
    let per_row = if fits { wanted.max(whole) } else { wanted.min(max_per_row(lead + gpus)) }.max(1);
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

/// The layout of the view of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FindingsLayout {
    /// The number of visible lines: findings and headings.
    pub visible: u16,
    /// Rows for the details of the selected finding, including the frame. 0 if there is no room.
    pub detail_rows: u16,
}

/// Computes the layout for a body of this many rows. Details take up to twelve rows and at most half of the body.
pub fn findings_layout(body_rows: u16) -> FindingsLayout {
    const DETAIL_ROWS: u16 = 12;
    let detail_rows = if body_rows >= 14 { DETAIL_ROWS.min(body_rows / 2) } else { 0 };
    FindingsLayout { visible: (body_rows - detail_rows).saturating_sub(2), detail_rows }
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
/// findings about the host        up to 3 rows
/// facts of the host              2 to 4 rows
/// GPUs: a card with a chart each if every card has room for four readings
///       or one line each         title, column headers, GPUs
/// details of the selected GPU    up to 9 rows
/// list of its processes          the rest
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostLayout {
    /// Rows for findings.
    pub findings_rows: u16,
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
pub fn compute_host_layout(size: (u16, u16), gpus: usize, findings: usize, is_list_focused: bool) -> HostLayout {
    let body = size.1.saturating_sub(2);
    let (facts_rows, findings_max_rows) = match body {
        0..SHARED_BODY_ROWS => (2.min(body), 1),
        SHARED_BODY_ROWS..32 => (3, 2),
        _ => (4, 3),
    };
    let findings_rows = (findings.min(findings_max_rows) as u16).min(body - facts_rows);
    let rest = body - facts_rows - findings_rows;
    let gpus = gpus.clamp(1, 512) as u16;
    if body < SHARED_BODY_ROWS {
        if is_list_focused {
            return HostLayout { findings_rows, facts_rows, list_rows: rest, ..HostLayout::default() };
        }
        let visible_gpus = gpus.min(rest.saturating_sub(TABLE_HEADER_ROWS)).max(1);
        let detail_rows = rest.saturating_sub(TABLE_HEADER_ROWS + visible_gpus).min(DETAIL_ROWS);
        return HostLayout { findings_rows, facts_rows, visible_gpus, detail_rows, ..HostLayout::default() };
    }
    // At least two processes must be visible; GPUs come before details.
    let list_min_rows = LIST_FRAME_ROWS + 2;
    let room = rest.saturating_sub(list_min_rows.max(body / 4));
    if let Some(cards) = cards(size.0, room, gpus) {
        let left = room - cards.all_rows();
        let (least, most) = DETAIL_BELOW_CARDS;
        let detail_rows = if left >= least { left.min(most) } else { 0 };
        let list_rows = rest - cards.all_rows() - detail_rows;
        return HostLayout {
            findings_rows,
            facts_rows,
            cards: Some(cards),
            visible_gpus: gpus,
            detail_rows,
            list_rows,
        };
    }
    let visible_gpus = gpus.min(rest.saturating_sub(list_min_rows + TABLE_HEADER_ROWS));
    let rest = rest - TABLE_HEADER_ROWS - visible_gpus;
    let detail_rows = (rest - list_min_rows).min(DETAIL_ROWS);
    HostLayout { findings_rows, facts_rows, cards: None, visible_gpus, detail_rows, list_rows: rest - detail_rows }
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
            compute_layout(size, LayoutInputs { hosts, gpus, name_columns: 6, ..LayoutInputs::default() });
        let grid = screen_layout.grid.expect("a grid");
        (grid.level, grid.frame, grid.per_row, grid.inner_columns)
    }

    #[test]
    fn common_screen_sizes() {
        use DetailLevel::{Line, Medium, Pairs, Power, Sparkline};
        use PaneFrame::{Bare, Boxed, Rule};
        assert_eq!(layout((80, 24), 1, 8), (Sparkline, Rule, 1, 1));
        assert_eq!(layout((80, 24), 4, 4), (Line, Bare, 1, 1));
        assert_eq!(layout((80, 24), 6, 8), (Line, Bare, 1, 1));
        assert_eq!(layout((120, 40), 12, 8), (Pairs, Boxed, 4, 2));
        assert_eq!(layout((80, 24), 16, 8), (Line, Bare, 2, 1));
        assert_eq!(layout((200, 60), 64, 8), (Line, Bare, 3, 1));
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
            );
            let grid = screen_layout.grid.expect("a grid").rows();
            assert!(screen_layout.list_rows >= 12, "{hosts} hosts: {}", screen_layout.list_rows);
            assert_eq!(grid + screen_layout.list_rows, 38);
        }
    }

    #[test]
    fn a_small_body_shows_either_grid_or_list() {
        let layout_inputs = LayoutInputs { hosts: 64, gpus: 8, ..LayoutInputs::default() };
        let grid = compute_layout((60, 12), layout_inputs);
        assert!(grid.grid.is_some() && grid.list_rows == 0);
        let list = compute_layout((60, 12), LayoutInputs { is_list_focused: true, ..layout_inputs });
        assert_eq!((list.grid, list.list_rows), (None, 10));
        let both = compute_layout((80, 24), layout_inputs);
        assert!(both.grid.is_some() && both.list_rows >= 7);
    }

    #[test]
    fn a_flat_screen_has_a_list_below_hosts_that_fit() {
        for rows in 10..20 {
            for hosts in 1..=usize::from(rows - 2 - LIST_FRAME_ROWS - 1) {
                for is_list_focused in [false, true] {
                    let inputs =
                        LayoutInputs { hosts, gpus: 8, name_columns: 6, is_list_focused, ..LayoutInputs::default() };
                    let screen_layout = compute_layout((120, rows), inputs);
                    let grid = screen_layout.grid.expect("a grid");
                    assert!(!grid.overflows(), "{hosts} hosts in {rows} rows");
                    assert_eq!(grid.rows() + screen_layout.list_rows, rows - 2, "{hosts} hosts in {rows} rows");
                }
            }
        }
    }

    #[test]
    fn a_small_screen_lists_at_least_ten_processes() {
        for (hosts, gpus) in [(1, 8), (4, 4), (6, 8), (16, 8), (64, 8)] {
            let inputs = LayoutInputs { hosts, gpus, name_columns: 6, ..LayoutInputs::default() };
            let screen_layout = compute_layout((80, 24), inputs);
            assert!(screen_layout.list_rows >= LIST_FRAME_ROWS + 10, "{hosts} hosts: {screen_layout:?}");
        }
    }

    #[test]
    fn a_pane_has_room_for_the_whole_name() {
        for columns in MIN_SIZE.0..220 {
            for name_columns in [3, 12, 25, 30] {
                let inputs = LayoutInputs { hosts: 9, gpus: 8, name_columns, ..LayoutInputs::default() };
                let grid = compute_layout((columns, 40), inputs).grid.expect("a grid");
                let needed = name_columns as u16 + 4;
                assert!(grid.cell_columns.max(grid.pane_columns - 2) >= needed, "{columns}, {name_columns}: {grid:?}");
            }
        }
    }

    #[test]
    fn hosts_that_do_not_fit_are_scrolled() {
        let grid = compute_layout(
            (40, 10),
            LayoutInputs { hosts: 64, gpus: 8, is_list_focused: false, ..LayoutInputs::default() },
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
            compute_layout(size, layout_inputs).grid.expect("a grid")
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
            name_columns in 0usize..80, density in proptest::sample::select(Density::ALL.to_vec())
        ) {
            let screen_layout = compute_layout((columns, rows), LayoutInputs { hosts, gpus, name_columns, is_list_focused, density });
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
        compute_host_layout(size, gpus, 0, false).cards.map(|cards| (cards.per_row, cards.rows_of_cards, cards.rows))
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
        let small = compute_host_layout((80, 24), 8, 0, false);
        let expected =
            HostLayout { findings_rows: 0, facts_rows: 3, cards: None, visible_gpus: 8, detail_rows: 4, list_rows: 5 };
        assert_eq!(small, expected);
        let with_findings = compute_host_layout((80, 24), 8, 5, false);
        assert_eq!(with_findings, HostLayout { findings_rows: 2, detail_rows: 2, ..expected });
        let tiny = compute_host_layout((80, 16), 8, 0, true);
        assert_eq!((tiny.visible_gpus, tiny.list_rows), (0, 12));
    }

    proptest! {
        #[test]
        fn the_host_layout_stays_within_the_screen(
            columns in 1u16..300, rows in 1u16..90, gpus in 0usize..140, findings in 0usize..9, is_list_focused: bool
        ) {
            let layout = compute_host_layout((columns, rows), gpus, findings, is_list_focused);
            let used = layout.findings_rows + layout.facts_rows + layout.gpu_rows() + layout.detail_rows + layout.list_rows;
            prop_assert!(rows < MIN_SIZE.1 || used <= rows - 2, "{:?}", layout);
            if let Some(cards) = layout.cards {
                prop_assert!(cards.per_row * cards.columns <= columns);
                prop_assert!(usize::from(cards.per_row * cards.rows_of_cards) >= gpus);
            }
        }
    }
}
