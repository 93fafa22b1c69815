//! Rules about the fleet as a whole: host-unreachable with common causes, and driver-skew. Evaluated on the one-second
//! tick.

use crate::config::Thresholds;
use crate::config::thresholds::HostUnreachable;
use crate::diagnosis::condition::{Escalation, Evaluation, Run, SampleTime};
use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::finding::{FLEET, FindingDetails, FindingTarget};
use crate::diagnosis::host_diagnosis::HostDiagnosis;
use crate::diagnosis::notification_state::NotificationState;
use crate::diagnosis::rule_context::duration;
use crate::diagnosis::{Confidence, RuleId, Severity, Transition};
use crate::fleet::{Fleet, Host, HostId, Link, LinkErrorKind, Moment};
use crate::wire::SafeText;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

/// A tick this much later than the previous one, in real time, means that this computer was suspended.
const SUSPEND_GAP: Duration = Duration::from_secs(30);
/// Hosts lost within this many seconds of each other share a cause.
const SAME_OUTAGE_SECONDS: f64 = 10.0;
/// The number of hosts that makes an outage, if it is not the whole fleet.
const MIN_OUTAGE_HOSTS: usize = 3;
/// How many times longer a host without work may be unreachable before it warns.
const UNUSED_PATIENCE: f64 = 5.0;
/// How long a live connection may be silent while other hosts send data, in seconds.
const SILENCE: f64 = 300.0;
/// If no host was heard for this long although a connection is live, this computer was suspended, in seconds.
const SUSPEND_SILENCE: f64 = 30.0;
/// How often drivers are compared, in seconds.
const SKEW_EVERY: f64 = 60.0;

/// Hosts that were lost together.
#[derive(Debug, Clone)]
struct Outage {
    since: f64,
    members: BTreeSet<HostId>,
    /// The members that are still lost.
    lost: Vec<HostId>,
    /// How the members failed, once that is known.
    failure: Option<Failure>,
    name: SafeText,
}

/// The kinds of failure that hosts with a common cause share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Failure {
    /// The host cannot be reached.
    Unreachable,
    /// The host or its bastion answers, but nothing listens.
    Refused,
    /// The connection works, but not the probe.
    Probe,
    /// The login fails.
    Login,
}

impl Failure {
    /// Returns `None` if the cause is not known yet: a connection that falls silent or closes has none, but the next
    /// attempt finds it.
    fn of(kind: LinkErrorKind) -> Option<Self> {
        Some(match kind {
            LinkErrorKind::Silent | LinkErrorKind::Closed | LinkErrorKind::CollectorSilent => return None,
            LinkErrorKind::Dns | LinkErrorKind::Timeout | LinkErrorKind::Network | LinkErrorKind::KeyExchange => {
                Self::Unreachable
            }
            LinkErrorKind::Refused => Self::Refused,
            LinkErrorKind::Shell
            | LinkErrorKind::NoDirectory
            | LinkErrorKind::NoProbe
            | LinkErrorKind::ProbeEnded
            | LinkErrorKind::Protocol
            | LinkErrorKind::Unsupported => Self::Probe,
            LinkErrorKind::Config
            | LinkErrorKind::HostKeyUnknown
            | LinkErrorKind::HostKeyChanged
            | LinkErrorKind::HostKeyRevoked
            | LinkErrorKind::KnownHosts
            | LinkErrorKind::Authentication
            | LinkErrorKind::IdentityFile
            | LinkErrorKind::Refusal => Self::Login,
        })
    }
}

/// The state of the rules about the fleet as a whole.
#[derive(Debug, Clone, Default)]
pub(crate) struct FleetWide {
    pub(crate) conditions: Conditions,
    last_tick: Option<Moment>,
    next_skew_check: Option<f64>,
    /// In the order of [`Outage::since`].
    outages: Vec<Outage>,
    /// When this computer last resumed from suspend. Data missing before that is nobody's fault.
    resumed_at: Option<f64>,
}

