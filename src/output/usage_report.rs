//! The report over the history (`gpufleet report`) as text, CSV and JSON; [`super::usage_html`] draws it as HTML.
//!
//! ```text
//! 2026-11-17 00:00 to 2026-11-24 00:00 UTC: 61 % busy, 24 % held idle, 12 % free, 0 % faulty, 3 % unknown
//! user      GPU-hours  used  idle  energy kWh    cost
//! ann           410.0  92 %  32.8       205.1  1025.00
//! ...
//! underused hosts (less than 20 % busy): gpu-07 (4 %)
//! outages: gpu-03 was unreachable for 2.5 of 168.0 h
//! 3 findings: 2 idle-hog, 1 gpu-lost
//! ```

use super::csv::{encode, without_formula};
use crate::config::{Prices, parse_indexes};
use crate::store::history::GpuName;
use crate::store::history_reader::{FindingTotal, GpuTotal, HostTotal, JobTotal};
use crate::wire::SafeText;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;

/// A host whose GPUs are busy for a smaller part of the known time is underused.
const UNDERUSED_SHARE: f64 = 0.2;
/// Shorter times without a process belong to the start and the end of every job.
const MIN_UNUSED_HOURS: f64 = 0.1;
/// Unused allocations that the text and the page list.
pub(super) const SHOWN_ALLOCATIONS: usize = 10;
const SECONDS_PER_HOUR: f64 = 3600.0;
const JOULES_PER_KWH: f64 = 3_600_000.0;

/// The subject of a row of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReportGroup {
    /// A user.
    User,
    /// A host.
    Host,
    /// A GPU.
    Gpu,
    /// A job on one host.
    Job,
    /// A day in local time.
    Day,
}

impl ReportGroup {
    /// The name in the header.
    pub fn word(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Host => "host",
            Self::Gpu => "gpu",
            Self::Job => "job",
            Self::Day => "day",
        }
    }
}

/// The cost of held GPU-hours and of energy; `None` without a price that applies.
fn cost(held: Option<f64>, energy_kwh: Option<f64>, prices: &Prices) -> Option<f64> {
    match (held, prices.kwh.zip(energy_kwh).map(|(price, energy)| price * energy)) {
        (None, None) => None,
        (held, energy) => Some(held.unwrap_or(0.0) + energy.unwrap_or(0.0)),
    }
}

/// The models of GPUs by host and index.
type Models<'a> = HashMap<(&'a SafeText, u32), &'a SafeText>;

/// The price of a GPU-hour of a job: the mean over its GPUs of known models, of which those without a price cost nothing;
/// `None` if no GPU has a price.
fn job_price(job: &JobTotal, models: &Models<'_>, prices: &Prices) -> Option<f64> {
    let indexes = job.gpus.trim_start_matches("GPUs ").trim_start_matches("GPU ");
    let indexes = parse_indexes(indexes, 0..0).ok()?;
    let known: Vec<Option<f64>> = indexes
        .iter()
        .filter_map(|index| models.get(&(&job.host, *index)))
        .map(|model| prices.of_model(model))
        .collect();
    let has_price = known.iter().any(Option::is_some);
    has_price.then(|| known.iter().flatten().sum::<f64>() / known.len() as f64)
}

/// Hours of GPUs, energy and cost.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Usage {
    /// GPU-hours held by a process or an allocation: used, idle and faulty.
    pub held_hours: f64,
    /// GPU-hours in which the held GPU was busy.
    pub used_hours: f64,
    /// GPU-hours held without computing.
    pub idle_held_hours: f64,
    /// GPU-hours that nobody held; `None` for users and jobs.
    pub free_hours: Option<f64>,
    /// GPU-hours with a faulty GPU or a job that hangs; `None` for users and jobs.
    pub faulty_hours: Option<f64>,
    /// GPU-hours without readings; `None` for users and jobs.
    pub unknown_hours: Option<f64>,
    /// Mean utilization in percent over the time with readings; `None` for users and jobs.
    pub utilization_percent: Option<f64>,
    /// GPU-hours, part of `idle_held_hours`, that Slurm had allocated to a job without a process on the GPU; `None` without
    /// Slurm, and for hosts, GPUs and days.
    pub unused_hours: Option<f64>,
    /// Highest memory in use in MiB: of one GPU, or of a job on all of its GPUs.
    pub memory_max_mib: Option<u64>,
    /// Energy in kWh.
    pub energy_kwh: Option<f64>,
    /// Cost by the prices that were given.
    pub cost: Option<f64>,
    /// GPU-hours with readings.
    #[serde(skip)]
    known_hours: f64,
    /// GPU-hours with a known utilization, which a GPU with MIG does not report: the weight of `utilization_percent`.
    #[serde(skip)]
    measured_hours: f64,
}

