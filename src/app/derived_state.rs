//! State computed from the readings, the findings and the user's choices.
//!
//! Each part remembers the choices it was computed from. [`DerivedState::update`] compares them with the current ones
//! and recomputes only the parts that differ, so an action changes a choice and nothing else. Readings are too large to
//! compare: [`Changes`] says whether they changed. Figures and rows of one host are recomputed only when that host
//! reports ([`DerivedState::update_host`]).

use super::findings::Findings;
use super::host_summary::{HostSummary, LinkCounts};
use super::layout::{
    Density, HostLayout, LayoutInputs, ScreenLayout, compute_host_layout, compute_layout, findings_layout,
};
use super::list_filter::{FilterConditions, ListFilter, RowSubject, free_gpus};
use super::screen::{HostVisibility, Screen, View, list_capacity};
use super::users::{UserInputs, Users};
use super::wall::{WallCursor, WallLayout, WallLine, compute_wall_layout, wall_lines};
use crate::diagnosis::Engine;
use crate::fleet::{
    FilterInput, Fleet, Group, Host, HostId, JobRows, Link, ListOrder, ListRow, Moment, ProcessKey, ProcessMetric, Row,
    RowCache, RowKey, SeriesKey, Totals, UsageLedger, distributed_jobs,
};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use unicode_width::UnicodeWidthStr;

/// Points of a row's sparkline: two per column of the widest one.
const SPARKLINE_POINTS: usize = 24;
/// The period of a row's sparkline.
const SPARKLINE_SPAN: Duration = Duration::from_secs(120);
/// The sparkline of a job is the mean of at most this many of its processes.
const SPARKLINE_MAX_PROCESSES: usize = 16;

/// Data that changed since the derived state was last computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// A host reported or time passed.
    pub(super) readings: bool,
    /// The user changed a finding.
    pub(super) findings: bool,
}

impl Changes {
    pub(super) const ALL: Self = Self { readings: true, findings: true };
}

/// Data and choices that the derived state depends on, besides [`Screen`].
pub(super) struct Inputs<'a> {
    pub(super) fleet: &'a Fleet,
    pub(super) engine: &'a Engine,
    pub(super) ledger: &'a UsageLedger,
    pub(super) list_filter: &'a ListFilter,
    pub(super) host_visibility: &'a HostVisibility,
    pub(super) density: Density,
    /// Columns and rows of the terminal.
    pub(super) size: (u16, u16),
    /// The time the screen shows.
    pub(super) now: Moment,
}

/// The choices that decide which hosts and rows are listed, and in which order.
#[derive(Debug, Clone, PartialEq)]
struct ListInputs {
    filter: FilterConditions,
    host_visibility: HostVisibility,
    order: ListOrder,
    unfolded: HashSet<RowKey>,
    host: Option<HostId>,
    /// The process view keeps its process in the list even if the filter does not match it. Which process it shows does
    /// not matter: that one is in the list already.
    is_process_view: bool,
}

/// The derived state.
#[derive(Debug)]
pub(super) struct DerivedState {
    /// The figures of each host, by host id.
    pub(super) host_summaries: Vec<HostSummary>,
    /// The rows of each host, independent of filter and order.
    pub(super) row_cache: RowCache,
    pub(super) totals: Totals,
    pub(super) links: LinkCounts,
    /// The hosts that are shown, by index, in the order of the screen.
    pub(super) visible_hosts: Vec<usize>,
    /// The findings, with their cursor.
    pub(super) findings: Findings,
    pub(super) rows: Vec<ListRow>,
    /// The number of jobs or processes that the list shows, and the number of all of them.
    pub(super) row_counts: (usize, usize),
    /// The users, with their cursor. Up to date while the view of users is shown.
    pub(super) users: Users,
    pub(super) screen_layout: ScreenLayout,
    pub(super) host_layout: HostLayout,
    sparklines: HashMap<RowKey, Vec<Option<f32>>>,
    list_inputs: Option<ListInputs>,
    user_inputs: Option<UserInputs>,
    layout_inputs: LayoutInputs,
    /// First row and number of rows for which sparklines were computed.
    sparkline_rows: (usize, usize),
}

