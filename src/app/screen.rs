//! Navigation state: the view, its focus, and the cursors in it. It holds choices of the user and no data.

use super::action::Action;
use super::help::HelpDialog;
use super::layout::{GridLayout, HostLayout, LIST_FRAME_ROWS, ScreenLayout, processes_layout};
use super::wall::WallCursor;
use crate::fleet::{FoldState, GpuMetric, Group, HostId, JobKey, ListOrder, ListRow, RowKey, SortKey, StoredMetric};
use crate::wire::SafeText;
use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

/// The view that fills the body of the screen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum View {
    /// The grid of hosts and the list.
    #[default]
    Overview,
    /// One host.
    Host(HostId),
    /// The GPU at this position of a host.
    Gpu(HostId, usize),
    /// The SSH log of a host.
    Log(HostId),
    /// The wall: one cell per GPU.
    Wall,
    /// The users and the GPUs they hold.
    Users,
    /// The list in full screen.
    Processes,
    /// The findings.
    Findings,
    /// The history of this run.
    History,
    /// One process or job.
    Process(RowKey),
    /// The report about a job that looks hung.
    HangReport,
}

impl View {
    fn host(&self) -> Option<HostId> {
        match self {
            Self::Host(id) | Self::Gpu(id, _) => Some(*id),
            _ => None,
        }
    }
}

/// The part of a split view that receives keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Focus {
    /// The grid of hosts, or the GPUs of one host.
    #[default]
    Panes,
    /// The list of processes.
    List,
}

/// The navigation state.
#[derive(Debug, Default)]
pub struct Screen {
    view: View,
    /// The views that Esc returns to, with their focus.
    back_stack: Vec<(View, Focus)>,
    focus: Focus,
    /// The help, while it is open.
    pub help: Option<HelpDialog>,
    /// The sort menu is open.
    pub sort_menu: bool,
    /// The signal menu is open.
    pub signal_menu: bool,
    /// The selected line of the user picker, while it is open. Line 0 stands for all users.
    pub user_picker: Option<usize>,
    /// Index of the selected host in the fleet.
    pub host: usize,
    /// The first visible row of panes.
    pub grid_top: u16,
    /// Position of the selected GPU in the view of a host.
    pub gpu: usize,
    /// The index of the GPU to select as soon as its position is known.
    pub(super) wanted_gpu: Option<u32>,
    /// The first visible line of the view of a process.
    pub process_top: usize,
    /// Rows of the SSH log below the screen.
    pub log_scroll: usize,
    /// The cursor of the wall.
    pub wall: WallCursor,
    /// The metric that charts and wall cells show.
    pub metric: Metric,
    /// The chart span.
    pub span: ChartSpan,
    /// The cursor of the list.
    pub list: ListCursor,
}

impl Screen {
    /// Returns the view.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Returns the top-level view that Esc returns to in the end, for the next run.
    pub fn root_view(&self) -> &View {
        // The stack holds the overview and then the top-level view that was shown from it.
        let views = || self.back_stack.iter().map(|(view, _)| view).chain([&self.view]);
        views()
            .take(2)
            .filter(|view| matches!(view, View::Overview | View::Wall | View::Processes | View::Users | View::Findings))
            .last()
            .unwrap_or(&View::Overview)
    }

    /// Returns the host whose view or GPU is shown.
    pub fn host_in_view(&self) -> Option<HostId> {
        self.view.host()
    }

    /// Returns the host to which the list is limited: the host in view, also while one of its processes is shown.
    pub fn list_host(&self) -> Option<HostId> {
        self.list_view().host()
    }

    /// Returns the view that the list belongs to, also while a process of that list is shown.
    fn list_view(&self) -> &View {
        match &self.view {
            View::Process(_) => self.back_stack.last().map_or(&self.view, |(view, _)| view),
            view => view,
        }
    }

    /// Returns the focus.
    pub fn focus(&self) -> Focus {
        self.focus
    }

    /// Returns the host whose stored history is shown, and the position of its GPU in the view of one GPU.
    pub fn stored_history(&self) -> Option<(HostId, Option<usize>)> {
        match self.view {
            View::Host(id) if self.span.is_stored() => Some((id, None)),
            View::Gpu(id, position) if self.span.is_stored() => Some((id, Some(position))),
            _ => None,
        }
    }