impl FleetWide {
    /// The time of the last tick.
    pub(crate) fn last_tick(&self) -> Option<Moment> {
        self.last_tick
    }

    /// Removes a host from the outages.
    pub(crate) fn forget_host(&mut self, id: HostId) {
        for outage in &mut self.outages {
            outage.members.remove(&id);
            outage.lost.retain(|lost| *lost != id);
        }
    }

    /// Evaluates the rules. `thresholds` apply to hosts whose configuration has none.
    pub(crate) fn tick(
        &mut self,
        hosts: &mut [HostDiagnosis],
        (fleet, thresholds): (&Fleet, &Thresholds),
        notification_state: &NotificationState,
        now: Moment,
        transitions: &mut Vec<Transition>,
    ) {
        let t = now.since_start().as_secs_f64();
        let before = self.last_tick.replace(now);
        let dt = before.map_or(1.0, |before| (t - before.since_start().as_secs_f64()).clamp(0.0, 3.0));
        let sample_time = SampleTime::new(now, dt);
        let heard = fleet.hosts().iter().filter_map(|host| host.received_at).max();
        if is_after_suspend(fleet, before, heard, now) {
            self.resumed_at = Some(t);
        }
        let others_talk = heard.is_some_and(|at| now.since(at).as_secs_f64() < SAME_OUTAGE_SECONDS);
        for host in fleet.hosts() {
            let Some(diagnosis) = hosts.get_mut(host.id.0 as usize) else { continue };
            let lost_at = lost_since(host, diagnosis.link_lost_at, others_talk, now);
            diagnosis.link_lost_at = lost_at.map(|since| self.resumed_at.map_or(since, |resumed| since.max(resumed)));
            // Later attempts may fail differently, for example while the host boots.
            diagnosis.link_failure = match (diagnosis.link_lost_at, host.link.error()) {
                (None, _) => None,
                (Some(_), Some(error)) => {
                    diagnosis.link_failure.filter(|kind| Failure::of(*kind).is_some()).or(Some(error.kind))
                }
                (Some(_), None) => diagnosis.link_failure,
            };
            diagnosis.conditions.freeze(diagnosis.link_lost_at.is_some());
        }
        self.update_outages(hosts, fleet);
        let in_outages = members_of(&self.outages);
        for host in fleet.hosts() {
            let limits = host.config.thresholds.as_deref().unwrap_or(thresholds);
            let is_in_outage = in_outages.contains(&host.id);
            let Some(diagnosis) = hosts.get_mut(host.id.0 as usize) else { continue };
            let conditions = &mut diagnosis.link_conditions;
            if diagnosis.link_lost_at.is_none() && !conditions.is_tracking_any() {
                continue;
            }
            conditions.begin_sample(host, sample_time, limits.off);
            if let Some(since) = diagnosis.link_lost_at {
                let is_used = !diagnosis.processes.is_empty();
                unreachable(conditions, (host, is_used), &limits.host_unreachable, since, sample_time);
            }
            conditions.finish_sample(|_| true);
            conditions.inhibit(|_, _| is_in_outage);
            conditions.apply_notification_state(notification_state);
            conditions.publish(transitions);
        }
        let conditions = &mut self.conditions;
        conditions.begin_sample_for(HostId(0), &FLEET.into(), sample_time, thresholds.off);
        for outage in &self.outages {
            common_cause(&thresholds.host_unreachable, conditions, fleet, outage, sample_time);
        }
        if self.next_skew_check.is_none_or(|due| t >= due) {
            self.next_skew_check = Some(t + SKEW_EVERY);
            driver_skew(conditions, fleet);
        } else {
            conditions.unknown_where(|rule, _| rule == RuleId::DriverSkew);
        }
        conditions.finish_sample(|_| true);
        conditions.apply_notification_state(notification_state);
        conditions.publish(transitions);
    }