impl DerivedState {
    pub(super) fn new(hosts: usize) -> Self {
        Self {
            host_summaries: vec![HostSummary::default(); hosts],
            row_cache: RowCache::default(),
            totals: Totals::default(),
            links: LinkCounts::default(),
            visible_hosts: Vec::new(),
            findings: Findings::default(),
            rows: Vec::new(),
            row_counts: (0, 0),
            users: Users::default(),
            screen_layout: compute_layout((0, 0), LayoutInputs::default()),
            host_layout: HostLayout::default(),
            sparklines: HashMap::new(),
            list_inputs: None,
            user_inputs: None,
            layout_inputs: LayoutInputs::default(),
            sparkline_rows: (0, 0),
        }
    }

    /// Recomputes the figures and rows of a host that reported.
    pub(super) fn update_host(&mut self, host: &Host, engine: &Engine, now: Moment) {
        self.row_cache.update(host, engine.states(host.id), now);
        let index = host.id.0 as usize;
        if self.host_summaries.len() <= index {
            self.host_summaries.resize_with(index + 1, HostSummary::default);
        }
        if let Some(summary) = self.host_summaries.get_mut(index) {
            *summary = HostSummary::of(host, engine, now);
        }
    }

    /// Recomputes the figures of the hosts that changed because time passed.
    pub(super) fn tick(&mut self, fleet: &Fleet, engine: &Engine, now: Moment) {
        for (host, summary) in fleet.hosts().iter().zip(&mut self.host_summaries) {
            if self.row_cache.tick(host, engine.states(host.id), now) {
                *summary = HostSummary::of(host, engine, now);
            }
        }
    }

    /// Recomputes whatever depends on data or choices that changed, and keeps the cursors of `screen` on what is shown.
    pub(super) fn update(&mut self, inputs: &Inputs<'_>, screen: &mut Screen, changes: Changes) {
        if changes.readings {
            self.update_totals(inputs.fleet);
        }
        if changes != Changes::default() {
            let capacity = usize::from(findings_layout(inputs.size.1.saturating_sub(2)).visible);
            self.findings.refresh(inputs.engine, capacity);
        }
        let list_inputs = ListInputs {
            filter: inputs.list_filter.conditions(),
            host_visibility: inputs.host_visibility.clone(),
            order: screen.list.order(),
            unfolded: screen.list.unfolded().clone(),
            host: screen.list_host(),
            is_process_view: matches!(screen.view(), View::Process(_)),
        };
        let is_new_list = changes != Changes::default() || self.list_inputs.as_ref() != Some(&list_inputs);
        if is_new_list {
            self.update_visible_hosts(inputs, screen);
            self.update_rows(inputs, screen, list_inputs.host);
            self.list_inputs = Some(list_inputs);
        }
        self.update_users(inputs, screen, changes.readings);
        let is_new_layout = self.update_layout(inputs, screen);

        let capacity = self.list_capacity(screen);
        if is_new_list || is_new_layout || capacity != self.sparkline_rows.1 {
            screen.list.follow(&self.rows, capacity);
        }
        if let Some(layout) = self.screen_layout.grid {
            let index = self.visible_hosts.iter().position(|host| *host == screen.host).unwrap_or(0);
            screen.scroll_to_host(index, &layout);
        }
        let is_wall_current = screen.wall.host == screen.host && !is_new_layout && !is_new_list;
        if screen.view() == &View::Wall && !is_wall_current {
            self.follow_on_wall(inputs, screen);
        }
        let sparkline_rows = (screen.list.top(self.rows.len(), capacity), capacity);
        if is_new_list || sparkline_rows != self.sparkline_rows {
            self.sparkline_rows = sparkline_rows;
            self.update_sparklines(inputs);
        }
    }

    fn update_totals(&mut self, fleet: &Fleet) {
        self.totals = Totals::default();
        for summary in &self.host_summaries {
            self.totals.add(&summary.totals);
        }
        self.links = LinkCounts::default();
        for host in fleet.hosts() {
            *match host.link {
                // A host that refuses logins on purpose is not missing.
                Link::Down { .. } if host.link.is_refused() => continue,
                Link::Connecting { .. } => &mut self.links.connecting,
                Link::Live => &mut self.links.live,
                Link::Stale { .. } => &mut self.links.stale,
                Link::Down { .. } => &mut self.links.down,
                Link::NeedsUser { .. } => &mut self.links.needs_user,
            } += 1;
        }
    }

