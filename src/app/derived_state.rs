//! What rests on the readings of all hosts: figures, sums, rows, the division of the screen.

use super::App;
use super::layout::{LayoutInputs, compute_layout};
use super::list_filter::RowSubject;
use super::screen::list_capacity;
use super::{HostSummary, LinkCounts, View};
use crate::fleet::{Group, HostId, JobRows, Link, Moment, Row, Totals, distributed_jobs};
use std::sync::Arc;

impl App {
    /// Computes what rests on all hosts, if any of them changed: sums, the list, the division of the screen. To be called
    /// once after a batch of events and before drawing: 256 hosts send as many updates between two frames, and each would
    /// otherwise sort the rows of all others.
    pub fn refresh_derived_state(&mut self) {
        if std::mem::take(&mut self.derived_state_is_stale) {
            self.refresh_sums();
            // A filter may ask for free GPUs.
            self.refresh_visible_hosts();
            let shown = self.visible_finding_count();
            self.findings.refresh(&self.engine, shown);
            self.refresh_rows();
            self.refresh_users();
            self.refresh_layout();
        }
    }

    /// Computes the view of users, while it is shown.
    pub(super) fn refresh_users(&mut self) {
        if self.screen.view() != &View::Users {
            return;
        }
        self.users.refresh(&self.host_summaries, &self.ledger);
        let who = self.users.selected().map(|user| user.sum.who.clone());
        let jobs = self.fleet.hosts().iter().flat_map(|host| self.rows_view.jobs(host.id));
        let mut rows: Vec<Arc<Row>> = jobs
            .map(|job| &job.row)
            .filter(|row| Some(&row.who) == who.as_ref() && row.ended_at.is_none())
            .cloned()
            .collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.gpu_memory_bytes));
        self.users.set_rows(rows);
    }

    pub(super) fn tick_summaries(&mut self, now: Moment) {
        for (host, summary) in self.fleet.hosts().iter().zip(&mut self.host_summaries) {
            let states = self.engine.states(host.id);
            if self.rows_view.tick(host, states, now) {
                *summary = HostSummary::of(host, &self.engine, now);
            }
        }
        let seen = self.host_summaries.iter().filter(|summary| summary.is_fresh);
        self.ledger.tick(seen.map(|summary| summary.users.users.as_slice()), now);
        // Findings come and go with time alone.
        self.derived_state_is_stale = true;
    }

    /// Computes everything anew that rests on the hosts.
    pub(super) fn refresh_all(&mut self, now: Moment) {
        for index in 0..self.host_summaries.len() {
            self.refresh_host(HostId(index as u32), now);
        }
        self.derived_state_is_stale = true;
        self.refresh_derived_state();
    }

    pub(super) fn refresh_host(&mut self, id: HostId, now: Moment) {
        let (Some(host), Some(summary)) = (self.fleet.host(id), self.host_summaries.get_mut(id.0 as usize)) else {
            return;
        };
        self.rows_view.update(host, self.engine.states(id), now);
        *summary = HostSummary::of(host, &self.engine, now);
    }

    pub(super) fn refresh_sums(&mut self) {
        self.totals = Totals::default();
        for summary in &self.host_summaries {
            self.totals.add(&summary.totals);
        }
        self.links = LinkCounts::default();
        for host in self.fleet.hosts() {
            *match host.link {
                // It is well, and counts as none that is missing.
                Link::Down { .. } if host.link.is_refused() => continue,
                Link::Connecting { .. } => &mut self.links.connecting,
                Link::Live => &mut self.links.live,
                Link::Stale { .. } => &mut self.links.stale,
                Link::Down { .. } => &mut self.links.down,
                Link::NeedsUser { .. } => &mut self.links.needs_user,
            } += 1;
        }
    }

    /// Computes the list anew: after new data, and after a key that changes what is in it.
    pub(super) fn refresh_rows(&mut self) {
        let now = self.display_time(self.now);
        let only = self.screen.list_host();
        let list = &self.screen.list;
        let (findings, list_filter) = (&self.findings, &self.list_filter);
        let viewed_process = if let View::Process(key) = self.screen.view() { Some(key) } else { None };
        let keep = |row: &Row| {
            let is_viewed =
                || viewed_process.is_some_and(|key| key.host == row.key.host && key.process == row.key.process);
            let is_match = || {
                let host = self.fleet.host(row.key.host).zip(self.host_summaries.get(row.key.host.0 as usize));
                host.is_some_and(|(host, summary)| {
                    list_filter.matches(row, &RowSubject { host, summary, findings, now })
                })
            };
            let is_hidden =
                || self.fleet.host(row.key.host).is_some_and(|host| self.host_visibility.hidden.contains(host.name()));
            only.map_or_else(|| !is_hidden(), |id| row.key.host == id)
                && (!list_filter.is_active() || is_match() || is_viewed())
        };
        let across =
            if list.order().group == Group::DistributedJob { distributed_jobs(&self.fleet) } else { Vec::new() };
        let rank = |row: &Row| findings.rank_of_row(row);
        let listed = self.rows_view.list(list.order(), list.open(), &across, keep, rank);
        self.rows = listed.rows;
        // Of one host in full only its own count.
        let total = only.map_or(listed.total, |id| match list.order().group {
            Group::None => self.rows_view.jobs(id).iter().map(JobRows::process_count).sum(),
            _ => self.rows_view.jobs(id).len(),
        });
        self.row_counts = (listed.matched, total);
        let rows_view = &self.rows_view;
        self.screen.list.retain_tags(|key| rows_view.has(key));
        let capacity = self.list_capacity();
        self.screen.list.follow(&self.rows, capacity);
        self.refresh_sparklines();
    }

    /// Works out the history of the rows on the screen.
    pub(super) fn refresh_sparklines(&mut self) {
        let now = self.display_time(self.now);
        let capacity = self.list_capacity();
        let top = self.screen.list.top(self.rows.len(), capacity);
        let shown = self.rows.iter().skip(top).take(capacity);
        self.row_sparklines.refresh(&self.fleet, &self.rows_view, shown.map(|row| &**row), now);
    }

    pub(super) fn list_capacity(&self) -> usize {
        list_capacity(&self.screen, &self.screen_layout, &self.host_layout)
    }

    /// Divides the screen anew: after a resize, when the focus moves, when a host turns out to have more GPUs. Never
    /// because of readings.
    pub(super) fn refresh_layout(&mut self) {
        let before = self.list_capacity();
        let layout_inputs = self.layout_inputs();
        let previous = self.screen_layout.grid.filter(|_| self.previous_inputs == layout_inputs);
        self.screen_layout = compute_layout(self.size, layout_inputs, previous.as_ref());
        self.previous_inputs = layout_inputs;
        self.host_layout = self.host_layout(self.size);
        if let Some(layout) = self.screen_layout.grid {
            let index = self.visible_hosts.iter().position(|host| *host == self.screen.host).unwrap_or(0);
            self.screen.show_host(index, &layout);
        }
        let capacity = self.list_capacity();
        self.screen.list.follow(&self.rows, capacity);
        if capacity != before {
            self.refresh_sparklines();
        }
    }

    pub(super) fn layout_inputs(&self) -> LayoutInputs {
        let gpus = self.host_summaries.iter().map(|summary| summary.gpus.len()).max().unwrap_or(0);
        LayoutInputs {
            hosts: self.visible_hosts.len(),
            gpus,
            is_list_focused: self.screen.is_list_focused(),
            density: self.density,
        }
    }

    pub(super) fn gpus_in_view(&self) -> usize {
        self.host_in_view().and_then(|host| self.host_summary(host)).map_or(0, |summary| summary.gpus.len())
    }
}
