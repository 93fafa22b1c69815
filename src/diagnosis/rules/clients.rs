//! Servers whose clients wait for answers: they hang, whether their GPUs rest (job-stalled) or spin (stuck-spin-suspect).
//!
//! A server that rests without clients waits for requests. The kernel knows for each connection when data came in and went
//! out last, so the probe knows which clients wait and for how long.

use crate::diagnosis::condition::{Escalation, Evaluation, Run};
use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::finding::FindingTarget;
use crate::diagnosis::process_kind::only_answers;
use crate::diagnosis::rule_context::{RuleContext, duration};
use crate::diagnosis::track::{JobTrack, ProcessTrack, WaitingClients};
use crate::diagnosis::{Confidence, RuleId, Severity};

/// The ranks of a server all spin for this long before it warns, in seconds: a first request can compile kernels.
pub(super) const SERVER_AFTER: f64 = 720.0;
/// How long a job of one process must have done nothing before it warns, in seconds.
pub(super) const SINGLE_WARN_AFTER: f64 = 1200.0;

/// A server whose clients wait for answers while its GPUs rest. Returns whether that holds for the job.
pub(super) fn unanswered(
    context: &RuleContext,
    conditions: &mut Conditions,
    job: &JobTrack,
    target: &FindingTarget,
) -> bool {
    let t = context.sample_time.t;
    // The scheduler of workers keeps connections to them on which it sent the last message.
    let waits_for_tasks = job.is_server && !job.is_model_server;
    let serves = !job.is_notebook && !job.is_debugged && (job.is_model_server || job.served_port.is_some());
    let clients = context.waiting_clients(job).filter(|_| serves && !waits_for_tasks);
    // If the server shares its GPU with another job, or runs on a MIG instance, only the readings of its processes show whether it
    // works.
    let is_shared = job.gpus.iter().any(|gpu| !gpu.is_exclusive);
    let rest = context.rest_of_all_gpus(job).or(job.stalled_run.filter(|_| is_shared || job.is_blind));
    // An engine that polls hides that its MIG instance rests. Its clients tell.
    let unseen = clients.filter(|clients| job.is_blind && clients.longest >= SINGLE_WARN_AFTER);
    let unseen = unseen.and_then(|clients| clients.run).filter(|run| run.since - job.first_seen >= ASKED_LONG_BEFORE);
    let rest = rest.or(unseen);
    let (Some(clients), Some(rest)) = (clients, rest) else { return false };
    let Some(waited) = clients.run else { return false };
    let Some(escalation) = escalation(context, job, clients, rest) else { return false };
    // A model that runs partly on the CPU was at work until then.
    let computed_at = job.used_cores_at.filter(|at| t - at > 2.0 * context.sample_time.dt).unwrap_or(f64::NEG_INFINITY);
    let since = rest.since.max(waited.since).max(computed_at);
    let run = Run { since, covered: rest.covered.min(waited.covered).min(t - since) };
    let least = context.limits.job_stalled.warn_after;
    let evaluation = Evaluation::new(escalation, Confidence::Likely, 60.0).delayed_from(least).since(run);
    conditions.met(RuleId::JobStalled, target, evaluation, |lasted, _| {
        let who = if clients.count == 1 { "client waits" } else { "clients wait" };
        let sentence = format!(
            "{} answers nobody: {} {who} for up to {}, and {} did nothing for {}",
            context.format_job(job),
            clients.count,
            duration(clients.longest),
            context.format_gpus(job.positions()),
            duration(lasted),
        );
        let figures = format!("{} {who}", clients.count);
        context.job_details(job, sentence, context.examine(context.first_pid(job))).with_figures(figures)
    });
    true
}