    /// Finds hosts that were lost together, and tracks them until all are back.
    fn update_outages(&mut self, hosts: &[HostDiagnosis], fleet: &Fleet) {
        let lost: Vec<LostHost> = fleet
            .hosts()
            .iter()
            .filter_map(|host| {
                let diagnosis = hosts.get(host.id.0 as usize)?;
                // Known is only when a host was last heard. With a long interval it was lost later than that.
                let slack = SAME_OUTAGE_SECONDS.max(2.5 * diagnosis.interval());
                let since = diagnosis.link_lost_at?;
                // A host that never sent data was not lost: its name, key or account may be wrong.
                host.received_at?;
                Some(LostHost { id: host.id, since, slack, failure: diagnosis.link_failure.and_then(Failure::of) })
            })
            .collect();
        update_outages(&mut self.outages, lost, fleet.hosts().len());
        for outage in self.outages.iter_mut().filter(|outage| outage.name.is_empty()) {
            let first = outage.members.first().and_then(|first| fleet.host(*first));
            outage.name = first.map_or_else(SafeText::default, |host| host.name().clone());
        }
    }
}

/// A host that is out of reach.
#[derive(Debug, Clone, Copy)]
struct LostHost {
    id: HostId,
    since: f64,
    /// Other hosts that were lost within this many seconds may share a cause.
    slack: f64,
    /// How it failed, if that is known.
    failure: Option<Failure>,
}

impl LostHost {
    /// Whether the host may have the cause of hosts that failed like this.
    fn is_like(&self, failure: Option<Failure>) -> bool {
        self.failure.is_none() || failure.is_none() || self.failure == failure
    }
}

/// Adds lost hosts to the outages, which are in the order of their time, drops outages that are over, and adds new ones
/// without a name. `hosts` is the number of hosts of the fleet. The number of steps is about proportional to the number
/// of lost hosts: a recording may contain thousands.
fn update_outages(outages: &mut Vec<Outage>, lost: Vec<LostHost>, hosts: usize) {
    for host in &lost {
        let first = outages.partition_point(|outage| host.since - outage.since > host.slack);
        let near = outages[first..].iter_mut().take_while(|outage| outage.since - host.since <= host.slack);
        for outage in near.filter(|outage| host.is_like(outage.failure)) {
            outage.members.insert(host.id);
        }
    }
    let lost_by_id: HashMap<HostId, &LostHost> = lost.iter().map(|host| (host.id, host)).collect();
    for outage in &mut *outages {
        let members = || outage.members.iter().filter_map(|id| lost_by_id.get(id).copied());
        outage.failure = outage.failure.or_else(|| most_frequent_failure(members()));
        outage.members.retain(|id| lost_by_id.get(id).is_none_or(|host| host.is_like(outage.failure)));
        outage.lost = outage.members.iter().copied().filter(|id| lost_by_id.contains_key(id)).collect();
    }
    let is_outage = |members: usize| members >= MIN_OUTAGE_HOSTS || members >= 2 && members == hosts;
    outages.retain(|outage| !outage.lost.is_empty() && is_outage(outage.members.len()));
    let grouped = members_of(outages);
    let mut ungrouped: Vec<LostHost> = lost.into_iter().filter(|host| !grouped.contains(&host.id)).collect();
    ungrouped.sort_by(|a, b| a.since.total_cmp(&b.since));
    let mut rest = ungrouped.as_slice();
    while let [first, ..] = rest {
        let count = rest.iter().take_while(|other| other.since - first.since <= first.slack).count();
        let (together, later) = rest.split_at(count);
        let failure = most_frequent_failure(together.iter());
        let members: BTreeSet<HostId> =
            together.iter().filter(|host| host.is_like(failure)).map(|host| host.id).collect();
        if is_outage(members.len()) {
            let lost = members.iter().copied().collect();
            outages.push(Outage { since: first.since, lost, members, failure, name: SafeText::default() });
            rest = later;
        } else {
            rest = &rest[1..];
        }
    }
    outages.sort_by(|a, b| a.since.total_cmp(&b.since));
}

