//! Which hosts the views show: not those that were hidden or that the filter rules out; pinned ones come first.

use super::{App, Density, Effect};
use crate::fleet::{FilterInput, Fleet, HostId, Moment};
use crate::wire::SafeText;
use std::collections::BTreeSet;

/// Hosts by name that the person has put out of sight or in front; kept by name, since the order of hosts.toml changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostVisibility {
    /// Not shown.
    pub hidden: BTreeSet<SafeText>,
    /// Before all others.
    pub pinned: BTreeSet<SafeText>,
}

impl App {
    /// The hosts that are shown, by their index in the fleet, in the order of the screen.
    pub fn visible_hosts(&self) -> &[usize] {
        &self.visible_hosts
    }

    /// How many hosts of the fleet are hidden, and how many others the filter rules out.
    pub fn hidden_host_counts(&self) -> (usize, usize) {
        let hidden = self.fleet.hosts().iter().filter(|host| self.is_hidden(host.name())).count();
        (hidden, self.fleet.hosts().len() - hidden - self.visible_hosts.len())
    }

    /// Whether this host stands before the others.
    pub fn is_pinned(&self, name: &SafeText) -> bool {
        self.host_visibility.pinned.contains(name)
    }

    pub(super) fn is_hidden(&self, name: &SafeText) -> bool {
        self.host_visibility.hidden.contains(name)
    }

    /// Works out which hosts are shown. Returns whether others are than before.
    pub(super) fn refresh_visible_hosts(&mut self) -> bool {
        let fits = |index: usize| {
            let host = &self.fleet.hosts()[index];
            let free_gpus = self.host_summary(host).and_then(super::list_filter::free_gpus);
            !self.is_hidden(host.name()) && self.list_filter.matches_host(&FilterInput { host, free_gpus, row: None })
        };
        let mut shown: Vec<usize> = (0..self.fleet.hosts().len()).filter(|index| fits(*index)).collect();
        shown.sort_by_key(|index| !self.is_pinned(self.fleet.hosts()[*index].name()));
        let is_new = shown != self.visible_hosts;
        self.visible_hosts = shown;
        if !self.visible_hosts.contains(&self.screen.host)
            && let Some(first) = self.visible_hosts.first()
        {
            self.screen.host = *first;
        }
        is_new
    }

    /// Hides the selected host, or the one that is looked at.
    pub(super) fn hide(&mut self, now: Moment) {
        let Some(host) = self.fleet.host(self.selected_host()) else { return };
        let name = host.name().clone();
        if self.visible_hosts.len() < 2 {
            self.notify("the last host stays", now);
            return;
        }
        // What stood beside it is selected then.
        let index = self.visible_hosts.iter().position(|index| *index == host.id.0 as usize);
        self.host_visibility.hidden.insert(name.clone());
        self.host_visibility_changed();
        if let Some(next) =
            index.and_then(|index| self.visible_hosts.get(index.min(self.visible_hosts.len().saturating_sub(1))))
        {
            self.screen.host = *next;
        }
        self.host_visibility_changed();
        self.notify(
            match self.hidden_host_counts().0 {
                1 => format!("{name} is hidden; H shows it again"),
                hidden => format!("{name} is hidden, {hidden} hosts are; H shows them again"),
            },
            now,
        );
    }

    /// Shows all hosts again that were hidden.
    pub(super) fn show_hidden(&mut self, now: Moment) {
        let hidden = self.hidden_host_counts().0;
        self.host_visibility.hidden.clear();
        self.host_visibility_changed();
        self.notify(
            match hidden {
                0 => "no host is hidden".to_owned(),
                1 => "1 host is shown again".to_owned(),
                count => format!("{count} hosts are shown again"),
            },
            now,
        );
    }

    /// Puts the selected host before the others, or back into its place.
    pub(super) fn pin(&mut self, now: Moment) {
        let Some(host) = self.fleet.host(self.selected_host()) else { return };
        let name = host.name().clone();
        let words = if self.host_visibility.pinned.remove(&name) {
            format!("{name} is back in its place")
        } else {
            self.host_visibility.pinned.insert(name.clone());
            format!("{name} is pinned: it stands first")
        };
        self.host_visibility_changed();
        self.notify(words, now);
    }

    /// Another density of the grid.
    pub(super) fn set_density(&mut self, density: Density, now: Moment) {
        self.density = density;
        self.refresh_layout();
        self.notify(format!("density {}", density.word()), now);
    }

    fn selected_host(&self) -> HostId {
        HostId(self.screen.host as u32)
    }

    pub(super) fn host_visibility_changed(&mut self) {
        self.refresh_visible_hosts();
        self.list_filter_changed();
    }

    /// Stops the picture, so that it can be read; the hosts are watched on.
    pub(super) fn freeze(&mut self, now: Moment) -> Vec<Effect> {
        if let Some(frozen) = self.frozen.take() {
            self.fleet = frozen.live;
            self.refresh_all(now);
            self.notify("the picture moves again", now);
        } else {
            self.frozen = Some(Frozen { since: now, live: self.fleet.clone() });
        }
        Vec::new()
    }

    /// The hosts as they are, also while the picture stands still.
    pub fn live_fleet(&self) -> &Fleet {
        self.frozen.as_ref().map_or(&self.fleet, |frozen| &frozen.live)
    }

    pub(super) fn live_fleet_mut(&mut self) -> &mut Fleet {
        self.frozen.as_mut().map_or(&mut self.fleet, |frozen| &mut frozen.live)
    }

    /// Since when the picture stands still.
    pub fn frozen_since(&self) -> Option<Moment> {
        self.frozen.as_ref().map(|frozen| frozen.since)
    }

    /// The moment that the picture is of.
    pub fn display_time(&self, now: Moment) -> Moment {
        self.frozen_since().unwrap_or(now)
    }
}

impl Frozen {
    pub(super) fn live(&self) -> &Fleet {
        &self.live
    }
}

/// A picture that stands still.
#[derive(Debug)]
pub(super) struct Frozen {
    since: Moment,
    /// The hosts, watched on.
    live: Fleet,
}

#[cfg(test)]
#[path = "host_visibility_tests.rs"]
mod tests;
