//! What no single sample tells: host-unreachable with its common causes, driver-skew. Judged on the one-second tick.

use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::engine::{FLEET, HostDiagnosis};
use crate::diagnosis::evaluation::{Escalation, Evaluation, FindingDetails, FindingTarget, Run, SampleTime};
use crate::diagnosis::rule::RuleInfo;
use crate::diagnosis::rule_context::duration;
use crate::diagnosis::{Confidence, Engine, RuleId, Severity, Transition};
use crate::fleet::{Fleet, Host, HostId, Link, Moment};
use crate::wire::SafeText;
use std::sync::Arc;

pub(in crate::diagnosis) const DRIVER_SKEW: RuleInfo = RuleInfo {
    word: "driver-skew",
    title: "hosts with the same GPUs run different drivers",
    fires: "Mentioned when hosts with the same GPU model have different driver versions.",
    means: "A host was left out of an update, or is ahead of the others: the same container may behave differently there.",
    next: "Bring them to one version when they are next drained.",
    not: "hosts with other GPUs",
    limits: "Only hosts that have answered are compared.",
    source: "nvmlSystemGetDriverVersion",
};

pub(in crate::diagnosis) const UNREACHABLE: RuleInfo = RuleInfo {
    word: "host-unreachable",
    title: "a host cannot be reached",
    fires: "Its connection is gone for 30 s (three misses of 10 s; warns), for 5 min (critical). Hosts that go within 10 s \
            of each other are one finding: three or more, or all that there are.",
    means: "The host, its network, or what lies between is down. All at once: a bastion, a switch, this machine's own network.",
    next: "`ssh HOST` by hand; the console or the BMC.",
    not: "a host that waits for a password or a code, a laptop that has just woken up",
    limits: "What happens there meanwhile is not known: its other findings stand as they were seen last.",
    source: "gpufleet",
};

/// Hosts lost within this many seconds have one cause.
const SAME_OUTAGE_SECONDS: f64 = 10.0;
/// So many make a common cause on their own.
const MIN_OUTAGE_HOSTS: usize = 3;
/// A connection that stands and brings nothing, while other hosts talk, is given this long, in seconds.
const SILENCE: f64 = 300.0;
/// With nobody heard for this long although a connection stands, nobody was listening, in seconds.
const SUSPEND_SILENCE: f64 = 30.0;
/// Drivers are compared this often, in seconds.
const SKEW_EVERY: f64 = 60.0;

/// Hosts that were lost together.
#[derive(Debug, Clone)]
pub(in crate::diagnosis) struct Outage {
    since: f64,
    members: Vec<HostId>,
    /// Members that are still lost.
    lost: Vec<HostId>,
    name: SafeText,
}

pub(in crate::diagnosis) fn evaluate(
    engine: &mut Engine,
    fleet: &Fleet,
    now: Moment,
    transitions: &mut Vec<Transition>,
) {
    let t = now.since_start().as_secs_f64();
    let dt = engine.last_fleet_tick.map_or(1.0, |at| (t - at).clamp(0.0, 3.0));
    engine.last_fleet_tick = Some(t);
    let sample_time = SampleTime::new(now, dt);
    let heard = fleet.hosts().iter().filter_map(|host| host.received_at).max();
    let others_talk = heard.is_some_and(|at| now.since(at).as_secs_f64() < SAME_OUTAGE_SECONDS);
    // Connections that stand while nobody is heard: this machine slept, as in a recording of a laptop's night.
    let slept = |host: &Host| matches!(host.link, Link::Live) && !host.is_fresh(now);
    if heard.is_some_and(|at| now.since(at).as_secs_f64() > SUSPEND_SILENCE) && fleet.hosts().iter().any(slept) {
        engine.woke_at = Some(t);
    }
    for host in fleet.hosts() {
        let woke = engine.woke_at;
        let Some(memory) = engine.host_mut(host.id) else { continue };
        memory.link_lost_at = lost_since(host, memory.link_lost_at, others_talk, now).map(|since| match woke {
            // What was missed while this machine slept is nobody's fault.
            Some(woke) if since < woke => woke,
            _ => since,
        });
        memory.conditions.freeze(memory.link_lost_at.is_some());
    }
    update_outages(engine, fleet);
    let notification_state = Arc::clone(&engine.notification_state);
    for host in fleet.hosts() {
        let is_in_outage = engine.outages.iter().any(|outage| outage.members.contains(&host.id));
        let off = engine.thresholds_of(host).off;
        let limits = engine.thresholds_of(host);
        let Some(memory) = engine.host_mut(host.id) else { continue };
        let lost_at = memory.link_lost_at;
        if lost_at.is_none() && !memory.link_conditions.is_tracking_any() {
            continue;
        }
        memory.link_conditions.begin_sample(host, sample_time, false, off);
        if let Some(since) = lost_at {
            unreachable(&mut memory.link_conditions, host, &limits.host_unreachable, since, sample_time);
        }
        memory.link_conditions.finish_sample(|_| true);
        memory.link_conditions.inhibit(|_, _| is_in_outage);
        memory.link_conditions.apply_notification_state(&notification_state);
        memory.link_conditions.publish(transitions);
    }
    let mut conditions = std::mem::take(&mut engine.conditions);
    conditions.begin_sample_for(HostId(0), &FLEET.into(), sample_time, false, engine.thresholds().off);
    for outage in &engine.outages {
        common_cause(engine, &mut conditions, fleet, outage, sample_time);
    }
    if engine.next_skew_check.is_none_or(|due| t >= due) {
        engine.next_skew_check = Some(t + SKEW_EVERY);
        driver_skew(&mut conditions, fleet);
    } else {
        conditions.unknown_where(|rule, _| rule == RuleId::DriverSkew);
    }
    conditions.finish_sample(|_| true);
    conditions.apply_notification_state(&notification_state);
    conditions.publish(transitions);
    engine.conditions = conditions;
}