    /// Ends long spans outside of the views that show them.
    pub(super) fn end_stored_history(&mut self) {
        if self.view.host().is_none() {
            self.span = self.span.without_store();
        } else if self.span.is_stored() {
            // The list is not on the screen.
            self.focus = Focus::Panes;
        }
    }

    /// Returns whether the list has the focus.
    pub fn is_list_focused(&self) -> bool {
        self.focus == Focus::List
    }

    /// Returns the selected host.
    pub fn selected_host(&self) -> HostId {
        HostId(self.host as u32)
    }

    /// Opens a view on top of the current one.
    pub fn enter(&mut self, view: View) {
        let before = std::mem::replace(&mut self.view, view);
        self.back_stack.push((before, self.focus));
        self.process_top = 0;
        match self.view {
            View::Host(_) => {
                self.focus = Focus::Panes;
                self.gpu = 0;
            }
            View::Processes => self.focus = Focus::List,
            _ => {}
        }
    }

    /// Shows a top-level view.
    pub fn show(&mut self, view: View) {
        if self.view == view {
            return;
        }
        self.back_stack.clear();
        self.focus = if view == View::Processes { Focus::List } else { Focus::Panes };
        if view != View::Overview {
            self.back_stack.push((View::Overview, Focus::Panes));
        }
        self.view = view;
    }

    /// Shows another view at the same level, such as the next host.
    pub fn replace(&mut self, view: View) {
        self.process_top = 0;
        self.view = view;
    }

    /// Returns to the previous view, if there is one.
    pub fn back(&mut self) {
        if let Some((view, focus)) = self.back_stack.pop() {
            self.view = view;
            self.focus = focus;
        }
    }

    /// Focuses a part of the view.
    pub fn set_focus(&mut self, focus: Focus) {
        self.focus = focus;
    }

    /// Focuses the other part of the view.
    pub fn next_focus(&mut self) {
        self.focus = match self.focus {
            Focus::Panes => Focus::List,
            Focus::List => Focus::Panes,
        };
    }

    /// Moves the selection in the grid.
    pub fn move_in_grid(&mut self, action: Action, hosts: &[usize], layout: &GridLayout) {
        let per_row = usize::from(layout.per_row).max(1);
        let page = usize::from(layout.visible_rows).max(1) * per_row;
        let half = (usize::from(layout.visible_rows) / 2).max(1) * per_row;
        let last = hosts.len().saturating_sub(1);
        let at = hosts.iter().position(|host| *host == self.host).unwrap_or(0);
        let index = match action {
            Action::Left => at.saturating_sub(1),
            Action::Right => at + 1,
            Action::Up if at >= per_row => at - per_row,
            // Down from a full row may lead into a shorter last row.
            Action::Down if at / per_row < last / per_row => at + per_row,
            Action::PageUp => at.saturating_sub(page),
            Action::PageDown => at + page,
            Action::HalfPageUp => at.saturating_sub(half),
            Action::HalfPageDown => at + half,
            Action::First => 0,
            Action::Last => last,
            _ => at,
        }
        .min(last);
        self.host = hosts.get(index).copied().unwrap_or(self.host);
    }

    /// Scrolls the grid by rows of panes. The selection moves only to stay visible.
    pub fn scroll_grid(&mut self, step: isize, hosts: &[usize], layout: &GridLayout) {
        let per_row = usize::from(layout.per_row).max(1);
        let last_top = layout.total_rows.saturating_sub(layout.visible_rows);
        self.grid_top =
            usize::from(self.grid_top.min(last_top)).saturating_add_signed(step).min(last_top.into()) as u16;
        let at = hosts.iter().position(|host| *host == self.host).unwrap_or(0);
        let (first, last) = (self.grid_top, self.grid_top + layout.visible_rows.max(1) - 1);
        let row = (at / per_row).clamp(first.into(), last.into());
        let index = (row * per_row + at % per_row).min(hosts.len().saturating_sub(1));
        self.host = hosts.get(index).copied().unwrap_or(self.host);
    }

