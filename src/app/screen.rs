//! Which view is shown, and where the keys go in it.

use super::host_layout::HostLayout;
use super::layout::{GridLayout, LIST_FRAME_ROWS, ScreenLayout, processes_layout};
use super::wall::WallCursor;
use super::{Action, ChartSpan, ListCursor, Metric};
use crate::fleet::{HostId, RowKey};

/// What fills the screen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum View {
    /// The grid of hosts and the combined list.
    #[default]
    Overview,
    /// One host in full.
    Host(HostId),
    /// The GPU at this position of a host, in full.
    Gpu(HostId, usize),
    /// What was done to reach a host.
    Log(HostId),
    /// One cell a GPU.
    Wall,
    /// Who holds which GPUs.
    Users,
    /// The combined list alone.
    Processes,
    /// What diagnosis says.
    Findings,
    /// What has happened in this run.
    History,
    /// One process, or one job.
    Process(RowKey),
}

/// Which part of a view has the keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Focus {
    /// The grid of hosts, or the table of one host's GPUs.
    #[default]
    Panes,
    /// The list of processes.
    List,
}

/// The state of the screen, without any data.
#[derive(Debug, Default)]
pub struct Screen {
    view: View,
    /// The views that Esc leads back to, with what had the keys there.
    back_stack: Vec<(View, Focus)>,
    focus: Focus,
    /// First line of the help that is shown, while it is open.
    pub help: Option<usize>,
    /// The letter of a column is waited for.
    pub sort_menu: bool,
    /// Which signal is waited for.
    pub signal_menu: bool,
    /// The line of the list of users that is selected, while it is open; 0 is everybody.
    pub user_picker: Option<usize>,
    /// Index of the selected host in the fleet.
    pub host: usize,
    /// First row of panes that is shown.
    pub grid_top: u16,
    /// Position of the selected GPU in one host's full pane.
    pub gpu: usize,
    /// Rows of the log of a host below the screen.
    pub log_scroll: usize,
    /// Place on the wall.
    pub wall: WallCursor,
    /// What charts and ramps show.
    pub metric: Metric,
    /// How far back charts go.
    pub span: ChartSpan,
    /// Place in the list.
    pub list: ListCursor,
}

impl Screen {
    /// The view.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The view at the top that one comes back to in the end.
    pub fn root_view(&self) -> &View {
        // What is entered from a view at the top other than the overview stands above that, and the overview below.
        let views = || self.back_stack.iter().map(|(view, _)| view).chain([&self.view]);
        views()
            .take(2)
            .filter(|view| matches!(view, View::Overview | View::Wall | View::Processes | View::Users | View::Findings))
            .last()
            .unwrap_or(&View::Overview)
    }

    /// The host to which the list is narrowed: the one in full, also while one of its processes is looked at.
    pub fn list_host(&self) -> Option<HostId> {
        let host = |view: &View| match view {
            View::Host(id) | View::Gpu(id, _) => Some(*id),
            _ => None,
        };
        match &self.view {
            View::Process(_) => self.back_stack.last().and_then(|(view, _)| host(view)),
            view => host(view),
        }
    }

    /// The view whose list is shown, also while one of its processes is looked at.
    fn list_view(&self) -> &View {
        match &self.view {
            View::Process(_) => self.back_stack.last().map_or(&self.view, |(view, _)| view),
            view => view,
        }
    }

    /// Which part of it has the keys.
    pub fn focus(&self) -> Focus {
        self.focus
    }

    /// Whether the list has them.
    pub fn is_list_focused(&self) -> bool {
        self.focus == Focus::List
    }

    /// Into a view.
    pub fn enter(&mut self, view: View) {
        let before = std::mem::replace(&mut self.view, view);
        self.back_stack.push((before, self.focus));
        if matches!(self.view, View::Host(_)) {
            self.focus = Focus::Panes;
            self.gpu = 0;
        }
    }

    /// One of the views at the top; where it is shown already nothing happens. Returns whether the view changed.
    pub fn show(&mut self, view: View) -> bool {
        if self.view == view {
            return false;
        }
        self.back_stack.clear();
        self.focus = if view == View::Processes { Focus::List } else { Focus::Panes };
        if view != View::Overview {
            self.back_stack.push((View::Overview, Focus::Panes));
        }
        self.view = view;
        true
    }

    /// The same level, another view: the next host, the next process.
    pub fn replace(&mut self, view: View) {
        self.view = view;
    }

    /// Up one level; at the top nothing happens. Returns whether the view changed.
    pub fn back(&mut self) -> bool {
        let Some((view, focus)) = self.back_stack.pop() else { return false };
        self.view = view;
        self.focus = focus;
        true
    }

    /// The keys go to the other part.
    pub fn next_focus(&mut self) {
        self.focus = match self.focus {
            Focus::Panes => Focus::List,
            Focus::List => Focus::Panes,
        };
    }

    /// Moves among the panes.
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
            // From the last full row into a shorter one below it.
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
        self.show_host(index, layout);
    }

    /// Moves among the GPUs of one host.
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

    /// Scrolls so that the pane at this index is on the screen.
    pub fn show_host(&mut self, index: usize, layout: &GridLayout) {
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

/// The index that a movement leads to among `count` things of which `page` are on the screen.
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

/// Rows of the screen that are not history: its frame, the header, the hints.
pub const HISTORY_FRAME_ROWS: u16 = 4;

/// Rows of the help that are not help: its frame, the header, the hints.
const HELP_FRAME_ROWS: u16 = 4;
/// A screen of this many columns shows the help in two columns.
pub const HELP_WIDE_COLUMNS: u16 = 100;

/// How many lines of the help fit on the screen.
pub fn help_page_rows(size: (u16, u16)) -> usize {
    let rows = usize::from(size.1.saturating_sub(HELP_FRAME_ROWS)).max(1);
    if size.0 >= HELP_WIDE_COLUMNS { 2 * rows } else { rows }
}

/// How many processes the list shows at once.
pub fn list_capacity(screen: &Screen, overview: &ScreenLayout, host: &HostLayout) -> usize {
    let rows = match screen.list_view() {
        View::Host(_) | View::Gpu(..) => host.list_rows,
        View::Processes => processes_layout(overview.size.1.saturating_sub(2)).0,
        _ => overview.list_rows,
    };
    usize::from(rows.saturating_sub(LIST_FRAME_ROWS))
}
