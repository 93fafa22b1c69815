use super::super::fixture::{TestHost, at, gpus, process, reading};
use super::*;
use crate::fleet::{GpuMetric, LinkError, LinkErrorKind, ProcessTrouble, SeriesKey};
use crate::wire::{
    DeviceError, DriverError, DriverErrorKind, Filesystem, GpuHealth, GpuHealthColumns, GpuProcessReading, Presence,
    ProcessReading, ProcessState, RecentPast,
};

fn pids(host: &Host) -> Vec<u32> {
    host.processes().map(|process| process.key.pid).collect()
}

fn ended(host: &Host) -> Vec<u32> {
    host.ended().map(|ended| ended.process.key.pid).collect()
}

fn commands(host: &Host) -> Vec<String> {
    host.processes().map(|process| process.info.command.to_string()).collect()
}

fn utilizations(host: &Host) -> Vec<Option<u8>> {
    host.gpus().map(|(_, reading)| reading.utilization_percent).collect()
}

#[test]
fn gpus_are_listed_before_their_first_readings() {
    let host = TestHost::new(0, gpus(0..2));
    assert_eq!(utilizations(&host.host), [None, None]);
}

#[test]
fn processes_are_joined_from_all_columns() {
    let mut host = TestHost::new(0, gpus(0..2));
    host.send_snapshot(1.0, &[reading(97, 40), reading(95, 40)], &[process(7, "python train.py", &[(1, 30), (0, 20)])]);
    let joined = host.host.processes().next().expect("one");
    assert_eq!(joined.info.command, "python train.py");
    assert_eq!(joined.gpu_positions().collect::<Vec<_>>(), [0, 1]);
    assert_eq!(joined.gpu_memory_bytes(), Some(50 << 30));
    assert_eq!(joined.reading.cpu_percent, Some(100.0));
    assert_eq!(joined.key.start_ticks, Some(700));
    assert!(
        host.host.snapshot.as_ref().is_some_and(|snapshot| snapshot.processes.is_empty() && snapshot.gpus.is_empty())
    );
}

#[test]
fn facts_that_were_sent_once_stay() {
    let mut host = TestHost::new(0, gpus(0..1));
    let train = process(7, "python train.py", &[(0, 30)]);
    host.send_snapshot(1.0, &[reading(97, 30)], std::slice::from_ref(&train));
    for second in 2..80 {
        let mut snapshot = host.snapshot(f64::from(second), &[reading(97, 30)], std::slice::from_ref(&train));
        snapshot.facts.clear();
        host.apply(f64::from(second), snapshot);
    }
    assert_eq!(commands(&host.host), ["python train.py"]);
}

#[test]
fn new_facts_replace_the_old_ones() {
    let mut host = TestHost::new(0, gpus(0..1));
    host.send_snapshot(1.0, &[reading(97, 30)], &[process(7, "python train.py", &[(0, 30)])]);
    host.send_snapshot(2.0, &[reading(97, 30)], &[process(7, "train: epoch 2", &[(0, 30)])]);
    assert_eq!(commands(&host.host), ["train: epoch 2"]);
}

#[test]
fn a_reused_pid_is_another_process() {
    let mut host = TestHost::new(0, gpus(0..1));
    host.send_snapshot(1.0, &[reading(97, 30)], &[process(7, "python train.py", &[(0, 30)])]);
    let mut reused = process(7, "unused", &[(0, 1)]);
    reused.reading.start_ticks = Some(9999);
    let mut snapshot = host.snapshot(2.0, &[reading(97, 30)], &[reused]);
    snapshot.facts.clear();
    host.apply(2.0, snapshot);
    assert_eq!(commands(&host.host), ["-"], "the new process has no facts");
    assert_eq!(ended(&host.host), [7], "the old process has ended");
}

#[test]
fn facts_with_another_start_time_are_ignored() {
    let mut host = TestHost::new(0, gpus(0..1));
    let mut late = process(7, "python old.py", &[(0, 30)]);
    late.facts.start_ticks = Some(1);
    host.send_snapshot(1.0, &[reading(97, 30)], &[late]);
    assert_eq!(commands(&host.host), ["-"]);
}