    /// Moves the selection among the GPUs of a host.
    pub fn move_among_gpus(&mut self, action: Action, gpus: usize, layout: &HostLayout) {
        let per_row = layout.cards.map_or(1, |cards| usize::from(cards.per_row));
        let last = gpus.saturating_sub(1);
        self.gpu = match action {
            Action::Left => self.gpu.saturating_sub(1),
            Action::Right => self.gpu + 1,
            Action::Up if self.gpu >= per_row => self.gpu - per_row,
            Action::Down if self.gpu / per_row < last / per_row => self.gpu + per_row,
            Action::Up | Action::Down => self.gpu,
            _ => move_index(self.gpu, action, gpus, usize::from(layout.visible_gpus)),
        }
        .min(last);
    }

    /// Scrolls the grid so that the pane at this index is visible.
    pub fn scroll_to_host(&mut self, index: usize, layout: &GridLayout) {
        let row = (index / usize::from(layout.per_row).max(1)) as u16;
        let top = self.grid_top.min(layout.total_rows.saturating_sub(layout.visible_rows));
        self.grid_top = if row < top {
            row
        } else if row >= top + layout.visible_rows {
            row + 1 - layout.visible_rows
        } else {
            top
        };
    }
}

/// Returns the index after a movement among `count` items, of which the screen shows `page`.
pub fn move_index(index: usize, action: Action, count: usize, page: usize) -> usize {
    let (page, half) = (page.max(1), (page / 2).max(1));
    match action {
        Action::Up => index.saturating_sub(1),
        Action::Down => index + 1,
        Action::PageUp => index.saturating_sub(page),
        Action::PageDown => index + page,
        Action::HalfPageUp => index.saturating_sub(half),
        Action::HalfPageDown => index + half,
        Action::First => 0,
        Action::Last => count,
        _ => index,
    }
    .min(count.saturating_sub(1))
}

/// Rows of the history view that show no entries: header, frame and hint bar.
pub const HISTORY_FRAME_ROWS: u16 = 4;

/// Rows of the help that show no lines: header, frame and hint bar.
const HELP_FRAME_ROWS: u16 = 4;
/// From this many columns on, the help has two columns: the keys of a view have shorter texts.
const HELP_TWO_COLUMNS: (u16, u16) = (76, 100);

/// Returns the number of columns of the help.
pub fn help_columns(dialog: &HelpDialog, screen_columns: u16) -> usize {
    let (view, all) = HELP_TWO_COLUMNS;
    if screen_columns >= if dialog.is_all { all } else { view } { 2 } else { 1 }
}

/// Returns the number of rows of the help on the screen.
pub fn help_page_rows(size: (u16, u16)) -> usize {
    usize::from(size.1.saturating_sub(HELP_FRAME_ROWS)).max(1)
}

/// Returns the number of rows that the list shows at once.
pub fn list_capacity(screen: &Screen, overview: &ScreenLayout, host: &HostLayout) -> usize {
    let rows = match screen.list_view() {
        View::Host(_) | View::Gpu(..) => host.list_rows,
        View::Processes => processes_layout(overview.size.1.saturating_sub(2)).0,
        _ => overview.list_rows,
    };
    usize::from(rows.saturating_sub(LIST_FRAME_ROWS))
}

/// Selection, tags, unfolded rows, order and scroll position of the list. The selection belongs to a process, not to a
/// line of the screen.
#[derive(Debug, Clone, Default)]
pub struct ListCursor {
    /// The selected row. `None` selects the first row.
    selected: Option<RowKey>,
    /// The job of the selected row: the process that stands for a job may end before the others.
    selected_job: Option<JobKey>,
    /// The index of the selected row, which remains if the row disappears.
    index: usize,
    top: usize,
    order: ListOrder,
    unfolded: HashSet<RowKey>,
    tagged: HashSet<RowKey>,
    /// The selection stays on its line instead of following its process.
    stays_on_line: bool,
}

impl ListCursor {
    /// Returns the order of the rows.
    pub fn order(&self) -> ListOrder {
        self.order
    }

    /// Returns the unfolded rows.
    pub fn unfolded(&self) -> &HashSet<RowKey> {
        &self.unfolded
    }

    /// Returns the tagged rows.
    pub fn tagged(&self) -> &HashSet<RowKey> {
        &self.tagged
    }