impl Usage {
    fn of_gpu(total: &GpuTotal, prices: &Prices) -> Self {
        let row = &total.row;
        let hours = |seconds: u64| seconds as f64 / SECONDS_PER_HOUR;
        let states = row.states;
        let held_hours = hours(states.busy + states.idle_held + states.faulty);
        let price = total.gpu.model.as_ref().and_then(|model| prices.of_model(model));
        let energy_kwh = row.energy_joules.map(|joules| joules as f64 / JOULES_PER_KWH);
        Self {
            held_hours,
            used_hours: hours(states.busy),
            idle_held_hours: hours(states.idle_held),
            free_hours: Some(hours(states.free)),
            faulty_hours: Some(hours(states.faulty)),
            unknown_hours: Some(hours(states.unknown)),
            unused_hours: None,
            utilization_percent: row.utilization_permille.map(|permille| permille as f64 / 10.0),
            memory_max_mib: row.memory_max_mib,
            energy_kwh,
            cost: cost(price.map(|price| price * held_hours), energy_kwh, prices),
            known_hours: hours(states.known()),
            measured_hours: if row.utilization_permille.is_some() { hours(states.known()) } else { 0.0 },
        }
    }

    /// Without the time before the collector watched the host, which is part of a day but tells nothing about the GPU.
    fn without_time_before(mut self, seconds: u64) -> Self {
        let hours = seconds as f64 / SECONDS_PER_HOUR;
        self.unknown_hours = self.unknown_hours.map(|unknown| (unknown - hours).max(0.0));
        self
    }

    /// A GPU without readings for this time.
    fn without_readings(seconds: u64) -> Self {
        Self {
            free_hours: Some(0.0),
            faulty_hours: Some(0.0),
            unknown_hours: Some(seconds as f64 / SECONDS_PER_HOUR),
            ..Self::default()
        }
    }

    fn of_job(total: &JobTotal, models: &Models<'_>, prices: &Prices) -> Self {
        let held_hours = total.held_seconds as f64 / SECONDS_PER_HOUR;
        let used_hours = total.used_seconds as f64 / SECONDS_PER_HOUR;
        let energy_kwh = Some(total.energy_joules as f64 / JOULES_PER_KWH);
        Self {
            held_hours,
            used_hours,
            idle_held_hours: (held_hours - used_hours).max(0.0),
            unused_hours: total.unused_seconds.map(|seconds| seconds as f64 / SECONDS_PER_HOUR),
            memory_max_mib: total.memory_max_mib,
            energy_kwh,
            cost: cost(job_price(total, models, prices).map(|price| price * held_hours), energy_kwh, prices),
            ..Self::default()
        }
    }

    fn add(&mut self, other: &Self) {
        let sum = |a: Option<f64>, b: Option<f64>| if a.is_none() { b } else { Some(a? + b.unwrap_or(0.0)) };
        let weighted = |usage: &Self| usage.utilization_percent.map(|percent| percent * usage.measured_hours);
        let measured = self.measured_hours + other.measured_hours;
        self.utilization_percent =
            sum(weighted(self), weighted(other)).map(|sum| if measured > 0.0 { sum / measured } else { 0.0 });
        self.measured_hours = measured;
        self.known_hours += other.known_hours;
        self.held_hours += other.held_hours;
        self.used_hours += other.used_hours;
        self.idle_held_hours += other.idle_held_hours;
        self.free_hours = sum(self.free_hours, other.free_hours);
        self.faulty_hours = sum(self.faulty_hours, other.faulty_hours);
        self.unknown_hours = sum(self.unknown_hours, other.unknown_hours);
        self.unused_hours = sum(self.unused_hours, other.unused_hours);
        self.memory_max_mib = self.memory_max_mib.max(other.memory_max_mib);
        self.energy_kwh = sum(self.energy_kwh, other.energy_kwh);
        self.cost = sum(self.cost, other.cost);
    }

