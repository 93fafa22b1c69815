//! GPUs that are shared by accident, or held without use beside others: gpu-shared, stray-contexts.

use super::job::fills;
use crate::diagnosis::condition::{Escalation, Evaluation};
use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::finding::FindingTarget;
use crate::diagnosis::rule_context::{RuleContext, gibibytes};
use crate::diagnosis::track::{GpuTrack, JobGpu, JobTrack, ProcessTrack};
use crate::diagnosis::{Confidence, RuleId, Severity};
use crate::fleet::{JobKey, Process};
use crate::wire::GpuProcessKind;

pub(super) fn evaluate(context: &RuleContext, conditions: &mut Conditions) {
    for (position, gpu) in context.gpus.iter().enumerate().filter(|(_, gpu)| gpu.is_readable && !gpu.is_instance) {
        shared(context, conditions, position, &FindingTarget::Gpu(gpu.identity.clone()));
    }
    for job in
        context.jobs.iter().filter(|job| job.is_readable && (job.gpus.len() >= 2 || job.members.len() > IDLE_WORKERS))
    {
        stray(context, conditions, job);
    }
}

fn shared(context: &RuleContext, conditions: &mut Conditions, position: usize, target: &FindingTarget) {
    let limits = &context.limits.gpu_shared;
    let works = |job: &&JobTrack| {
        let gpu = job.gpus.iter().find(|gpu| gpu.position == position);
        gpu.is_some_and(|gpu| {
            let works = match gpu.activity {
                Some(percent) => f64::from(percent) >= limits.share,
                None => seems_to_work(context, job, gpu),
            };
            !gpu.is_exclusive && works
        })
    };
    let jobs: Vec<&JobTrack> = context.jobs.iter().filter(works).collect();
    let is_mps =
        |process: &Process| process.usage_on(position).is_some_and(|usage| usage.kind == Some(GpuProcessKind::Mps));
    if jobs.len() < 2 || context.host.processes().any(is_mps) {
        return;
    }
    let reason = warning(context, &jobs, position);
    let severity = if reason.is_some() { Severity::Warn } else { Severity::Info };
    let is_read = |job: &&JobTrack| job.gpus.iter().any(|gpu| gpu.position == position && gpu.activity.is_some());
    let confidence = match reason {
        _ if jobs.iter().all(is_read) => Confidence::Certain,
        Some(Reason::HeldUp { .. } | Reason::Misplaced | Reason::Outside(_)) => Confidence::Likely,
        Some(Reason::Slowed { .. }) | None => Confidence::Suspected,
    };
    let evaluation = Evaluation::new(Escalation::one(severity, limits.after), confidence, 300.0);
    conditions.met(RuleId::GpuShared, target, evaluation, |_, _| {
        let names: Vec<String> = jobs.iter().map(|job| context.format_job(job)).collect();
        let why = match reason {
            None => String::new(),
            Some(Reason::Slowed { job, earlier, now: Some(now) }) => {
                format!("; {} has {now} % of it and had {earlier:.0} % before", context.format_job(job))
            }
            Some(Reason::Slowed { job, earlier, now: None }) => {
                format!("; {} had {earlier:.0} % of it before", context.format_job(job))
            }
            Some(Reason::HeldUp { job, earlier, now }) => format!(
                "; the other GPUs of {} are {now:.0} % busy and were {earlier:.0} % busy before",
                context.format_job(job)
            ),
            Some(Reason::Misplaced) => ", while Slurm has allocated GPUs here that nobody uses".to_owned(),
            Some(Reason::Outside(job)) => {
                format!("; Slurm has allocated it, and {} is not in its job", context.format_job(job))
            }
        };
        let sentence = format!("{} is shared by {}{why}", context.format_gpus([position]), names.join(" and "));
        context.gpu_details(position, sentence, "gpufleet free".to_owned())
    });
}