/// The severities of a server whose clients wait, by the number of requests that arrived while its GPUs were idle. `None` if the
/// clients probably do not wait for an answer: a connection on which the client sent the last data may be a subscription to
/// events, or an abandoned one.
fn escalation(context: &RuleContext, job: &JobTrack, clients: &WaitingClients, rest: Run) -> Option<Escalation> {
    let t = context.sample_time.t;
    let is_unseen = rest.since - job.first_seen < 60.0;
    // A client that has waited since before the GPUs last worked probably subscribes to events, and a new client may do so, too.
    let has_subscribers = !is_unseen && clients.asked_before(rest.since, t) > ASKED_LONG_BEFORE;
    // Subscribers come one after the other, not several at a time.
    let is_fresh = clients.since_the_last_two_asked(t) < UNANSWERED_AFTER.1
        && clients.many_unanswered_for(rest.since, t) < UNANSWERED_AFTER.1;
    let new = if has_subscribers && is_fresh { 0 } else { clients.new_since(rest.since, t) };
    let is_single = clients.count == 1;
    let warn_after = match (new, is_unseen) {
        (2.., _) => Some(UNANSWERED_AFTER.1),
        (1, false) if is_single => Some(SINGLE_WARN_AFTER),
        (0 | 1, false) if answers_many(context, job, clients) => Some(SINGLE_WARN_AFTER),
        (0 | 1, false) if clients.asked_at_the_end(rest.since, t) => {
            Some(if context.is_log_silent(job) { SINGLE_WARN_AFTER } else { OLD_CLIENTS_WARN_AFTER })
        }
        (0, false) if clients.asked_before(rest.since, t) > ASKED_LONG_BEFORE => return None,
        _ => None,
    };
    // A server that reads, writes or computes on the CPU may load a model, or prepare what the GPU needs.
    let reads = context.members(job).any(|process| process.last_io_at.is_some_and(|at| t - at <= 120.0));
    let computes = job.cores.is_some_and(|cores| cores >= AT_WORK_CORES * job.members.len() as f64);
    let info = (Severity::Info, UNANSWERED_AFTER.0);
    // A server that was idle before while clients waited, and went on by itself, may wait for another service again.
    let patience = (1.5 * f64::from(job.longest_preparation)).min(MOST_PATIENCE);
    Some(match warn_after.map(|after| after.max(patience)) {
        None => Escalation::one(info.0, info.1),
        Some(after) if reads || computes => Escalation::two(info, (Severity::Warn, after.max(SINGLE_WARN_AFTER))),
        Some(after) if new >= 2 => {
            let crit_after = context.limits.job_stalled.crit_after.max(2.0 * patience);
            Escalation::three(info, (Severity::Warn, after), (Severity::Crit, crit_after))
        }
        Some(after) => Escalation::two(info, (Severity::Warn, after)),
    })
}

/// The least number of waiting clients, and the least utilisation of the GPUs before, in percent: some of so many clients of a busy
/// server still wait.
const MANY_CLIENTS: u32 = 8;
const LOADED_PERCENT: f32 = 50.0;

/// Whether many clients wait for a busy server that only answers requests.
fn answers_many(context: &RuleContext, job: &JobTrack, clients: &WaitingClients) -> bool {
    let is_api = |process: &ProcessTrack| process.info.facts.as_ref().is_some_and(only_answers);
    clients.count >= MANY_CLIENTS
        && job.gpus.iter().all(|gpu| gpu.baseline.known_utilization() >= Some(LOADED_PERCENT))
        && context.members(job).all(is_api)
}

/// How long the clients of a server must wait while its GPUs rest until it is listed, and until several new clients warn, in
/// seconds: many clients give up after ten minutes.
const UNANSWERED_AFTER: (f64, f64) = (300.0, 720.0);
/// A client that asked longer than this before the GPUs became idle probably does not wait for an answer, in seconds.
const ASKED_LONG_BEFORE: f64 = 600.0;
/// How long clients that asked before the rest must wait until the server warns, in seconds.
const OLD_CLIENTS_WARN_AFTER: f64 = 2400.0;
/// The maximum extra time for a server that was idle before while clients waited, in seconds.
const MOST_PATIENCE: f64 = 3600.0;
/// The CPU cores per process from which a server computes on the CPU. Engines poll on one core.
const AT_WORK_CORES: f64 = 1.5;

