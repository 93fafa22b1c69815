//! Which hosts the views show: not those that were hidden or that the filter rules out; pinned ones come first.

use super::{App, Density, Effect};
use crate::fleet::{Fleet, HostId, Moment, Subject};
use crate::wire::SafeText;
use std::collections::BTreeSet;

/// Hosts by name that the person has put out of sight or in front; kept by name, since the order of hosts.toml changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostChoice {
    /// Not shown.
    pub hidden: BTreeSet<SafeText>,
    /// Before all others.
    pub pinned: BTreeSet<SafeText>,
}

impl App {
    /// The hosts that are shown, by their index in the fleet, in the order of the screen.
    pub fn shown_hosts(&self) -> &[usize] {
        &self.shown
    }

    /// How many hosts of the fleet are hidden, and how many others the filter rules out.
    pub fn left_out(&self) -> (usize, usize) {
        let hidden = self.fleet.hosts().iter().filter(|host| self.is_hidden(host.name())).count();
        (hidden, self.fleet.hosts().len() - hidden - self.shown.len())
    }

    /// Whether this host stands before the others.
    pub fn is_pinned(&self, name: &SafeText) -> bool {
        self.hosts.pinned.contains(name)
    }

    pub(super) fn is_hidden(&self, name: &SafeText) -> bool {
        self.hosts.hidden.contains(name)
    }

    /// Works out which hosts are shown. Returns whether others are than before.
    pub(super) fn refresh_shown(&mut self) -> bool {
        let fits = |index: usize| {
            let host = &self.fleet.hosts()[index];
            let free_gpus = self.figures(host).and_then(super::narrowing::free_gpus);
            !self.is_hidden(host.name()) && self.narrowing.keeps_host(&Subject { host, free_gpus, row: None })
        };
        let mut shown: Vec<usize> = (0..self.fleet.hosts().len()).filter(|index| fits(*index)).collect();
        shown.sort_by_key(|index| !self.is_pinned(self.fleet.hosts()[*index].name()));
        let is_new = shown != self.shown;
        self.shown = shown;
        if !self.shown.contains(&self.screen.host)
            && let Some(first) = self.shown.first()
        {
            self.screen.host = *first;
        }
        is_new
    }

    /// Hides the selected host, or the one that is looked at.
    pub(super) fn hide(&mut self, now: Moment) {
        let Some(host) = self.fleet.host(self.chosen_host()) else { return };
        let name = host.name().clone();
        if self.shown.len() < 2 {
            self.notify("the last host stays", now);
            return;
        }
        // What stood beside it is selected then.
        let place = self.shown.iter().position(|index| *index == host.id.0 as usize);
        self.hosts.hidden.insert(name.clone());
        self.hosts_changed();
        if let Some(next) = place.and_then(|place| self.shown.get(place.min(self.shown.len().saturating_sub(1)))) {
            self.screen.host = *next;
        }
        self.hosts_changed();
        self.notify(
            match self.left_out().0 {
                1 => format!("{name} is hidden; H shows it again"),
                hidden => format!("{name} is hidden, {hidden} hosts are; H shows them again"),
            },
            now,
        );
    }

    /// Shows all hosts again that were hidden.
    pub(super) fn show_hidden(&mut self, now: Moment) {
        let hidden = self.left_out().0;
        self.hosts.hidden.clear();
        self.hosts_changed();
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
        let Some(host) = self.fleet.host(self.chosen_host()) else { return };
        let name = host.name().clone();
        let words = if self.hosts.pinned.remove(&name) {
            format!("{name} is back in its place")
        } else {
            self.hosts.pinned.insert(name.clone());
            format!("{name} is pinned: it stands first")
        };
        self.hosts_changed();
        self.notify(words, now);
    }

    /// Another density of the grid.
    pub(super) fn set_density(&mut self, density: Density, now: Moment) {
        self.density = density;
        self.rearrange();
        self.notify(format!("density {}", density.word()), now);
    }

    fn chosen_host(&self) -> HostId {
        HostId(self.screen.host as u32)
    }

    pub(super) fn hosts_changed(&mut self) {
        self.refresh_shown();
        self.narrowed();
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
    pub fn shown_at(&self, now: Moment) -> Moment {
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
#[path = "shown_tests.rs"]
mod tests;
