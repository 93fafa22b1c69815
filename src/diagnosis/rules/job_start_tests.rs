use super::tests::{eight_ranks, idles};
use crate::config::Thresholds;
use crate::diagnosis::testing::{RuleTester, TestSample, fill_memory};
use crate::fleet::fixture::{TestProcess, gpus, process};
use crate::wire::{Ancestor, Owner, SafeText, Snapshot};

#[test]
fn ranks_that_wait_for_each_other_from_the_start_are_reported() {
    let run = |cores: f32| {
        let mut tester = RuleTester::new(gpus(0..8));
        tester.interval = 30.0;
        tester.run_edited(
            2400.0,
            |tester, _| eight_ranks(tester, 0, cores),
            |snapshot, t| snapshot.processes.age_seconds = vec![Some(t + 60.0); 8],
        );
        tester.firing()
    };
    assert_eq!(run(0.004), [("rendezvous-stuck", "warn")]);
    assert_eq!(run(1.0), [("rendezvous-stuck", "info")], "they wait in a loop, or compile");
    assert_eq!(run(1.6), [], "they load data");
}

#[test]
fn ranks_whose_gpu_memory_grows_load_something() {
    let fired = |mib_a_minute: f64| {
        let mut tester = RuleTester::new(gpus(0..8));
        tester.interval = 30.0;
        tester.run_edited(
            2400.0,
            |tester, passed| {
                let mut sample = eight_ranks(tester, 0, 0.004);
                let bytes = (2 << 30) + ((mib_a_minute * passed / 60.0) as u64) * (1 << 20);
                sample.processes.iter_mut().for_each(|rank| rank.gpus[0].gpu_memory_bytes = Some(bytes));
                sample
            },
            |snapshot, t| snapshot.processes.age_seconds = vec![Some(t + 60.0); 8],
        );
        tester.fired()
    };
    assert_eq!(fired(570.0), []);
    assert!(fired(0.0).contains(&("rendezvous-stuck", "warn")), "{:?}", fired(0.0));
}

/// The findings about eight ranks that have waited in a loop for 40 min since their start. `edit` changes each snapshot.
fn ranks_in_a_loop(edit: impl Fn(&mut Snapshot, f64)) -> Vec<(&'static str, &'static str)> {
    let mut tester = RuleTester::new(gpus(0..8));
    tester.interval = 30.0;
    tester.run_edited(
        2400.0,
        |tester, _| eight_ranks(tester, 0, 1.0),
        |snapshot, t| {
            snapshot.processes.age_seconds = vec![Some(t + 60.0); 8];
            snapshot.processes.read_characters = vec![Some(7 << 30); 8];
            edit(snapshot, t);
        },
    );
    tester.firing()
}

#[test]
fn ranks_that_wait_in_a_loop_warn_if_nothing_is_read_or_written() {
    assert_eq!(ranks_in_a_loop(|_, _| {}), [("rendezvous-stuck", "warn")]);
    let read = |snapshot: &mut Snapshot, t: f64| snapshot.processes.read_characters = vec![Some((t * 5e6) as u64); 8];
    assert_eq!(ranks_in_a_loop(read), [], "they read");
}

#[test]
fn ranks_that_wait_in_a_loop_while_the_memory_of_the_host_fills_are_listed_only() {
    let run = |gb_a_minute: f64| ranks_in_a_loop(|snapshot, t| fill_memory(snapshot, t, gb_a_minute));
    assert_eq!(run(0.0), [("rendezvous-stuck", "warn")]);
    assert_eq!(run(12.0), [("rendezvous-stuck", "info")], "another process loads the data");
}

#[test]
fn a_single_rank_that_was_started_for_several_hosts_waits_for_the_others() {
    let run = |options: &str| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 30.0;
        let argv: Vec<SafeText> = format!("torchrun {options} train.py").split(' ').map(SafeText::new).collect();
        tester.run_edited(
            2400.0,
            |tester, _| {
                let mut rank = process(4312, "python train.py", &[(0, 1)]);
                let torchrun = Ancestor { pid: 4300, uid: Some(1000), name: "torchrun".into(), ..Ancestor::default() };
                rank.facts.ancestors = vec![Ancestor { argv: argv.clone(), ..torchrun }];
                rank.reading.cpu_percent = Some(0.4);
                TestSample { gpus: vec![tester.gpu(0, 110.0, 0, 1)], processes: vec![rank] }
            },
            |snapshot, t| snapshot.processes.age_seconds = vec![Some(t + 60.0)],
        );
        tester.firing()
    };
    assert_eq!(run("--nnodes=2 --node_rank 1"), [("rendezvous-stuck", "warn")]);
    assert_eq!(run("--nnodes 2:4"), [("rendezvous-stuck", "warn")]);
    assert_eq!(run("--nnodes=1"), []);
}