/// Whether the kernel tells for a server on one or several hosts that no client waits for an answer.
pub(super) fn does_nobody_wait(context: &RuleContext, job: &JobTrack) -> bool {
    let elsewhere = context.peers.parts(job, context.host.id);
    let elsewhere = elsewhere.flat_map(|part| part.job.members(&part.diagnosis.processes));
    let mut known = context.members(job).chain(elsewhere).filter_map(|process| process.clients.as_deref()).peekable();
    known.peek().is_some() && known.all(|clients| clients.run.is_none())
}

/// The clients that have waited since the GPUs of their server began to spin.
pub(super) fn of_spinning_server<'a>(
    context: &RuleContext<'a>,
    job: &'a JobTrack,
    spinning: Run,
) -> Option<&'a WaitingClients> {
    let spun = context.sample_time.t - spinning.since;
    let waits = |clients: &&WaitingClients| {
        clients.run.is_some()
            && clients.count >= 2
            && clients.longest >= SERVER_AFTER
            && (clients.longest <= spun + SERVER_AFTER || clients.new_since(spinning.since, context.sample_time.t) >= 2)
    };
    context.waiting_clients(job).filter(waits)
}

#[cfg(test)]
mod tests {
    use crate::diagnosis::testing::{RuleTester, TestSample};
    use crate::fleet::fixture::{gpus, process};

    /// A server with this number of waiting clients, of which the first has waited for this long.
    fn server(tester: &mut RuleTester, utilization: u8, watts: f32, memory: u8, clients: (u32, f64)) -> TestSample {
        let mut server = process(7, "python -m vllm.entrypoints.openai.api_server", &[(0, 40)]);
        server.reading.cpu_percent = Some(105.0);
        server.reading.waiting_clients = Some(clients.0);
        server.reading.longest_wait_seconds = (clients.0 > 0).then_some(clients.1);
        TestSample { gpus: vec![tester.gpu(utilization, watts, memory, 40)], processes: vec![server] }
    }

    /// The command of a server to whose events browsers subscribe.
    const COMFY_UI: [&str; 2] = ["python", "/opt/ComfyUI/main.py"];

    /// As [`server`], with this command, at work or at rest.
    fn named(argv: [&str; 2], tester: &mut RuleTester, works: bool, clients: (u32, f64)) -> TestSample {
        let (percent, watts, memory) = if works { (90, 500.0, 40) } else { (0, 122.0, 0) };
        let mut sample = server(tester, percent, watts, memory, clients);
        sample.processes[0].facts.argv = argv.map(Into::into).to_vec();
        sample
    }

    /// The findings after a server worked for half an hour and rested for `seconds`; `clients` wait as of a time.
    fn after_rest(seconds: f64, clients: impl Fn(f64) -> (u32, f64)) -> Vec<(&'static str, &'static str)> {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run(1800.0, |tester, _| server(tester, 90, 500.0, 40, (3, 8.0)));
        tester.run(seconds, |tester, t| server(tester, 0, 122.0, 0, clients(t)));
        tester.firing()
    }

    #[test]
    fn a_resting_server_whose_clients_wait_is_hung() {
        let growing = |t: f64| (2 + (t / 60.0) as u32, t + 8.0);
        assert_eq!(after_rest(200.0, growing), []);
        assert_eq!(after_rest(420.0, growing), [("job-stalled", "info")]);
        assert_eq!(after_rest(840.0, growing), [("job-stalled", "warn")]);
        assert_eq!(after_rest(1900.0, growing), [("job-stalled", "crit")]);
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run(1800.0, |tester, _| server(tester, 90, 500.0, 40, (3, 8.0)));
        tester.run(840.0, |tester, t| server(tester, 0, 122.0, 0, growing(t)));
        assert_eq!(
            tester.finding("job-stalled").sentence.as_str(),
            "vllm.entrypoints.openai.api_server (alice, pid 7) answers nobody: 15 clients wait for up to 14 min, and GPU 0 \
             did nothing for 14 min"
        );
    }

