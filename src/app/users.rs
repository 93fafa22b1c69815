//! The view of users: GPUs per user, their order and the selected user.

use super::action::Action;
use super::host_summary::HostSummary;
use super::screen::move_index;
use crate::fleet::{Fleet, GpuState, HostId, Row, UsageLedger, UserSort, UserUsage, users};
use crate::wire::SafeText;
use std::sync::Arc;

/// A body with fewer rows has no panel for the selected user.
const PANEL_MIN_BODY_ROWS: u16 = 16;
/// Rows above the users: the totals and the column headers.
pub const USERS_HEADER_ROWS: u16 = 2;

/// Returns the rows of the table, without the panel for the selected user.
pub fn users_table_rows(body: u16) -> u16 {
    if body >= PANEL_MIN_BODY_ROWS { body - body / 3 } else { body }
}

/// Returns the number of users that a body of this many rows shows at once.
pub fn visible_user_count(body: u16) -> u16 {
    users_table_rows(body).saturating_sub(USERS_HEADER_ROWS)
}

/// GPUs that no known user holds, on hosts with fresh readings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnheldGpus {
    /// GPUs that a user holds, each counted once.
    pub held: u32,
    /// Free GPUs.
    pub free: u32,
    /// Unused GPUs that are not available.
    pub unused: u32,
    /// All others: faulty, unknown, or used by a process that the driver does not name.
    pub others: u32,
}

/// The users with the cursor of their view.
#[derive(Debug, Default)]
pub struct Users {
    list: Vec<UserUsage>,
    unheld: UnheldGpus,
    /// The jobs of the selected user.
    rows: Vec<Arc<Row>>,
    index: usize,
    selected: Option<SafeText>,
    sort: UserSort,
    is_reversed: bool,
}

/// The user's choices in the view, in a form that can be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UserInputs {
    order: (UserSort, bool),
    selected: Option<SafeText>,
}

impl Users {
    /// Returns the user's choices in the view.
    pub(super) fn inputs(&self) -> UserInputs {
        UserInputs { order: self.order(), selected: self.selected.clone() }
    }

    /// Returns the users in their order.
    pub fn list(&self) -> &[UserUsage] {
        &self.list
    }

    /// Returns the GPUs that no known user holds.
    pub fn unheld(&self) -> UnheldGpus {
        self.unheld
    }

    /// Returns the jobs of the selected user.
    pub fn rows(&self) -> &[Arc<Row>] {
        &self.rows
    }

    /// Returns the index of the selected user.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the selected user.
    pub fn selected(&self) -> Option<&UserUsage> {
        self.list.get(self.index)
    }

    /// Returns the sort column and whether the order is reversed.
    pub fn order(&self) -> (UserSort, bool) {
        (self.sort, self.is_reversed)
    }

    /// Recomputes the users from the hosts with fresh readings.
    pub(super) fn refresh(&mut self, fleet: &Fleet, summaries: &[HostSummary], ledger: &UsageLedger) {
        let hosts = fleet.hosts_in_order();
        let summary_of = |id: HostId| summaries.get(id.0 as usize).filter(|summary| summary.totals.hosts_covered > 0);
        let seen = || hosts.iter().filter_map(|host| Some((host.id, summary_of(host.id)?)));
        self.list = users(seen().map(|(id, summary)| (id, summary.users.users.as_slice())), ledger);
        self.unheld = UnheldGpus::default();
        for (_, summary) in seen() {
            let users = &summary.users;
            self.unheld.held += users.held;
            self.unheld.free += users.unheld_in(GpuState::Free);
            self.unheld.unused += users.unheld_in(GpuState::Unused);
            self.unheld.others += users.unheld() - users.unheld_in(GpuState::Free) - users.unheld_in(GpuState::Unused);
        }
        self.sort_list();
    }

    /// Sorts the users. The selection follows the user, not the line.
    fn sort_list(&mut self) {
        let (sort, is_reversed) = (self.sort, self.is_reversed);
        // The sort is stable: users with equal values stay ordered by GPUs and memory.
        self.list.sort_by(|a, b| {
            let order = sort.compare(a, b);
            if is_reversed { order.reverse() } else { order }
        });
        let position = self.selected.as_ref().and_then(|who| self.list.iter().position(|user| user.sum.who == *who));
        self.index = position.unwrap_or(self.index).min(self.list.len().saturating_sub(1));
    }

    /// Sets the jobs of the selected user.
    pub(super) fn set_rows(&mut self, rows: Vec<Arc<Row>>) {
        self.rows = rows;
    }

    /// Returns the index of the first visible user. The screen shows `capacity` users.
    pub fn top(&self, capacity: usize) -> usize {
        (self.index + 1).saturating_sub(capacity)
    }

    /// Selects the user at this index.
    pub(super) fn select_index(&mut self, index: usize) {
        self.index = index.min(self.list.len().saturating_sub(1));
        self.selected = self.selected().map(|user| user.sum.who.clone());
    }

    /// Moves the selection.
    pub(super) fn navigate(&mut self, action: Action, page: usize) {
        self.select_index(move_index(self.index, action, self.list.len(), page));
    }

    /// Sorts by a column in its usual direction.
    pub(super) fn sort_by(&mut self, sort: UserSort) {
        self.is_reversed = false;
        self.sort = sort;
        self.sort_list();
    }

    /// Sorts by the adjacent column, or reverses the order.
    pub(super) fn sort(&mut self, action: Action) {
        match action {
            Action::SortLeft => self.sort = self.sort.adjacent(-1),
            Action::SortRight => self.sort = self.sort.adjacent(1),
            Action::SortReverse => self.is_reversed = !self.is_reversed,
            _ => return,
        }
        self.sort_list();
    }
}