/// Why a shared GPU warns.
#[derive(Clone, Copy)]
enum Reason<'a> {
    /// A job lost much of the GPU, in percent.
    Slowed { job: &'a JobTrack, earlier: f32, now: Option<u8> },
    /// The other GPUs of a job wait for this one: their utilisation in percent.
    HeldUp { job: &'a JobTrack, earlier: f32, now: f32 },
    /// Slurm has allocated another GPU to one of the jobs.
    Misplaced,
    /// This job computes outside of Slurm.
    Outside(&'a JobTrack),
}

fn warning<'a>(context: &RuleContext, jobs: &[&'a JobTrack], position: usize) -> Option<Reason<'a>> {
    // Orphans have a finding that says more.
    if jobs.iter().any(|job| context.members(job).any(ProcessTrack::lost_parent)) {
        return None;
    }
    // Slurm gave all of them a share of the GPU (https://slurm.schedmd.com/gres.html#Sharding).
    // An allocated GPU that nobody uses tells that one of them is on the wrong one.
    let are_of_slurm = jobs.iter().all(|job| matches!(job.key, JobKey::Slurm { .. }));
    let are_shards = are_of_slurm && context.gpus.iter().all(|gpu| gpu.unused_since.is_none());
    let slowed = || slowed_by_another_job(context, jobs, position).or_else(|| held_up(context, jobs));
    let slowed = if are_shards { None } else { slowed() };
    let misplaced = || (are_of_slurm && are_misplaced(context, jobs)).then_some(Reason::Misplaced);
    let outside = || outside_of_slurm(context, jobs, position).map(Reason::Outside);
    slowed.or_else(misplaced).or_else(outside)
}

/// Whether Slurm has allocated GPUs to one of these jobs that nobody uses.
fn are_misplaced(context: &RuleContext, jobs: &[&JobTrack]) -> bool {
    let after = context.limits.gpu_shared.after;
    let is_unused = |track: &GpuTrack| track.unused_since.is_some_and(|since| context.sample_time.t - since >= after);
    let unused = context.gpus.iter().enumerate().filter(|(_, track)| is_unused(track));
    let unused: Vec<u32> = unused.filter_map(|(at, _)| Some(context.host.gpu_info(at)?.index)).collect();
    if let Some(allocations) = context.host.slurm_jobs() {
        let is_one = |id: &str| jobs.iter().any(|job| matches!(&job.key, JobKey::Slurm { job, .. } if **job == *id));
        let mut own = allocations.iter().filter(|allocation| is_one(&allocation.job));
        return own.any(|allocation| allocation.gpus.iter().any(|gpu| unused.contains(gpu)));
    }
    // Without a list of jobs: as many GPUs are unused as all of these jobs share.
    let positions = |job: &JobTrack| job.positions().collect::<Vec<usize>>();
    let first = jobs.first().map(|job| positions(job)).unwrap_or_default();
    !first.is_empty() && unused.len() >= first.len() && jobs.iter().all(|job| positions(job) == first)
}

/// The job that computes, outside of Slurm, on a GPU that Slurm has allocated to a job of another user. A container of root may be part
/// of that job.
fn outside_of_slurm<'a>(context: &RuleContext, jobs: &[&'a JobTrack], position: usize) -> Option<&'a JobTrack> {
    let index = context.host.gpu_info(position)?.index;
    if !context.host.slurm_allocated_gpus()?.contains(&index) {
        return None;
    }
    let is_of_slurm = |job: &JobTrack| matches!(job.key, JobKey::Slurm { .. });
    let uid = |job: &JobTrack| context.members(job).find_map(|process| process.info.facts.as_ref()?.uid);
    let owners: Vec<u32> = jobs.iter().filter(|job| is_of_slurm(job)).filter_map(|job| uid(job)).collect();
    let is_other = |job: &JobTrack| uid(job).is_some_and(|uid| uid != 0 && !owners.contains(&uid));
    let outside = jobs.iter().find(|job| !is_of_slurm(job) && is_other(job)).copied();
    outside.filter(|_| !owners.is_empty())
}

/// From these values on, a job seems to compute on a GPU if the driver does not say which process uses it: the mean utilisation of the
/// GPU in percent and its window in seconds, the memory of the job in bytes, and its CPU cores per process. Jobs that share a GPU take
/// turns, so that it is never idle.
const CROWDED_PERCENT: f32 = 90.0;
const CROWDED_SECONDS: f64 = 300.0;
const WORKING_BYTES: u64 = 256 << 20;
const WORKING_CORES: f64 = 0.5;