    #[test]
    fn clients_that_give_up_after_a_minute_and_ask_again_show_a_hang() {
        assert_eq!(after_rest(840.0, |t| (4, t % 60.0)), [("job-stalled", "warn")]);
        // They pause before they ask again.
        let pausing = |seconds: f64| move |t: f64| if t % 360.0 < seconds { (0, 0.0) } else { (4, t % 30.0) };
        assert_eq!(after_rest(840.0, pausing(50.0)), [("job-stalled", "warn")]);
        assert_eq!(after_rest(840.0, pausing(260.0)), [], "each wait is short");
    }

    #[test]
    fn a_single_client_warns_later_and_an_old_request_says_nothing() {
        assert_eq!(after_rest(840.0, |t| (1, t - 30.0)), [("job-stalled", "info")]);
        assert_eq!(after_rest(1400.0, |t| (1, t - 30.0)), [("job-stalled", "warn")]);
        assert_eq!(after_rest(1400.0, |t| (1, t + 700.0)), [], "the server worked for others since");
        assert_eq!(after_rest(1400.0, |_| (0, 0.0)), []);
    }

    #[test]
    fn clients_that_all_asked_before_the_rest_warn_late_or_not_at_all() {
        let run = |before: f64, seconds: f64| after_rest(seconds, |t| (3, t + before));
        assert_eq!(run(30.0, 1500.0), [("job-stalled", "info")]);
        assert_eq!(run(30.0, 2600.0), [("job-stalled", "warn")]);
        assert_eq!(run(400.0, 6000.0), [("job-stalled", "info")], "perhaps open browser windows");
        assert_eq!(run(700.0, 3000.0), []);
    }

    #[test]
    fn clients_that_asked_before_the_rest_warn_sooner_if_the_log_stopped_as_well() {
        let run = |seconds: f64, stops: bool| {
            let mut tester = RuleTester::new(gpus(0..1));
            let logging = |mut sample: TestSample, age: f64| {
                sample.processes[0].reading.log_age_seconds = Some(age.trunc());
                sample
            };
            tester.run(1800.0, |tester, t| logging(server(tester, 90, 500.0, 40, (3, 8.0)), t % 20.0));
            tester.run(seconds, |tester, t| {
                logging(server(tester, 0, 122.0, 0, (3, t + 30.0)), if stops { t } else { t % 20.0 })
            });
            tester.firing().into_iter().find(|(rule, _)| *rule == "job-stalled")
        };
        assert_eq!(run(1100.0, true), Some(("job-stalled", "info")));
        assert_eq!(run(1400.0, true), Some(("job-stalled", "warn")));
        assert_eq!(run(1400.0, false), Some(("job-stalled", "info")), "it writes to its log");
    }

    #[test]
    fn a_server_that_computes_on_the_cpu_warns_later() {
        let run = |seconds: f64| {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.run(1800.0, |tester, _| server(tester, 90, 500.0, 40, (3, 8.0)));
            tester.run(seconds, |tester, t| {
                let mut sample = server(tester, 0, 122.0, 0, (3 + (t / 60.0) as u32, t));
                sample.processes[0].reading.cpu_percent = Some(780.0);
                sample
            });
            tester.firing()
        };
        assert_eq!(run(1100.0), [("job-stalled", "info")]);
        assert_eq!(run(1400.0), [("job-stalled", "warn")]);
    }

    #[test]
    fn a_server_that_rested_before_while_clients_waited_gets_more_time() {
        let run = |seconds: f64| {
            let mut tester = RuleTester::new(gpus(0..1));
            for (rest, work) in [(600.0, 900.0), (660.0, 900.0), (seconds, 0.0)] {
                tester.run(rest, |tester, t| server(tester, 0, 122.0, 0, (5, t)));
                tester.run(work, |tester, _| server(tester, 90, 500.0, 40, (2, 8.0)));
            }
            tester.firing()
        };
        assert_eq!(run(900.0), [("job-stalled", "info")]);
        assert_eq!(run(1100.0), [("job-stalled", "warn")]);
    }

    #[test]
    fn a_server_that_was_never_seen_at_work_warns_for_new_clients_only() {
        let run = |clients: &dyn Fn(f64) -> u32| {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.run(1500.0, |tester, t| server(tester, 0, 122.0, 0, (clients(t), t + 7200.0)));
            tester.firing()
        };
        assert_eq!(run(&|_| 5), [("job-stalled", "info")]);
        assert_eq!(run(&|t| 3 + u32::from(t % 300.0 < 150.0)), [("job-stalled", "warn")]);
    }

