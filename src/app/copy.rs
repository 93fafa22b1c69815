//! The text that `y` copies for the selected item, and the shell that `s` opens on its host.

use super::App;
use super::action::Mode;
use super::event::{CopiedText, Effect};
use super::message_template::{MessageFacts, gib, local_time};
use super::screen::View;
use super::signals::end_command;
use crate::fleet::{
    FreeGpu, GpuListStyle, GpuState, Host, HostId, JobRows, Moment, Row, RowKey, cuda_environment, format_gpu_list,
    program_name,
};
use crate::wire::SafeText;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

/// The selected item of a view.
enum Selection {
    Host(HostId),
    Gpu(HostId, usize),
    Row(RowKey),
}

impl Selection {
    fn host(&self) -> HostId {
        match self {
            Self::Host(id) | Self::Gpu(id, _) => *id,
            Self::Row(key) => key.host,
        }
    }
}

impl App {
    fn selection(&self) -> Option<Selection> {
        match self.mode() {
            Mode::Host | Mode::Gpu => Some(Selection::Gpu(self.host_in_view()?.id, self.screen.gpu)),
            Mode::Wall => Some(Selection::Gpu(HostId(self.screen.wall.host as u32), self.screen.wall.gpu)),
            Mode::List | Mode::HostList | Mode::Processes => {
                let row = self.rows().get(self.screen.list.index()).map(|row| Selection::Row(row.key.clone()));
                row.or_else(|| self.screen.list_host().map(Selection::Host))
            }
            Mode::Findings => self.findings().selected().map(|finding| {
                let gpu = finding.gpus.iter().find(|gpu| gpu.host == finding.host);
                gpu.map_or(Selection::Host(finding.host), |gpu| Selection::Gpu(finding.host, gpu.position))
            }),
            _ => match self.screen.view() {
                View::Process(key) => Some(Selection::Row(key.clone())),
                View::Log(id) => Some(Selection::Host(*id)),
                View::Overview => Some(Selection::Host(HostId(self.screen.host as u32))),
                _ => None,
            },
        }
    }

    /// Opens a shell on the host of the selected item.
    pub(super) fn open_shell(&mut self, now: Moment) -> Vec<Effect> {
        if self.settings.is_readonly {
            self.notify("the shell is disabled (--readonly, or readonly = true in settings.toml)", now);
            return Vec::new();
        }
        let host = self.selection().and_then(|selection| self.fleet.host(selection.host()));
        let Some((id, name)) = host.map(|host| (host.id, host.name().clone())) else {
            self.notify("no host is selected", now);
            return Vec::new();
        };
        if self.fleet.is_simulated(id) {
            self.notify(format!("{name} is simulated and has no shell"), now);
            return Vec::new();
        }
        vec![Effect::Shell(id)]
    }

    /// Copies a text about the selected item.
    pub(super) fn copy(&mut self, now: Moment) -> Vec<Effect> {
        let copied = self.selection().and_then(|selection| match selection {
            Selection::Host(id) => self.ssh_command(id),
            Selection::Gpu(id, position) => self.text_for_gpu(id, position, now),
            Selection::Row(key) => self.text_for_row(&key),
        });
        let Some(copied) = copied else {
            self.notify("nothing to copy here", now);
            return Vec::new();
        };
        vec![Effect::Copy(copied)]
    }

    fn ssh_command(&self, id: HostId) -> Option<CopiedText> {
        let host = self.fleet.host(id)?;
        // The local host needs no ssh: its name is copied instead.
        let line = host.config.ssh_line();
        let what = if line.is_some() { "the ssh command of" } else { "the name of" };
        let line = line.unwrap_or_else(|| host.name().clone());
        Some(CopiedText { what: format!("{what} {}", host.name()), lines: vec![line] })
    }