fn seems_to_work(context: &RuleContext, job: &JobTrack, gpu: &JobGpu) -> bool {
    let begin = context.sample_time.t - CROWDED_SECONDS;
    let is_busy = context
        .gpus
        .get(gpu.position)
        .is_some_and(|track| track.window.stats(begin).mean_utilization >= Some(CROWDED_PERCENT));
    is_busy
        && !job.is_server
        && !job.is_notebook
        && job.stalled_run.is_none()
        && gpu.memory_bytes >= Some(WORKING_BYTES)
        && job.cores >= Some(WORKING_CORES * job.members.len() as f64)
}

/// The earlier utilisation of a job that had a GPU for itself, in percent, and the share of it at most that it has left.
const ALONE_PERCENT: f32 = 70.0;
const SLOWED_SHARE: f32 = 0.65;
/// How long it was seen alone, in seconds.
const ALONE_SECONDS: f64 = 600.0;

/// A job that lost much of a GPU to another job. One user may share a GPU on purpose, but not those of a job on several GPUs, nor by
/// starting one command twice.
fn slowed_by_another_job<'a>(context: &RuleContext, jobs: &[&'a JobTrack], position: usize) -> Option<Reason<'a>> {
    let command = |job: &JobTrack| context.members(job).next().map(|process| process.info.command.clone());
    jobs.iter().find_map(|job| {
        let is_accident = |other: &'a JobTrack| {
            context.user(other) != context.user(job) || job.gpus.len() >= 2 || command(other) == command(job)
        };
        let came_later =
            |other: &&'a JobTrack| other.first_seen >= job.first_seen + ALONE_SECONDS && is_accident(other);
        // Most jobs on one GPU began together: the median, which takes longer, is not needed.
        let later: Vec<&JobTrack> = jobs.iter().copied().filter(came_later).collect();
        if later.is_empty() {
            return None;
        }
        let gpu = job.gpus.iter().find(|gpu| gpu.position == position)?;
        let (earlier, now) = (gpu.baseline.known_utilization()?, gpu.activity);
        // Without a reading, only a command that was started twice is certainly a mistake.
        let is_cause = |other: &&JobTrack| now.is_some() || command(other) == command(job);
        let is_slowed = earlier >= ALONE_PERCENT && now.is_none_or(|now| f32::from(now) <= SLOWED_SHARE * earlier);
        (is_slowed && later.iter().any(is_cause)).then_some(Reason::Slowed { job, earlier, now })
    })
}

/// The window of the present utilisation, in seconds.
const HELD_UP_WINDOW: f64 = 600.0;

/// A job on several GPUs of which the ones that it shares with nobody have become slow since the job of another user came.
fn held_up<'a>(context: &RuleContext, jobs: &[&'a JobTrack]) -> Option<Reason<'a>> {
    let begin = context.sample_time.t - HELD_UP_WINDOW;
    jobs.iter().find_map(|job| {
        let came_later = |other: &&'a JobTrack| {
            other.first_seen >= job.first_seen + ALONE_SECONDS && context.user(other) != context.user(job)
        };
        if !jobs.iter().any(came_later) {
            return None;
        }
        let own = || job.gpus.iter().filter(|gpu| gpu.is_exclusive);
        let earlier: Vec<f32> = own().map(|gpu| gpu.baseline.known_utilization()).collect::<Option<_>>()?;
        let now = |gpu: &JobGpu| context.gpus.get(gpu.position)?.window.stats(begin).mean_utilization;
        let now: Vec<f32> = own().map(now).collect::<Option<_>>()?;
        let mean = |percents: &[f32]| percents.iter().sum::<f32>() / percents.len().max(1) as f32;
        let (earlier, now) = (mean(&earlier), mean(&now));
        (earlier >= ALONE_PERCENT && now <= SLOWED_SHARE * earlier).then_some(Reason::HeldUp { job, earlier, now })
    })
}