    #[test]
    fn new_tabs_beside_open_subscriptions_warn_only_if_they_wait_long() {
        let run = |seconds: f64| {
            let mut tester = RuleTester::new(gpus(0..1));
            // Four tabs are opened one after the other while somebody makes pictures; two more come an hour after the last one.
            tester.run(1800.0, |tester, t| named(COMFY_UI, tester, true, (((t / 300.0) as u32).min(4), t)));
            tester.run(3600.0, |tester, t| named(COMFY_UI, tester, false, (4, t + 1500.0)));
            tester.run(seconds, |tester, t| named(COMFY_UI, tester, false, (6, t + 5100.0)));
            tester.firing().iter().any(|(rule, severity)| *rule == "job-stalled" && *severity != "info")
        };
        assert_eq!((run(600.0), run(900.0)), (false, true));
    }

    #[test]
    fn many_clients_of_a_server_that_only_answers_requests_wait_however_long_ago_they_asked() {
        let fired = |argv: [&str; 2], count: u32| {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.run(1800.0, |tester, t| named(argv, tester, true, (count, t + 3600.0)));
            tester.run(1500.0, |tester, t| named(argv, tester, false, (count, t + 5400.0)));
            tester.firing().contains(&("job-stalled", "warn"))
        };
        assert!(fired(["vllm", "serve"], 30));
        assert!(!fired(["vllm", "serve"], 2), "two may have given up");
        assert!(!fired(COMFY_UI, 30), "tabs of browsers");
    }

    #[test]
    fn clients_that_keep_coming_while_nobody_gets_an_answer_warn_beside_an_old_connection() {
        let fired = |falls: bool| {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.run(1800.0, |tester, t| named(COMFY_UI, tester, true, (3, t + 3600.0)));
            tester.run(1500.0, |tester, t| {
                let minute = (t / 60.0) as u32;
                let count = if falls { 3 + minute % 3 } else { 3 + minute };
                named(COMFY_UI, tester, false, (count, t + 5400.0))
            });
            tester.firing().contains(&("job-stalled", "warn"))
        };
        assert_eq!((fired(false), fired(true)), (true, false));
    }

    #[test]
    fn the_scheduler_of_a_worker_does_not_wait_for_an_answer() {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run(3000.0, |tester, t| {
            let mut sample = server(tester, 0, 122.0, 0, (2, t));
            sample.processes[0].facts.argv =
                ["dask", "cuda", "worker", "tcp://127.0.0.1:8786"].map(Into::into).to_vec();
            sample.processes[0].facts.listening_ports = vec![34_411];
            sample
        });
        assert_eq!(tester.fired(), []);
    }

    #[test]
    fn a_server_beside_another_job_hangs_by_the_readings_of_its_own_process() {
        let mut tester = RuleTester::new(gpus(0..1));
        let beside = |tester: &mut RuleTester, t: f64, works: bool| {
            let mut sample = server(tester, 98, 500.0, 40, if works { (3, 8.0) } else { (3 + (t / 60.0) as u32, t) });
            let own = &mut sample.processes[0];
            own.reading.cpu_percent = Some(if works { 85.0 } else { 1.0 });
            own.gpus[0].sm_percent = Some(if works { 22 } else { 0 });
            let mut other = process(8, "python train_seg.py", &[(0, 12)]);
            other.gpus[0].sm_percent = Some(75);
            sample.processes.push(other);
            sample
        };
        tester.run(1800.0, |tester, t| beside(tester, t, true));
        assert_eq!(tester.firing().iter().filter(|(rule, _)| *rule == "job-stalled").count(), 0);
        tester.run(900.0, |tester, t| beside(tester, t, false));
        assert!(tester.firing().contains(&("job-stalled", "warn")), "{:?}", tester.firing());
    }