    /// Returns the commands that use a free GPU, a message to the user of an idle or hung one, or else the process on it.
    fn text_for_gpu(&self, id: HostId, position: usize, now: Moment) -> Option<CopiedText> {
        let host = self.fleet.host(id)?;
        let summary = self.host_summary(host)?;
        let free = summary.free.as_ref().and_then(|free| free.gpus.iter().find(|gpu| gpu.position == position));
        if let Some(free) = free {
            return Some(free_lines(host, free));
        }
        let Some(gpu) = summary.gpus.get(position) else { return self.ssh_command(id) };
        let holds = |job: &&JobRows| job.row.ended_at.is_none() && job.row.gpu_indexes.contains(&gpu.index);
        let holder = self.jobs(id).iter().filter(holds).max_by_key(|job| job.row.gpu_memory_bytes);
        let Some(job) = holder else { return self.ssh_command(id) };
        if job.row.is_mine || !matches!(gpu.state, GpuState::Idle | GpuState::Hung) {
            return Some(pid_line(&job.row));
        }
        let offset = self.settings.utc_offset_seconds;
        let time = |moment: Moment| local_time(moment, now, offset);
        let since = gpu.since.and_then(time).map(|time| format!("Since {time} "));
        let it = if job.row.gpu_indexes.len() > 1 { format!("GPU {}", gpu.index) } else { "it".to_owned() };
        let watts = gpu.power_watts().zip(gpu.power_limit_watts);
        let fact = match (gpu.state, watts) {
            (GpuState::Hung, Some((watts, limit))) => {
                format!("{it} draws {watts:.0} of {limit:.0} W, so it may be stuck.")
            }
            (GpuState::Hung, None) => format!("{it} looks stuck."),
            _ => format!("{it} has been idle."),
        };
        let fact = since.map_or_else(|| capitalize(&fact), |since| format!("{since}{fact}"));
        let facts = self.message_facts(host, job, Some(fact), now);
        let what = format!("a message to {}", facts.user);
        Some(CopiedText { what, lines: vec![self.preferences.message_template.render(&facts)] })
    }

    fn message_facts(&self, host: &Host, job: &JobRows, fact: Option<String>, now: Moment) -> MessageFacts {
        let row = &job.row;
        let keys = || std::iter::once(&row.key.process).chain(job.process_keys());
        let facts = keys().find_map(|key| host.processes().find(|process| process.key == *key)?.facts());
        let full_name = facts.and_then(|facts| facts.full_name.as_deref()).unwrap_or_default();
        let user = facts.and_then(|facts| facts.user.as_deref()).unwrap_or(&row.who);
        let time = |moment: Moment| local_time(moment, now, self.settings.utc_offset_seconds);
        let began = row.age_seconds.filter(|age| age.is_finite() && *age >= 0.0).map(Duration::from_secs_f64);
        let began = began.map(|age| Moment { unix: now.unix.saturating_sub(age), ..now });
        MessageFacts {
            name: full_name.split_whitespace().next().unwrap_or(user).to_owned(),
            user: user.to_owned(),
            host: host.name().as_str().to_owned(),
            program: program_name(&row.command).to_owned(),
            pid: row.pid,
            gpu_indexes: row.gpu_indexes.clone(),
            memory_bytes: row.gpu_memory_bytes,
            held: began.and_then(time),
            fact,
            end: end_command(&row.job).or_else(|| row.pid.map(|pid| format!("kill {pid}"))),
            seen: time(now).unwrap_or_default(),
        }
    }

    fn text_for_row(&self, key: &RowKey) -> Option<CopiedText> {
        // A group row stands for several jobs and has no process.
        if key.group.is_some() {
            return self.ssh_command(key.host);
        }
        let rows = |job: &JobRows| [Arc::clone(&job.row)].into_iter().chain(job.processes().into_owned());
        let mut rows = self.jobs(key.host).iter().flat_map(rows);
        rows.find(|row| row.key == *key).map(|row| pid_line(&row))
    }
}