/// How long a job may pause and still count as one that uses its other GPUs, in seconds.
const PAUSE_SECONDS: f64 = 1800.0;
/// How long a GPU must have been idle and kept from everybody else until that warns, in seconds.
const KEPT_AWAY_AFTER: f64 = 7200.0;

fn stray(context: &RuleContext, conditions: &mut Conditions, job: &JobTrack) {
    let limits = &context.limits.stray_contexts;
    let most = (limits.memory * 1_048_576.0) as u64;
    let members: Vec<&Process> =
        context.host.processes().filter(|process| process.info.job == job.key && !process.is_stale).collect();
    // A rank with a small context on this GPU and its work on another one.
    let is_stray = |process: &Process, position: usize| {
        let memory = |position: usize| process.usage_on(position).and_then(|usage| usage.gpu_memory_bytes);
        let here = memory(position).filter(|bytes| *bytes <= most);
        let elsewhere = process.gpu_positions().filter(|other| *other != position).filter_map(memory).max();
        matches!((here, elsewhere), (Some(here), Some(elsewhere)) if elsewhere >= 3 * here.max(1))
    };
    let strays = |position: usize| members.iter().filter(|process| is_stray(process, position)).count();
    let crowded = job.positions().map(|position| (position, strays(position))).find(|(_, count)| *count >= 2);
    let with_workers: Vec<IdleWorkers> =
        job.positions().filter_map(|position| idle_workers(&members, position, most)).collect();
    let t = context.sample_time.t;
    let is_busy = |position: usize| context.gpus.get(position).is_some_and(|gpu| gpu.utilization >= Some(20));
    // A person at a notebook pauses now and then.
    let is_in_use = job.computed_at.is_some_and(|at| t - at <= PAUSE_SECONDS);
    // The condition begins early enough to fire when a GPU has been idle for `idle_after`.
    let begins_after = limits.idle_after - limits.after;
    let has_rested = |position: usize, seconds: f64| {
        let run = context.gpus.get(position).and_then(|gpu| gpu.idle_run);
        run.is_some_and(|run| t - run.since >= seconds)
    };
    let rests = |position: &usize| has_rested(*position, begins_after);
    let resting: Vec<usize> = match members.as_slice() {
        [_] if job.gpus.len() >= 2 && (is_in_use || job.gpus.iter().any(|gpu| is_busy(gpu.position))) => {
            job.positions().filter(rests).collect()
        }
        _ => Vec::new(),
    };
    if crowded.is_none() && resting.is_empty() && with_workers.is_empty() {
        return;
    }
    // A GPU whose memory is full keeps everybody else away. A server may get requests for it at any time.
    let keeps_away = job.gpus.iter().any(|gpu| resting.contains(&gpu.position) && fills(context, gpu));
    let escalation = if crowded.is_none() && keeps_away && !job.is_server && job.served_port.is_none() {
        Escalation::two((Severity::Info, limits.after), (Severity::Warn, KEPT_AWAY_AFTER - begins_after))
    } else {
        Escalation::one(Severity::Info, limits.after)
    };
    let evaluation = Evaluation::new(escalation, Confidence::Likely, 300.0);
    conditions.met(RuleId::StrayContexts, &FindingTarget::Job(job.key.clone()), evaluation, |_, _| {
        let name = context.format_job(job);
        let mut next = "set CUDA_VISIBLE_DEVICES for the job";
        let (sentence, positions) = match crowded {
            None if resting.is_empty() => {
                let positions: Vec<usize> = with_workers.iter().map(|workers| workers.position).collect();
                let count: usize = with_workers.iter().map(|workers| workers.count).sum();
                let held = gibibytes(with_workers.iter().map(|workers| workers.bytes).sum());
                let gpus = context.format_gpus(positions.iter().copied());
                next = "use no CUDA in data loader workers";
                (
                    format!(
                        "{count} workers of {name} hold {held} of {gpus} for contexts in which they compute nothing"
                    ),
                    positions,
                )
            }
            Some((position, count)) => (
                format!(
                    "{count} ranks of {name} hold a context on {} although they work on others",
                    context.format_gpus([position])
                ),
                vec![position],
            ),
            None => {
                let listed: Vec<usize> =
                    resting.iter().copied().filter(|position| has_rested(*position, limits.idle_after)).collect();
                let listed = if listed.is_empty() { resting.clone() } else { listed };
                (format!("{name} holds {} without using it", context.format_gpus(listed.iter().copied())), listed)
            }
        };
        let mut details = context.job_details(job, sentence, next.to_owned());
        details.gpus = context.finding_gpus(positions);
        details
    });
}