    /// The part of the held hours that was used, in percent.
    pub fn used_percent(&self) -> Option<f64> {
        (self.held_hours > 0.0).then(|| 100.0 * self.used_hours / self.held_hours)
    }
}

/// One row of the report.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UsageRow {
    /// The user, host, `host:index`, `host label` or date.
    pub name: SafeText,
    /// The model of a GPU, or user and command of a job.
    pub detail: Option<SafeText>,
    /// How a job ended, if that is known.
    pub how_ended: Option<SafeText>,
    /// The figures.
    #[serde(flatten)]
    pub usage: Usage,
}

/// A host that was unreachable.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Outage {
    /// The host.
    pub host: SafeText,
    /// Hours in which it was watched and sent no readings.
    pub unreachable_hours: f64,
    /// Hours in which it was watched.
    pub watched_hours: f64,
}

/// A job of Slurm that did not use its GPUs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UnusedAllocation {
    /// The user.
    pub user: SafeText,
    /// The host.
    pub host: SafeText,
    /// The job: `slurm:3385`.
    pub job: SafeText,
    /// GPU-hours that were allocated and had no process of the job.
    pub unused_hours: f64,
}

/// A host with little use.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Underused {
    /// The host.
    pub host: SafeText,
    /// The part of the time with readings in which its GPUs were busy, in percent.
    pub busy_percent: f64,
}

/// A finding of the period.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReportFinding {
    /// The rule.
    pub rule: SafeText,
    /// The severity.
    pub severity: SafeText,
    /// The host.
    pub host: SafeText,
    /// The owner of the processes.
    pub user: Option<SafeText>,
    /// When it fired, in seconds since 1970.
    pub first_seen_unix_seconds: u64,
    /// When it cleared, in seconds since 1970; `null` while it fires.
    pub ended_unix_seconds: Option<u64>,
    /// The sentence with its figures.
    pub evidence: SafeText,
    /// Whether it was severe and new enough for a notification, whether or not one was set up.
    pub notified: bool,
}

/// A report over a period of the history.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UsageReport {
    /// The version of this format, 1.
    pub schema: u32,
    /// The start of the period in seconds since 1970.
    pub from_unix_seconds: u64,
    /// The end of the period.
    pub until_unix_seconds: u64,
    /// The subject of a row.
    pub by: ReportGroup,
    /// The rows, the most GPU-hours first; days in order.
    pub rows: Vec<UsageRow>,
    /// The sum over all GPUs.
    pub total: Usage,
    /// Hosts whose GPUs were busy for less than 20 % of the time with readings, the least busy first.
    pub underused: Vec<Underused>,
    /// Jobs of Slurm with GPUs that they did not use, the most GPU-hours first.
    pub unused_allocations: Vec<UnusedAllocation>,
    /// Hosts that were unreachable.
    pub outages: Vec<Outage>,
    /// The findings of the period, the newest first.
    pub findings: Vec<ReportFinding>,
    /// The days of the period, for the chart.
    #[serde(skip)]
    pub days: Vec<UsageRow>,
}

/// The contents of the history for a period.
pub struct ReportData<'a> {
    /// The start, in seconds since 1970.
    pub from: u64,
    /// The end.
    pub until: u64,
    /// The days: their starts and ends.
    pub days: &'a [(u64, u64)],
    /// The sums of each GPU by day; the start of the day first. A day without readings of a GPU is missing.
    pub gpus: &'a [(u64, GpuTotal)],
    /// The jobs.
    pub jobs: &'a [JobTotal],
    /// The hosts.
    pub hosts: &'a [HostTotal],
    /// The findings.
    pub findings: &'a [FindingTotal],
}