/// How most of the hosts failed of which that is known.
fn most_frequent_failure<'a>(hosts: impl Iterator<Item = &'a LostHost>) -> Option<Failure> {
    let mut counts: BTreeMap<Failure, usize> = BTreeMap::new();
    for failure in hosts.filter_map(|host| host.failure) {
        *counts.entry(failure).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(failure, count)| (*count, std::cmp::Reverse(*failure))).map(|(failure, _)| failure)
}

fn members_of(outages: &[Outage]) -> HashSet<HostId> {
    outages.iter().flat_map(|outage| outage.members.iter().copied()).collect()
}

/// Whether this computer was suspended since the tick `before`. `heard` is when any host was last heard.
fn is_after_suspend(fleet: &Fleet, before: Option<Moment>, heard: Option<Moment>, now: Moment) -> bool {
    let gap = SUSPEND_GAP.mul_f64(fleet.clock_speed());
    let is_tick_late = before.is_some_and(|before| {
        now.since(before) > gap || now.unix.saturating_sub(before.unix) > gap + now.since(before)
    });
    // In a recording, ticks have no gap: live connections without any data show the suspend.
    let is_silent = |host: &Host| matches!(host.link, Link::Live) && !host.is_fresh(now);
    let is_fleet_silent = heard.is_some_and(|at| now.since(at).as_secs_f64() > SUSPEND_SILENCE * fleet.clock_speed())
        && fleet.hosts().iter().any(is_silent);
    is_tick_late || is_fleet_silent
}

/// Since when a host is out of reach; `None` while it is reachable.
fn lost_since(host: &Host, before: Option<f64>, others_talk: bool, now: Moment) -> Option<f64> {
    let heard = host.received_at.map(|at| at.since_start().as_secs_f64());
    let seconds = |moment: Moment| moment.since_start().as_secs_f64();
    match &host.link {
        Link::NeedsUser { .. } => None,
        // The host is up but refuses the login.
        Link::Down { .. } if host.link.is_refused() => None,
        _ if host.is_fresh(now) => None,
        // A live connection without data. If no host sends data, this computer may have been suspended.
        Link::Live => match heard {
            Some(heard) if others_talk && seconds(now) - heard >= SILENCE => Some(heard + SILENCE - 30.0),
            _ => before,
        },
        Link::Stale { since } => Some(before.unwrap_or(heard.unwrap_or(seconds(*since)))),
        Link::Down { since, .. } => Some(before.unwrap_or_else(|| heard.unwrap_or(seconds(*since)))),
        // The first attempt of all is not a loss.
        Link::Connecting { attempt, since, .. } => match (before, heard) {
            (Some(before), _) => Some(before),
            (None, Some(heard)) => Some(heard),
            (None, None) if *attempt > 1 => Some(seconds(*since)),
            (None, None) => None,
        },
    }
}

fn escalation(limits: &HostUnreachable) -> Escalation {
    Escalation::two((Severity::Warn, limits.warn_after), (Severity::Crit, limits.crit_after))
}

fn unreachable(
    conditions: &mut Conditions,
    (host, is_used): (&Host, bool),
    limits: &HostUnreachable,
    since: f64,
    sample_time: SampleTime,
) {
    let run = Run { since, covered: sample_time.t - since };
    // Nobody waits for a host without work: its administrator may restart it. Slurm switches hosts off that no job needs (its
    // power_save), and tells its own administrator of those that do not come back.
    let is_idle_in_slurm = !is_used && host.slurm_allocated_gpus().is_some_and(<[u32]>::is_empty);
    let escalation = if is_used {
        escalation(limits)
    } else if is_idle_in_slurm {
        Escalation::one(Severity::Info, limits.warn_after)
    } else {
        let patience = UNUSED_PATIENCE * limits.warn_after;
        Escalation::two((Severity::Info, limits.warn_after), (Severity::Warn, patience.max(limits.crit_after)))
    };
    // A host may be busy, or its network slow, for a while.
    let confidence = if run.covered >= limits.crit_after { Confidence::Certain } else { Confidence::Likely };
    let evaluation = Evaluation::new(escalation, confidence, 0.0).since(run);
    conditions.met(RuleId::HostUnreachable, &FindingTarget::Host, evaluation, |lasted, _| {
        let why = host.link.error().map_or_else(String::new, |error| format!(": {}", error.message));
        let next = host.link.error().and_then(|error| error.hint.clone());
        FindingDetails {
            sentence: format!("no data for {}{why}; its other findings keep their last state", duration(lasted)),
            next_check: next.or_else(|| host.config.ssh_line()).map_or_else(String::new, |line| line.to_string()),
            figures: host.link.error().map_or_else(String::new, |error| error.message.to_string()),
            ..FindingDetails::default()
        }
    });
}