    /// Tags or untags the selected row.
    pub fn toggle_tag(&mut self, rows: &[ListRow]) {
        if let Some(row) = rows.get(self.index)
            && !self.tagged.remove(&row.key)
        {
            self.tagged.insert(row.key.clone());
        }
    }

    /// Removes the tags of all rows for which `keep` is false.
    pub fn retain_tags(&mut self, keep: impl Fn(&RowKey) -> bool) {
        self.tagged.retain(keep);
    }

    /// Returns whether the selection follows its process.
    pub fn follows(&self) -> bool {
        !self.stays_on_line
    }

    /// Toggles whether the selection follows its process.
    pub fn toggle_follow(&mut self) {
        self.stays_on_line = !self.stays_on_line;
    }

    /// Returns the index of the selected row.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Scrolls by some rows. The selection moves only to stay visible.
    pub fn scroll(&mut self, rows: &[ListRow], step: isize, capacity: usize) {
        let last = rows.len().saturating_sub(capacity);
        self.top = self.top(rows.len(), capacity).saturating_add_signed(step).min(last);
        let index = self.index.clamp(self.top, (self.top + capacity).saturating_sub(1).max(self.top));
        self.select(rows, index, capacity);
    }

    /// Returns the index of the first visible row. The list has `count` rows and shows `capacity` of them.
    pub fn top(&self, count: usize, capacity: usize) -> usize {
        let top = self.top.min(count.saturating_sub(capacity));
        if self.index < top {
            self.index
        } else if capacity > 0 && self.index >= top + capacity {
            self.index + 1 - capacity
        } else {
            top
        }
    }

    /// Finds the selected row after the rows changed, and scrolls to it.
    pub fn follow(&mut self, rows: &[ListRow], capacity: usize) {
        let found = match &self.selected {
            _ if self.stays_on_line => None,
            None => Some(0),
            Some(key) => find_row(rows, key, self.selected_job.as_ref()),
        };
        self.index = found.unwrap_or(self.index).min(rows.len().saturating_sub(1));
        let is_same_job_by_another_process = match (&self.selected, rows.get(self.index)) {
            (Some(key), Some(row)) => key.is_job && row.key.is_job && *key != row.key,
            _ => false,
        };
        if found.is_none() || is_same_job_by_another_process {
            self.remember(rows);
        }
        self.top = self.top(rows.len(), capacity);
    }

    /// Keeps the selection on the process of the selected row, wherever that row moves.
    pub fn hold(&mut self, rows: &[ListRow]) {
        if self.selected.is_none() {
            self.remember(rows);
        }
    }

    fn remember(&mut self, rows: &[ListRow]) {
        let row = rows.get(self.index);
        self.selected = row.map(|row| row.key.clone());
        self.selected_job = row.map(|row| row.job.clone());
    }

    /// Returns the selected row, also if it is not in the list.
    pub fn selected(&self) -> Option<&RowKey> {
        self.selected.as_ref()
    }

    /// Selects the row at `index`, or the last row.
    pub fn select(&mut self, rows: &[ListRow], index: usize, capacity: usize) {
        self.index = index.min(rows.len().saturating_sub(1));
        self.remember(rows);
        self.top = self.top(rows.len(), capacity);
    }

    /// Selects the row of a process or job, as soon as it is listed.
    pub fn select_key(&mut self, key: RowKey) {
        self.selected = Some(key);
    }

    /// Shows the rows below the selected row.
    pub fn unfold(&mut self, rows: &[ListRow]) {
        if let Some(row) = rows.get(self.index).filter(|row| row.fold_state == FoldState::Folded) {
            self.unfolded.insert(row.key.clone());
        }
    }

    /// Hides the rows below the selected row, or below the row that it belongs to.
    pub fn fold(&mut self, rows: &[ListRow]) {
        let Some(selected) = rows.get(self.index) else { return };
        let above = || rows.iter().take(self.index).rev().find(|row| row.depth < selected.depth);
        let is_open = |row: &&ListRow| row.fold_state == FoldState::Open;
        if let Some(parent) = Some(selected).filter(is_open).or_else(|| above().filter(is_open)) {
            self.selected = Some(parent.key.clone());
            self.selected_job = Some(parent.job.clone());
            self.unfolded.remove(&parent.key);
        }
    }