#[test]
fn an_exited_process_that_the_driver_lists_keeps_its_identity_and_command() {
    let mut host = TestHost::new(0, gpus(0..1));
    host.send_snapshot(1.0, &[reading(97, 30)], &[process(7, "python train.py", &[(0, 30)])]);
    let key = host.host.processes().next().expect("one").key.clone();
    let mut gone = process(7, "", &[(0, 30)]);
    gone.reading = ProcessReading { pid: Some(7), presence: Some(Presence::Gone), ..ProcessReading::default() };
    let mut snapshot = host.snapshot(2.0, &[reading(0, 30)], &[gone]);
    snapshot.facts.clear();
    host.apply(2.0, snapshot);
    let process = host.host.processes().next().expect("still listed");
    assert_eq!((&process.key, &process.info.command), (&key, &"python train.py".into()));
    assert_eq!(process.trouble(at(2.0)), Some(ProcessTrouble::MemoryNotReleased));
    assert!(ended(&host.host).is_empty());
}

#[test]
fn an_unlisted_process_has_ended() {
    let mut host = TestHost::new(0, gpus(0..1));
    let both = [process(7, "python a.py", &[(0, 30)]), process(8, "python b.py", &[(0, 30)])];
    host.send_snapshot(1.0, &[reading(97, 60)], &both);
    host.send_snapshot(3.0, &[reading(97, 30)], &both[1..]);
    assert_eq!((pids(&host.host), ended(&host.host)), (vec![8], vec![7]));
    assert_eq!(host.host.ended().next().map(|ended| ended.ended_at), Some(at(3.0)));
    // A process that releases its GPU and uses it again has not ended.
    host.send_snapshot(5.0, &[reading(97, 60)], &both);
    assert_eq!((pids(&host.host), ended(&host.host)), (vec![7, 8], vec![]));
    // Ended processes are dropped after ten minutes.
    host.send_snapshot(7.0, &[reading(97, 30)], &both[1..]);
    host.send_snapshot(606.0, &[reading(97, 30)], &both[1..]);
    assert_eq!(ended(&host.host), [7]);
    host.send_snapshot(608.0, &[reading(97, 30)], &both[1..]);
    assert_eq!(ended(&host.host), Vec::<u32>::new());
}

#[test]
fn a_hidden_process_that_becomes_visible_is_the_same() {
    let mut host = TestHost::new(0, gpus(0..1));
    let mut hidden = process(7, "", &[(0, 30)]);
    hidden.reading = ProcessReading { pid: Some(7), presence: Some(Presence::Hidden), ..ProcessReading::default() };
    let mut snapshot = host.snapshot(1.0, &[reading(97, 30)], &[hidden]);
    snapshot.facts.clear();
    host.apply(1.0, snapshot);
    host.send_snapshot(3.0, &[reading(97, 30)], &[process(7, "python train.py", &[(0, 30)])]);
    assert_eq!((commands(&host.host), ended(&host.host)), (vec!["python train.py".to_owned()], vec![]));
}

#[test]
fn processes_missing_after_a_reconnect_or_a_truncated_list_have_not_ended() {
    let train = || process(7, "python train.py", &[(0, 30)]);
    // After a reconnect.
    let mut host = TestHost::new(0, gpus(0..1));
    host.send_snapshot(1.0, &[reading(97, 30)], &[train()]);
    host.hello("boot-1");
    host.send_snapshot(60.0, &[reading(0, 0)], &[]);
    assert_eq!((pids(&host.host), ended(&host.host)), (vec![], vec![]));
    // After a truncated list.
    let mut host = TestHost::new(0, gpus(0..1));
    host.send_snapshot(1.0, &[reading(97, 30)], &[train()]);
    let cut = Snapshot { processes_left_out: 4, ..host.snapshot(3.0, &[reading(0, 0)], &[]) };
    host.apply(3.0, cut);
    assert_eq!(ended(&host.host), Vec::<u32>::new());
}

