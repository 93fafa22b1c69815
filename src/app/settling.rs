//! What rests on the readings of all hosts: figures, sums, rows, the division of the screen.

use super::App;
use super::arrange::{Demand, arrange};
use super::narrowing::About;
use super::screen::list_capacity;
use super::{HostFigures, LinkCounts, View};
use crate::fleet::{Group, HostId, JobRows, Link, Moment, Row, Totals, jobs_across};
use std::sync::Arc;

impl App {
    /// Computes what rests on all hosts, if any of them changed: sums, the list, the division of the screen. To be called
    /// once after a batch of events and before drawing: 256 hosts send as many updates between two frames, and each would
    /// otherwise sort the rows of all others.
    pub fn settle(&mut self) {
        if std::mem::take(&mut self.unsettled) {
            self.refresh_sums();
            // A filter may ask for free GPUs.
            self.refresh_shown();
            let shown = self.findings_shown();
            self.findings.refresh(&self.engine, shown);
            self.refresh_rows();
            self.refresh_users();
            self.rearrange();
        }
    }

    /// Computes the view of users, while it is shown.
    pub(super) fn refresh_users(&mut self) {
        if self.screen.view() != &View::Users {
            return;
        }
        self.users.refresh(&self.figures, &self.ledger);
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

    pub(super) fn tick_figures(&mut self, now: Moment) {
        for (host, figures) in self.fleet.hosts().iter().zip(&mut self.figures) {
            let states = self.engine.states(host.id);
            if self.rows_view.tick(host, states, now) {
                *figures = HostFigures::of(host, &self.engine, now);
            }
        }
        let seen = self.figures.iter().filter(|figures| figures.is_fresh);
        self.ledger.tick(seen.map(|figures| figures.users.users.as_slice()), now);
        // Findings come and go with time alone.
        self.unsettled = true;
    }

    /// Computes everything anew that rests on the hosts.
    pub(super) fn refresh_all(&mut self, now: Moment) {
        for index in 0..self.figures.len() {
            self.refresh_host(HostId(index as u32), now);
        }
        self.unsettled = true;
        self.settle();
    }

    pub(super) fn refresh_host(&mut self, id: HostId, now: Moment) {
        let (Some(host), Some(figures)) = (self.fleet.host(id), self.figures.get_mut(id.0 as usize)) else { return };
        self.rows_view.update(host, self.engine.states(id), now);
        *figures = HostFigures::of(host, &self.engine, now);
    }

    pub(super) fn refresh_sums(&mut self) {
        self.totals = Totals::default();
        for figures in &self.figures {
            self.totals.add(&figures.totals);
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
        let now = self.shown_at(self.now);
        let only = self.screen.only_host();
        let list = &self.screen.list;
        let (findings, narrowing) = (&self.findings, &self.narrowing);
        let looked_at = if let View::Process(key) = self.screen.view() { Some(key) } else { None };
        let keep = |row: &Row| {
            let is_looked_at =
                || looked_at.is_some_and(|key| key.host == row.key.host && key.process == row.key.process);
            let is_kept = || {
                let host = self.fleet.host(row.key.host).zip(self.figures.get(row.key.host.0 as usize));
                host.is_some_and(|(host, figures)| narrowing.keeps(row, &About { host, figures, findings, now }))
            };
            let is_hidden =
                || self.fleet.host(row.key.host).is_some_and(|host| self.hosts.hidden.contains(host.name()));
            only.map_or_else(|| !is_hidden(), |id| row.key.host == id)
                && (!narrowing.is_narrow() || is_kept() || is_looked_at())
        };
        let across = if list.order().group == Group::Across { jobs_across(&self.fleet) } else { Vec::new() };
        let rank = |row: &Row| findings.rank_of_row(row);
        let listed = self.rows_view.list(list.order(), list.open(), &across, keep, rank);
        self.rows = listed.rows;
        // Of one host in full only its own count.
        let total = only.map_or(listed.total, |id| match list.order().group {
            Group::None => self.rows_view.jobs(id).iter().map(JobRows::process_count).sum(),
            _ => self.rows_view.jobs(id).len(),
        });
        self.rows_kept = (listed.kept, total);
        let rows_view = &self.rows_view;
        self.screen.list.keep_tags(|key| rows_view.has(key));
        let capacity = self.list_capacity();
        self.screen.list.follow(&self.rows, capacity);
        self.refresh_trends();
    }

    /// Works out the history of the rows on the screen.
    pub(super) fn refresh_trends(&mut self) {
        let now = self.shown_at(self.now);
        let capacity = self.list_capacity();
        let top = self.screen.list.top(self.rows.len(), capacity);
        let shown = self.rows.iter().skip(top).take(capacity);
        self.trends.refresh(&self.fleet, &self.rows_view, shown.map(|row| &**row), now);
    }

    pub(super) fn list_capacity(&self) -> usize {
        list_capacity(&self.screen, &self.arrangement, &self.host_shape)
    }

    /// Divides the screen anew: after a resize, when the focus moves, when a host turns out to have more GPUs. Never
    /// because of readings.
    pub(super) fn rearrange(&mut self) {
        let before = self.list_capacity();
        let demand = self.demand();
        let previous = self.arrangement.grid.filter(|_| self.demanded == demand);
        self.arrangement = arrange(self.size, demand, previous.as_ref());
        self.demanded = demand;
        self.host_shape = self.host_shape(self.size);
        if let Some(shape) = self.arrangement.grid {
            let place = self.shown.iter().position(|host| *host == self.screen.host).unwrap_or(0);
            self.screen.show_host(place, &shape);
        }
        let capacity = self.list_capacity();
        self.screen.list.follow(&self.rows, capacity);
        if capacity != before {
            self.refresh_trends();
        }
    }

    pub(super) fn demand(&self) -> Demand {
        let gpus = self.figures.iter().map(|figures| figures.gpus.len()).max().unwrap_or(0);
        Demand { hosts: self.shown.len(), gpus, list_focused: self.screen.list_focused(), density: self.density }
    }

    pub(super) fn gpus_in_view(&self) -> usize {
        self.host_in_view().and_then(|host| self.figures(host)).map_or(0, |figures| figures.gpus.len())
    }
}
