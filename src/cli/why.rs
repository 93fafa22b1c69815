//! `gpufleet why`: examines a job that looks hung and prints which host, rank and operation hold it up.

use super::command_context::CommandContext;
use super::connections::{Connections, follow_collector};
use super::exit::{HANG_LIKELY, HANG_PROVEN, INCOMPLETE, print_json, stdout_paint};
use super::saved_state::SavedStateFile;
use super::terminal_prompts::{NextUpdate, Prompter};
use super::{CommandError, ExitSignals, OneShotFleet, print};
use crate::cli::arguments::{WhyArgs, WhyTarget};
use crate::collect::{Command, HostTasks, HostUpdates};
use crate::config::{HostConfig, Thresholds, did_you_mean};
use crate::diagnosis::proof::investigation::{Investigation, Progress, RasQueries};
use crate::diagnosis::proof::{JobEvidence, Missing, Outcome, Verdict, judge};
use crate::diagnosis::{Engine, Finding, FindingPhase};
use crate::fleet::{Clock, Host, HostId, HostUpdate, JobKey, Moment};
use crate::output::why::{json_line, json_line_without_job, text, text_without_job};
use crate::store::Directories;
use crate::wire::{Reply, ReplyOutcome, SafeText};
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long to watch the hosts for a job that looks hung, if none is named.
const WATCH_SPAN: Duration = Duration::from_secs(30);
/// How often due requests are looked for while nothing arrives from a host.
const TICK: Duration = Duration::from_millis(250);

/// Examines the named process, or the job with the worst finding. The exit code tells what was found.
pub async fn run(mut setup: CommandContext, arguments: &WhyArgs) -> Result<ExitCode, CommandError> {
    let relayed = follow_collector(&mut setup, None).await?;
    let CommandContext { hosts, source, ssh, clock, simulated, .. } = setup;
    let target = arguments.target().map(|target| find_host(&target, &hosts)).transpose()?;
    let mut exit_signals = ExitSignals::new()?;
    let mut run = WhyRun {
        one_shot: OneShotFleet::new(&hosts, simulated, clock),
        engine: Engine::new(Arc::new(Thresholds::default())),
        clock,
        prompter: Prompter::new(ssh),
        replies: Vec::new(),
    };
    if !simulated {
        // An earlier run may have seen the job at work: NCCL RAS is queried only then.
        SavedStateFile::restore_only(&Directories::find(), &mut run.engine, clock.now());
    }
    // Through a collector, examinations go over own sessions to the hosts.
    let (connections, mut updates) = if let Some(relayed) = relayed {
        (Connections::Relayed(relayed.hosts), relayed.updates)
    } else {
        let (host_tasks, updates) = HostTasks::start(&hosts, source, clock);
        (Connections::Direct(host_tasks), updates)
    };
    let examined = tokio::select! {
        code = exit_signals.next() => return Ok(ExitCode::from(code)),
        examined = run.examine(&connections, &mut updates, target, arguments) => examined?,
    };
    // Close the connections first: a reader that stops reading must not hold a session on a server.
    drop(connections);
    if let Some(investigation) = examined {
        return run.print(&investigation, arguments);
    }
    let unreported: Vec<Missing> = run.one_shot.unreported().map(missing_host).collect();
    if arguments.json {
        print_json(json_line_without_job(WATCH_SPAN, &unreported))?;
    } else {
        print(&text_without_job(WATCH_SPAN, &unreported, stdout_paint()))?;
    }
    Ok(if unreported.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) })
}

/// Returns why a host did not report, and what to do about it.
fn missing_host(host: &Host) -> Missing {
    let error = host.link.error();
    Missing {
        what: SafeText::from(format!("host {}", host.name())),
        reason: error.map_or_else(|| "it did not report in time".into(), |error| error.message.clone()),
        remedy: error.and_then(|error| error.hint.clone()).unwrap_or_else(|| "gpufleet doctor".into()),
        is_risk: false,
    }
}

/// Returns the host and the pid of a target.
fn find_host(target: &WhyTarget, hosts: &[Arc<HostConfig>]) -> Result<(HostId, u32), CommandError> {
    if let Some((id, _)) = (0..).map(HostId).zip(hosts).find(|(_, host)| *host.name == *target.host) {
        return Ok((id, target.pid));
    }
    let near = did_you_mean(&target.host, hosts.iter().map(|host| host.name.as_str()));
    let hint = near.unwrap_or_else(|| "`gpufleet status` lists the hosts".to_owned());
    let (host, count) = (&target.host, hosts.len());
    Err(CommandError::usage(format!("no host `{host}` among the {count} selected ones\n  hint: {hint}")))
}

/// The fleet, its diagnosis, and the replies that wait for the investigation.
struct WhyRun {
    one_shot: OneShotFleet,
    engine: Engine,
    clock: Clock,
    prompter: Prompter,
    replies: Vec<Reply>,
}