impl UsageReport {
    /// Computes the report. `date` formats the start of a day.
    pub fn new(data: &ReportData<'_>, by: ReportGroup, prices: &Prices, date: &dyn Fn(u64) -> String) -> Self {
        let mut total = Usage::default();
        let mut hosts: BTreeMap<SafeText, Usage> = BTreeMap::new();
        let mut gpus: BTreeMap<(SafeText, u32), (Option<SafeText>, Usage)> = BTreeMap::new();
        let mut days: BTreeMap<u64, Usage> = BTreeMap::new();
        let mut add = |day: u64, gpu: &GpuName, usage: &Usage| {
            total.add(usage);
            hosts.entry(gpu.host.clone()).or_default().add(usage);
            days.entry(day).or_default().add(usage);
            let key = (gpu.host.clone(), gpu.index);
            gpus.entry(key).or_insert_with(|| (gpu.model.clone(), Usage::default())).1.add(usage);
        };
        let first_watched: BTreeMap<&SafeText, u64> =
            data.hosts.iter().map(|host| (&host.host, host.first_watched)).collect();
        let ends: BTreeMap<u64, u64> = data.days.iter().copied().collect();
        // The days with readings of each GPU.
        let mut seen: BTreeMap<(&SafeText, u32), (&GpuName, BTreeSet<u64>)> = BTreeMap::new();
        for (day, gpu) in data.gpus {
            let first = first_watched.get(&gpu.gpu.host).zip(ends.get(day));
            let before = first.map_or(0, |(first, end)| (*first.min(end)).saturating_sub(*day));
            add(*day, &gpu.gpu, &Usage::of_gpu(gpu, prices).without_time_before(before));
            let known = seen.entry((&gpu.gpu.host, gpu.gpu.index)).or_insert_with(|| (&gpu.gpu, BTreeSet::new()));
            known.1.insert(*day);
        }
        // A host that is down for days, or a collector that is off, leaves no rows.
        for (gpu, known) in seen.values() {
            let Some(first) = first_watched.get(&gpu.host) else { continue };
            for (start, end) in data.days.iter().filter(|(start, end)| end > first && !known.contains(start)) {
                add(*start, gpu, &Usage::without_readings(end - start.max(first)));
            }
        }
        let models: Models<'_> = data
            .gpus
            .iter()
            .filter_map(|(_, gpu)| Some(((&gpu.gpu.host, gpu.gpu.index), gpu.gpu.model.as_ref()?)))
            .collect();
        let mut users: BTreeMap<SafeText, Usage> = BTreeMap::new();
        for job in data.jobs {
            users.entry(job.user.clone()).or_default().add(&Usage::of_job(job, &models, prices));
        }
        let row = |name: SafeText, usage: Usage| UsageRow { name, detail: None, how_ended: None, usage };
        let days: Vec<UsageRow> = days.into_iter().map(|(day, usage)| row(SafeText::from(date(day)), usage)).collect();
        let mut rows: Vec<UsageRow> = match by {
            ReportGroup::User => users.into_iter().map(|(name, usage)| row(name, usage)).collect(),
            ReportGroup::Host => hosts.iter().map(|(name, usage)| row(name.clone(), usage.clone())).collect(),
            ReportGroup::Gpu => gpus
                .into_iter()
                .map(|((host, index), (model, usage))| UsageRow {
                    detail: model,
                    ..row(SafeText::new(&format!("{host}:{index}")), usage)
                })
                .collect(),
            ReportGroup::Job => data
                .jobs
                .iter()
                .map(|job| UsageRow {
                    detail: Some(SafeText::new(&format!("{} {} {}", job.user, job.gpus, job.command))),
                    how_ended: job.how_ended.clone(),
                    ..row(SafeText::new(&format!("{} {}", job.host, job.label)), Usage::of_job(job, &models, prices))
                })
                .collect(),
            ReportGroup::Day => days.clone(),
        };
        if by != ReportGroup::Day {
            rows.sort_by(|a, b| b.usage.held_hours.total_cmp(&a.usage.held_hours).then_with(|| a.name.cmp(&b.name)));
        }
        let mut underused: Vec<Underused> = hosts
            .iter()
            .filter(|(_, usage)| usage.known_hours > 0.0 && usage.used_hours / usage.known_hours < UNDERUSED_SHARE)
            .map(|(host, usage)| Underused {
                host: host.clone(),
                busy_percent: 100.0 * usage.used_hours / usage.known_hours,
            })
            .collect();
        underused.sort_by(|a, b| a.busy_percent.total_cmp(&b.busy_percent));
        let mut unused_allocations: Vec<UnusedAllocation> = data
            .jobs
            .iter()
            .filter_map(|job| {
                let unused_hours = job.unused_seconds? as f64 / SECONDS_PER_HOUR;
                (unused_hours >= MIN_UNUSED_HOURS).then(|| UnusedAllocation {
                    user: job.user.clone(),
                    host: job.host.clone(),
                    job: job.label.clone(),
                    unused_hours,
                })
            })
            .collect();
        unused_allocations.sort_by(|a, b| b.unused_hours.total_cmp(&a.unused_hours).then_with(|| a.job.cmp(&b.job)));
        let outage = |host: &HostTotal| {
            let lost = host.watched_seconds.saturating_sub(host.reachable_seconds);
            // The first and the last minute are covered in part.
            (lost >= 120).then(|| Outage {
                host: host.host.clone(),
                unreachable_hours: lost as f64 / SECONDS_PER_HOUR,
                watched_hours: host.watched_seconds as f64 / SECONDS_PER_HOUR,
            })
        };
        let finding = |finding: &FindingTotal| ReportFinding {
            rule: finding.rule.clone(),
            severity: finding.severity.clone(),
            host: finding.host.clone(),
            user: finding.user.clone(),
            first_seen_unix_seconds: finding.first_seen,
            ended_unix_seconds: finding.ended,
            evidence: finding.evidence.clone(),
            notified: finding.notified,
        };
        Self {
            schema: 1,
            from_unix_seconds: data.from,
            until_unix_seconds: data.until,
            by,
            rows,
            total,
            underused,
            unused_allocations,
            outages: data.hosts.iter().filter_map(outage).collect(),
            findings: data.findings.iter().map(finding).collect(),
            days,
        }
    }