    /// Sorts by a column in its default direction.
    pub fn sort_by(&mut self, key: SortKey) {
        self.order = ListOrder::default_for(key, self.order.group);
    }

    /// Sorts by the next (1) or the previous (-1) column.
    pub fn sort_by_adjacent_column(&mut self, step: isize) {
        let keys = &SortKey::ALL;
        let current = keys.iter().position(|key| *key == self.order.key).unwrap_or(0) as isize;
        self.sort_by(keys[(current + step).rem_euclid(keys.len() as isize) as usize]);
    }

    /// Reverses the order.
    pub fn reverse(&mut self) {
        self.order.is_descending = !self.order.is_descending;
    }

    /// Uses the next grouping.
    pub fn next_group(&mut self) {
        let current = Group::ALL.iter().position(|group| *group == self.order.group).unwrap_or(0);
        self.order.group = Group::ALL[(current + 1) % Group::ALL.len()];
    }

    /// Sets the order.
    pub fn set_order(&mut self, order: ListOrder) {
        self.order = order;
    }
}

/// Returns the index of the row of a process or job. A process whose job is folded is represented by its job, and a job by
/// any of its processes.
fn find_row(rows: &[ListRow], key: &RowKey, job: Option<&JobKey>) -> Option<usize> {
    let position = |is_it: &dyn Fn(&ListRow) -> bool| {
        if key.process.pid == 0 { None } else { rows.iter().position(|row| row.key.host == key.host && is_it(row)) }
    };
    let same_key = rows.iter().position(|row| row.key == *key);
    let same_process = || position(&|row| row.key.process == key.process);
    let same_job = || position(&|row| row.key.is_job && Some(&row.job) == job);
    same_key.or_else(same_process).or_else(same_job)
}

/// The GPU reading that charts and wall cells show.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Metric {
    /// Share of time in which a kernel ran, in percent.
    #[default]
    Utilization,
    /// Share of time in which memory was read or written, in percent.
    MemoryBusy,
    /// Used memory.
    Memory,
    /// Power draw.
    Power,
    /// GPU temperature.
    Temperature,
}

/// The lower end of temperature charts, in degrees Celsius.
pub const CHART_MIN_CELSIUS: f32 = 20.0;
/// The upper end of temperature charts if the slowdown temperature is unknown, in degrees Celsius.
pub const CHART_MAX_CELSIUS: f32 = 100.0;

impl Metric {
    /// All metrics, in the order of the key `v`.
    pub const ALL: [Self; 5] = [Self::Utilization, Self::MemoryBusy, Self::Memory, Self::Power, Self::Temperature];

    /// Returns the next one; the first follows the last.
    #[must_use]
    pub fn next(self) -> Self {
        Self::ALL[(self as usize + 1) % Self::ALL.len()]
    }

    /// Returns the name on the screen.
    pub fn word(self) -> &'static str {
        match self {
            Self::Utilization => "util",
            Self::MemoryBusy => "bandwidth",
            Self::Memory => "memory",
            Self::Power => "power",
            Self::Temperature => "temperature",
        }
    }

    /// Returns the metric of the store that charts of long spans show. The store has no memory bandwidth; the share of the
    /// time in which the GPU was held takes its place.
    pub fn stored(self) -> StoredMetric {
        match self {
            Self::Utilization => StoredMetric::Utilization,
            Self::MemoryBusy => StoredMetric::Held,
            Self::Memory => StoredMetric::Memory,
            Self::Power => StoredMetric::Power,
            Self::Temperature => StoredMetric::Temperature,
        }
    }

    /// Returns the name on the screen in charts of long spans.
    pub fn stored_word(self) -> &'static str {
        if self == Self::MemoryBusy { "held" } else { self.word() }
    }

    /// Returns the time series of the metric.
    pub fn series(self) -> GpuMetric {
        match self {
            Self::Utilization => GpuMetric::Utilization,
            Self::MemoryBusy => GpuMetric::MemoryUtilization,
            Self::Memory => GpuMetric::MemoryUsed,
            Self::Power => GpuMetric::Power,
            Self::Temperature => GpuMetric::Temperature,
        }
    }
}