/// Makes the first letter upper case.
fn capitalize(words: &str) -> String {
    let mut characters = words.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

/// Returns the two lines that `gpufleet free` prints for a GPU.
fn free_lines(host: &Host, gpu: &FreeGpu) -> CopiedText {
    let environment = SafeText::new(&format!("export {}", cuda_environment(std::slice::from_ref(gpu))));
    let lines = host.config.ssh_line().into_iter().chain([environment]).collect();
    CopiedText { what: format!("the commands for GPU {} of {}", gpu.index, host.name()), lines }
}

/// Formats a process: `hgx-11: pid 4471 (dmitri), GPUs 2,3, 140 GiB: python sft.py --fsdp`.
fn pid_line(row: &Row) -> CopiedText {
    let mut line = row.host_name.as_str().to_owned();
    let pid = row.pid.map_or_else(|| "a hidden process".to_owned(), |pid| format!("pid {pid}"));
    // Writing into a string cannot fail.
    let _ = write!(line, ": {pid} ({}), {}", row.who, format_gpu_list(&row.gpu_indexes, GpuListStyle::Each));
    if let Some(bytes) = row.gpu_memory_bytes {
        let _ = write!(line, ", {}", gib(bytes));
    }
    if !row.command.is_empty() {
        let _ = write!(line, ": {}", row.command);
    }
    CopiedText { what: format!("{pid} on {}", row.host_name), lines: vec![SafeText::new(&line)] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::Event;
    use crate::app::testing::{LATER, NOW, app, app_with_hung_jobs, at, press};
    use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    const SIZE: (u16, u16) = (120, 40);

    fn key(app: &mut App, character: char, seconds: u64) -> Vec<Effect> {
        app.update(Event::Key(KeyEvent::new(KeyCode::Char(character), KeyModifiers::NONE)), at(seconds))
    }

    #[track_caller]
    fn copied(app: &mut App, seconds: u64) -> (String, String) {
        match key(app, 'y', seconds).pop() {
            Some(Effect::Copy(copied)) => (copied.what.clone(), copied.text()),
            other => panic!("nothing was copied: {other:?}, {:?}", app.notice(at(seconds))),
        }
    }

    /// Selects a GPU in this state in the view of its host.
    #[track_caller]
    fn select_gpu_in_state(app: &mut App, state: GpuState, seconds: u64) {
        let hosts = app.fleet().hosts().iter().map(|host| (host.id, app.host_summary(host).expect("figures")));
        let found = hosts.into_iter().find_map(|(id, summary)| {
            let position = summary.gpus.iter().position(|gpu| gpu.state == state)?;
            Some((id.0 as usize, position))
        });
        let (host, gpu) = found.expect("a GPU in this state");
        app.screen.host = host;
        key(app, '1', seconds);
        app.update(Event::Key(KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE)), at(seconds));
        assert!(matches!(app.screen().view(), View::Host(_)));
        app.screen.gpu = gpu;
    }

    #[test]
    fn copying_a_host_gives_its_ssh_command() {
        let mut app = app(2, 8, SIZE);
        assert_eq!(copied(&mut app, NOW), ("the ssh command of hgx-01".into(), "ssh hgx-01".into()));
        press(&mut app, "→L");
        assert_eq!(copied(&mut app, NOW).1, "ssh hgx-02");
    }

    #[test]
    fn copying_a_process_gives_pid_user_and_command() {
        let mut app = app(2, 8, SIZE);
        press(&mut app, "3/user:erika host:hgx-02\n");
        let (what, line) = copied(&mut app, NOW);
        assert_eq!(what, "pid 5100 on hgx-02");
        assert_eq!(
            line,
            "hgx-02: pid 5100 (erika), GPUs 0,1,2,3,4,5,6,7, 492 GiB: torchrun --nproc_per_node 8 pretrain.py --bf16 --data \
             /scratch/c4"
        );
    }

    #[test]
    fn copying_a_free_gpu_gives_the_commands_to_use_it() {
        let mut app = app(2, 8, SIZE);
        select_gpu_in_state(&mut app, GpuState::Free, NOW);
        let (what, lines) = copied(&mut app, NOW);
        assert_eq!(what, "the commands for GPU 0 of hgx-01");
        assert_eq!(lines, "ssh hgx-01\nexport CUDA_VISIBLE_DEVICES=GPU-8f3a1c2e-0000");
    }

    #[test]
    fn copying_an_idle_or_hung_gpu_gives_a_message_to_its_user() {
        let mut app = app_with_hung_jobs(5, SIZE);
        select_gpu_in_state(&mut app, GpuState::Hung, LATER);
        let (what, note) = copied(&mut app, LATER);
        assert_eq!(what, "a message to dmitri");
        assert_eq!(
            note,
            "Hi Dmitri, on hgx-04 your `sft.py` (pid 5350) has held GPUs 4,5 (139 GiB) since 12 Nov 15:40. Since 13:55 GPU 4 \
             draws 108 of 700 W, so it may be stuck. If you no longer need it: `kill 5350`. Seen 14:20."
        );
        select_gpu_in_state(&mut app, GpuState::Idle, LATER);
        let (_, note) = copied(&mut app, LATER);
        assert_eq!(
            note,
            "Hi Alice, on hgx-01 your `ipykernel_launcher` (pid 5008) has held GPU 7 (30 GiB) since 12 Nov 18:00. Since 13:55 \
             it has been idle. If you no longer need it: `kill 5008`. Seen 14:20."
        );
    }

    #[test]
    fn a_shell_opens_on_the_selected_host_unless_readonly() {
        let mut app = app(2, 8, SIZE);
        press(&mut app, "→");
        assert!(matches!(press(&mut app, "s")[..], [Effect::Shell(HostId(1))]));
        press(&mut app, "3/host:hgx-01\n");
        assert!(matches!(press(&mut app, "s")[..], [Effect::Shell(HostId(0))]));
        app.settings.is_readonly = true;
        assert!(press(&mut app, "s").is_empty());
        assert_eq!(
            app.notice(at(NOW)),
            Some("the shell is disabled (--readonly, or readonly = true in settings.toml)")
        );
    }
}