    /// The share of each state in the time of all GPUs, as one line.
    pub fn summary(&self) -> String {
        let Usage { used_hours, idle_held_hours, free_hours, faulty_hours, unknown_hours, .. } = self.total;
        let parts = [
            (used_hours, "busy"),
            (idle_held_hours, "held idle"),
            (free_hours.unwrap_or(0.0), "free"),
            (faulty_hours.unwrap_or(0.0), "faulty"),
            (unknown_hours.unwrap_or(0.0), "unknown"),
        ];
        let all: f64 = parts.iter().map(|(hours, _)| hours).sum();
        if all <= 0.0 {
            return "no readings".to_owned();
        }
        let words: Vec<String> =
            parts.iter().map(|(hours, word)| format!("{:.0} % {word}", 100.0 * hours / all)).collect();
        words.join(", ")
    }

    /// The report as text. `period` is the period for people.
    pub fn text(&self, period: &str) -> String {
        let mut text = format!("{period}: {}\n", self.summary());
        if let Some(percent) = self.total.utilization_percent {
            let _ = writeln!(text, "mean utilization {percent:.0} %, energy {} kWh", number(self.total.energy_kwh, 1));
        }
        let mut table = vec![header(self.by)];
        for row in &self.rows {
            table.push(cells(row));
        }
        text += &aligned(&table);
        if !self.underused.is_empty() {
            let hosts: Vec<String> =
                self.underused.iter().map(|one| format!("{} ({:.0} %)", one.host, one.busy_percent)).collect();
            let _ = writeln!(text, "underused hosts (less than 20 % busy): {}", hosts.join(", "));
        }
        for UnusedAllocation { user, host, job, unused_hours } in self.unused_allocations.iter().take(SHOWN_ALLOCATIONS)
        {
            let _ =
                writeln!(text, "unused Slurm allocation: {user} held {unused_hours:.1} GPU-hours of {job} on {host}");
        }
        if let Some(more) = self.unused_allocations.len().checked_sub(SHOWN_ALLOCATIONS).filter(|more| *more > 0) {
            let _ = writeln!(text, "unused Slurm allocations of {more} more jobs: see --json");
        }
        for Outage { host, unreachable_hours, watched_hours } in &self.outages {
            let _ = writeln!(text, "outage: {host} was unreachable for {unreachable_hours:.1} of {watched_hours:.1} h");
        }
        let mut rules: BTreeMap<&SafeText, u32> = BTreeMap::new();
        self.findings.iter().for_each(|finding| *rules.entry(&finding.rule).or_default() += 1);
        if !rules.is_empty() {
            let rules: Vec<String> = rules.iter().map(|(rule, count)| format!("{count} {rule}")).collect();
            let _ = writeln!(text, "findings: {}", rules.join(", "));
        }
        text
    }

