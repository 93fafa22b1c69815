//! Tests of the requests that an investigation sends and of the readings that it makes of the replies.

use super::RasQueries::{AcceptRisk, AsConfigured};
use super::*;
use crate::config::{HostConfig, Thresholds};
use crate::diagnosis::{FindingProcess, RuleId};
use crate::fleet::fixture::{TestProcess, at, fleet, process};
use crate::wire::{Owner, Peer, ProcessExamination, RasReport, StackDump};
use std::sync::Arc;

/// A rank of a Slurm job on one GPU, of user 1000.
fn rank(pid: u32, gpu: u16, job: &str) -> TestProcess {
    let mut rank = process(pid, "python train.py", &[(gpu, 40)]);
    rank.facts.owner = Some(Owner::Slurm { job: job.into(), step: None });
    rank
}

fn engine() -> Engine {
    Engine::new(Arc::new(Thresholds::default()))
}

fn investigation(fleet: &Fleet, ras_queries: RasQueries) -> Investigation {
    let job = fleet.hosts()[0].processes().next().expect("a process").info.job.clone();
    Investigation::new(fleet, HostId(0), &job, ras_queries, 1)
}

/// The host, the pid and the parts of a request, `log` for a log tail.
fn described(request: &(HostId, Request)) -> (u32, u32, Vec<ExaminationPart>) {
    match &request.1 {
        Request::Examine { pid, parts, .. } => (request.0.0, *pid, parts.clone()),
        Request::LogTail { pid, .. } => (request.0.0, *pid, Vec::new()),
        other => panic!("{other:?}"),
    }
}

/// The reply that has read all parts, with a report of NCCL RAS if `has_ras`.
fn reply(request: &Request, has_ras: bool) -> Reply {
    let id = request.reply_id().expect("has a reply");
    let outcome = match request {
        Request::Examine { parts, .. } => {
            let has = |part| parts.contains(&part);
            let mut examination = Examination {
                process: has(ExaminationPart::Process).then(Box::<ProcessExamination>::default),
                stacks: has(ExaminationPart::Stacks).then(Box::<StackDump>::default),
                ..Examination::default()
            };
            if has(ExaminationPart::Ras) && has_ras {
                examination.ras = Some(Box::<RasReport>::default());
            }
            ReplyOutcome::Examined(Box::new(examination))
        }
        _ => ReplyOutcome::LogTail { path: "/home/alice/out.log".into(), lines: vec!["step 4".into()] },
    };
    Reply { id, outcome }
}

use ExaminationPart::{FlightRecorder, Links, Process as ProcessPart, Ras, Stacks};

#[test]
fn every_rank_is_examined_and_the_ports_of_a_host_once() {
    let fleet = fleet(vec![vec![rank(7, 0, "3385"), rank(8, 1, "3385"), rank(9, 2, "1")], vec![rank(7, 0, "3385")]]);
    let mut investigation = investigation(&fleet, AcceptRisk);
    let sent = investigation.requests_due(&fleet, &engine(), at(2.0));
    let mut sent: Vec<_> = sent.iter().map(described).collect();
    sent.sort_by_key(|(host, pid, parts)| (*host, *pid, parts.len()));
    let whole = vec![ProcessPart, Stacks, FlightRecorder, Links];
    assert_eq!(
        sent,
        [
            (0, 7, Vec::new()),
            (0, 7, whole.clone()),
            (0, 8, Vec::new()),
            (0, 8, vec![ProcessPart, Stacks, FlightRecorder]),
            (1, 7, Vec::new()),
            (1, 7, whole),
        ],
        "the query of NCCL RAS waits for one of the four requests at a time"
    );
    assert_eq!(investigation.extent_text(), "3 processes on 2 hosts");
}

#[test]
fn a_second_round_follows_a_minute_later() {
    let fleet = fleet(vec![vec![rank(7, 0, "3385")]]);
    let mut investigation = investigation(&fleet, AcceptRisk);
    assert_eq!(investigation.progress(), Progress::FirstReading);
    let first = investigation.requests_due(&fleet, &engine(), at(2.0));
    assert_eq!(first.iter().map(described).collect::<Vec<_>>().len(), 3);
    assert!(matches!(&first[2].1, Request::Examine { parts, accept_ras_risk: true, .. } if *parts == [Ras]));
    for (_, request) in &first {
        assert!(investigation.take_reply(reply(request, true), &fleet, at(3.0)));
        assert!(!investigation.take_reply(reply(request, true), &fleet, at(3.0)), "only once");
    }
    assert_eq!(investigation.progress(), Progress::WaitsUntil(at(63.0)), "a minute after the last reply");
    assert!(investigation.requests_due(&fleet, &engine(), at(62.9)).is_empty());
    let second = investigation.requests_due(&fleet, &engine(), at(63.0));
    assert_eq!((second.len(), investigation.progress()), (3, Progress::SecondReading));
    for (_, request) in &second {
        investigation.take_reply(reply(request, true), &fleet, at(64.0));
    }
    assert_eq!(investigation.progress(), Progress::Complete);
    let evidence = investigation.evidence(&fleet, &engine(), None, at(64.0));
    let rank = &evidence.ranks[0];
    let has_all = |reading: &RankReading| {
        let examination = &reading.examination;
        examination.process.is_some() && examination.stacks.is_some() && examination.ras.is_some()
    };
    assert!(rank.readings.len() == 2 && rank.readings.iter().all(has_all));
    assert_eq!(rank.log.as_ref().map(|log| log.lines.len()), Some(1));
    assert_eq!(evidence.name, "Slurm job 3385");
    let third = investigation.requests_due(&fleet, &engine(), at(64.0 + 600.0));
    assert_eq!(third.len(), 3, "the report stays open");
}

