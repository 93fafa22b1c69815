//! What the drawing, and whoever saves the state, reads of it.

use super::App;
use super::action::changes_hosts;
use super::bindings::Binding;
use super::host_layout::{HostLayout, compute_host_layout};
use super::layout::{ScreenLayout, compute_layout, findings_layout};
use super::wall::{WallLayout, WallLine, compute_wall_layout, wall_lines};
use super::{
    EventLog, Findings, Focus, HostSummary, Keymap, LinkCounts, ListFilter, Mode, Palette, Prompts, Screen, Users, View,
};
use crate::diagnosis::SavedState;
use crate::fleet::{Fleet, Host, HostId, JobRows, ListRow, Moment, RowKey, Totals};
use crate::ssh::prompt::PromptKind;
use crate::wire::SafeText;
use std::time::Duration;
use unicode_width::UnicodeWidthStr;

impl App {
    /// All hosts.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// The figures of one host; those of an unknown one are empty.
    pub fn host_summary(&self, host: &Host) -> Option<&HostSummary> {
        self.host_summaries.get(host.id.0 as usize)
    }

    /// What was learned of a GPU's power, in words and watts: with a context and no work, and at the healthy work of its
    /// present job.
    pub fn learned_watts(&self, host: HostId, position: usize) -> impl Iterator<Item = (&'static str, f32)> {
        let idle = self.engine.idle_watts(host, position).map(|watts| ("idle", watts));
        let healthy = self.engine.healthy_watts(host, position).map(|watts| ("healthy", watts));
        idle.into_iter().chain(healthy)
    }

    /// The sums over all hosts.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// How many hosts are in each state of their connection.
    pub fn links(&self) -> LinkCounts {
        self.links
    }

    /// The rows of the list in the present view.
    pub fn rows(&self) -> &[ListRow] {
        &self.rows
    }

    /// How many jobs, or processes where there are no groups, the list shows, and how many there are.
    pub fn row_counts(&self) -> (usize, usize) {
        self.row_counts
    }

    /// What the list is narrowed to.
    pub fn list_filter(&self) -> &ListFilter {
        &self.list_filter
    }

    /// The recent SM share of a row that is on the screen, the oldest point first.
    pub fn sparkline(&self, row: &RowKey) -> Option<&[Option<f32>]> {
        self.row_sparklines.get(row)
    }

    /// Everybody who has processes: how much GPU memory, how many jobs; the most memory first.
    pub fn user_totals(&self) -> Vec<(SafeText, u64, usize)> {
        let mut users: Vec<(SafeText, u64, usize)> = Vec::new();
        let jobs = self.fleet.hosts().iter().flat_map(|host| self.rows_view.jobs(host.id));
        for row in jobs.map(|job| &job.row).filter(|row| row.ended_at.is_none()) {
            let bytes = row.gpu_memory_bytes.unwrap_or(0);
            match users.iter_mut().find(|(user, ..)| *user == row.who) {
                Some((_, held, count)) => {
                    *held = held.saturating_add(bytes);
                    *count += 1;
                }
                None => users.push((row.who.clone(), bytes, 1)),
            }
        }
        users.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        users
    }

    /// What diagnosis wants kept for the next run of the program.
    pub fn memory(&self, now: Moment) -> SavedState {
        self.engine.to_saved_state(self.live_fleet(), now)
    }

    /// What has happened in this run.
    pub fn event_log(&self) -> &EventLog {
        &self.event_log
    }

    /// What diagnosis says.
    pub fn findings(&self) -> &Findings {
        &self.findings
    }

    /// How many findings the view of them shows at once.
    pub(super) fn visible_finding_count(&self) -> usize {
        usize::from(findings_layout(self.size.1.saturating_sub(2)).visible)
    }

    /// Columns and rows of the terminal.
    pub fn size(&self) -> (u16, u16) {
        self.size
    }

    /// Which view is shown and where the keys go.
    pub fn screen(&self) -> &Screen {
        &self.screen
    }

    /// The questions that wait.
    pub fn prompts(&self) -> &Prompts {
        &self.prompts
    }