    /// The rows as CSV with a header.
    ///
    /// # Errors
    /// The encoder fails, which it does not in memory.
    pub fn csv(&self) -> Result<String, ::csv::Error> {
        let header = [
            self.by.word(),
            "detail",
            "held_hours",
            "used_hours",
            "idle_held_hours",
            "free_hours",
            "faulty_hours",
            "unknown_hours",
            "utilization_percent",
            "memory_max_mib",
            "energy_kwh",
            "cost",
            "how_ended",
            "unused_hours",
        ];
        let record = |UsageRow { name, detail, how_ended, usage }: &UsageRow| {
            let exact = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.4}"));
            let foreign = |text: Option<&SafeText>| text.map(|text| without_formula(text)).unwrap_or_default();
            [
                foreign(Some(name)),
                foreign(detail.as_ref()),
                exact(Some(usage.held_hours)),
                exact(Some(usage.used_hours)),
                exact(Some(usage.idle_held_hours)),
                exact(usage.free_hours),
                exact(usage.faulty_hours),
                exact(usage.unknown_hours),
                exact(usage.utilization_percent),
                usage.memory_max_mib.map(|mib| mib.to_string()).unwrap_or_default(),
                exact(usage.energy_kwh),
                exact(usage.cost),
                foreign(how_ended.as_ref()),
                exact(usage.unused_hours),
            ]
        };
        encode(std::iter::once(header.map(str::to_owned)).chain(self.rows.iter().map(record)))
    }

    /// The report as one line of JSON.
    ///
    /// # Errors
    /// A figure is not finite.
    pub fn json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self).map(|line| line + "\n")
    }
}

/// A number for people; `-` if it is unknown.
pub(super) fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

/// The header of the table.
pub(super) fn header(by: ReportGroup) -> Vec<String> {
    [by.word(), "GPU-hours", "used", "idle h", "util %", "kWh", "cost", ""].map(str::to_owned).to_vec()
}

/// The cells of a row, in the order of [`header`].
pub(super) fn cells(row: &UsageRow) -> Vec<String> {
    let usage = &row.usage;
    let detail = row.detail.iter().chain(&row.how_ended).map(SafeText::as_str).collect::<Vec<_>>().join(", ");
    vec![
        row.name.to_string(),
        number(Some(usage.held_hours), 1),
        usage.used_percent().map_or_else(|| "-".to_owned(), |percent| format!("{percent:.0} %")),
        number(Some(usage.idle_held_hours), 1),
        number(usage.utilization_percent, 0),
        number(usage.energy_kwh, 1),
        number(usage.cost, 2),
        detail,
    ]
}

