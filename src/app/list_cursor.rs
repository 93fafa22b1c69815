//! Where one is in the combined list: the selection holds on to a process, never to a line of the screen.

use crate::fleet::{FoldState, Group, ListOrder, ListRow, RowKey, SortKey};
use std::collections::HashSet;

/// Selection, scroll position and order of the list.
#[derive(Debug, Clone, Default)]
pub struct ListCursor {
    /// The row that was chosen; `None` until one has been, the pointer is then on the first.
    selected: Option<RowKey>,
    /// Where it was last seen, for when it goes.
    index: usize,
    top: usize,
    order: ListOrder,
    open: HashSet<RowKey>,
    tagged: HashSet<RowKey>,
    /// The selection stays on its line, whatever comes to stand there.
    stays_on_line: bool,
}

impl ListCursor {
    /// The order of the rows.
    pub fn order(&self) -> ListOrder {
        self.order
    }

    /// The jobs whose processes are shown.
    pub fn open(&self) -> &HashSet<RowKey> {
        &self.open
    }

    /// The rows that are tagged.
    pub fn tagged(&self) -> &HashSet<RowKey> {
        &self.tagged
    }

    /// Tags the selected row, or takes its tag away.
    pub fn tag(&mut self, rows: &[ListRow]) {
        if let Some(row) = rows.get(self.index)
            && !self.tagged.remove(&row.key)
        {
            self.tagged.insert(row.key.clone());
        }
    }

    /// Takes away the tags of all rows for which `keep` does not hold.
    pub fn retain_tags(&mut self, keep: impl Fn(&RowKey) -> bool) {
        self.tagged.retain(keep);
    }

    /// Whether the selection follows its process.
    pub fn follows(&self) -> bool {
        !self.stays_on_line
    }

    /// From now on it does, or stays on its line.
    pub fn toggle_follow(&mut self) {
        self.stays_on_line = !self.stays_on_line;
    }

    /// The index of the selected row.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The index of the first row on the screen, for `capacity` rows of `count`.
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

    /// Finds the selected process in rows that were computed anew, and keeps it on the screen.
    pub fn follow(&mut self, rows: &[ListRow], capacity: usize) {
        let found = match &self.selected {
            _ if self.stays_on_line => None,
            None => Some(0),
            // A job that has folded away takes the selection of its processes.
            Some(key) => rows.iter().position(|row| row.key == *key).or_else(|| {
                let same = |row: &ListRow| row.key.host == key.host && row.key.process == key.process;
                if key.process.pid == 0 { None } else { rows.iter().position(same) }
            }),
        };
        self.index = found.unwrap_or(self.index).min(rows.len().saturating_sub(1));
        if found.is_none() {
            self.selected = rows.get(self.index).map(|row| row.key.clone());
        }
        self.top = self.top(rows.len(), capacity);
    }

    /// Selects the row at `index`, or the last.
    pub fn select(&mut self, rows: &[ListRow], index: usize, capacity: usize) {
        self.index = index.min(rows.len().saturating_sub(1));
        self.selected = rows.get(self.index).map(|row| row.key.clone());
        self.top = self.top(rows.len(), capacity);
    }

    /// Back to the first row and to no selection, for another set of rows.
    pub fn reset_selection(&mut self) {
        self.selected = None;
        self.index = 0;
        self.top = 0;
    }

    /// Shows what is below the selected row. Returns whether something changed.
    pub fn unfold(&mut self, rows: &[ListRow]) -> bool {
        match rows.get(self.index) {
            Some(row) if row.fold_state == FoldState::Folded => self.open.insert(row.key.clone()),
            _ => false,
        }
    }

    /// Hides what is below the selected row, or below the row that it belongs to.
    pub fn fold(&mut self, rows: &[ListRow]) -> bool {
        let Some(selected) = rows.get(self.index) else { return false };
        let above = || rows.iter().take(self.index).rev().find(|row| row.depth < selected.depth);
        let folds = |row: &&ListRow| row.fold_state == FoldState::Open;
        let Some(job) = Some(selected).filter(folds).or_else(|| above().filter(folds)) else { return false };
        self.selected = Some(job.key.clone());
        self.open.remove(&job.key)
    }

    /// Sorts by a column, in the order that a person expects of it at first.
    pub fn sort_by(&mut self, key: SortKey) {
        self.order = ListOrder::default_for(key, self.order.group);
    }

    /// Sorts by the next (1) or the previous (-1) column.
    pub fn sort_by_adjacent_column(&mut self, step: isize) {
        let keys = &SortKey::ALL;
        let current = keys.iter().position(|key| *key == self.order.key).unwrap_or(0) as isize;
        self.sort_by(keys[(current + step).rem_euclid(keys.len() as isize) as usize]);
    }

    /// Turns the order around.
    pub fn reverse(&mut self) {
        self.order.is_descending = !self.order.is_descending;
    }

    /// Groups in the next way.
    pub fn next_group(&mut self) {
        let current = Group::ALL.iter().position(|group| *group == self.order.group).unwrap_or(0);
        self.order.group = Group::ALL[(current + 1) % Group::ALL.len()];
    }

    /// Takes over an order that was kept from before.
    pub fn set_order(&mut self, order: ListOrder) {
        self.order = order;
    }
}
