//! Servers whose clients wait for answers: they hang, whether their GPUs rest (job-stalled) or spin (stuck-spin-suspect).
//!
//! A server that rests without clients waits for requests. The kernel tells for each connection when data came in and went
//! out last, so the probe knows which clients wait and for how long.

use super::job::SINGLE_WARN_AFTER;
use super::stuck::SERVER_AFTER;
use crate::diagnosis::condition::{Escalation, Evaluation, Run};
use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::finding::FindingTarget;
use crate::diagnosis::rule_context::{RuleContext, duration};
use crate::diagnosis::track::{JobTrack, WaitingClients};
use crate::diagnosis::{Confidence, RuleId, Severity};

/// A server whose clients wait for answers while its GPUs rest. Returns whether that holds for the job.
pub(super) fn unanswered(
    context: &RuleContext,
    conditions: &mut Conditions,
    job: &JobTrack,
    target: &FindingTarget,
) -> bool {
    let t = context.sample_time.t;
    let (true, Some(clients), Some(rest)) = (
        !job.is_notebook && !job.is_debugged && (job.is_server || job.served_port.is_some()),
        context.waiting_clients(job),
        context.rest_of_all_gpus(job),
    ) else {
        return false;
    };
    // A request that came long before the last work belongs to a connection on which nothing is answered: a client that
    // subscribed, or one that was forgotten. gpufleet may not have seen the last work.
    let (is_single, is_unseen) = (clients.count == 1, rest.since - job.first_seen < 60.0);
    let slack = if is_single { SINGLE_CLIENT_SLACK } else { CLIENTS_SLACK };
    if !is_unseen && clients.longest > t - rest.since + slack {
        return false;
    }
    let limits = &context.limits.job_stalled;
    // A server that reads or writes may load a model, or search for what the request needs.
    let is_at_work = context.members(job).any(|process| process.last_io_at.is_some_and(|at| t - at <= 120.0));
    let escalation = match (is_single, is_at_work) {
        (false, false) => Escalation::three(
            (Severity::Info, UNANSWERED_AFTER.0),
            (Severity::Warn, UNANSWERED_AFTER.1),
            (Severity::Crit, limits.crit_after),
        ),
        (true, _) if is_unseen => Escalation::one(Severity::Info, UNANSWERED_AFTER.0),
        _ => Escalation::two((Severity::Info, UNANSWERED_AFTER.0), (Severity::Warn, SINGLE_WARN_AFTER)),
    };
    let since = rest.since.max(clients.run.since);
    let run = Run { since, covered: rest.covered.min(clients.run.covered).min(t - since) };
    let evaluation = Evaluation::new(escalation, Confidence::Likely, 60.0).since(run);
    conditions.met(RuleId::JobStalled, target, evaluation, |lasted, _| {
        let (who, wait) = (if is_single { "client waits" } else { "clients wait" }, duration(clients.longest));
        let sentence = format!(
            "{} answers nobody: {} {who} for up to {wait}, and {} did nothing for {}",
            context.format_job(job),
            clients.count,
            context.format_gpus(job.positions()),
            duration(lasted),
        );
        let figures = format!("{} {who}", clients.count);
        context.job_details(job, sentence, context.examine(context.first_pid(job))).with_figures(figures)
    });
    true
}

/// How long the clients of a server must wait while its GPUs rest until it is listed, and until several clients warn, in seconds:
/// many clients give up after ten minutes.
const UNANSWERED_AFTER: (f64, f64) = (300.0, 720.0);
/// How much longer a client may have waited than the GPUs rest, in seconds: one client alone, and several.
const SINGLE_CLIENT_SLACK: f64 = 600.0;
const CLIENTS_SLACK: f64 = 3600.0;

/// The clients that have waited since the GPUs of their server began to spin.
pub(super) fn of_spinning_server<'a>(
    context: &RuleContext<'a>,
    job: &'a JobTrack,
    spinning: Run,
) -> Option<&'a WaitingClients> {
    let spun = context.sample_time.t - spinning.since;
    let waits = |clients: &&WaitingClients| {
        clients.count >= 2 && clients.longest >= SERVER_AFTER && clients.longest <= spun + SERVER_AFTER
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
            "vllm.entrypoints.openai.api_server (alice, pid 7) answers nobody: 15 clients wait for up to 13 min, and GPU 0 \
             did nothing for 13 min"
        );
    }

    #[test]
    fn clients_that_give_up_after_a_minute_and_ask_again_show_a_hang() {
        assert_eq!(after_rest(840.0, |t| (4, t % 60.0)), [("job-stalled", "warn")]);
        // One sample without a waiting client: somebody got an answer.
        let answered = |t: f64| if (400.0..410.0).contains(&t) { (0, 0.0) } else { (4, t % 60.0) };
        assert_eq!(after_rest(840.0, answered), [("job-stalled", "info")]);
    }

    #[test]
    fn a_single_client_warns_later_and_an_old_request_says_nothing() {
        assert_eq!(after_rest(840.0, |t| (1, t + 8.0)), [("job-stalled", "info")]);
        assert_eq!(after_rest(1400.0, |t| (1, t + 8.0)), [("job-stalled", "warn")]);
        assert_eq!(after_rest(1400.0, |t| (1, t + 700.0)), [], "the server worked for others since");
        assert_eq!(after_rest(1400.0, |_| (0, 0.0)), []);
    }

    #[test]
    fn a_server_that_was_never_seen_at_work_warns_for_several_clients_only() {
        let run = |clients: u32| {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.run(1500.0, |tester, t| server(tester, 0, 122.0, 0, (clients, t + 7200.0)));
            tester.firing()
        };
        assert_eq!(run(1), [("job-stalled", "info")]);
        assert_eq!(run(5), [("job-stalled", "warn")]);
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
        assert!(sentence.ends_with("looks hung: 4 clients wait, for up to 24 min"), "{sentence}");
        let (_, alone) = run(1);
        assert!(!alone.contains("client"), "{alone}");
    }
}