fn common_cause(
    limits: &HostUnreachable,
    conditions: &mut Conditions,
    fleet: &Fleet,
    outage: &Outage,
    sample_time: SampleTime,
) {
    let run = Run { since: outage.since, covered: sample_time.t - outage.since };
    let evaluation = Evaluation::new(escalation(limits), Confidence::Likely, 0.0).since(run);
    conditions.met(RuleId::HostUnreachable, &FindingTarget::Named(outage.name.clone()), evaluation, |lasted, _| {
        let mut hosts: Vec<(HostId, SafeText)> =
            outage.lost.iter().filter_map(|host| Some((*host, fleet.host(*host)?.name().clone()))).collect();
        hosts.sort();
        let names: Vec<&str> = hosts.iter().take(3).map(|(_, name)| name.as_str()).collect();
        let more = if hosts.len() > 3 { format!(" and {} more", hosts.len() - 3) } else { String::new() };
        let is_all = outage.members.len() == fleet.hosts().len();
        let (what, next) = if is_all {
            ("the network of this computer, or something all hosts share", "is this computer online? VPN, bastion")
        } else {
            ("something they share, such as a bastion, a switch or power", "the bastion, the switch, the rack's power")
        };
        let back = outage.members.len() - outage.lost.len();
        let back = match back {
            0 => String::new(),
            1 => ", 1 is back".to_owned(),
            back => format!(", {back} are back"),
        };
        FindingDetails {
            sentence: format!(
                "{} hosts were lost within 10 s of each other, no data for {}{back} ({}{more}): check {what}",
                outage.members.len(),
                duration(lasted),
                names.join(", "),
            ),
            next_check: next.to_owned(),
            figures: format!("{} hosts lost together", outage.members.len()),
            lead: hosts.first().cloned(),
            hosts: hosts.into_iter().skip(1).collect(),
            ..FindingDetails::default()
        }
    });
}