#[test]
fn a_batch_on_a_mig_instance_that_stops_while_it_starts_warns_after_40_minutes() {
    let fired = |command: &str| {
        let mut infos = gpus(0..1);
        infos[0].mig_parent_uuid = Some("GPU-parent".into());
        let mut tester = RuleTester::new(infos);
        tester.interval = 5.0;
        tester.run(3000.0, |tester, passed| {
            let mut sample = idles(tester, command, 0.006);
            sample.gpus[0].utilization_percent = None;
            let process = &mut sample.processes[0];
            process.gpus[0].sm_percent = None;
            process.facts.log_path = Some("/home/alice/batch.log".into());
            process.reading.read_characters = Some(7 << 30);
            process.reading.log_age_seconds =
                Some(if passed < 120.0 { (passed % 10.0).trunc() } else { passed - 120.0 });
            sample
        });
        tester.fired().contains(&("job-stalled", "warn"))
    };
    assert!(fired("vllm run-batch -i batch.jsonl"));
    assert!(!fired("vllm serve qwen"), "it waits for requests");
}

/// Whether ranks below `launcher` wait for each other that rest from their start, each with this much memory; `port` is open.
fn starts(command: &str, launcher: &str, gib: u64, ranks: u16, port: Option<u16>) -> Vec<(&'static str, &'static str)> {
    let mut tester = RuleTester::new(gpus(0..4));
    let all = |tester: &mut RuleTester, _: f64| {
        let rank = |gpu: u16| {
            let mut rank = process(7 + u32::from(gpu), command, &[(gpu, gib)]);
            let argv = [launcher].map(SafeText::new).to_vec();
            let name = SafeText::new(launcher.rsplit('/').next().unwrap_or_default());
            rank.facts.ancestors = vec![Ancestor { pid: 3, uid: Some(1000), name, argv, ..Ancestor::default() }];
            rank.facts.listening_ports = port.into_iter().collect();
            rank
        };
        TestSample {
            gpus: (0..4).map(|_| tester.gpu(0, 68.0, 0, gib)).collect(),
            processes: (0..ranks).map(rank).collect(),
        }
    };
    tester.run_edited(1800.0, all, |snapshot, passed| {
        snapshot.processes.age_seconds = vec![Some(passed); usize::from(ranks)];
        snapshot.processes.cpu_percent = vec![Some(0.7); usize::from(ranks)];
        snapshot.processes.read_characters = vec![Some(7 << 30); usize::from(ranks)];
    });
    tester.firing().into_iter().filter(|(rule, _)| *rule == "rendezvous-stuck").collect()
}

#[test]
fn shards_of_a_server_that_hold_nothing_but_contexts_wait_for_a_missing_one() {
    let tgi = |gib, ranks| {
        starts("text-generation-server serve falcon --sharded", "text-generation-launcher", gib, ranks, None)
    };
    assert_eq!(tgi(1, 3), [("rendezvous-stuck", "warn")]);
    assert_eq!(tgi(30, 3), [], "they have loaded their shares, and the router may wait for requests");
    assert_eq!(tgi(1, 1), [], "a server that loads its model with the first request");
    let trtllm = |port| starts("python /usr/bin/trtllm-serve /engines/mixtral --tp_size 4", "mpirun", 24, 4, port);
    assert_eq!(trtllm(None), [("rendezvous-stuck", "warn")], "it never opens its port");
    assert_eq!(trtllm(Some(8000)), [], "it waits for requests");
}

#[test]
fn workers_of_ray_in_a_task_that_hold_nothing_but_a_context_wait_for_each_other() {
    let run = |title: &str| starts(title, "/opt/ray/raylet", 1, 2, None);
    assert_eq!(run("ray::_RayTrainWorker__execute"), [("rendezvous-stuck", "warn")]);
    assert_eq!(run("ray::TrainWorker"), []);
}

#[test]
fn ranks_that_wait_while_a_rank_on_another_host_reads_are_fed() {
    let run = |reads: bool| {
        let mut tester = RuleTester::of(vec![gpus(0..2), gpus(0..2)], Thresholds::default());
        let torchrun: Vec<SafeText> =
            ["torchrun", "--nnodes", "2", "--rdzv-endpoint", "a:29500", "train.py"].map(SafeText::new).to_vec();
        for step in 0..180_u32 {
            for id in 0..2 {
                let mut ranks: Vec<TestProcess> =
                    (0..2_u16).map(|gpu| process(40 + u32::from(gpu), "python train.py", &[(gpu, 1)])).collect();
                for rank in &mut ranks {
                    let (name, argv) = ("torchrun".into(), torchrun.clone());
                    rank.facts.ancestors = vec![Ancestor { pid: 30, start_ticks: 9, uid: Some(1000), name, argv }];
                    rank.facts.start_unix_seconds = Some(1_700_000_000);
                    rank.reading.cpu_percent = Some(1.0);
                    rank.reading.read_characters = Some(7 << 30);
                }
                if reads && id == 1 {
                    ranks[0].reading.read_characters = Some((7 << 30) + (u64::from(step) << 30));
                }
                let gpus = (0..2).map(|_| tester.gpu(0, 68.0, 0, 1)).collect();
                tester.send(id, &TestSample { gpus, processes: ranks }, |snapshot| {
                    snapshot.processes.age_seconds = vec![Some(10.0 * f64::from(step) + 60.0); 2];
                });
            }
            tester.wait(10.0);
        }
        tester.firing().into_iter().filter(|(rule, _)| *rule == "rendezvous-stuck").count()
    };
    assert!(run(false) > 0);
    assert_eq!(run(true), 0, "it downloads for all");
}