/// The period that a chart covers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ChartSpan {
    /// Two minutes: each reading is one point.
    TwoMinutes,
    /// Ten minutes.
    #[default]
    TenMinutes,
    /// One hour. Older points are ten-second means.
    Hour,
    /// Two hours, everything that this program remembers.
    TwoHours,
    /// Six hours, from the store of a collector, as all longer ones.
    SixHours,
    /// One day.
    Day,
    /// One week.
    Week,
    /// 30 days.
    Month,
    /// One year.
    Year,
}

impl ChartSpan {
    /// All spans, in the order of the key `w`.
    pub const ALL: [Self; 9] = [
        Self::TwoMinutes,
        Self::TenMinutes,
        Self::Hour,
        Self::TwoHours,
        Self::SixHours,
        Self::Day,
        Self::Week,
        Self::Month,
        Self::Year,
    ];

    /// Returns the next one; the first follows the last. Spans that need a store are left out unless there is one.
    #[must_use]
    pub fn next(self, has_store: bool) -> Self {
        let next = Self::ALL[(self as usize + 1) % Self::ALL.len()];
        if next.is_stored() && !has_store { Self::TwoMinutes } else { next }
    }

    /// Returns whether its points come from the store of a collector.
    pub fn is_stored(self) -> bool {
        self as usize > Self::TwoHours as usize
    }

    /// Returns this span, or the longest one that needs no store.
    #[must_use]
    pub fn without_store(self) -> Self {
        if self.is_stored() { Self::TwoHours } else { self }
    }

    /// Returns the seconds of one point of the store: between 130 and 190 points fill a chart.
    pub fn step_seconds(self) -> u64 {
        match self {
            Self::TwoMinutes | Self::TenMinutes | Self::Hour | Self::TwoHours => 60,
            Self::SixHours => 120,
            Self::Day => 600,
            Self::Week => 3600,
            Self::Month => 4 * 3600,
            Self::Year => 2 * 86_400,
        }
    }

    /// Returns the duration.
    pub fn duration(self) -> Duration {
        Duration::from_secs(match self {
            Self::TwoMinutes => 120,
            Self::TenMinutes => 600,
            Self::Hour => 3600,
            Self::TwoHours => 7200,
            Self::SixHours => 6 * 3600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
        })
    }

    /// Returns the text on the screen: `10m`.
    pub fn word(self) -> &'static str {
        match self {
            Self::TwoMinutes => "2m",
            Self::TenMinutes => "10m",
            Self::Hour => "1h",
            Self::TwoHours => "2h",
            Self::SixHours => "6h",
            Self::Day => "1d",
            Self::Week => "7d",
            Self::Month => "30d",
            Self::Year => "1y",
        }
    }

    /// Returns half of the span for the middle of the time axis.
    pub fn half_word(self) -> &'static str {
        match self {
            Self::TwoMinutes => "1m",
            Self::TenMinutes => "5m",
            Self::Hour => "30m",
            Self::TwoHours => "1h",
            Self::SixHours => "3h",
            Self::Day => "12h",
            Self::Week => "84h",
            Self::Month => "15d",
            Self::Year => "6mo",
        }
    }
}

/// The hosts that the user has hidden or pinned. They are identified by name because the order in hosts.toml may change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostVisibility {
    /// Hosts that are not shown.
    pub hidden: BTreeSet<SafeText>,
    /// Hosts that are shown before all others.
    pub pinned: BTreeSet<SafeText>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::HistoryQuery;

    #[test]
    fn next_returns_to_the_first_metric_and_span() {
        let metric = Metric::ALL.iter().fold(Metric::default(), |metric, _| metric.next());
        let span = ChartSpan::ALL.iter().fold(ChartSpan::default(), |span, _| span.next(true));
        assert_eq!((metric, span), (Metric::default(), ChartSpan::default()));
        assert_eq!((0..4).fold(ChartSpan::default(), |span, _| span.next(false)), ChartSpan::default());
    }

    #[test]
    fn the_store_can_serve_every_span() {
        for span in ChartSpan::ALL {
            let query = HistoryQuery {
                span_seconds: span.duration().as_secs(),
                step_seconds: span.step_seconds(),
                ..HistoryQuery::default()
            };
            assert!(query.is_valid(), "{span:?}");
        }
    }
}