/// The least number of workers that hold a context for nothing.
const IDLE_WORKERS: usize = 4;

/// Workers of ranks that hold a context on the GPU of their rank.
struct IdleWorkers {
    position: usize,
    count: usize,
    bytes: u64,
}

/// Finds processes that a rank on the same GPU has started, that hold no more than a context there and compute nothing: workers that
/// prepare data need none.
fn idle_workers(members: &[&Process], position: usize, most: u64) -> Option<IdleWorkers> {
    let bytes = |process: &Process| process.usage_on(position).and_then(|usage| usage.gpu_memory_bytes);
    let rests = |process: &Process| process.usage_on(position).is_some_and(|usage| usage.sm_percent == Some(0));
    let is_rank = |process: &&&Process| bytes(process).is_some_and(|bytes| bytes >= 3 * most);
    let ranks: Vec<u32> = members.iter().filter(is_rank).map(|process| process.key.pid).collect();
    let is_below = |process: &Process| {
        let ancestors = process.facts().map_or(&[][..], |facts| facts.ancestors.as_slice());
        ancestors.iter().any(|ancestor| ranks.contains(&ancestor.pid))
    };
    let held =
        members.iter().filter(|process| rests(process) && is_below(process)).filter_map(|process| bytes(process));
    let (count, bytes) =
        held.filter(|bytes| *bytes <= most).fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes));
    (count >= IDLE_WORKERS).then_some(IdleWorkers { position, count, bytes })
}

#[cfg(test)]
mod tests {
    use crate::diagnosis::testing::{RuleTester, TestSample};
    use crate::fleet::fixture::{gpus, process};
    use crate::wire::{Ancestor, Owner, SlurmJob};

    #[test]
    fn two_jobs_that_compute_on_one_gpu_are_info() {
        let run = |shares: [u8; 2]| {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.run(1000.0, |tester, _| {
                let mut jobs = vec![process(7, "python a.py", &[(0, 30)]), process(8, "python b.py", &[(0, 30)])];
                for (job, share) in jobs.iter_mut().zip(shares) {
                    job.gpus[0].sm_percent = Some(share);
                }
                TestSample { gpus: vec![tester.gpu(100, 500.0, 40, 60)], processes: jobs }
            });
            tester.fired()
        };
        assert_eq!(run([50, 45]), [("gpu-shared", "info")]);
        assert_eq!(run([95, 2]), [], "an idle notebook beside a job");
    }

    #[test]
    fn a_job_that_takes_half_of_a_gpu_from_another_one_warns() {
        let run = |(user, command): (&str, &str), share: u8, count: u16| {
            let mut tester = RuleTester::new(gpus(0..u32::from(count)));
            tester.interval = 5.0;
            let job = |pid: u32, (user, command): (&str, &str), share: u8| {
                let on: Vec<(u16, u64)> = (0..count).map(|gpu| (gpu, 30)).collect();
                let mut job = process(pid, command, &on);
                job.facts.user = Some(user.into());
                job.gpus.iter_mut().for_each(|usage| usage.sm_percent = Some(share));
                job
            };
            let sample = |tester: &mut RuleTester, processes| TestSample {
                gpus: (0..count).map(|_| tester.gpu(97, 500.0, 40, 60)).collect(),
                processes,
            };
            let first = ("alice", "python a.py");
            tester.run(2400.0, |tester, _| sample(tester, vec![job(7, first, 94)]));
            let second = (user, command);
            tester.run(1000.0, |tester, _| sample(tester, vec![job(7, first, share), job(8, second, 45)]));
            tester.firing()
        };
        let (bob, alice) = (("bob", "python b.py"), ("alice", "python b.py"));
        assert_eq!(run(bob, 48, 1), [("gpu-shared", "warn")]);
        assert_eq!(run(alice, 48, 1), [("gpu-shared", "info")], "one user may do so on purpose");
        assert_eq!(run(alice, 48, 2), [("gpu-shared", "warn"); 2], "but not with a job on several GPUs");
        assert_eq!(run(("alice", "python a.py"), 48, 1), [("gpu-shared", "warn")], "nor with one command twice");
        assert_eq!(run(bob, 80, 1), [("gpu-shared", "info")]);
    }