/// A process that was seen from its start, wrote a log for some minutes and then stopped; `edit` changes its facts.
fn stops_before_it_begins(edit: impl Fn(&mut TestProcess)) -> Vec<(&'static str, &'static str)> {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run_edited(
        3600.0,
        |tester, t| {
            let mut sample = idles(tester, "python train.py", 0.0);
            let own = &mut sample.processes[0];
            own.reading.cpu_percent = Some(if t < 300.0 { 110.0 } else { 0.0 });
            own.reading.write_bytes = Some(4096);
            own.reading.read_characters = Some(4096);
            own.reading.log_age_seconds = Some(if t < 300.0 { 1.0 } else { t - 300.0 });
            own.facts.log_path = Some("/home/alice/train.log".into());
            edit(own);
            sample
        },
        |snapshot, t| snapshot.processes.age_seconds = vec![Some(t + 20.0)],
    );
    tester.fired().into_iter().filter(|(rule, _)| *rule == "job-stalled").collect()
}

#[test]
fn a_job_that_stops_before_its_first_step_is_stalled_unless_something_can_wake_it() {
    assert_eq!(stops_before_it_begins(|_| ()), [("job-stalled", "info"), ("job-stalled", "warn")]);
    assert_eq!(stops_before_it_begins(|own| own.reading.established_connections = Some(1)), [], "it may get a message");
    assert_eq!(stops_before_it_begins(|own| own.facts.listening_ports = vec![8000]), [], "it may get a request");
}

#[test]
fn a_server_that_freezes_before_it_loads_its_model_warns_after_45_minutes() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run_edited(
        3300.0,
        |tester, t| {
            let mut sample = idles(tester, "python -m vllm.entrypoints.openai.api_server", 0.0);
            let own = &mut sample.processes[0];
            own.gpus[0].gpu_memory_bytes = Some(430 << 20);
            own.reading.cpu_percent = Some(if t < 300.0 { 90.0 } else { 0.4 });
            own.reading.write_bytes = Some(4096);
            own.reading.log_age_seconds = Some(if t < 300.0 { 1.0 } else { t - 300.0 });
            own.facts.log_path = Some("/home/alice/serve.log".into());
            sample
        },
        |snapshot, t| snapshot.processes.age_seconds = vec![Some(t + 20.0)],
    );
    let fired: Vec<_> = tester.fired().into_iter().filter(|(rule, _)| *rule == "job-stalled").collect();
    assert_eq!(fired, [("job-stalled", "info"), ("job-stalled", "warn")]);
}

#[test]
fn a_single_process_that_loops_before_its_first_step_is_stalled_and_waits_for_no_rank() {
    let in_slurm = |own: &mut TestProcess| {
        if own.reading.cpu_percent == Some(0.0) {
            own.reading.cpu_percent = Some(100.0);
        }
        own.facts.owner = Some(Owner::Slurm { job: "481207".into(), step: None });
    };
    assert_eq!(stops_before_it_begins(in_slurm), [("job-stalled", "info"), ("job-stalled", "warn")]);
}

#[test]
fn pods_that_were_started_together_and_loaded_nothing_wait_for_each_other() {
    let fires = |commands: [&str; 2], second_age: f64| {
        let mut tester = RuleTester::new(gpus(0..2));
        tester.interval = 20.0;
        tester.run_edited(
            2400.0,
            |tester, _| {
                let pod = |(gpu, command): (u16, &str)| {
                    let mut rank = process(7 + u32::from(gpu), command, &[(gpu, 1)]);
                    rank.gpus[0].gpu_memory_bytes = Some(500 << 20);
                    rank.facts.owner = Some(Owner::Pod { uid: format!("job-{gpu}").as_str().into(), container: None });
                    rank.reading.cpu_percent = Some(0.2);
                    rank
                };
                TestSample {
                    gpus: (0..2).map(|_| tester.gpu(0, 80.0, 0, 1)).collect(),
                    processes: (0..).zip(commands).map(pod).collect(),
                }
            },
            |snapshot, passed| {
                snapshot.processes.age_seconds = vec![Some(30.0 + passed), Some(30.0 + second_age + passed)];
            },
        );
        tester.firing().contains(&("rendezvous-stuck", "warn"))
    };
    assert!(fires(["python train.py"; 2], 5.0));
    assert!(!fires(["python train.py", "python serve.py"], 5.0), "two programs");
    assert!(!fires(["python train.py"; 2], 250.0), "one after the other");
}