/// Since when a host has been out of reach; `None` while it is not.
fn lost_since(host: &Host, before: Option<f64>, others_talk: bool, now: Moment) -> Option<f64> {
    let heard = host.received_at.map(|at| at.since_start().as_secs_f64());
    let seconds = |moment: Moment| moment.since_start().as_secs_f64();
    match &host.link {
        Link::NeedsUser { .. } => None,
        // It is up, and lets nobody of this account in.
        Link::Down { .. } if host.link.is_refused() => None,
        _ if host.is_fresh(now) => None,
        // The connection stands, yet nothing comes. While nobody talks, this machine may have slept.
        Link::Live => match heard {
            Some(heard) if others_talk && seconds(now) - heard >= SILENCE => Some(heard + SILENCE - 30.0),
            _ => before,
        },
        Link::Stale { since } => Some(before.unwrap_or(heard.unwrap_or(seconds(*since)))),
        Link::Down { since, .. } => Some(before.unwrap_or_else(|| heard.unwrap_or(seconds(*since)))),
        // The first try of all is not a loss.
        Link::Connecting { attempt, since, .. } => match (before, heard) {
            (Some(before), _) => Some(before),
            (None, Some(heard)) => Some(heard),
            (None, None) if *attempt > 1 => Some(seconds(*since)),
            (None, None) => None,
        },
    }
}

fn unreachable(
    conditions: &mut Conditions,
    host: &Host,
    limits: &crate::config::thresholds::HostUnreachable,
    since: f64,
    sample_time: SampleTime,
) {
    let escalation = Escalation::two((Severity::Warn, limits.warn_after), (Severity::Crit, limits.crit_after));
    let run = Run { since, covered: sample_time.t - since };
    let evaluation = Evaluation::new(escalation, Confidence::Certain, 0.0).since(run);
    conditions.met(RuleId::HostUnreachable, &FindingTarget::Host, evaluation, |lasted, _| {
        let why = host.link.error().map_or_else(String::new, |error| format!(": {}", error.message));
        let next = host.link.error().and_then(|error| error.hint.clone());
        FindingDetails {
            sentence: format!("no data for {}{why}; its other findings stand as they were seen last", duration(lasted)),
            next_check: next.map_or_else(|| format!("ssh {}", host.name()), |hint| hint.to_string()),
            ..FindingDetails::default()
        }
    });
}

/// Finds hosts that were lost together, and follows them until all are back.
fn update_outages(engine: &mut Engine, fleet: &Fleet) {
    let lost: Vec<(HostId, f64)> = fleet
        .hosts()
        .iter()
        .filter_map(|host| Some((host.id, engine.hosts().get(host.id.0 as usize)?.link_lost_at?)))
        .collect();
    // What is known is when a host was heard last: one that speaks seldom, or not this time, was lost later than that.
    let slack = |host: &HostId| {
        let interval = engine.hosts().get(host.0 as usize).map_or(0.0, HostDiagnosis::interval);
        SAME_OUTAGE_SECONDS.max(2.5 * interval)
    };
    let lost: Vec<(HostId, f64, f64)> = lost.into_iter().map(|(host, since)| (host, since, slack(&host))).collect();
    for outage in &mut engine.outages {
        for (host, since, slack) in &lost {
            if (since - outage.since).abs() <= *slack && !outage.members.contains(host) {
                outage.members.push(*host);
            }
        }
        outage.lost =
            outage.members.iter().copied().filter(|host| lost.iter().any(|(other, ..)| other == host)).collect();
    }
    engine.outages.retain(|outage| !outage.lost.is_empty());
    let mut free: Vec<(HostId, f64, f64)> = lost
        .into_iter()
        .filter(|(host, ..)| !engine.outages.iter().any(|outage| outage.members.contains(host)))
        .collect();
    free.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut rest = free.as_slice();
    while let [(_, since, slack), ..] = rest {
        let count = rest.iter().take_while(|(_, other, _)| other - since <= *slack).count();
        let (together, later) = rest.split_at(count);
        let is_all = count >= 2 && count == fleet.hosts().len();
        if count >= MIN_OUTAGE_HOSTS || is_all {
            let members: Vec<HostId> = together.iter().map(|(host, ..)| *host).collect();
            let first = members.iter().min().and_then(|first| fleet.host(*first));
            let name = first.map_or_else(SafeText::default, |host| host.name().clone());
            engine.outages.push(Outage { since: *since, lost: members.clone(), members, name });
            rest = later;
        } else {
            rest = &rest[1..];
        }
    }
}