/// The first and the last column on the left, numbers on the right.
fn aligned(table: &[Vec<String>]) -> String {
    use unicode_width::UnicodeWidthStr as _;
    let columns = table.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| table.iter().filter_map(|row| row.get(column)).map(|cell| cell.width()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in table {
        let mut line = String::new();
        for (index, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let pad = " ".repeat(width.saturating_sub(cell.width()));
            let gap = if index == 0 { "" } else { "  " };
            let is_left = index == 0 || index + 1 == columns;
            let (before, after) = if is_left { ("", pad.as_str()) } else { (pad.as_str(), "") };
            for part in [gap, before, cell, after] {
                line += part;
            }
        }
        text += line.trim_end();
        text += "\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::history::DAY;
    use crate::store::rollup::{GpuRow, StateSeconds};

    fn gpu(host: &str, index: u32, busy: u64, idle_held: u64, free: u64) -> GpuTotal {
        let name = GpuName {
            host: host.into(),
            uuid: SafeText::new(&format!("GPU-{index}")),
            index,
            model: Some("NVIDIA H100 80GB HBM3".into()),
            memory_mib: None,
        };
        let states = StateSeconds { busy, idle_held, free, faulty: 0, unknown: 3600 };
        let energy_joules = Some(500 * busy + 100 * (idle_held + free));
        let row = GpuRow {
            utilization_permille: Some(1000 * busy / states.known()),
            energy_joules,
            states,
            ..GpuRow::default()
        };
        GpuTotal { gpu: name, row }
    }

    fn job(user: &str, held_seconds: u64, used_seconds: u64) -> JobTotal {
        JobTotal {
            host: "gpu1".into(),
            label: "slurm:7".into(),
            user: user.into(),
            command: "=train, \"x\"".into(),
            gpus: "GPUs 0-1".to_owned(),
            start: 0,
            ended: Some(9),
            how_ended: Some("the host rebooted".into()),
            memory_max_mib: Some(40_960),
            held_seconds,
            used_seconds,
            energy_joules: 7_200_000,
            unused_seconds: (used_seconds == 0).then_some(5400),
        }
    }

    fn report(by: ReportGroup) -> UsageReport {
        let gpus = [(0, gpu("gpu1", 0, 28_800, 7200, 0)), (0, gpu("gpu2", 0, 0, 3600, 32_400))];
        let jobs = [job("bob", 7200, 0), job("ann", 28_800, 28_800)];
        let hosts = [
            HostTotal { host: "gpu1".into(), watched_seconds: 36_000, reachable_seconds: 35_950, first_watched: 0 },
            HostTotal { host: "gpu2".into(), watched_seconds: 36_000, reachable_seconds: 27_000, first_watched: 0 },
        ];
        let finding = FindingTotal {
            rule: "idle-hog".into(),
            host: "gpu1".into(),
            severity: "warn".into(),
            user: Some("bob".into()),
            first_seen: 100,
            ended: None,
            evidence: "holds 40 GiB".into(),
            notified: true,
        };
        let (days, findings) = ([(0, 39_600)], [finding]);
        let data = ReportData {
            from: 0,
            until: 39_600,
            days: &days,
            gpus: &gpus,
            jobs: &jobs,
            hosts: &hosts,
            findings: &findings,
        };
        let prices = Prices { gpu_hour: vec![("h100".to_owned(), 2.5)], kwh: None };
        UsageReport::new(&data, by, &prices, &|_| "1970-01-01".to_owned())
    }

    #[test]
    fn the_text_answers_who_holds_gpus_without_using_them_and_which_host_is_underused() {
        assert_eq!(
            report(ReportGroup::User).text("a day"),
            "\
a day: 36 % busy, 14 % held idle, 41 % free, 0 % faulty, 9 % unknown
mean utilization 40 %, energy 5.2 kWh
user  GPU-hours   used  idle h  util %  kWh   cost
ann         8.0  100 %     0.0       -  2.0  20.00
bob         2.0    0 %     2.0       -  2.0   5.00
underused hosts (less than 20 % busy): gpu2 (0 %)
unused Slurm allocation: bob held 1.5 GPU-hours of slurm:7 on gpu1
outage: gpu2 was unreachable for 2.5 of 10.0 h
findings: 1 idle-hog
"
        );
    }

    #[test]
    fn hosts_gpus_and_days_have_utilization() {
        let names = |by| report(by).rows.iter().map(|row| row.name.to_string()).collect::<Vec<_>>();
        assert_eq!(names(ReportGroup::Host), ["gpu1", "gpu2"]);
        assert_eq!(names(ReportGroup::Gpu), ["gpu1:0", "gpu2:0"]);
        assert_eq!(names(ReportGroup::Day), ["1970-01-01"]);
        let host = &report(ReportGroup::Host).rows[0].usage;
        assert_eq!((host.utilization_percent, host.used_percent(), host.cost), (Some(80.0), Some(80.0), Some(25.0)));
        assert_eq!(report(ReportGroup::Day).rows[0].usage.unknown_hours, Some(2.0));
    }

    #[test]
    fn gpus_without_a_utilization_do_not_lower_the_mean() {
        let mut mig = gpu("gpu1", 1, 28_800, 0, 0);
        mig.row.utilization_permille = None;
        let (gpus, days) = ([(0, gpu("gpu1", 0, 28_800, 7200, 0)), (0, mig)], [(0, 39_600)]);
        let data =
            ReportData { from: 0, until: 39_600, days: &days, gpus: &gpus, jobs: &[], hosts: &[], findings: &[] };
        let report = UsageReport::new(&data, ReportGroup::Host, &Prices::default(), &|_| String::new());
        let usage = &report.rows[0].usage;
        assert_eq!((usage.utilization_percent, Some(usage.used_hours)), (Some(80.0), Some(16.0)));
    }

    #[test]
    fn time_without_readings_is_unknown_from_the_first_minute_of_the_host_on() {
        let with_unknown = |name: &str, unknown: u64| {
            let mut total = gpu(name, 0, 3600, 0, 0);
            total.row.states.unknown = unknown;
            (2 * DAY, total)
        };
        let gpus = [with_unknown("gpu1", DAY - 3600), with_unknown("gpu2", DAY - 3600)];
        let days = [(0, DAY), (DAY, 2 * DAY), (2 * DAY, 3 * DAY), (3 * DAY, 4 * DAY)];
        let host = |name: &str, first_watched| HostTotal {
            host: name.into(),
            watched_seconds: 0,
            reachable_seconds: 0,
            first_watched,
        };
        // The first host is watched from noon of the day before its first readings, the second one from 9:00 of that day.
        let hosts = [host("gpu1", DAY + DAY / 2), host("gpu2", 2 * DAY + 9 * 3600)];
        let data =
            ReportData { from: 0, until: 4 * DAY, days: &days, gpus: &gpus, jobs: &[], hosts: &hosts, findings: &[] };
        let report = UsageReport::new(&data, ReportGroup::Day, &Prices::default(), &|start| (start / DAY).to_string());
        let unknown: Vec<_> = report.rows.iter().map(|row| (row.name.as_str(), row.usage.unknown_hours)).collect();
        assert_eq!(unknown, [("1", Some(12.0)), ("2", Some(23.0 + 14.0)), ("3", Some(48.0))]);
        assert_eq!(report.total.unknown_hours, Some(97.0));
    }

    #[test]
    fn a_job_costs_the_price_of_its_own_gpus() {
        let of_model = |index, model: &str| {
            let mut total = gpu("gpu1", index, 3600, 0, 0);
            total.gpu.model = Some(model.into());
            (0, total)
        };
        let totals = [of_model(0, "NVIDIA L4"), of_model(1, "NVIDIA H100"), of_model(2, "NVIDIA T4")];
        let prices = Prices { gpu_hour: vec![("H100".to_owned(), 2.5), ("L4".to_owned(), 0.5)], kwh: None };
        for (gpus, expected) in [
            ("GPU 0", Some(0.5)),
            ("GPU 1", Some(2.5)),
            ("GPUs 0,1", Some(1.5)),
            ("GPUs 0-2", Some(1.0)),
            ("GPU 2", None),
            ("GPUs 1,7", Some(2.5)),
            ("GPU 7", None),
            ("no GPU", None),
        ] {
            let jobs = [JobTotal { gpus: gpus.to_owned(), ..job("ann", 3600, 3600) }];
            let days = [(0, 7200)];
            let data =
                ReportData { from: 0, until: 7200, days: &days, gpus: &totals, jobs: &jobs, hosts: &[], findings: &[] };
            let report = UsageReport::new(&data, ReportGroup::Job, &prices, &|_| String::new());
            assert_eq!(report.rows[0].usage.cost, expected, "{gpus}");
        }
    }

    #[test]
    fn csv_is_quoted_and_contains_no_formulas() {
        let mut report = report(ReportGroup::Job);
        report.rows.truncate(2);
        report.rows[1].name = "=1+1;-x".into();
        let csv = report.csv().expect("encodes");
        assert_eq!(
            csv,
            "job,detail,held_hours,used_hours,idle_held_hours,free_hours,faulty_hours,unknown_hours,utilization_percent,\
             memory_max_mib,energy_kwh,cost,how_ended,unused_hours\n\
             gpu1 slurm:7,\"ann GPUs 0-1 =train, \"\"x\"\"\",8.0000,8.0000,0.0000,,,,,40960,2.0000,20.0000,the host rebooted,\n\
             '=1+1;'-x,\"bob GPUs 0-1 =train, \"\"x\"\"\",2.0000,0.0000,2.0000,,,,,40960,2.0000,5.0000,the host rebooted,1.5000\n"
        );
    }
}