impl WhyRun {
    /// Waits for the hosts, chooses the job and examines it. Returns `None` if no job is named and none looks hung.
    async fn examine(
        &mut self,
        connections: &Connections,
        updates: &mut HostUpdates,
        target: Option<(HostId, u32)>,
        arguments: &WhyArgs,
    ) -> Result<Option<Investigation>, CommandError> {
        let began = Instant::now();
        self.apply_until(updates, began, arguments.timeout, OneShotFleet::is_complete).await;
        let (host, job) = if let Some((host, pid)) = target {
            (host, self.job_of(host, pid)?)
        } else {
            let span = WATCH_SPAN.div_f64(self.clock.speed());
            self.apply_until(updates, began, span, |_| false).await;
            let Some((host, job)) = self.worst_hang() else { return Ok(None) };
            (host, job)
        };
        let ras_queries = if arguments.ask_ras { RasQueries::AcceptRisk } else { RasQueries::AsConfigured };
        let mut investigation = Investigation::new(self.one_shot.fleet(), host, &job, ras_queries, 1);
        if !investigation.has_own_ranks() {
            return Err(self.not_own(host, &job));
        }
        let mut progress = None;
        loop {
            self.send_due(connections, &mut investigation);
            let now_at = investigation.progress();
            if progress.replace(now_at) != Some(now_at) {
                let (_, so_far) = self.judge(&investigation);
                // Some facts prove a hang alone: a dead rank, an error of NCCL, a line of the watchdog, a dump.
                if now_at == Progress::Complete || so_far.outcome == Outcome::Proven {
                    return Ok(Some(investigation));
                }
                report_progress(&investigation, now_at, &so_far, self.clock.now(), self.clock.speed());
            }
            self.apply_until(updates, Instant::now(), TICK, |_| false).await;
            for reply in std::mem::take(&mut self.replies) {
                investigation.take_reply(reply, self.one_shot.fleet(), self.clock.now());
            }
        }
    }

    /// Applies updates until the fleet is in a state or the time is over. A reply ends it as well.
    async fn apply_until(
        &mut self,
        updates: &mut HostUpdates,
        began: Instant,
        limit: Duration,
        is_done: fn(&OneShotFleet) -> bool,
    ) {
        while !is_done(&self.one_shot) && self.replies.is_empty() {
            let NextUpdate::Update(id, update) = self.prompter.next_update(updates, began, Some(limit)).await else {
                return;
            };
            let now = self.clock.now();
            if let HostUpdate::Reply(reply) = &update {
                self.replies.push(reply.clone());
            }
            self.one_shot.apply(id, update, now);
            self.engine.evaluate_host(self.one_shot.fleet(), id, now);
        }
    }

    fn send_due(&mut self, connections: &Connections, investigation: &mut Investigation) {
        let now = self.clock.now();
        for (host, request) in investigation.requests_due(self.one_shot.fleet(), &self.engine, now) {
            let id = request.reply_id();
            if !connections.command(host, Command::Request(request))
                && let Some(id) = id
            {
                let outcome = ReplyOutcome::Refused("too many requests wait for this host".into());
                investigation.take_reply(Reply { id, outcome }, self.one_shot.fleet(), now);
            }
        }
    }

    /// Returns the job of a GPU process. The error says why it is not there.
    fn job_of(&self, host: HostId, pid: u32) -> Result<JobKey, CommandError> {
        let Some(host) = self.one_shot.fleet().host(host) else {
            return Err(CommandError::failed("the host is not in the fleet"));
        };
        if host.snapshot.is_none() {
            let Missing { reason, remedy, .. } = missing_host(host);
            let text = format!("gpufleet: {}: {reason}\n  hint: {remedy}\n", host.name());
            return Err(CommandError::verbatim(text, INCOMPLETE));
        }
        let find = |process: &&crate::fleet::Process| process.key.pid == pid;
        match host.processes().find(find) {
            Some(process) => Ok(process.info.job.clone()),
            None => Err(CommandError::failed(no_such_process(host, pid))),
        }
    }

    /// Returns the job of the worst finding about a hang of one's own job; a suspicion comes last.
    fn worst_hang(&self) -> Option<(HostId, JobKey)> {
        let is_hang = |finding: &&Finding| finding.rule.is_hang() && finding.is_mine && finding.job.is_some();
        let found = self.engine.findings().filter(is_hang);
        let rank = |finding: &&Finding| {
            let is_pending = finding.phase == FindingPhase::Pending;
            (is_pending && !finding.is_suspicion(), is_pending, std::cmp::Reverse(finding.severity))
        };
        let worst = found.min_by_key(rank)?;
        Some((worst.host, worst.job.clone()?))
    }