#[test]
fn processes_of_a_blocked_gpu_become_stale() {
    let mut host = TestHost::new(0, gpus(0..2));
    let both = [process(7, "python a.py", &[(0, 30)]), process(8, "python b.py", &[(1, 30)])];
    host.send_snapshot(1.0, &[reading(97, 30), reading(97, 30)], &both);
    let blocked = GpuReading { blocked_seconds: Some(4.0), ..GpuReading::default() };
    host.send_snapshot(3.0, &[reading(97, 30), blocked], &both[..1]);
    let stale: Vec<(u32, bool)> = host.host.processes().map(|process| (process.key.pid, process.is_stale)).collect();
    assert_eq!((stale, ended(&host.host)), (vec![(7, false), (8, true)], vec![]));
    host.send_snapshot(5.0, &[reading(97, 30), reading(0, 0)], &both[..1]);
    assert_eq!((pids(&host.host), ended(&host.host)), (vec![7], vec![8]), "the GPU answers again");
}

#[test]
fn stale_processes_do_not_add_up() {
    const LISTED: u32 = 1500;
    let mut host = TestHost::new(0, gpus(0..2));
    let blocked = || GpuReading { blocked_seconds: Some(4.0), ..GpuReading::default() };
    for round in 0..5 {
        let pids = round * LISTED + 1..=(round + 1) * LISTED;
        let listed: Vec<_> = pids.map(|pid| process(pid, "python a.py", &[(1, u64::from(pid / 100))])).collect();
        host.send_snapshot(f64::from(round) + 1.0, &[reading(97, 30), blocked()], &listed);
        let stale = host.host.processes().filter(|process| process.is_stale).count();
        assert_eq!(
            host.host.processes().len(),
            crate::wire::codec::MAX_PROCESSES.min(1500 * (round as usize + 1)),
            "{stale} are stale"
        );
    }
    let pids = pids(&host.host);
    assert!(pids.is_sorted() && pids.last() == Some(&(5 * LISTED)));
    assert!(!pids.contains(&1), "the processes with the most memory stay");
}

#[test]
fn a_blocked_driver_makes_all_processes_stale() {
    let mut host = TestHost::new(0, gpus(0..1));
    host.send_snapshot(1.0, &[reading(97, 30)], &[process(7, "python a.py", &[(0, 30)])]);
    let error = DriverError { kind: DriverErrorKind::Blocked, code: None, message: "no answer for 5 s".into() };
    let blocked = Snapshot { driver_error: Some(error), ..host.snapshot(3.0, &[], &[]) };
    host.apply(3.0, blocked);
    assert_eq!((pids(&host.host), ended(&host.host)), (vec![7], vec![]));
    assert!(host.host.processes().all(|process| process.is_stale));
    assert_eq!(utilizations(&host.host), [None]);
}

#[test]
fn the_number_of_ended_processes_is_bounded() {
    let mut host = TestHost::new(0, gpus(0..1));
    for round in 0..300_u32 {
        host.send_snapshot(f64::from(round), &[reading(97, 30)], &[process(1000 + round, "python", &[(0, 1)])]);
    }
    assert_eq!(ended(&host.host).len(), 64);
    assert_eq!(ended(&host.host).last(), Some(&1298));
}

#[test]
fn a_snapshot_of_another_generation_gives_no_gpu_readings() {
    let mut host = TestHost::new(0, gpus(0..2));
    host.send_snapshot(1.0, &[reading(10, 1), reading(20, 2)], &[process(7, "python", &[(0, 1)])]);
    let late = Snapshot { generation: 99, ..host.snapshot(2.0, &[reading(30, 3)], &[]) };
    host.apply(2.0, late);
    assert_eq!(utilizations(&host.host), [None, None]);
    assert_eq!((pids(&host.host), ended(&host.host)), (vec![7], vec![]));
}