    /// Time between samples.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// What the last key came to, for a few seconds.
    pub fn notice(&self, now: Moment) -> Option<&str> {
        self.notice.as_ref().filter(|(_, until)| now < *until).map(|(text, _)| text.as_str())
    }

    /// The division of a screen of this size.
    pub fn screen_layout(&self, size: (u16, u16)) -> ScreenLayout {
        if size == self.screen_layout.size {
            self.screen_layout
        } else {
            compute_layout(size, self.layout_inputs(), None)
        }
    }

    /// The division of a screen of this size that shows one host in full.
    pub fn host_layout(&self, size: (u16, u16)) -> HostLayout {
        compute_host_layout(size, self.gpus_in_view(), self.screen.is_list_focused())
    }

    /// Who holds what; worked out while the view of users is shown.
    pub fn users_view(&self) -> &Users {
        &self.users
    }

    /// All jobs on a host, whatever the list shows of them.
    pub fn jobs(&self, id: HostId) -> &[JobRows] {
        self.rows_view.jobs(id)
    }

    /// The lines of the wall.
    pub fn wall_lines(&self) -> Vec<WallLine> {
        wall_lines(&self.fleet, |index| self.visible_hosts.contains(&index))
    }

    /// The division of a screen of this size that shows the wall.
    pub fn wall_layout(&self, size: (u16, u16)) -> WallLayout {
        let name = self.fleet.hosts().iter().map(|host| host.name().width()).max().unwrap_or(0);
        let lines = self.wall_lines().len();
        compute_wall_layout((size.0, size.1.saturating_sub(2)), lines, self.layout_inputs().gpus, name)
    }

    /// The host that is shown in full.
    pub fn host_in_view(&self) -> Option<&Host> {
        match self.screen.view() {
            View::Host(id) | View::Gpu(id, _) => self.fleet.host(*id),
            _ => None,
        }
    }

    /// The command palette, while it is open.
    pub fn palette(&self) -> Option<&Palette> {
        self.palette.as_ref()
    }

    /// What the palette offers for what has been typed.
    pub fn palette_entries(&self) -> Vec<&'static Binding> {
        let is_offered = |line: &Binding| !(self.settings.is_readonly && changes_hosts(line.action));
        self.palette.as_ref().map_or_else(Vec::new, |palette| palette.entries(is_offered))
    }

    /// The keys in force.
    pub fn keymap(&self) -> &Keymap {
        &self.keymap
    }

    /// What has the keys.
    pub fn mode(&self) -> Mode {
        if let Some((prompt, _)) = self.prompts.open_dialog() {
            return match prompt.kind {
                PromptKind::HostKey { .. } => Mode::HostKeyDialog,
                PromptKind::Passphrase { .. } | PromptKind::Secret { .. } => Mode::SecretDialog,
            };
        }
        if self.signals.dialog().is_some() {
            return Mode::SignalDialog;
        }
        if self.palette.is_some() {
            return Mode::Palette;
        }
        if self.screen.help.is_some() {
            return Mode::Help;
        }
        if self.screen.signal_menu {
            return Mode::SignalMenu;
        }
        if self.screen.user_picker.is_some() {
            return Mode::UserPicker;
        }
        if self.list_filter.line().is_some() {
            return Mode::FilterLine;
        }
        if self.screen.sort_menu {
            return Mode::SortMenu;
        }
        match (self.screen.view(), self.screen.focus()) {
            (View::Overview, Focus::Panes) => Mode::Grid,
            (View::Overview, Focus::List) => Mode::List,
            (View::Host(_), Focus::Panes) => Mode::Host,
            (View::Host(_), Focus::List) => Mode::HostList,
            (View::Gpu(..), _) => Mode::Gpu,
            (View::Processes, _) => Mode::Processes,
            (View::Log(_), _) => Mode::Log,
            (View::Wall, _) => Mode::Wall,
            (View::Users, _) => Mode::Users,
            (View::Findings, _) => Mode::Findings,
            (View::History, _) => Mode::History,
            (View::Process(_), _) => Mode::Process,
        }
    }
}