fn driver_skew(conditions: &mut Conditions, fleet: &Fleet) {
    let mut models: Vec<(&SafeText, Vec<(&SafeText, &Host)>)> = Vec::new();
    let mut indexes: HashMap<&SafeText, usize> = HashMap::new();
    for host in fleet.hosts() {
        let Some(driver) = host.inventory.as_ref().and_then(|inventory| inventory.driver_version.as_ref()) else {
            continue;
        };
        let mut seen: Vec<&SafeText> = Vec::new();
        for model in host.gpus().filter_map(|(info, _)| info.name.as_ref().filter(|_| info.mig_parent_uuid.is_none())) {
            if seen.contains(&model) {
                continue;
            }
            seen.push(model);
            let index = *indexes.entry(model).or_insert_with(|| {
                models.push((model, Vec::new()));
                models.len() - 1
            });
            models[index].1.push((driver, host));
        }
    }
    for (model, hosts) in models {
        let mut drivers: BTreeMap<&SafeText, Vec<&Host>> = BTreeMap::new();
        for (driver, host) in &hosts {
            drivers.entry(driver).or_default().push(host);
        }
        if drivers.len() < 2 {
            continue;
        }
        let evaluation = Evaluation::new(Escalation::one(Severity::Info, 0.0), Confidence::Certain, 0.0);
        let evaluation = Evaluation { at_least: true, ..evaluation };
        conditions.met(RuleId::DriverSkew, &FindingTarget::Named(model.clone()), evaluation, |_, _| {
            let parts: Vec<String> = drivers
                .iter()
                .map(|(driver, on)| {
                    let names: Vec<&str> = on.iter().take(3).map(|host| host.name().as_str()).collect();
                    let more = on.len().saturating_sub(3);
                    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                    format!("{driver} on {}{more}", names.join(", "))
                })
                .collect();
            let mut names = hosts.iter().map(|(_, host)| (host.id, host.name().clone()));
            FindingDetails {
                sentence: format!("hosts with {model} run different drivers: {}", parts.join("; ")),
                next_check: "update them to one version when they are drained next".to_owned(),
                lead: names.next(),
                hosts: names.collect(),
                ..FindingDetails::default()
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::testing::{RuleTester, TestSample};
    use crate::fleet::fixture::{gpus, process};
    use crate::fleet::{HostUpdate, LinkError, LinkErrorKind};
    use crate::wire::GpuInfo;

    fn fleet(count: usize) -> RuleTester {
        RuleTester::of((0..count).map(|_| gpus(0..1)).collect(), Thresholds::default())
    }

    /// Every host but those in `silent` sends a sample every ten seconds.
    fn send_samples(tester: &mut RuleTester, seconds: f64, silent: std::ops::Range<usize>) {
        let end = tester.t + seconds;
        while tester.t < end {
            for id in 0..tester.fleet.hosts().len() {
                if !silent.contains(&id) {
                    let processes = vec![process(7, "python train.py", &[(0, 40)])];
                    let test_sample = TestSample { gpus: vec![tester.gpu(97, 500.0, 40, 40)], processes };
                    tester.send(id, &test_sample, |_| {});
                }
            }
            tester.wait(10.0);
        }
    }

    fn drop_link(tester: &mut RuleTester, id: usize) {
        let error = LinkError::new(LinkErrorKind::Timeout, "no answer within 10 s");
        tester.update(id, HostUpdate::Down { error, retry_at: None, attempt: 1 });
    }

    #[test]
    fn a_lost_host_warns_then_is_critical_and_clears_when_it_is_back() {
        let mut tester = fleet(2);
        send_samples(&mut tester, 60.0, 0..0);
        tester.update(1, HostUpdate::Silent);
        send_samples(&mut tester, 10.0, 1..2);
        drop_link(&mut tester, 1);
        assert_eq!(tester.fired(), []);
        send_samples(&mut tester, 60.0, 1..2);
        assert_eq!(tester.fired(), [], "a minute is a restart of a switch");
        send_samples(&mut tester, 40.0, 1..2);
        assert_eq!(tester.firing(), [("host-unreachable", "warn")]);
        assert!(tester.finding("host-unreachable").sentence.contains("no answer within 10 s"));
        send_samples(&mut tester, 300.0, 1..2);
        assert_eq!(tester.firing(), [("host-unreachable", "crit")]);
        tester.connect(1);
        send_samples(&mut tester, 30.0, 0..0);
        assert_eq!(tester.firing(), []);
        assert_eq!(tester.notified(), 2);
    }

    #[test]
    fn thirty_hosts_lost_together_are_one_finding() {
        let mut tester = fleet(32);
        send_samples(&mut tester, 60.0, 0..0);
        for id in 0..30 {
            tester.update(id, HostUpdate::Silent);
        }
        send_samples(&mut tester, 10.0, 0..30);
        for id in 0..30 {
            drop_link(&mut tester, id);
        }
        send_samples(&mut tester, 120.0, 0..30);
        assert_eq!(tester.firing(), [("host-unreachable", "warn")]);
        let finding = tester.finding("host-unreachable");
        assert_eq!(finding.hosts.len(), 30);
        assert!(
            finding.sentence.starts_with("30 hosts were lost within 10 s of each other, no data for "),
            "{}",
            finding.sentence
        );
        assert!(finding.sentence.ends_with(
            "(hgx-00, hgx-01, hgx-02 and 27 more): check something they share, such as a bastion, a switch or power"
        ));
        for id in 0..30 {
            tester.connect(id);
        }
        send_samples(&mut tester, 30.0, 0..0);
        assert_eq!((tester.firing(), tester.notified()), (vec![], 1));
    }

    #[test]
    fn hosts_that_never_sent_data_share_no_cause() {
        let mut tester = RuleTester::of((0..4).map(|_| gpus(0..1)).collect(), Thresholds::default());
        for (id, kind) in
            [(0, LinkErrorKind::Refused), (1, LinkErrorKind::Timeout), (2, LinkErrorKind::Dns), (3, LinkErrorKind::Dns)]
        {
            tester.update(id, HostUpdate::Down { error: LinkError::new(kind, "no"), retry_at: None, attempt: 1 });
        }
        tester.wait(90.0);
        let all: Vec<(&str, usize)> =
            tester.findings().iter().map(|finding| (finding.rule.word(), finding.hosts.len())).collect();
        assert_eq!(all, [("host-unreachable", 1); 4]);
    }

    #[test]
    fn hosts_that_fail_differently_share_no_cause() {
        let mut tester = fleet(8);
        send_samples(&mut tester, 60.0, 0..0);
        let kinds = [LinkErrorKind::Refused, LinkErrorKind::Timeout, LinkErrorKind::ProbeEnded];
        for (id, kind) in kinds.into_iter().enumerate() {
            tester.update(id, HostUpdate::Down { error: LinkError::new(kind, "no"), retry_at: None, attempt: 1 });
        }
        send_samples(&mut tester, 90.0, 0..3);
        assert_eq!(tester.firing(), [("host-unreachable", "warn"); 3]);
        // Three hosts of one bastion fail alike at another time.
        for id in 4..7 {
            tester.update(id, HostUpdate::Silent);
        }
        send_samples(&mut tester, 10.0, 0..7);
        for id in 4..7 {
            drop_link(&mut tester, id);
        }
        send_samples(&mut tester, 60.0, 0..7);
        let hosts: Vec<usize> = tester.findings().iter().map(|finding| finding.hosts.len()).collect();
        assert_eq!(hosts.iter().filter(|count| **count == 3).count(), 1, "{hosts:?}");
    }

    #[test]
    fn ticks_of_a_fast_simulation_are_no_suspend() {
        let mut tester = fleet(2);
        tester.fleet = tester.fleet.clone().with_clock_speed(60.0);
        send_samples(&mut tester, 60.0, 0..0);
        drop_link(&mut tester, 1);
        // One tick per real second, which is a minute of simulated time.
        for _ in 0..8 {
            tester.t += 59.0;
            let processes = vec![process(7, "python train.py", &[(0, 40)])];
            let test_sample = TestSample { gpus: vec![tester.gpu(97, 500.0, 40, 40)], processes };
            tester.send(0, &test_sample, |_| {});
            tester.wait(1.0);
        }
        assert_eq!(tester.firing(), [("host-unreachable", "crit")]);
    }

    #[test]
    fn many_outages_are_kept_apart() {
        // Four hosts each are lost together, a minute after the four before.
        let lost: Vec<LostHost> = (0..100_000)
            .map(|id| LostHost {
                id: HostId(id),
                since: f64::from(id / 4) * 60.0,
                slack: SAME_OUTAGE_SECONDS,
                failure: None,
            })
            .collect();
        let mut outages = Vec::new();
        for _ in 0..2 {
            update_outages(&mut outages, lost.clone(), 200_000);
            assert_eq!(outages.len(), 25_000);
            assert!(outages.iter().all(|outage| outage.members.len() == 4 && outage.lost.len() == 4));
        }
        let late = LostHost { id: HostId(100_000), since: 65.0, slack: SAME_OUTAGE_SECONDS, failure: None };
        let lost = [&lost[..6], &[late]].concat();
        update_outages(&mut outages, lost, 200_000);
        let counts: Vec<_> = outages.iter().map(|outage| (outage.members.len(), outage.lost.len())).collect();
        assert_eq!(counts, [(4, 4), (5, 3)]);
    }

    #[test]
    fn a_resumed_laptop_reports_no_lost_hosts() {
        let mut tester = fleet(4);
        send_samples(&mut tester, 300.0, 0..0);
        // Eight hours without a tick, then the old connections fail.
        tester.t += 28_800.0;
        tester.wait(3.0);
        for id in 0..4 {
            tester.update(id, HostUpdate::Silent);
        }
        tester.wait(10.0);
        for id in 0..4 {
            drop_link(&mut tester, id);
        }
        tester.wait(5.0);
        for id in 0..4 {
            tester.connect(id);
        }
        send_samples(&mut tester, 120.0, 0..0);
        assert_eq!(tester.fired(), []);
        // A recording of the night plays with a tick every second.
        tester.wait(28_800.0);
        send_samples(&mut tester, 120.0, 0..0);
        assert_eq!(tester.fired(), []);
    }

    #[test]
    fn a_silent_connection_is_lost_while_other_hosts_send_data() {
        let mut tester = fleet(2);
        send_samples(&mut tester, 60.0, 0..0);
        send_samples(&mut tester, 120.0, 1..2);
        assert_eq!(tester.fired(), [], "a gap of two minutes");
        send_samples(&mut tester, 300.0, 1..2);
        assert_eq!(tester.firing(), [("host-unreachable", "warn")]);
    }

    #[test]
    fn a_host_without_work_may_be_away_for_minutes() {
        let severities = |allocated: Option<Vec<u32>>| {
            let mut tester = RuleTester::of(vec![gpus(0..1), gpus(0..1)], Thresholds::default());
            let test_sample = TestSample { gpus: vec![tester.gpu(0, 70.0, 0, 0)], processes: vec![] };
            tester.send(0, &test_sample, |_| {});
            tester.send(1, &test_sample, |snapshot| snapshot.host.slurm_allocated_gpus = allocated);
            tester.wait(10.0);
            drop_link(&mut tester, 1);
            [240.0, 300.0, 3600.0].map(|seconds| {
                let end = tester.t + seconds;
                while tester.t < end {
                    tester.send(0, &test_sample, |_| {});
                    tester.wait(10.0);
                }
                let unreachable = tester.firing().into_iter().find(|(rule, _)| *rule == "host-unreachable");
                unreachable.map(|(_, severity)| severity)
            })
        };
        assert_eq!(severities(None), [Some("info"), Some("warn"), Some("warn")]);
        assert_eq!(severities(Some(vec![0])), [Some("info"), Some("warn"), Some("warn")], "a job waits for it");
        assert_eq!(severities(Some(vec![])), [Some("info"); 3], "Slurm may have switched it off");
    }

    #[test]
    fn differing_drivers_are_one_info() {
        let named = || vec![GpuInfo { name: Some("NVIDIA H100".into()), ..gpus(0..1).remove(0) }];
        let mut tester = RuleTester::of(vec![named(), named(), named()], Thresholds::default());
        for (id, driver) in ["550.54", "550.54", "570.12"].into_iter().enumerate() {
            let inventory = crate::wire::Inventory {
                generation: 1,
                driver_version: Some(driver.into()),
                gpus: named(),
                ..crate::wire::Inventory::default()
            };
            tester.update(id, HostUpdate::Inventory(Box::new(inventory)));
        }
        send_samples(&mut tester, 130.0, 0..0);
        assert_eq!(tester.fired(), [("driver-skew", "info")]);
        assert_eq!(
            tester.finding("driver-skew").sentence,
            "hosts with NVIDIA H100 run different drivers: 550.54 on hgx-00, hgx-01; 570.12 on hgx-02"
        );
    }
}