#[test]
fn health_and_filesystems_that_are_not_sent_stay() {
    let mut host = TestHost::new(0, gpus([0, 1]));
    let mut snapshot = host.snapshot(1.0, &[reading(0, 0), reading(0, 0)], &[]);
    let failed = GpuHealth { row_remap_failed: Some(true), ..GpuHealth::default() };
    snapshot.health = GpuHealthColumns::from_rows(&[GpuHealth::default(), failed.clone()]);
    snapshot.host.filesystems = vec![Filesystem { mount_point: "/home".into(), ..Filesystem::default() }];
    host.apply(1.0, snapshot);
    host.send_snapshot(2.0, &[reading(0, 0), reading(0, 0)], &[]);
    assert_eq!(host.host.gpu_health(1), Some(&failed));
    assert_eq!(host.host.filesystems().len(), 1);
    host.inventory(gpus([1, 0]));
    assert_eq!(host.host.gpu_health(0), Some(&failed), "it moves with its GPU");
    host.hello("boot-2");
    assert_eq!((host.host.gpu_health(0), host.host.filesystems().len()), (Some(&GpuHealth::default()), 0));
}

#[test]
fn readings_processes_and_history_follow_reordered_gpus() {
    let mut host = TestHost::new(0, gpus(0..3));
    let readings = [reading(10, 1), reading(20, 2), reading(30, 3)];
    host.send_snapshot(1.0, &readings, &[process(7, "python", &[(1, 1), (2, 1)]), process(8, "python", &[(0, 1)])]);
    // GPU 0 disappears and the others change their order.
    host.inventory(gpus([2, 1]));
    assert_eq!(utilizations(&host.host), [Some(30), Some(20)]);
    assert_eq!(pids(&host.host), [7]);
    assert_eq!(host.host.processes().next().expect("one").gpu_positions().collect::<Vec<_>>(), [0, 1]);
    let series = SeriesKey::Gpu(0, GpuMetric::Utilization);
    assert_eq!(host.host.history().points(series, at(1.0), Duration::from_secs(1), 1), [Some(30.0)]);
}

#[test]
fn a_reboot_drops_processes_and_readings() {
    let mut host = TestHost::new(0, gpus(0..1));
    host.send_snapshot(1.0, &[reading(97, 30)], &[process(7, "python train.py", &[(0, 30)])]);
    host.hello("boot-2");
    assert_eq!((pids(&host.host), host.host.received_at), (vec![], None));
    let mut same_pid = host.snapshot(60.0, &[reading(0, 1)], &[process(7, "", &[(0, 1)])]);
    same_pid.facts.clear();
    host.apply(60.0, same_pid);
    assert_eq!((commands(&host.host), ended(&host.host)), (vec!["-".to_owned()], vec![]));
    assert_eq!(host.host.rebooted_at, Some(at(0.0)), "the fixture sends its hello at 0 s");
    let lines = host.host.log().lines().filter(|line| line.text.contains("rebooted")).count();
    assert_eq!(lines, 1);
}

#[test]
fn a_wrong_host_clock_is_reported_and_does_not_change_ages() {
    let mut host = TestHost::new(0, gpus(0..1));
    for (seconds, error_seconds, reported) in
        [(1.0, 0, None), (2.0, -59, None), (3.0, 315_576_000, Some(315_576_000)), (4.0, -3600, Some(-3600))]
    {
        let wall_unix_ms = (1_700_000_000 + seconds as i64 + error_seconds) * 1000;
        let snapshot = Snapshot { wall_unix_ms, ..host.snapshot(seconds, &[reading(5, 1)], &[]) };
        host.apply(seconds, snapshot);
        assert_eq!(host.host.clock_error_seconds(), reported);
        assert_eq!(host.host.age(at(seconds + 1.0)), Some(Duration::from_secs(1)));
        assert!(host.host.is_fresh(at(seconds + 1.0)));
    }
    let without_clock = host.snapshot(5.0, &[reading(5, 1)], &[]);
    host.apply(5.0, without_clock);
    assert_eq!(host.host.clock_error_seconds(), Some(-3600), "a snapshot without a wall clock keeps the last value");
}

#[test]
fn a_reconnect_keeps_the_last_values() {
    let mut host = TestHost::new(0, gpus(0..1));
    host.send_snapshot(1.0, &[reading(97, 30)], &[process(7, "python train.py", &[(0, 30)])]);
    let error = LinkError::new(LinkErrorKind::Closed, "the connection was closed");
    host.host.apply(HostUpdate::Down { error, retry_at: None, attempt: 1 }, at(5.0));
    host.hello("boot-1");
    assert_eq!((utilizations(&host.host), pids(&host.host)), (vec![Some(97)], vec![7]));
    assert!(!host.host.is_fresh(at(5.0)));
}