    fn not_own(&self, host: HostId, job: &JobKey) -> CommandError {
        let host = self.one_shot.fleet().host(host);
        let process = host.and_then(|host| host.processes().find(|process| process.info.job == *job));
        let user = process.map_or("another user", |process| process.info.who.as_str());
        let name = host.map_or("-", |host| host.name().as_str());
        let login = host.and_then(|host| host.hello.as_ref()?.login_user.as_ref()).map_or("-", |login| login.as_str());
        CommandError::failed(format!(
            "{name}: the job belongs to {user}, and gpufleet is logged in as {login}: only its owner may examine a \
             process\n  hint: ask {user} to run `gpufleet why`"
        ))
    }

    /// Judges everything that has been read so far.
    fn judge(&self, investigation: &Investigation) -> (JobEvidence, Verdict) {
        let finding = self.engine.findings().find(|finding| finding.rule.is_hang() && investigation.is_about(finding));
        let evidence = investigation.evidence(self.one_shot.fleet(), &self.engine, finding, self.clock.now());
        let verdict = judge(&evidence);
        (evidence, verdict)
    }

    fn print(&self, investigation: &Investigation, arguments: &WhyArgs) -> Result<ExitCode, CommandError> {
        let (evidence, verdict) = self.judge(investigation);
        if arguments.json {
            print_json(json_line(&evidence, &verdict))?;
        } else {
            print(&text(&evidence, &verdict, stdout_paint()))?;
        }
        Ok(match verdict.outcome {
            Outcome::Proven => ExitCode::from(HANG_PROVEN),
            Outcome::Likely | Outcome::WaitsForRank => ExitCode::from(HANG_LIKELY),
            Outcome::Suspected | Outcome::NotHung | Outcome::NothingKnown => ExitCode::SUCCESS,
        })
    }
}

/// Returns the error for a pid that uses no GPU, with the pids that do.
fn no_such_process(host: &Host, pid: u32) -> String {
    /// The number of pids in the hint.
    const MOST: usize = 8;
    let mut pids: Vec<u32> = host.processes().map(|process| process.key.pid).filter(|pid| *pid != 0).collect();
    pids.sort_unstable();
    pids.dedup();
    let mut text = format!("{}: no process with pid {pid} uses a GPU\n  hint: ", host.name());
    if pids.is_empty() {
        text.push_str("no process uses a GPU there");
    } else {
        text.push_str("those that do are ");
        for (index, pid) in pids.iter().take(MOST).enumerate() {
            let _ = write!(text, "{}{pid}", if index == 0 { "" } else { ", " });
        }
        if pids.len() > MOST {
            let _ = write!(text, " and {} more", pids.len() - MOST);
        }
    }
    text
}

/// Tells a person at the terminal what is going on: the examination takes a minute.
fn report_progress(investigation: &Investigation, progress: Progress, so_far: &Verdict, now: Moment, speed: f64) {
    if io::stderr().is_terminal()
        && let Some(text) = progress_text(investigation, progress, so_far, now, speed)
    {
        let _ = writeln!(io::stderr(), "{text}");
    }
}

fn progress_text(
    investigation: &Investigation,
    progress: Progress,
    so_far: &Verdict,
    now: Moment,
    speed: f64,
) -> Option<String> {
    let extent = investigation.extent_text();
    match progress {
        Progress::FirstReading => Some(format!("examining {extent}")),
        Progress::WaitsUntil(next) => {
            let seconds = now.until(next).as_secs_f64() / speed;
            let says_more = matches!(so_far.outcome, Outcome::Likely | Outcome::WaitsForRank);
            let so_far = if says_more { format!("likely so far: {}\n", so_far.sentence) } else { String::new() };
            Some(format!(
                "{so_far}the second reading begins in {seconds:.0} s: only then is it known whether anything moves"
            ))
        }
        Progress::SecondReading => Some(format!("examining {extent} again")),
        Progress::Complete => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::fixture::{at, fleet, process};

    #[test]
    fn progress_tells_what_is_likely_so_far() {
        let fleet = fleet(vec![vec![process(7, "python train.py", &[(0, 40)])]]);
        let job = fleet.hosts()[0].processes().next().expect("a process").info.job.clone();
        let investigation = Investigation::new(&fleet, HostId(0), &job, RasQueries::AsConfigured, 1);
        let mut so_far = judge(&JobEvidence::default());
        let text = |progress, so_far: &Verdict| progress_text(&investigation, progress, so_far, at(3.0), 1.0);
        assert_eq!(text(Progress::FirstReading, &so_far).as_deref(), Some("examining 1 process on 1 host"));
        let waits = "the second reading begins in 60 s: only then is it known whether anything moves";
        assert_eq!(text(Progress::WaitsUntil(at(63.0)), &so_far).as_deref(), Some(waits));
        (so_far.outcome, so_far.sentence) = (Outcome::Likely, "rank 3 is stopped".into());
        let likely = format!("likely so far: rank 3 is stopped\n{waits}");
        assert_eq!(text(Progress::WaitsUntil(at(63.0)), &so_far), Some(likely));
        assert_eq!(text(Progress::SecondReading, &so_far).as_deref(), Some("examining 1 process on 1 host again"));
        assert_eq!(text(Progress::Complete, &so_far), None);
    }
}