    #[test]
    fn jobs_share_a_gpu_also_where_the_driver_does_not_tell_which_process_uses_it() {
        let run = |cpu: f32, utilization: u8, command: &str| {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.interval = 10.0;
            let job = |pid: u32, command: &str, cpu: f32| {
                let mut job = process(pid, command, &[(0, 1)]);
                job.gpus[0].sm_percent = None;
                job.reading.cpu_percent = Some(cpu);
                job
            };
            let first = "python prod.py --sys kinase";
            tester.run(2400.0, |tester, _| TestSample {
                gpus: vec![tester.gpu(96, 200.0, 40, 1)],
                processes: vec![job(7, first, 100.0)],
            });
            tester.run(1300.0, |tester, _| {
                let processes = vec![job(7, first, 100.0), job(8, command, cpu)];
                TestSample { gpus: vec![tester.gpu(utilization, 200.0, 40, 2)], processes }
            });
            tester.firing().into_iter().filter(|(rule, _)| *rule == "gpu-shared").map(|(_, to)| to).collect::<Vec<_>>()
        };
        assert_eq!(run(100.0, 99, "python simulate.py"), ["info"], "one user may do so on purpose");
        assert_eq!(run(100.0, 99, "python prod.py --sys kinase"), ["warn"], "one command twice");
        assert_eq!(run(10.0, 99, "python simulate.py"), [""; 0], "it rests");
        assert_eq!(run(100.0, 60, "python simulate.py"), [""; 0], "the GPU has room");
    }

    /// A job of alice and one of bob share GPU 0, which Slurm has allocated with all other GPUs. `owned` tells which of them are jobs of
    /// Slurm, and `alone` how long alice had the GPU for herself before, in seconds. `jobs` are those that Slurm lists.
    fn shared_with_bob(owned: [bool; 2], alone: f64, gpu_count: u32, jobs: Option<&[SlurmJob]>) -> RuleTester {
        let mut tester = RuleTester::new(gpus(0..gpu_count));
        tester.interval = 5.0;
        let job = |pid: u32, share: u8, is_owned: bool| {
            let mut job = process(pid, "python a.py", &[(0, 30)]);
            job.facts.user = Some(if pid == 7 { "alice" } else { "bob" }.into());
            job.facts.uid = Some(1000 + pid);
            job.facts.owner = is_owned.then(|| Owner::Slurm { job: pid.to_string().as_str().into(), step: None });
            job.gpus[0].sm_percent = Some(share);
            job
        };
        let sample = |tester: &mut RuleTester, processes| {
            let mut gpus = vec![tester.gpu(97, 500.0, 40, 60)];
            gpus.extend((1..gpu_count).map(|_| tester.gpu(0, 70.0, 0, 0)));
            TestSample { gpus, processes }
        };
        tester.run(alone, |tester, _| sample(tester, vec![job(7, 94, owned[0])]));
        tester.run_edited(
            1000.0,
            |tester, _| sample(tester, vec![job(7, 48, owned[0]), job(8, 45, owned[1])]),
            |snapshot, _| {
                snapshot.host.slurm_allocated_gpus = Some((0..gpu_count).collect());
                snapshot.host.slurm_jobs = jobs.map(<[SlurmJob]>::to_vec);
            },
        );
        tester
    }

    #[test]
    fn jobs_to_which_slurm_gave_shares_of_a_gpu_are_info() {
        let severity = |owned| shared_with_bob(owned, 2400.0, 1, None).firing();
        assert_eq!(severity([true, true]), [("gpu-shared", "info")]);
        assert_eq!(severity([true, false]), [("gpu-shared", "warn")], "beside the job that Slurm started");
    }