#[test]
fn impossible_readings_are_none() {
    let mut host = TestHost::new(0, gpus(0..1));
    let absurd = GpuReading {
        utilization_percent: Some(200),
        memory_used_bytes: Some(u64::MAX),
        power_watts: Some(f32::MAX),
        temperature_celsius: Some(i32::MAX),
        ..GpuReading::default()
    };
    let mut train = process(7, "python", &[(0, 1)]);
    train.gpus[0].sm_percent = Some(255);
    train.gpus[0].gpu_memory_bytes = Some(u64::MAX);
    train.gpus.push(GpuProcessReading { pid: Some(7), gpu: Some(900), ..GpuProcessReading::default() });
    train.reading.cpu_percent = Some(f32::NEG_INFINITY);
    host.send_snapshot(1.0, &[absurd], &[train]);
    assert!(host.host.gpus().all(|(_, reading)| *reading == GpuReading::default()));
    let process = host.host.processes().next().expect("one");
    assert_eq!((process.sm_percent(), process.gpu_memory_bytes(), process.reading.cpu_percent), (None, None, None));
    assert_eq!(process.gpus.len(), 1, "there is no GPU at position 900");
}

#[test]
fn usage_without_a_pid_is_summed_up() {
    let mut host = TestHost::new(0, gpus(0..1));
    let nameless = GpuProcessReading { gpu: Some(0), gpu_memory_bytes: Some(1 << 30), ..GpuProcessReading::default() };
    let mut snapshot = host.snapshot(1.0, &[reading(0, 2)], &[]);
    snapshot.gpu_processes = crate::wire::GpuProcessColumns::from_rows(&[nameless.clone(), nameless]);
    host.apply(1.0, snapshot);
    let process = host.host.processes().next().expect("one for both");
    assert_eq!((process.key.pid, process.gpu_memory_bytes()), (0, Some(2 << 30)));
    assert_eq!(process.info.command, "(the driver does not name the process)");
}

#[test]
fn disk_wait_needs_ten_seconds_without_a_break() {
    let mut host = TestHost::new(0, gpus(0..1));
    let mut waiting = process(7, "python", &[(0, 1)]);
    waiting.reading.state = Some(ProcessState::DiskSleep);
    let trouble = |host: &TestHost, seconds| host.host.processes().next().expect("one").trouble(at(seconds));
    for second in [0.0, 4.0, 8.0] {
        host.send_snapshot(second, &[reading(0, 1)], std::slice::from_ref(&waiting));
        assert_eq!(trouble(&host, second), None);
    }
    host.send_snapshot(12.0, &[reading(0, 1)], std::slice::from_ref(&waiting));
    assert_eq!(trouble(&host, 12.0), Some(ProcessTrouble::DiskWait));
    host.send_snapshot(14.0, &[reading(0, 1)], &[process(7, "python", &[(0, 1)])]);
    host.send_snapshot(16.0, &[reading(0, 1)], &[waiting]);
    assert_eq!(trouble(&host, 16.0), None, "it ran between the samples");
}

#[test]
fn freshness_follows_the_interval_of_the_probe() {
    let mut host = TestHost::new(0, gpus(0..1));
    let slow = Snapshot { interval_seconds: Some(10.0), ..host.snapshot(0.0, &[reading(0, 0)], &[]) };
    host.apply(0.0, slow);
    assert!(host.host.is_fresh(at(30.0)) && !host.host.is_fresh(at(30.5)));
    host.host.apply(HostUpdate::Silent, at(5.0));
    assert!(!host.host.is_fresh(at(5.0)));
    host.host.apply(HostUpdate::RoundTrip(Duration::from_millis(3)), at(6.0));
    assert!(host.host.is_fresh(at(6.0)));
}