    #[test]
    fn a_server_that_spins_while_the_kernel_tells_that_nobody_waits_is_a_note() {
        let fired = |clients: Option<u32>| {
            let mut tester = RuleTester::new(gpus(0..2));
            let sample = |tester: &mut RuleTester, utilization: u8, watts: f32, memory: u8, clients: Option<u32>| {
                let mut sample = server(tester, utilization, watts, memory, (0, 0.0));
                sample.processes[0] = process(7, "python -m sglang.launch_server --tp 2", &[(0, 40), (1, 40)]);
                sample.processes[0].reading.cpu_percent = Some(101.0);
                sample.processes[0].reading.waiting_clients = clients;
                sample.gpus.push(tester.gpu(utilization, watts, memory, 40));
                sample
            };
            tester.run(1800.0, |tester, _| sample(tester, 100, 390.0, 30, clients.map(|_| 5)));
            tester.run(1500.0, |tester, _| sample(tester, 100, 124.0, 0, clients));
            tester.fired().contains(&("stuck-spin-suspect", "warn"))
        };
        assert!(fired(None), "unknown");
        assert!(!fired(Some(0)));
    }

    #[test]
    fn a_server_on_a_mig_instance_whose_clients_wait_is_hung() {
        let mut infos = gpus(0..1);
        infos[0].mig_parent_uuid = Some("GPU-parent".into());
        let mut tester = RuleTester::new(infos);
        let blind = |tester: &mut RuleTester, clients: (u32, f64), cpu: f32| {
            let mut sample = server(tester, 0, 400.0, 0, clients);
            sample.gpus[0].utilization_percent = None;
            sample.gpus[0].memory_utilization_percent = None;
            sample.processes[0].gpus[0].sm_percent = None;
            sample.processes[0].reading.cpu_percent = Some(cpu);
            sample
        };
        tester.run(1800.0, |tester, _| blind(tester, (3, 8.0), 118.0));
        tester.run(900.0, |tester, t| blind(tester, (3 + (t / 60.0) as u32, t), 1.0));
        assert!(tester.firing().contains(&("job-stalled", "warn")), "{:?}", tester.firing());
        // An engine that polls hides its rest.
        let polls = |waits_from: f64| {
            let mut infos = gpus(0..1);
            infos[0].mig_parent_uuid = Some("GPU-parent".into());
            let mut tester = RuleTester::new(infos);
            tester.run(waits_from, |tester, _| blind(tester, (0, 0.0), 30.0));
            tester.run(1800.0, |tester, t| blind(tester, (1 + (t / 400.0) as u32, t), 100.0));
            tester.firing().contains(&("job-stalled", "warn"))
        };
        assert!(polls(1800.0));
        assert!(!polls(60.0), "they may be subscriptions");
    }

    #[test]
    fn a_server_that_spins_while_clients_wait_is_hung() {
        let run = |clients: u32| {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.run(1800.0, |tester, _| server(tester, 90, 500.0, 40, (3, 8.0)));
            tester.run(1500.0, |tester, t| server(tester, 100, 124.0, 0, (clients, t)));
            (tester.firing(), tester.finding("stuck-spin-suspect").sentence.to_string())
        };
        let (firing, sentence) = run(4);
        assert_eq!(firing, [("stuck-spin-suspect", "warn")]);
        assert!(sentence.ends_with("looks hung: 4 clients wait, for up to 25 min"), "{sentence}");
        let (_, alone) = run(1);
        assert!(!alone.contains("client"), "{alone}");
    }

    #[test]
    fn a_server_whose_threads_spin_at_the_power_of_its_work_is_hung_if_clients_wait() {
        let run_with = |memory: u8, clients: u32, waited: f64| {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.run(1800.0, |tester, _| server(tester, 31, 300.0, memory, (3, 8.0)));
            tester.run(1200.0, |tester, t| server(tester, 100, 290.0, 0, (clients, waited + t)));
            tester.fired().contains(&("stuck-spin-suspect", "warn"))
        };
        let run = |memory: u8, clients: u32| run_with(memory, clients, 0.0);
        assert_eq!([run(9, 4), run(9, 1), run(0, 4)], [true, false, false], "one may subscribe to events");
        assert!(!run_with(9, 2, 4000.0), "so may two");
    }
}
