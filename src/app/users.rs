//! The view of users: who holds what, in which order, and who is selected.

use super::screen::move_index;
use super::{Action, HostSummary};
use crate::fleet::{GpuState, HostId, Row, UsageLedger, UserUsage, users};
use crate::wire::SafeText;
use std::cmp::Ordering;
use std::sync::Arc;

/// Bodies with fewer rows show no panel of the selected user.
const PANEL_MIN_BODY_ROWS: u16 = 16;
/// Rows above the users: their sum and the heads of the columns.
pub const USERS_HEADER_ROWS: u16 = 2;

/// How many rows of the body are not the panel of the selected user.
pub fn users_table_rows(body: u16) -> u16 {
    if body >= PANEL_MIN_BODY_ROWS { body - body / 3 } else { body }
}

/// How many users are on the screen at once in a body of so many rows.
pub fn visible_user_count(body: u16) -> u16 {
    users_table_rows(body).saturating_sub(USERS_HEADER_ROWS)
}

/// What users can be sorted by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UserSort {
    /// Their name.
    Name,
    /// GPUs held.
    #[default]
    Gpus,
    /// GPUs in use.
    InUse,
    /// GPUs held idle.
    Idle,
    /// GPUs that may hang.
    Hung,
    /// Memory held.
    Memory,
    /// Memory held on idle GPUs.
    IdleMemory,
    /// GPU-hours held since the program began.
    Held,
    /// How long the GPU that has been idle for longest has been so.
    LongestIdle,
}

impl UserSort {
    /// Every order, as the columns stand.
    pub const ALL: [Self; 9] = [
        Self::Name,
        Self::Gpus,
        Self::InUse,
        Self::Idle,
        Self::Hung,
        Self::Memory,
        Self::IdleMemory,
        Self::Held,
        Self::LongestIdle,
    ];

    /// The one `step` columns beside it; the columns are a ring.
    fn adjacent(self, step: isize) -> Self {
        let count = Self::ALL.len() as isize;
        Self::ALL[(self as isize + step).rem_euclid(count) as usize]
    }

    /// The largest first; names from the beginning.
    fn compare(self, a: &UserUsage, b: &UserUsage) -> Ordering {
        let state = |user: &UserUsage, state| user.sum.in_state(state);
        match self {
            Self::Name => a.sum.who.cmp(&b.sum.who),
            Self::Gpus => b.sum.gpus.cmp(&a.sum.gpus),
            Self::InUse => state(b, GpuState::InUse).cmp(&state(a, GpuState::InUse)),
            Self::Idle => state(b, GpuState::Idle).cmp(&state(a, GpuState::Idle)),
            Self::Hung => state(b, GpuState::Hung).cmp(&state(a, GpuState::Hung)),
            Self::Memory => b.sum.memory_bytes.cmp(&a.sum.memory_bytes),
            Self::IdleMemory => b.sum.idle_memory_bytes.cmp(&a.sum.idle_memory_bytes),
            Self::Held => b.gpu_hours.held_hours.total_cmp(&a.gpu_hours.held_hours),
            // Nobody idle comes last.
            Self::LongestIdle => match (a.sum.idle_since, b.sum.idle_since) {
                (Some(a), Some(b)) => a.cmp(&b),
                (a, b) => b.is_some().cmp(&a.is_some()),
            },
        }
    }
}

/// GPUs of the hosts that can be seen which nobody holds whose name is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnheldGpus {
    /// GPUs that somebody holds, each counted once.
    pub held: u32,
    /// Free for the taking.
    pub free: u32,
    /// Unused and not for the taking.
    pub unused: u32,
    /// All others: faulty, unknown, or used by what the driver does not name.
    pub others: u32,
}

/// The users, kept from one reading to the next.
#[derive(Debug, Default)]
pub struct Users {
    list: Vec<UserUsage>,
    unheld: UnheldGpus,
    /// What the selected one runs.
    rows: Vec<Arc<Row>>,
    index: usize,
    selected: Option<SafeText>,
    sort: UserSort,
    is_reversed: bool,
}

impl Users {
    /// The users in their order.
    pub fn list(&self) -> &[UserUsage] {
        &self.list
    }

    /// The rest of the GPUs.
    pub fn unheld(&self) -> UnheldGpus {
        self.unheld
    }

    /// What the selected user runs, a row a job.
    pub fn rows(&self) -> &[Arc<Row>] {
        &self.rows
    }

    /// The position of the selected user.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Who is selected.
    pub fn selected(&self) -> Option<&UserUsage> {
        self.list.get(self.index)
    }

    /// What they are sorted by, and whether backwards.
    pub fn order(&self) -> (UserSort, bool) {
        (self.sort, self.is_reversed)
    }

    /// Takes the users of the hosts that can be seen.
    pub(super) fn refresh(&mut self, hosts: &[HostSummary], ledger: &UsageLedger) {
        let seen = || hosts.iter().enumerate().filter(|(_, summary)| summary.totals.hosts_covered > 0);
        self.list = users(seen().map(|(id, summary)| (HostId(id as u32), summary.users.users.as_slice())), ledger);
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

    /// The selection follows the user, not the position.
    fn sort_list(&mut self) {
        let (sort, is_reversed) = (self.sort, self.is_reversed);
        // The order in which they come, GPUs and memory, decides between equals.
        self.list.sort_by(|a, b| {
            let order = sort.compare(a, b);
            if is_reversed { order.reverse() } else { order }
        });
        let position = self.selected.as_ref().and_then(|who| self.list.iter().position(|user| user.sum.who == *who));
        self.index = position.unwrap_or(self.index).min(self.list.len().saturating_sub(1));
    }

    /// Takes what the selected user runs.
    pub(super) fn set_rows(&mut self, rows: Vec<Arc<Row>>) {
        self.rows = rows;
    }

    /// The position of the first user on the screen, where there is room for `shown`.
    pub fn top(&self, shown: usize) -> usize {
        (self.index + 1).saturating_sub(shown)
    }

    /// Selects the user at a position.
    pub(super) fn select_index(&mut self, index: usize) {
        self.index = index.min(self.list.len().saturating_sub(1));
        self.selected = self.selected().map(|user| user.sum.who.clone());
    }

    /// Moves the selection.
    pub(super) fn navigate(&mut self, action: Action, page: usize) {
        self.index = move_index(self.index, action, self.list.len(), page);
        self.selected = self.selected().map(|user| user.sum.who.clone());
    }

    /// Sorts by another column, or backwards.
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