#[test]
fn a_device_error_is_kept_beside_the_readings() {
    let mut host = TestHost::new(0, gpus(0..1));
    let error = DeviceError { kind: DriverErrorKind::GpuLost, code: Some(15), message: "GPU is lost".into() };
    host.send_snapshot(1.0, &[GpuReading { error: Some(error.clone()), ..GpuReading::default() }], &[]);
    let (_, lost) = host.host.gpus().next().expect("its row stays");
    assert_eq!((lost.error.as_ref(), lost.utilization_percent), (Some(&error), None));
}

#[test]
fn the_first_snapshot_backfills_the_history() {
    let past = |gpu| RecentPast {
        gpu,
        end_monotonic_seconds: 9.0,
        power_watts: vec![Some(f32::from(gpu) * 100.0 + 100.0); 8],
        ..RecentPast::default()
    };
    let mut host = TestHost::new(0, gpus(0..2));
    let mut snapshot = host.snapshot(10.0, &[reading(0, 0), reading(0, 0)], &[]);
    snapshot.recent_past = vec![past(1), past(0)];
    // Positions of another inventory are ignored.
    let other = Snapshot { generation: 77, ..snapshot.clone() };
    let power = |host: &TestHost, gpu| {
        let points =
            host.host.history().points(SeriesKey::Gpu(gpu, GpuMetric::Power), at(8.0), Duration::from_secs(8), 2);
        points.into_iter().map(|point| point.map(f32::round)).collect::<Vec<_>>()
    };
    host.apply(9.5, other);
    assert_eq!((power(&host, 0), power(&host, 1)), (vec![None; 2], vec![None; 2]));
    let mut host = TestHost::new(0, gpus(0..2));
    host.apply(10.0, snapshot);
    assert_eq!((power(&host, 0), power(&host, 1)), (vec![Some(100.0); 2], vec![Some(200.0); 2]));
}

proptest::proptest! {
    /// Any values that the wire types allow: no panic, and one reading per GPU.
    #[test]
    fn any_snapshot_leaves_one_reading_per_gpu(
        steps in proptest::collection::vec(
            (0_u32..4, 0_u8..=255, 0_u16..6, 0_u32..5, proptest::prelude::any::<(u64, f64)>()),
            1..40,
        )
    ) {
        let mut host = TestHost::new(0, gpus(0..3));
        let mut second = 0.0;
        for (kind, percent, gpu, pid, (number, float)) in steps {
            second += 1.5;
            let mut train = process(pid, "python", &[(gpu, number >> 40)]);
            train.reading.start_ticks = Some(number % 3);
            train.reading.age_seconds = Some(float);
            let hot = GpuReading { power_watts: Some(float as f32), ..reading(0, 0) };
            let readings = [reading(percent, number >> 20), hot];
            let mut snapshot = host.snapshot(float, &readings, &[train]);
            match kind {
                0 => host.inventory(gpus((0..percent as u32 % 5).rev())),
                1 => snapshot.generation = pid,
                2 => host.hello(if percent < 128 { "boot-1" } else { "boot-2" }),
                _ => snapshot.facts.clear(),
            }
            host.apply(second, snapshot);
            proptest::prop_assert_eq!(
                host.host.gpus().len(),
                host.host.inventory.as_ref().map_or(0, |inventory| inventory.gpus.len())
            );
            let rows = crate::fleet::host_rows(&host.host, &[], at(second));
            proptest::prop_assert!(rows.iter().all(|job| job.process_count() > 0));
            host.host.history().points(SeriesKey::Gpu(0, GpuMetric::Power), at(second), Duration::from_secs(60), 30);
        }
    }
}

#[test]
fn a_host_misbehaves_until_15_s_after_the_last_report() {
    let mut host = TestHost::new(0, gpus(0..1));
    assert_eq!(host.host.misbehavior(at(1.0)), None);
    let update = HostUpdate::Misbehaves(Misbehavior::ImpossibleNumbers);
    assert_eq!(host.host.apply(update, at(1.0)), HostChange::Nothing);
    for seconds in [1.0, 11.0] {
        let update = HostUpdate::Misbehaves(Misbehavior::SendsTooMuch);
        assert_eq!(host.host.apply(update, at(seconds)), HostChange::Nothing);
    }
    let [first, later, over] = [1.0, 25.0, 26.0].map(|seconds| host.host.misbehavior(at(seconds)));
    assert_eq!([first, later, over], [Some(Misbehavior::SendsTooMuch), Some(Misbehavior::SendsTooMuch), None]);
    for misbehavior in Misbehavior::ALL {
        assert_eq!(Misbehavior::from_word(misbehavior.word()), Some(misbehavior));
        assert_eq!(Misbehavior::ALL[misbehavior as usize], misbehavior);
        assert!(!misbehavior.short_text().is_empty());
    }
    let line = host.host.log().lines().last().expect("a line");
    assert_eq!(
        (&*line.text, line.times),
        ("sends more than gpufleet reads: per second 8 snapshots, 1 MiB, 16384 processes or 1024 GPUs", 2)
    );
}

