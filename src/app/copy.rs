//! What is under the selection, and the ready line that `y` copies of it; the shell that `s` opens there.

use super::message_template::{MessageFacts, gib, local_time};
use super::{App, Effect, Mode, View};
use crate::fleet::{
    FreeGpu, GpuListStyle, GpuState, Host, HostId, JobKey, JobRows, Moment, Row, RowKey, cuda_environment,
    format_gpu_list, program_name,
};
use crate::wire::SafeText;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

/// Something that was copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopiedText {
    /// What it is, for the message about it: `the ssh command of hgx-01`.
    pub what: String,
    /// Its lines.
    pub lines: Vec<SafeText>,
}

impl CopiedText {
    /// The lines as they are pasted.
    pub fn text(&self) -> String {
        self.lines.iter().map(SafeText::as_str).collect::<Vec<_>>().join("\n")
    }
}

/// What the selection of a view stands on.
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
                let row = self.rows.get(self.screen.list.index()).map(|row| Selection::Row(row.key.clone()));
                row.or_else(|| self.screen.list_host().map(Selection::Host))
            }
            Mode::Findings => self.findings.selected().map(|finding| {
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

    /// Leaves the screen for a shell on the host under the selection.
    pub(super) fn shell(&mut self, now: Moment) -> Vec<Effect> {
        if self.settings.is_readonly {
            self.notify("the shell is off: gpufleet runs with --readonly, or the settings say so", now);
            return Vec::new();
        }
        let host = self.selection().and_then(|selection| self.fleet.host(selection.host()));
        let Some((id, name)) = host.map(|host| (host.id, host.name().clone())) else {
            self.notify("no host to open a shell on", now);
            return Vec::new();
        };
        if self.fleet.simulated {
            self.notify(format!("{name} is simulated: there is no shell on it"), now);
            return Vec::new();
        }
        vec![Effect::Shell(id)]
    }

    /// Copies the line that fits what is under the selection.
    pub(super) fn copy(&mut self, now: Moment) -> Vec<Effect> {
        let copied = self.selection().and_then(|selection| match selection {
            Selection::Host(id) => self.ssh_command(id),
            Selection::Gpu(id, position) => self.text_for_gpu(id, position, now),
            Selection::Row(key) => self.text_for_row(&key),
        });
        let Some(copied) = copied else {
            self.notify("nothing here to copy", now);
            return Vec::new();
        };
        vec![Effect::Copy(copied)]
    }

    fn ssh_command(&self, id: HostId) -> Option<CopiedText> {
        let host = self.fleet.host(id)?;
        // The machine one sits at needs no ssh: its name is all there is.
        let line = host.config.ssh_line();
        let what = if line.is_some() { "the ssh command of" } else { "the name of" };
        let line = line.unwrap_or_else(|| host.name().clone());
        Some(CopiedText { what: format!("{what} {}", host.name()), lines: vec![line] })
    }

    /// Of a free GPU what to type to use it; of one that is idle or may hang a note to its user; else its process.
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
        let what = format!("a note to {}", facts.user);
        Some(CopiedText { what, lines: vec![self.message_template.render(&facts)] })
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
            end: end_command(row),
            seen: time(now).unwrap_or_default(),
        }
    }

    fn text_for_row(&self, key: &RowKey) -> Option<CopiedText> {
        // A row that stands above several jobs has no process of its own.
        if key.group.is_some() {
            return self.ssh_command(key.host);
        }
        let rows = |job: &JobRows| [Arc::clone(&job.row)].into_iter().chain(job.processes().into_owned());
        let mut rows = self.jobs(key.host).iter().flat_map(rows);
        rows.find(|row| row.key == *key).map(|row| pid_line(&row))
    }
}

/// The first letter of a sentence.
fn capitalize(words: &str) -> String {
    let mut characters = words.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

/// The two lines that `gpufleet free` prints for one GPU.
fn free_lines(host: &Host, gpu: &FreeGpu) -> CopiedText {
    let environment = SafeText::new(&format!("export {}", cuda_environment(std::slice::from_ref(gpu))));
    let lines = host.config.ssh_line().into_iter().chain([environment]).collect();
    CopiedText { what: format!("what to type for GPU {} of {}", gpu.index, host.name()), lines }
}

/// `hgx-11: pid 4471 (dmitri), GPUs 2,3, 140 GiB: python sft.py --fsdp`.
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

/// What its user types to end it, by whoever started it.
fn end_command(row: &Row) -> Option<String> {
    match &row.job {
        JobKey::Slurm { job, .. } => Some(format!("scancel {job}")),
        JobKey::Container { runtime, id } if *runtime == "docker" || *runtime == "podman" => {
            Some(format!("{runtime} stop {}", id.chars().take(12).collect::<String>()))
        }
        _ => row.pid.map(|pid| format!("kill {pid}")),
    }
}

#[cfg(test)]
#[path = "copy_tests.rs"]
mod tests;