    #[test]
    fn a_job_whose_other_gpus_wait_for_the_shared_one_warns() {
        let run = |others: u8, user: &str| {
            let mut tester = RuleTester::new(gpus(0..3));
            tester.interval = 5.0;
            let job = |pid: u32, on: &[(u16, u64)], user: &str| {
                let mut job = process(pid, "python md.py", on);
                job.facts.user = Some(user.into());
                job.gpus.iter_mut().for_each(|usage| usage.sm_percent = None);
                job.reading.cpu_percent = Some(100.0);
                job
            };
            let first = || job(7, &[(0, 1), (1, 1), (2, 1)], "alice");
            tester.run(2400.0, |tester, _| TestSample {
                gpus: (0..3).map(|_| tester.gpu(95, 200.0, 30, 1)).collect(),
                processes: vec![first()],
            });
            let mut second = job(8, &[(0, 1)], user);
            second.facts.argv = vec!["other".into()];
            tester.run(1800.0, |tester, _| TestSample {
                gpus: [99, others, others].map(|percent| tester.gpu(percent, 200.0, 30, 1)).to_vec(),
                processes: vec![first(), second.clone()],
            });
            let found = tester.firing().into_iter().find(|(rule, _)| *rule == "gpu-shared");
            found.map(|(_, severity)| (severity, tester.finding("gpu-shared").sentence.to_string()))
        };
        let (severity, sentence) = run(28, "bob").expect("is found");
        assert_eq!(severity, "warn");
        let end = "the other GPUs of md.py (alice, pid 7) are 28 % busy and were 92 % busy before";
        assert!(sentence.ends_with(end), "{sentence}");
        assert_eq!(run(93, "bob").map(|(severity, _)| severity), Some("info"));
        assert_eq!(run(28, "alice").map(|(severity, _)| severity), Some("info"), "one user may do so on purpose");
    }

    #[test]
    fn an_unused_gpu_of_a_third_job_of_slurm_does_not_matter() {
        let unused_is_of = |job: &str| {
            let jobs = [
                SlurmJob { job: "7".into(), user: None, gpus: vec![0] },
                SlurmJob { job: job.into(), user: None, gpus: vec![1] },
            ];
            shared_with_bob([true, true], 0.0, 2, Some(&jobs)).firing()
        };
        assert_eq!(unused_is_of("8"), [("gpu-shared", "warn")]);
        assert_eq!(unused_is_of("9"), [("gpu-shared", "info")]);
    }

    #[test]
    fn jobs_of_slurm_on_one_gpu_warn_while_another_allocated_gpu_is_unused() {
        let tester = shared_with_bob([true, true], 0.0, 2, None);
        assert_eq!(tester.firing(), [("gpu-shared", "warn")]);
        let sentence = tester.finding("gpu-shared").sentence.to_string();
        assert!(sentence.ends_with(", while Slurm has allocated GPUs here that nobody uses"), "{sentence}");
    }

    #[test]
    fn a_program_outside_of_slurm_on_an_allocated_gpu_warns_also_if_it_slows_nobody() {
        let tester = shared_with_bob([true, false], 0.0, 1, None);
        assert_eq!(tester.firing(), [("gpu-shared", "warn")]);
        let sentence = tester.finding("gpu-shared").sentence.to_string();
        assert!(sentence.ends_with("; Slurm has allocated it, and a.py (bob, pid 8) is not in its job"), "{sentence}");
        assert_eq!(shared_with_bob([false, false], 0.0, 1, None).firing(), [("gpu-shared", "info")]);
    }

