//! The palette in the program: its entries, and where they lead.

use super::App;
use super::action::{Action, Mode};
use super::event::Effect;
use super::keymap::{BINDINGS, Binding};
use super::palette::{
    MAX_PROCESSES, Palette, PaletteEntry, PaletteTarget, command_title, commands, modes_of, needs_a_choice,
};
use super::screen::{Focus, View};
use crate::fleet::{GpuState, Host, Link, Moment, Row, RowKey, gpu_list, program_and_arguments};
use crate::wire::SafeText;

impl App {
    /// Opens the palette with everything that can be found now.
    pub(super) fn open_palette(&mut self) {
        self.screen.help = None;
        let commands = commands(self.mode(), self.settings.is_readonly).into_iter().map(|line| {
            PaletteEntry::new(PaletteTarget::Command(line), &command_title(line), &self.command_keys(line), "")
        });
        let hidden = &self.host_visibility.hidden;
        let hosts = || self.fleet.hosts_in_order().into_iter().filter(|host| !hidden.contains(host.name()));
        let host_entries = hosts().map(|host| {
            let tags = host.config.tags.iter().map(SafeText::as_str).collect::<Vec<_>>().join(" ");
            PaletteEntry::new(PaletteTarget::Host(host.id), host.name(), &self.host_text(host), &tags)
        });
        let users = self.user_totals().into_iter().map(|(user, _, jobs)| {
            let detail = format!("{jobs} job{}", if jobs == 1 { "" } else { "s" });
            PaletteEntry::new(PaletteTarget::User(user.clone()), &user, &detail, "")
        });
        let rows = hosts().flat_map(|host| self.jobs(host.id)).map(|job| &*job.row);
        let processes = rows.filter(|row| row.ended_at.is_none()).take(MAX_PROCESSES).map(process_entry);
        self.palette = Some(Palette::new(commands.chain(host_entries).chain(users).chain(processes).collect()));
    }

    /// Returns the keys of a command; for a column of the sort menu, also the key of the menu.
    fn command_keys(&self, line: &Binding) -> String {
        let keys = self.keymap().keys_label(line);
        let menu = BINDINGS.iter().find(|menu| menu.action == Action::SortMenu);
        match (line.action, menu.and_then(|menu| self.keymap().keys_label(menu).split(' ').next())) {
            (Action::SortBy(_), Some(menu)) => format!("{menu} {keys}"),
            _ => keys.to_owned(),
        }
    }

    /// `6 busy, 2 hung?`, or why there is no data.
    fn host_text(&self, host: &Host) -> String {
        let counts = match (&host.link, self.host_summary(host)) {
            (Link::Live, Some(summary)) if summary.is_fresh => {
                let counts = GpuState::ALL.into_iter().map(|state| (summary.totals.in_state(state), state.word()));
                counts.filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")).collect()
            }
            (Link::Down { .. }, _) => vec!["down".to_owned()],
            (Link::NeedsUser { .. }, _) => vec!["needs you".to_owned()],
            (Link::Connecting { .. }, _) => vec!["connecting".to_owned()],
            _ => Vec::new(),
        };
        counts.join(", ")
    }

    /// Enter opens the selected entry and Esc closes the palette. Other keys edit its text or move its selection.
    pub(super) fn act_in_palette(&mut self, action: Action, now: Moment) -> Vec<Effect> {
        match (action, &mut self.palette) {
            (Action::Enter, palette) => {
                let target = palette.take().and_then(|palette| palette.selected().map(|entry| entry.target.clone()));
                return target.map_or_else(Vec::new, |target| self.open_target(target, now));
            }
            (Action::Back, palette) => *palette = None,
            (_, Some(palette)) => palette.act(action),
            (_, None) => {}
        }
        Vec::new()
    }

    fn open_target(&mut self, target: PaletteTarget, now: Moment) -> Vec<Effect> {
        match target {
            PaletteTarget::Command(line) => return self.run_command(line, now),
            PaletteTarget::Host(id) => {
                self.enter_host(id);
            }
            PaletteTarget::User(user) => {
                self.list_filter.user = Some(user);
                self.screen.show(View::Processes);
            }
            PaletteTarget::Process(key) => {
                if self.jobs(key.host).iter().any(|job| job.row.key == key) {
                    self.screen.list.select_key(key.clone());
                    self.screen.host = key.host.0 as usize;
                    self.screen.enter(View::Process(key));
                } else {
                    self.notify("the process has ended", now);
                }
            }
        }
        Vec::new()
    }

    /// Runs a command as its key does, after showing a view where the key works.
    fn run_command(&mut self, line: &'static Binding, now: Moment) -> Vec<Effect> {
        let modes = modes_of(line);
        if modes.contains(&self.mode()) {
            return self.act(line.action, now);
        }
        self.show_view_for(modes);
        if needs_a_choice(line.action) {
            let keys = self.keymap().keys_label(line);
            let key = keys.split(' ').next().unwrap_or(keys).to_owned();
            let what = if modes.contains(&Mode::Findings) { "finding" } else { "process" };
            self.notify(format!("select a {what}, then press {key}"), now);
            return Vec::new();
        }
        self.act(line.action, now)
    }