#[test]
fn the_age_of_an_outage_counts_from_the_last_data() {
    let down = |attempt| HostUpdate::Down {
        error: LinkError::new(LinkErrorKind::Refused, "nothing listens"),
        retry_at: None,
        attempt,
    };
    let since = |host: &Host| match host.link {
        Link::Down { since, .. } => since.since_start().as_secs(),
        _ => panic!("{:?}", host.link),
    };
    let mut tested = TestHost::new(0, gpus(0..1));
    // Without data, the first failure counts.
    tested.host.apply(down(1), at(3.0));
    tested.host.apply(HostUpdate::Connecting { attempt: 2, phase: ConnectPhase::Tcp }, at(20.0));
    tested.host.apply(down(2), at(25.0));
    assert_eq!(since(&tested.host), 3);
    tested.send_snapshot(30.0, &[reading(0, 0)], &[]);
    tested.host.apply(HostUpdate::Silent, at(33.0));
    for attempt in 1..9 {
        tested.host.apply(down(attempt), at(40.0 + 10.0 * f64::from(attempt)));
        let phase = ConnectPhase::Tcp;
        tested.host.apply(HostUpdate::Connecting { attempt: attempt + 1, phase }, at(45.0 + 10.0 * f64::from(attempt)));
    }
    tested.host.apply(down(9), at(140.0));
    assert_eq!(since(&tested.host), 30);
    tested.send_snapshot(200.0, &[reading(0, 0)], &[]);
    tested.host.apply(down(1), at(300.0));
    assert_eq!(since(&tested.host), 200, "a new outage");
}

#[test]
fn readings_of_a_fast_simulation_are_fresh_for_three_real_seconds() {
    let fleet = |speed: f64| Fleet::new(&[Arc::new(HostConfig::named("a"))], true, at(0.0)).with_clock_speed(speed);
    for (speed, age, is_fresh) in [
        (1.0, 5.9, true),
        (1.0, 6.1, false),
        (60.0, 170.0, true),
        (60.0, 190.0, false),
        (0.1, 5.9, true),
        (0.1, 6.1, false),
    ] {
        let mut fleet = fleet(speed);
        let snapshot = Snapshot { interval_seconds: Some(2.0), ..Snapshot::default() };
        fleet.apply(HostId(0), HostUpdate::Snapshot(Box::new(snapshot)), at(10.0));
        assert_eq!(fleet.hosts()[0].is_fresh(at(10.0 + age)), is_fresh, "{speed}, {age}");
    }
}

#[test]
fn the_end_of_a_slurm_job_that_runs_again_is_forgotten() {
    let mut host = TestHost::new(0, gpus(0..1));
    let mut train = process(7, "python train.py", &[(0, 30)]);
    train.facts.owner = Some(crate::wire::Owner::Slurm { job: "3385".into(), step: None });
    let end = |job: &str| SlurmJobEnd { job: job.into(), state: "PENDING".into(), exit_status: None, signal: None };
    let mut snapshot = host.snapshot(1.0, &[reading(0, 0)], &[]);
    snapshot.host.slurm_ends = vec![end("3385"), end("3386")];
    host.apply(1.0, snapshot);
    assert_eq!(host.host.slurm_ends().count(), 2);
    host.send_snapshot(2.0, &[reading(97, 30)], &[train]);
    assert_eq!(host.host.slurm_ends().map(|end| &*end.job).collect::<Vec<_>>(), ["3386"]);
}