    /// Depends on readings too: a filter may name the number of free GPUs.
    fn update_visible_hosts(&mut self, inputs: &Inputs<'_>, screen: &mut Screen) {
        let (hosts, visibility) = (inputs.fleet.hosts(), inputs.host_visibility);
        let is_visible = |index: &usize| {
            let host = &hosts[*index];
            let free_gpus = self.host_summaries.get(*index).and_then(free_gpus);
            let jobs = self.row_cache.jobs(host.id).iter();
            let rows = jobs.flat_map(|job| std::iter::once(&*job.row).chain(job.worker_rows()));
            !visibility.hidden.contains(host.name())
                && inputs.list_filter.matches_host(&FilterInput { host, free_gpus, row: None }, rows, inputs.now)
        };
        let in_order = inputs.fleet.hosts_in_order();
        let mut visible: Vec<usize> = in_order.iter().map(|host| host.id.0 as usize).filter(is_visible).collect();
        visible.sort_by_key(|index| !visibility.pinned.contains(hosts[*index].name()));
        if !visible.contains(&screen.host)
            && let Some(first) = visible.first()
        {
            screen.host = *first;
        }
        self.visible_hosts = visible;
    }

    fn update_rows(&mut self, inputs: &Inputs<'_>, screen: &mut Screen, only: Option<HostId>) {
        let (fleet, filter, findings) = (inputs.fleet, inputs.list_filter, &self.findings);
        let viewed_process = if let View::Process(key) = screen.view() { Some(key) } else { None };
        let selected = screen.list.selected();
        let keep = |row: &Row| {
            let host = fleet.host(row.key.host);
            let is_viewed =
                || viewed_process.is_some_and(|key| key.host == row.key.host && key.process == row.key.process);
            // The cursor stays on a process that has ended, although it is for example no longer idle.
            let is_selected_end = || {
                row.ended_at.is_some()
                    && selected.is_some_and(|key| key.host == row.key.host && key.process == row.key.process)
            };
            let is_match = || {
                host.zip(self.host_summaries.get(row.key.host.0 as usize)).is_some_and(|(host, summary)| {
                    filter.matches(row, &RowSubject { host, summary, findings, now: inputs.now })
                })
            };
            let is_hidden = || host.is_some_and(|host| inputs.host_visibility.hidden.contains(host.name()));
            only.map_or_else(|| !is_hidden(), |id| row.key.host == id)
                && (!filter.is_active() || is_match() || is_viewed() || is_selected_end())
        };
        let order = screen.list.order();
        let across = if order.group == Group::DistributedJob { distributed_jobs(fleet) } else { Vec::new() };
        let rank = |row: &Row| findings.rank_of_row(row);
        let listed = self.row_cache.list(order, screen.list.unfolded(), &across, keep, rank);
        let total = only.map_or(listed.total, |id| match order.group {
            Group::None => self.row_cache.jobs(id).iter().map(JobRows::process_count).sum(),
            _ => self.row_cache.jobs(id).len(),
        });
        self.rows = listed.rows;
        self.row_counts = (listed.matched, total);
        screen.list.retain_tags(|key| self.row_cache.has(key));
    }