    fn show_view_for(&mut self, modes: &[Mode]) {
        let has = |mode: Mode| modes.contains(&mode);
        match self.screen.view() {
            View::Overview if has(Mode::List) => self.screen.set_focus(Focus::List),
            View::Overview if has(Mode::Grid) => self.screen.set_focus(Focus::Panes),
            View::Host(_) if has(Mode::HostList) => self.screen.set_focus(Focus::List),
            View::Host(_) if has(Mode::Host) => self.screen.set_focus(Focus::Panes),
            _ if has(Mode::Processes) => self.screen.show(View::Processes),
            _ if has(Mode::Grid) => self.screen.show(View::Overview),
            _ if has(Mode::Wall) => self.screen.show(View::Wall),
            _ if has(Mode::Findings) => self.screen.show(View::Findings),
            _ => {}
        }
    }
}

fn process_entry(row: &Row) -> PaletteEntry {
    let gpus = gpu_list(&row.gpu_indexes);
    let detail = format!("{} {} {gpus}", row.who, row.host_name);
    let pid = row.pid.map(|pid| pid.to_string()).unwrap_or_default();
    let words = format!("{} {} {pid} {}", row.who, row.host_name, row.job);
    let key: RowKey = row.key.clone();
    PaletteEntry::new(PaletteTarget::Process(key), program_and_arguments(&row.command), &detail, &words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::testing::{NOW, app, app_with_hung_jobs, at, press};
    use crate::fleet::{Group, HostId, SortKey};

    const SIZE: (u16, u16) = (80, 24);

    #[test]
    fn a_host_among_many_is_three_keys_away() {
        let mut app = app(32, 8, SIZE);
        press(&mut app, ":27\n");
        assert_eq!(app.screen().view(), &View::Host(HostId(26)));
        press(&mut app, ":hgx-05\n");
        assert_eq!(app.screen().view(), &View::Host(HostId(4)));
    }

    #[test]
    fn users_and_processes_are_found_from_every_view() {
        for view in ["1", "1\t", "2", "3", "4", "5", "L", "1\n", "1\n\n", "?"] {
            let mut app = app(6, 8, SIZE);
            press(&mut app, view);
            press(&mut app, ":dmitri\n");
            assert_eq!((app.mode(), app.screen().view()), (Mode::Processes, &View::Processes), "{view:?}");
            assert!(app.rows().iter().all(|row| row.who == "dmitri") && !app.rows().is_empty());
            press(&mut app, ":");
            let row = app.jobs(HostId(3))[0].row.clone();
            press(&mut app, &format!("{}\n", row.pid.expect("a pid")));
            assert_eq!(app.screen().view(), &View::Process(row.key.clone()), "{view:?}");
        }
    }

    #[test]
    fn a_process_is_shown_whatever_the_grouping_and_the_filter() {
        for keys in ["", "t", "tt", "ttt", "tttt"] {
            let mut app = app_with_hung_jobs(4, (120, 40));
            press(&mut app, "3");
            press(&mut app, keys);
            press(&mut app, "/user:nobody\n:");
            let row = app.jobs(HostId(0))[0].row.clone();
            press(&mut app, &format!("{}\n", row.pid.expect("a pid")));
            assert_eq!(app.mode(), Mode::Process);
            press(&mut app, "T");
            let target = app.signals().dialog().map(|dialog| dialog.targets[0].command.clone());
            assert_eq!(target.as_ref(), Some(&row.command));
        }
    }

    #[test]
    fn a_command_runs_where_its_key_works() {
        let mut app = app(6, 8, SIZE);
        press(&mut app, ":group\n");
        assert_eq!((app.mode(), app.screen().list.order().group), (Mode::List, Group::DistributedJob));
        press(&mut app, "5:sort by user\n");
        assert_eq!((app.mode(), app.screen().list.order().key), (Mode::Processes, SortKey::User));
        press(&mut app, "1:kill\n");
        assert_eq!(app.mode(), Mode::List, "the list is focused");
        assert!(app.signals().dialog().is_none(), "no process was selected");
        assert_eq!(app.notice(at(NOW)), Some("select a process, then press K"));
        press(&mut app, "1:mute\n");
        assert_eq!((app.mode(), app.notice(at(NOW))), (Mode::Findings, Some("select a finding, then press x")));
        press(&mut app, ":search\n");
        assert_eq!(app.mode(), Mode::FilterLine);
    }

    #[test]
    fn the_palette_performs_the_selected_action() {
        let mut app = app(3, 8, SIZE);
        press(&mut app, ":");
        assert_eq!(app.mode(), Mode::Palette);
        press(&mut app, "wall\n");
        assert_eq!((app.mode(), app.screen().view()), (Mode::Wall, &View::Wall));
        press(&mut app, ":quit");
        assert!(matches!(press(&mut app, "\n")[..], [Effect::Quit]));
        press(&mut app, "1:q\u{1b}");
        assert_eq!(app.mode(), Mode::Grid);
        press(&mut app, "\t:sort by the next\n");
        assert_eq!(app.screen().list.order().key, SortKey::ALL[1]);
        press(&mut app, ":no such thing\n");
        assert_eq!(app.mode(), Mode::List);
        app.settings.is_readonly = true;
        press(&mut app, ":send\n");
        assert!(app.signals().dialog().is_none());
    }

    #[test]
    fn hidden_hosts_and_ended_processes_are_not_found() {
        let mut app = app(4, 8, SIZE);
        press(&mut app, "→D:");
        let palette = app.palette().expect("is open");
        assert!(palette.matches().all(|entry| !entry.title.contains("hgx-02") && !entry.detail.contains("hgx-02")));
        assert!(palette.matches().any(|entry| entry.title.contains("hgx-03")));
    }
}
