//! What could not be judged, and why.

use super::NotJudged;
use super::engine::HostMemory;
use crate::fleet::Moment;

/// Rules over windows need this much history, in seconds.
const SHORT: f64 = 300.0;

/// Counts over all hosts, the largest first.
pub(super) fn list(hosts: &[HostMemory], now: Option<Moment>) -> Vec<NotJudged> {
    let Some(t) = now.map(|now| now.elapsed.as_secs_f64()) else { return Vec::new() };
    let mut instances = 0;
    let mut without_limit = 0;
    let mut without_power = 0;
    let mut without_memory_use = 0;
    let mut smoothed = 0;
    let mut unread = 0;
    let mut short = 0;
    let mut shared = 0;
    let mut never = 0;
    for host in hosts {
        match host.track.first_at {
            None => never += 1,
            Some(first) if t - first < SHORT => short += 1,
            Some(_) => {}
        }
        for gpu in &host.gpus {
            let counter = match gpu {
                gpu if gpu.is_instance => &mut instances,
                gpu if gpu.is_mig_parent => continue,
                gpu if !gpu.is_readable => &mut unread,
                gpu if gpu.has_power_smoothing => &mut smoothed,
                gpu if gpu.limit.is_none() => &mut without_limit,
                gpu if gpu.power.is_none() => &mut without_power,
                gpu if gpu.memory_utilization.is_none() => &mut without_memory_use,
                _ => continue,
            };
            *counter += 1;
        }
        shared +=
            host.jobs.iter().filter(|job| job.gpus.iter().any(|gpu| gpu.activity.is_none() && !gpu.is_alone)).count()
                as u32;
    }
    let all = [
        (never, "host", "without any data"),
        (short, "host", "with a history under 5 min"),
        (instances, "MIG instance", "without a utilisation of its own"),
        (smoothed, "GPU", "with power smoothing: rules about power are off"),
        (without_limit, "GPU", "without a power limit"),
        (without_power, "GPU", "without a power reading"),
        (without_memory_use, "GPU", "without a memory utilisation"),
        (unread, "GPU", "that could not be read"),
        (shared, "job", "on a shared GPU that does not tell shares"),
    ];
    let known = all.into_iter().filter(|(count, ..)| *count > 0);
    let mut list: Vec<NotJudged> = known.map(|(count, what, why)| NotJudged { count, what, why }).collect();
    list.sort_by_key(|entry| std::cmp::Reverse(entry.count));
    list
}