#[test]
fn ras_is_not_queried_for_a_job_that_was_not_seen_at_work() {
    let fleet = fleet(vec![vec![rank(7, 0, "3385")]]);
    let mut investigation = investigation(&fleet, AsConfigured);
    let sent = investigation.requests_due(&fleet, &engine(), at(2.0));
    assert!(sent.iter().map(described).all(|(_, _, parts)| !parts.contains(&Ras)));
    let evidence = investigation.evidence(&fleet, &engine(), None, at(3.0));
    let refusal = &evidence.ranks[0].readings[0].examination.refused[0];
    assert_eq!(
        (refusal.part, refusal.is_risk, refusal.reason.as_str(), refusal.remedy.as_str()),
        (
            Ras,
            true,
            "this gpufleet has not seen the job at work; while a job starts, a query may crash it (NCCL issue 2346)",
            "if the job has worked before: gpufleet why hgx-00:7 --ask-ras"
        )
    );
}

#[test]
fn hosts_toml_leaves_the_query_of_ras_to_the_user_or_forbids_it() {
    let refusal = |rule: RasRule, ras_queries| {
        let mut fleet = fleet(vec![vec![rank(7, 0, "3385")]]);
        let config = HostConfig { ras: rule, ..(*fleet.hosts()[0].config).clone() };
        fleet.rearrange(&[Arc::new(config)], at(1.0));
        let mut investigation = investigation(&fleet, ras_queries);
        let sent = investigation.requests_due(&fleet, &engine(), at(2.0));
        let is_sent = sent.iter().map(described).any(|(_, _, parts)| parts.contains(&Ras));
        let evidence = investigation.evidence(&fleet, &engine(), None, at(3.0));
        let refused = evidence.ranks[0].readings.first().and_then(|reading| reading.examination.refused.first());
        assert_eq!(is_sent, refused.is_none());
        refused.map(|one| (one.is_risk, one.reason.to_string(), one.remedy.to_string()))
    };
    let text = |is_risk: bool, reason: &str, remedy: &str| Some((is_risk, reason.to_owned(), remedy.to_owned()));
    assert_eq!(
        refusal(RasRule::Ask, AsConfigured),
        text(
            true,
            "ras = \"ask\" in hosts.toml leaves the query to you",
            "to accept the risk that a query crashes the job: gpufleet why hgx-00:7 --ask-ras"
        )
    );
    assert_eq!(refusal(RasRule::Ask, AcceptRisk), None);
    assert_eq!(
        refusal(RasRule::Never, AcceptRisk),
        text(
            false,
            "ras = \"never\" in hosts.toml forbids the query",
            "change it if no job of this host has an NCCL that a query may crash"
        )
    );
}

#[test]
fn ras_is_tried_on_another_host_after_a_refusal_of_one() {
    let fleet = fleet(vec![vec![rank(7, 0, "3385")], vec![rank(8, 0, "3385")]]);
    let mut investigation = investigation(&fleet, AcceptRisk);
    let sent = investigation.requests_due(&fleet, &engine(), at(2.0));
    let of_ras = |sent: &[(HostId, Request)]| {
        sent.iter().filter(|one| described(one).2.contains(&Ras)).map(|one| one.0.0).collect::<Vec<_>>()
    };
    assert_eq!(of_ras(&sent), [0]);
    for (_, request) in &sent {
        investigation.take_reply(reply(request, false), &fleet, at(3.0));
    }
    let sent = investigation.requests_due(&fleet, &engine(), at(3.0));
    assert_eq!(of_ras(&sent), [1]);
    for (_, request) in &sent {
        investigation.take_reply(reply(request, true), &fleet, at(4.0));
    }
    let sent = investigation.requests_due(&fleet, &engine(), at(64.0));
    assert_eq!(of_ras(&sent), [1], "the one that answered is queried again");
}

#[test]
fn a_request_without_a_reply_fails() {
    let fleet = fleet(vec![vec![rank(7, 0, "3385")]]);
    let mut investigation = investigation(&fleet, AsConfigured);
    let sent = investigation.requests_due(&fleet, &engine(), at(2.0));
    investigation.requests_due(&fleet, &engine(), at(31.9));
    assert_eq!(investigation.progress(), Progress::FirstReading);
    investigation.requests_due(&fleet, &engine(), at(32.0));
    assert_eq!(investigation.progress(), Progress::WaitsUntil(at(92.0)));
    assert!(!investigation.take_reply(reply(&sent[0].1, false), &fleet, at(33.0)), "too late");
    let evidence = investigation.evidence(&fleet, &engine(), None, at(33.0));
    let refused = &evidence.ranks[0].readings[0].examination.refused;
    let late: Vec<_> = refused.iter().filter(|one| one.reason.as_str() == "no reply came within 30 s").collect();
    assert_eq!(late.iter().map(|one| one.part).collect::<Vec<_>>(), [ProcessPart, Stacks, FlightRecorder, Links]);
}