    #[test]
    fn contexts_of_other_ranks_are_info() {
        let mut tester = RuleTester::new(gpus(0..4));
        tester.run(1000.0, |tester, _| {
            let ranks = (0..4).map(|gpu| {
                let on: &[(u16, u64)] = if gpu == 0 { &[(0, 20)] } else { &[(0, 1), (gpu, 20)] };
                let mut rank = process(70 + u32::from(gpu), "python train.py", on);
                let torchrun = Ancestor { pid: 60, uid: Some(1000), name: "torchrun".into(), ..Ancestor::default() };
                rank.facts.ancestors = vec![torchrun];
                rank
            });
            TestSample { processes: ranks.collect(), gpus: (0..4).map(|_| tester.gpu(97, 500.0, 40, 23)).collect() }
        });
        assert_eq!(tester.fired(), [("stray-contexts", "info")]);
        let sentence = tester.finding("stray-contexts").sentence.to_string();
        assert!(sentence.starts_with("3 ranks of train.py") && sentence.contains("a context on GPU 0"), "{sentence}");
    }

    #[test]
    fn contexts_of_workers_that_compute_nothing_are_info() {
        let fired = |workers: u32, percent: u8, parent: u32| {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.run(1000.0, |tester, _| {
                let ancestor =
                    |pid: u32, name: &str| Ancestor { pid, uid: Some(1000), name: name.into(), ..Ancestor::default() };
                let mut rank = process(7, "python train.py", &[(0, 47)]);
                rank.facts.ancestors = vec![ancestor(60, "torchrun")];
                rank.gpus[0].sm_percent = Some(90);
                let worker = |number| {
                    let mut worker = process(10 + number, "python -c from multiprocessing", &[(0, 1)]);
                    worker.gpus[0].gpu_memory_bytes = Some(520 << 20);
                    worker.gpus[0].sm_percent = Some(percent);
                    worker.facts.ancestors = vec![ancestor(parent, "python"), ancestor(60, "torchrun")];
                    worker
                };
                let processes = std::iter::once(rank).chain((0..workers).map(worker)).collect();
                TestSample { processes, gpus: vec![tester.gpu(90, 500.0, 40, 50)] }
            });
            let found = tester.fired().iter().any(|(rule, _)| *rule == "stray-contexts");
            found.then(|| tester.finding("stray-contexts").sentence.to_string())
        };
        let found = fired(4, 0, 7).unwrap_or_default();
        assert!(found.starts_with("4 workers of ") && found.contains(" hold 2.0 GiB of GPU 0 for contexts"), "{found}");
        assert_eq!([fired(3, 0, 7), fired(4, 5, 7), fired(4, 0, 9)], [None, None, None]);
    }

    #[test]
    fn gpus_that_a_single_process_holds_without_use_are_info() {
        let mut tester = RuleTester::new(gpus(0..4));
        tester.run(3000.0, |tester, _| {
            let mut gpus = vec![tester.gpu(85, 400.0, 40, 70)];
            gpus.extend((1..4).map(|_| tester.gpu(0, 90.0, 0, 70)));
            TestSample { gpus, processes: vec![process(7, "python tf.py", &[(0, 70), (1, 70), (2, 70), (3, 70)])] }
        });
        assert_eq!(tester.firing(), [("stray-contexts", "info")]);
    }

    #[test]
    fn full_gpus_that_a_notebook_holds_beside_the_one_it_uses_warn_although_it_pauses() {
        let severity = |gib: u64, port: Option<u16>| {
            let mut tester = RuleTester::new(gpus(0..2));
            tester.interval = 20.0;
            tester.run(8000.0, |tester, t| {
                let pauses = t % 1800.0 > 1000.0;
                let own = if pauses { tester.gpu(0, 90.0, 0, 70) } else { tester.gpu(85, 400.0, 40, 70) };
                let mut holder = process(7, "python tf.py", &[(0, 70), (1, gib)]);
                holder.facts.listening_ports = port.into_iter().collect();
                TestSample { gpus: vec![own, tester.gpu(0, 90.0, 0, gib)], processes: vec![holder] }
            });
            tester.firing().into_iter().find(|(rule, _)| *rule == "stray-contexts")
        };
        assert_eq!(severity(72, None), Some(("stray-contexts", "warn")), "72 of 80 GiB");
        assert_eq!(severity(60, None), Some(("stray-contexts", "info")), "another job finds room");
        assert_eq!(severity(72, Some(8000)), Some(("stray-contexts", "info")), "a request may come for it");
    }
}