fn common_cause(engine: &Engine, conditions: &mut Conditions, fleet: &Fleet, outage: &Outage, sample_time: SampleTime) {
    let limits = &engine.thresholds().host_unreachable;
    let escalation = Escalation::two((Severity::Warn, limits.warn_after), (Severity::Crit, limits.crit_after));
    let run = Run { since: outage.since, covered: sample_time.t - outage.since };
    let evaluation = Evaluation::new(escalation, Confidence::Likely, 0.0).since(run);
    conditions.met(RuleId::HostUnreachable, &FindingTarget::Named(outage.name.clone()), evaluation, |lasted, _| {
        let mut hosts: Vec<(HostId, SafeText)> =
            outage.lost.iter().filter_map(|host| Some((*host, fleet.host(*host)?.name().clone()))).collect();
        hosts.sort();
        let names: Vec<&str> = hosts.iter().take(3).map(|(_, name)| name.as_str()).collect();
        let more = if hosts.len() > 3 { format!(" and {} more", hosts.len() - 3) } else { String::new() };
        let is_all = outage.members.len() == fleet.hosts().len();
        let (what, next) = if is_all {
            ("this machine's own network, or what they share", "is this machine online? VPN, bastion")
        } else {
            ("what they share: a bastion, a switch, power", "the bastion, the switch, the power of that rack")
        };
        let back = outage.members.len() - outage.lost.len();
        let back = if back > 0 { format!(", {back} are back") } else { String::new() };
        FindingDetails {
            sentence: format!(
                "{} hosts were lost within 10 s of each other, no data for {}{back} ({}{more}): {what}",
                outage.members.len(),
                duration(lasted),
                names.join(", "),
            ),
            next_check: next.to_owned(),
            lead: hosts.first().cloned(),
            hosts: hosts.into_iter().skip(1).collect(),
            ..FindingDetails::default()
        }
    });
}

fn driver_skew(conditions: &mut Conditions, fleet: &Fleet) {
    let mut models: Vec<(&SafeText, Vec<(&SafeText, &Host)>)> = Vec::new();
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
            match models.iter_mut().find(|(other, _)| *other == model) {
                Some((_, hosts)) => hosts.push((driver, host)),
                None => models.push((model, vec![(driver, host)])),
            }
        }
    }
    for (model, hosts) in models {
        let mut drivers: Vec<&SafeText> = hosts.iter().map(|(driver, _)| *driver).collect();
        drivers.sort();
        drivers.dedup();
        if drivers.len() < 2 {
            continue;
        }
        let evaluation = Evaluation::new(Escalation::one(Severity::Info, 0.0), Confidence::Certain, 0.0);
        let evaluation = Evaluation { at_least: true, ..evaluation };
        conditions.met(RuleId::DriverSkew, &FindingTarget::Named(model.clone()), evaluation, |_, _| {
            let parts: Vec<String> = drivers
                .iter()
                .map(|driver| {
                    let of = hosts.iter().filter(|(other, _)| other == driver);
                    let names: Vec<&str> = of.clone().take(3).map(|(_, host)| host.name().as_str()).collect();
                    let more = of.count().saturating_sub(3);
                    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                    format!("{driver} on {}{more}", names.join(", "))
                })
                .collect();
            let mut names = hosts.iter().map(|(_, host)| (host.id, host.name().clone()));
            FindingDetails {
                sentence: format!("hosts with {model} run different drivers: {}", parts.join("; ")),
                next_check: "bring them to one version when they are next drained".to_owned(),
                lead: names.next(),
                hosts: names.collect(),
                ..FindingDetails::default()
            }
        });
    }
}

#[cfg(test)]
#[path = "fleet_wide_tests.rs"]
mod tests;