#[test]
fn processes_of_others_are_not_examined() {
    let mut others = rank(8, 1, "3385");
    (others.facts.uid, others.facts.user) = (Some(1777), Some("bob".into()));
    let fleet = fleet(vec![vec![rank(7, 0, "3385")], vec![others]]);
    let job = fleet.hosts()[1].processes().next().expect("a process").info.job.clone();
    let mut investigation = Investigation::new(&fleet, HostId(1), &job, AcceptRisk, 1);
    assert!(!investigation.has_own_ranks());
    assert!(investigation.requests_due(&fleet, &engine(), at(2.0)).is_empty());
    assert_eq!(investigation.progress(), Progress::Complete);
}

/// The hosts whose ranks count as those of one job, if `change` changes what is read of the process on each host. The first
/// listens on port 23456.
fn joined_hosts(change: impl Fn(u32, &mut ProcessExamination)) -> Vec<u32> {
    joined_hosts_with(|_| None, change)
}

/// Like [`joined_hosts`], with an owner of each process.
fn joined_hosts_with(owner: impl Fn(u32) -> Option<Owner>, change: impl Fn(u32, &mut ProcessExamination)) -> Vec<u32> {
    let started = |pid: u32, at: i64| {
        let mut rank = process(pid, "python train.py --lr 1", &[(0, 40)]);
        rank.facts.start_unix_seconds = Some(1_700_000_000 + at);
        rank.facts.listening_ports = if pid == 7 { vec![23456] } else { Vec::new() };
        rank.facts.owner = owner(pid);
        rank
    };
    let fleet = fleet(vec![vec![started(7, 0)], vec![started(8, 5)], vec![started(9, 6)]]);
    let mut investigation = investigation(&fleet, AsConfigured);
    let sent = investigation.requests_due(&fleet, &engine(), at(2.0));
    for (host, request) in &sent {
        let mut reply = reply(request, false);
        if let ReplyOutcome::Examined(examination) = &mut reply.outcome {
            change(host.0, examination.process.as_mut().expect("was requested"));
        }
        investigation.take_reply(reply, &fleet, at(3.0));
    }
    let evidence = investigation.evidence(&fleet, &engine(), None, at(3.0));
    let joined: Vec<u32> = evidence.ranks.iter().map(|rank| rank.host.0).collect();
    for host in fleet.hosts() {
        let process = host.processes().next().expect("a process");
        let mut finding = Finding::blank(RuleId::StuckSpin, host.id, at(3.0));
        let (key, command) = (process.key.clone(), "python".into());
        finding.processes = vec![FindingProcess { host: host.id, key, command }];
        assert_eq!(investigation.is_about(&finding), joined.contains(&host.id.0), "a finding about another job");
        assert_eq!(investigation.has_part(&fleet, host.id, &process.info.job), joined.contains(&host.id.0));
    }
    joined
}

#[test]
fn a_likely_part_counts_if_it_meets_the_others() {
    let by_environment = joined_hosts(|host, process| {
        let port = if host == 2 { 29600 } else { 29500 };
        process.variables = vec!["MASTER_ADDR=10.0.0.1".into(), format!("MASTER_PORT={port}").into()];
    });
    assert_eq!(by_environment, [0, 1], "the third is another job");
    let connect = |addresses: [&'static str; 3], port: u16| {
        joined_hosts(|host, process| {
            process.peers = vec![Peer { address: addresses[host as usize].into(), port, count: 1 }];
        })
    };
    assert_eq!(connect(["10.0.0.1", "10.0.0.1", "10.0.0.3"], 23456), [0, 1], "a store of the first rank");
    assert_eq!(connect(["10.0.0.9"; 3], 6379), [0], "another server that all use, such as Redis");
    assert_eq!(connect(["127.0.0.1"; 3], 23456), [0], "each has its own");
}

#[test]
fn containers_without_a_launcher_count_if_they_meet() {
    let pod = |pid: u32| Some(Owner::Pod { uid: format!("{pid:x}f1c").into(), container: None });
    let with_master = |address: [&'static str; 3]| {
        joined_hosts_with(pod, |host, process| {
            let address = address[host as usize];
            process.variables = vec![format!("MASTER_ADDR={address}").into(), "MASTER_PORT=23456".into()];
        })
    };
    assert_eq!(with_master(["train-master-0", "train-master-0", "other-master-0"]), [0, 1], "a PyTorchJob of two pods");
    assert_eq!(joined_hosts_with(pod, |_, _| {}), [0], "replicas of a server");
}