    fn update_users(&mut self, inputs: &Inputs<'_>, screen: &Screen, has_new_readings: bool) {
        if screen.view() != &View::Users {
            self.user_inputs = None;
            return;
        }
        if !has_new_readings && self.user_inputs.as_ref() == Some(&self.users.inputs()) {
            return;
        }
        self.users.refresh(inputs.fleet, &self.host_summaries, inputs.ledger);
        let who = self.users.selected().map(|user| user.sum.who.clone());
        let hosts = inputs.fleet.hosts_in_order().into_iter();
        let jobs = hosts.flat_map(|host| self.row_cache.jobs(host.id));
        let mut rows: Vec<Arc<Row>> = jobs
            .map(|job| &job.row)
            .filter(|row| Some(&row.who) == who.as_ref() && row.ended_at.is_none())
            .cloned()
            .collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.gpu_memory_bytes));
        self.users.set_rows(rows);
        self.user_inputs = Some(self.users.inputs());
    }

    /// Depends on the number of hosts and GPUs but on no other reading. Returns whether the layout changed.
    fn update_layout(&mut self, inputs: &Inputs<'_>, screen: &Screen) -> bool {
        let before = (self.screen_layout, self.host_layout);
        let layout_inputs = self.layout_inputs(inputs.fleet, screen, inputs.density);
        if self.screen_layout.size != inputs.size || self.layout_inputs != layout_inputs {
            self.screen_layout = compute_layout(inputs.size, layout_inputs);
            self.layout_inputs = layout_inputs;
        }
        let gpus = screen.host_in_view().and_then(|id| self.host_summaries.get(id.0 as usize));
        let gpus = gpus.map_or(0, |host| host.gpus.len());
        let findings = screen.host_in_view().map_or(0, |id| self.findings.alerts_of_host(id).count());
        self.host_layout = compute_host_layout(inputs.size, gpus, findings, screen.is_list_focused());
        (self.screen_layout, self.host_layout) != before
    }

    pub(super) fn layout_inputs(&self, fleet: &Fleet, screen: &Screen, density: Density) -> LayoutInputs {
        let visible = self.visible_hosts.iter().filter_map(|index| fleet.hosts().get(*index));
        LayoutInputs {
            hosts: self.visible_hosts.len(),
            name_columns: visible.map(|host| host.name().width()).max().unwrap_or(0),
            gpus: self.host_summaries.iter().map(|summary| summary.gpus.len()).max().unwrap_or(0),
            is_list_focused: screen.is_list_focused(),
            density,
        }
    }

    /// Returns the number of rows that the list shows at once.
    pub(super) fn list_capacity(&self, screen: &Screen) -> usize {
        list_capacity(screen, &self.screen_layout, &self.host_layout)
    }

    /// Moves the cursor of the wall to the selected host.
    fn follow_on_wall(&self, inputs: &Inputs<'_>, screen: &mut Screen) {
        let (lines, layout) = (self.wall_lines(inputs.fleet), self.wall_layout(inputs.fleet, inputs.size));
        let gpu = if screen.wall.host == screen.host { screen.wall.gpu } else { 0 };
        screen.wall = WallCursor { host: screen.host, gpu, ..screen.wall };
        screen.wall.show(&lines, &layout);
    }

    pub(super) fn wall_lines(&self, fleet: &Fleet) -> Vec<WallLine> {
        let mut is_visible = vec![false; fleet.hosts().len()];
        for index in &self.visible_hosts {
            is_visible[*index] = true;
        }
        wall_lines(fleet, |index| is_visible[index])
    }

    pub(super) fn wall_layout(&self, fleet: &Fleet, size: (u16, u16)) -> WallLayout {
        let name = fleet.hosts().iter().map(|host| host.name().width()).max().unwrap_or(0);
        let gpus = self.host_summaries.iter().map(|summary| summary.gpus.len()).max().unwrap_or(0);
        compute_wall_layout((size.0, size.1.saturating_sub(2)), self.wall_lines(fleet).len(), gpus, name)
    }

    /// Returns the recent SM share of a row on the screen, the oldest point first.
    pub(super) fn sparkline(&self, row: &RowKey) -> Option<&[Option<f32>]> {
        self.sparklines.get(row).map(Vec::as_slice)
    }

    /// Computes the sparklines of the rows on the screen. Ended rows have no history, and a group row sums unlike jobs.
    fn update_sparklines(&mut self, inputs: &Inputs<'_>) {
        self.sparklines.clear();
        let (top, capacity) = self.sparkline_rows;
        let shown = self.rows.iter().skip(top).take(capacity);
        for row in shown.filter(|row| row.ended_at.is_none() && row.group_summary.is_none()) {
            let processes = processes_of_row(self.row_cache.jobs(row.key.host), row);
            if let Some(points) = mean_sm_share(inputs.fleet, row.key.host, &processes, inputs.now) {
                self.sparklines.insert(row.key.clone(), points);
            }
        }
    }
}

fn processes_of_row<'a>(jobs: &'a [JobRows], row: &'a Row) -> Vec<&'a ProcessKey> {
    if !row.key.is_job {
        return vec![&row.key.process];
    }
    let job = jobs.iter().find(|job| job.row.key == row.key);
    job.iter().flat_map(|job| job.process_keys()).take(SPARKLINE_MAX_PROCESSES).collect()
}

/// Returns the mean SM share of several processes. A point without any reading stays a gap.
fn mean_sm_share(fleet: &Fleet, host: HostId, processes: &[&ProcessKey], now: Moment) -> Option<Vec<Option<f32>>> {
    let history = fleet.host(host)?.history();
    let mut sums = [(0.0f32, 0u32); SPARKLINE_POINTS];
    for process in processes {
        let key = SeriesKey::Process(process, ProcessMetric::Sm);
        let points = history.points(key, now, SPARKLINE_SPAN, SPARKLINE_POINTS);
        for (sum, point) in sums.iter_mut().zip(points) {
            if let Some(percent) = point {
                *sum = (sum.0 + percent, sum.1 + 1);
            }
        }
    }
    let points: Vec<Option<f32>> = sums.iter().map(|(sum, count)| (*count > 0).then(|| sum / *count as f32)).collect();
    points.iter().any(Option::is_some).then_some(points)
}
