use super::*;
use crate::fleet::ProcessInfo;
use crate::wire::{GpuProcessReading, ProcessReading};
use std::sync::Arc;

const UTILIZATION: SeriesKey = SeriesKey::Gpu(0, GpuMetric::Utilization);

fn at(seconds: f64) -> Moment {
    Moment::new(Duration::from_secs_f64(seconds), Duration::ZERO)
}

fn reading(percent: u8) -> GpuReading {
    GpuReading {
        utilization_percent: Some(percent),
        memory_utilization_percent: Some(percent / 2),
        memory_used_bytes: Some(u64::from(percent) << 30),
        power_watts: Some(f32::from(percent) * 5.0),
        temperature_celsius: Some(i32::from(percent) / 2 + 30),
        ..GpuReading::default()
    }
}

fn process(pid: u32, cpu_percent: f32) -> Process {
    let key = ProcessKey { boot_id: Some("boot".into()), pid, start_ticks: Some(7) };
    Process {
        info: Arc::new(ProcessInfo::new(&key, None, None)),
        key,
        reading: ProcessReading { cpu_percent: Some(cpu_percent), ..ProcessReading::default() },
        gpus: vec![GpuProcessReading { sm_percent: Some(50), gpu_memory_bytes: Some(1 << 30), ..Default::default() }],
        state_since: Moment::default(),
        is_stale: false,
    }
}

fn one_gpu() -> History {
    let mut history = History::default();
    history.set_gpus(&["GPU-0".into()]);
    history
}

fn record(history: &mut History, seconds: f64, interval: f64, percent: u8) {
    history.record(seconds, Duration::from_secs_f64(interval), at(seconds), &[reading(percent)], &[]);
}

fn points(history: &History, series: SeriesKey, now: f64, span: u64, count: usize) -> Vec<Option<u32>> {
    let points = history.points(series, at(now), Duration::from_secs(span), count);
    points.into_iter().map(|point| point.map(|value| value.round() as u32)).collect()
}

#[test]
fn every_gpu_metric_is_recorded() {
    let mut history = one_gpu();
    record(&mut history, 1.0, 1.0, 80);
    for (metric, value) in [
        (GpuMetric::Utilization, 80.0),
        (GpuMetric::MemoryUtilization, 40.0),
        (GpuMetric::MemoryUsed, 80.0 * 1024.0 * 1024.0 * 1024.0),
        (GpuMetric::Power, 400.0),
        (GpuMetric::Temperature, 70.0),
    ] {
        let points = history.points(SeriesKey::Gpu(0, metric), at(1.0), Duration::from_secs(1), 1);
        assert!((points[0].expect("a point") - value).abs() <= value * 0.001, "{metric:?} {points:?}");
    }
}

#[test]
fn a_two_second_interval_leaves_no_gaps_in_one_second_buckets() {
    let mut history = one_gpu();
    for step in 1..=5 {
        record(&mut history, f64::from(step) * 2.0, 2.0, 10 * step as u8);
    }
    assert_eq!(
        points(&history, UTILIZATION, 10.0, 10, 10),
        [10, 10, 20, 20, 30, 30, 40, 40, 50, 50].map(Some),
        "a reading is valid since the previous one"
    );
}

#[test]
fn gaps_stay_gaps() {
    let mut history = one_gpu();
    record(&mut history, 1.0, 1.0, 10);
    record(&mut history, 2.0, 1.0, 20);
    history.record(3.0, Duration::from_secs(1), at(3.0), &[GpuReading::default()], &[]);
    record(&mut history, 9.0, 1.0, 90);
    assert_eq!(
        points(&history, UTILIZATION, 9.0, 9, 9),
        [Some(10), Some(20), None, None, None, None, None, None, Some(90)]
    );
    assert_eq!(points(&history, UTILIZATION, 40.0, 4, 4), [None; 4], "a silent host has no present value");
}

#[test]
fn at_most_one_raw_point_is_stored_per_second() {
    let mut history = one_gpu();
    for step in 0..2400_u32 {
        record(&mut history, f64::from(step) * 0.25, 0.25, 50);
    }
    assert!(history.points <= RAW_POINTS + 1, "{} points in 600 s", history.points);
    // Jitter of an interval of one second loses no reading.
    let mut history = one_gpu();
    for step in 0..300_u32 {
        record(&mut history, f64::from(step) + if step % 2 == 0 { 0.05 } else { 0.0 }, 1.0, 50);
    }
    assert_eq!(history.points, 300);
}

#[test]
fn the_second_snapshot_fills_unknown_values_of_the_first() {
    let mut history = History::default();
    let first = Process { reading: ProcessReading::default(), ..process(9, 0.0) };
    let interval = Duration::from_secs(2);
    history.record(1.0, interval, at(1.0), &[], std::slice::from_ref(&first));
    let second = process(9, 100.0);
    history.record(1.25, interval, at(1.25), &[], std::slice::from_ref(&second));
    assert_eq!(points(&history, SeriesKey::Process(&second.key, ProcessMetric::Cpu), 1.25, 1, 1).len(), 1);
    let cpu = history.points(SeriesKey::Process(&second.key, ProcessMetric::Cpu), at(1.25), Duration::from_secs(1), 1);
    assert!((cpu[0].expect("filled") - 100.0).abs() < 3.0);
}

#[test]
fn rings_wrap_and_means_reach_further_back() {
    let mut history = one_gpu();
    // Three hours: 20 % in the first two, 80 % in the third.
    for second in 0..10_800_u32 {
        record(&mut history, f64::from(second), 1.0, if second < 7200 { 20 } else { 80 });
    }
    assert_eq!(points(&history, UTILIZATION, 10_799.0, 60, 3), [80; 3].map(Some));
    let two_hours = points(&history, UTILIZATION, 10_799.0, 7200, 12);
    assert_eq!(two_hours[1..6], [20; 5].map(Some), "from means");
    assert_eq!(two_hours[6..], [80; 6].map(Some), "from means, then raw points");
    let all = points(&history, UTILIZATION, 10_799.0, 10_800, 3);
    assert_eq!(all, [None, Some(20), Some(80)], "dropped points are a gap");
}

#[test]
fn a_long_silence_clears_the_means() {
    let mut history = one_gpu();
    for second in 0..600_u32 {
        record(&mut history, f64::from(second), 1.0, 40);
    }
    record(&mut history, 50_000.0, 1.0, 60);
    record(&mut history, 50_001.0, 1.0, 60);
    let hours = points(&history, UTILIZATION, 50_001.0, 7200, 4);
    assert_eq!(hours, [None, None, None, Some(60)]);
}

#[test]
fn a_restarted_probe_continues_the_series() {
    let mut history = one_gpu();
    for second in 1..=10_u32 {
        history.record(f64::from(second) + 900.0, Duration::from_secs(1), at(f64::from(second)), &[reading(30)], &[]);
    }
    history.connected();
    for second in 11..=20_u32 {
        history.record(f64::from(second) - 10.5, Duration::from_secs(1), at(f64::from(second)), &[reading(60)], &[]);
    }
    assert_eq!(points(&history, UTILIZATION, 20.0, 20, 4), [30, 30, 60, 60].map(Some));
}

#[test]
fn history_belongs_to_the_gpu_and_not_to_its_index() {
    let mut history = History::default();
    history.set_gpus(&["GPU-a".into(), "GPU-b".into()]);
    history.record(1.0, Duration::from_secs(1), at(1.0), &[reading(10), reading(90)], &[]);
    history.set_gpus(&["GPU-b".into()]);
    assert_eq!(points(&history, UTILIZATION, 1.0, 1, 1), [Some(90)]);
    assert_eq!(points(&history, SeriesKey::Gpu(7, GpuMetric::Power), 1.0, 1, 1), [None]);
    history.set_gpus(&["GPU-a".into(), "GPU-b".into()]);
    assert_eq!(points(&history, UTILIZATION, 1.0, 1, 1), [Some(10)], "a GPU that returns keeps its history");
}

#[test]
fn an_ended_process_loses_its_history() {
    let mut history = History::default();
    let interval = Duration::from_secs(1);
    let (one, other) = (process(1, 10.0), process(2, 20.0));
    history.record(1.0, interval, at(1.0), &[], &[one.clone(), other.clone()]);
    history.record(2.0, interval, at(2.0), &[], std::slice::from_ref(&other));
    assert_eq!(points(&history, SeriesKey::Process(&one.key, ProcessMetric::Sm), 2.0, 2, 2), [None; 2]);
    assert_eq!(points(&history, SeriesKey::Process(&other.key, ProcessMetric::Sm), 2.0, 2, 2), [Some(50); 2]);
    // A reused pid with another start time is another process.
    let reused = Process { key: ProcessKey { start_ticks: Some(8), ..other.key.clone() }, ..other.clone() };
    history.record(3.0, interval, at(3.0), &[], std::slice::from_ref(&reused));
    assert_eq!(points(&history, SeriesKey::Process(&other.key, ProcessMetric::Sm), 3.0, 3, 1), [None]);
    assert_eq!(points(&history, SeriesKey::Process(&reused.key, ProcessMetric::Sm), 3.0, 3, 3), [None, None, Some(50)]);
}

#[test]
fn eight_gpus_and_forty_processes_take_at_most_350_kb() {
    let mut history = History::default();
    let names: Vec<SafeText> = (0..8).map(|index| format!("GPU-{index}").into()).collect();
    history.set_gpus(&names);
    let processes: Vec<Process> = (1..=40).map(|pid| process(pid, 50.0)).collect();
    let gpus = vec![reading(97); 8];
    for second in 0..8000_u32 {
        history.record(f64::from(second), Duration::from_secs(1), at(f64::from(second)), &gpus, &processes);
    }
    assert!(history.memory_bytes() <= 350_000, "{} bytes", history.memory_bytes());
}

#[test]
fn memory_stops_growing_after_an_hour() {
    let mut history = History::default();
    history.set_gpus(&["GPU-0".into()]);
    let processes = [process(1, 50.0)];
    let mut bytes = Vec::new();
    for step in 0..8000_u32 / 5 {
        let seconds = f64::from(step * 5);
        history.record(seconds, Duration::from_secs(5), at(seconds), &[reading(50)], &processes);
        if [600, 3605, 7900].contains(&(step * 5)) {
            bytes.push(history.memory_bytes());
        }
    }
    assert!(bytes[0] < bytes[1], "{bytes:?}");
    assert_eq!(bytes[1], bytes[2]);
}

#[test]
fn the_number_of_process_series_is_bounded() {
    let mut history = History::default();
    let processes: Vec<Process> = (1..=4096).map(|pid| process(pid, 50.0)).collect();
    history.record(1.0, Duration::from_secs(1), at(1.0), &[], &processes);
    history.record(2.0, Duration::from_secs(1), at(2.0), &[], &processes);
    assert_eq!(history.processes.len(), MAX_PROCESSES);
}

fn past(end: f64, utilization: Vec<Option<u8>>, power: Vec<Option<f32>>) -> RecentPast {
    RecentPast {
        gpu: 0,
        end_monotonic_seconds: end,
        utilization_percent: utilization,
        power_watts: power,
        ..RecentPast::default()
    }
}

#[test]
fn backfill_gives_a_chart_a_past_at_the_first_snapshot() {
    let mut history = one_gpu();
    // The program started a second ago and the driver kept ten seconds. All lists end at the same time.
    let utilization = (1..=10).map(|second| Some(second * 10)).collect();
    let pasts = [past(499.8, utilization, vec![Some(500.0); 4])];
    history.backfill(500.0, at(1.0), &pasts);
    history.record(500.0, Duration::from_secs(1), at(1.0), &[reading(5)], &[]);
    let expected =
        [Some(10), Some(20), Some(30), Some(40), Some(50), Some(60), Some(70), Some(80), Some(90), Some(100), Some(5)];
    assert_eq!(points(&history, UTILIZATION, 1.0, 11, 11), expected);
    let power = points(&history, SeriesKey::Gpu(0, GpuMetric::Power), 1.0, 11, 11);
    assert_eq!(power[..6], [None; 6], "this list begins later");
    assert_eq!(power[6..], [Some(500), Some(500), Some(500), Some(500), Some(25)]);
    assert_eq!(points(&history, SeriesKey::Gpu(0, GpuMetric::Temperature), 1.0, 11, 11)[..10], [None; 10]);
}

#[test]
fn backfill_fills_the_means_but_no_more_than_the_ring() {
    let mut history = one_gpu();
    history.backfill(9000.0, at(2.0), &[past(9000.0, vec![Some(40); 4000], vec![])]);
    assert_eq!(history.points, RAW_POINTS);
    for second in 0..900_u32 {
        record(&mut history, 2.0 + f64::from(second), 1.0, 80);
    }
    let half_an_hour = points(&history, UTILIZATION, 901.0, 1800, 6);
    assert_eq!(half_an_hour, [40, 40, 80, 80, 80, 80].map(Some), "from ten minutes before the program started");
}

#[test]
fn backfill_leaves_gaps_in_the_samples() {
    let mut history = one_gpu();
    let mut utilization = vec![Some(50); 20];
    utilization[5..15].fill(None);
    history.backfill(100.0, at(100.0), &[past(99.0, utilization, vec![])]);
    let seconds = points(&history, UTILIZATION, 99.0, 20, 20);
    assert_eq!(seconds[..5], [Some(50); 5]);
    assert_eq!(seconds[5..15], [None; 10]);
    assert_eq!(seconds[15..], [Some(50); 5]);
}

#[test]
fn backfill_after_a_reconnect_fills_only_the_gap() {
    let mut history = one_gpu();
    for second in 1..=100_u32 {
        record(&mut history, f64::from(second), 1.0, 20);
    }
    history.connected();
    history.backfill(7.0, at(120.0), &[past(7.0, vec![Some(90); 600], vec![])]);
    assert_eq!(history.points, 119, "the seconds from 101 to 119");
    record(&mut history, 120.0, 1.0, 20);
    let minute = points(&history, UTILIZATION, 120.0, 60, 6);
    assert_eq!(minute, [20, 20, 20, 20, 90, 83].map(Some));
}

#[test]
fn backfill_ignores_impossible_times_and_positions() {
    let mut history = one_gpu();
    for end in [f64::NAN, f64::INFINITY, -1e300, 1e300, 60.0] {
        history.backfill(50.0, at(10.0), &[past(end, vec![Some(50); 9], vec![])]);
    }
    let elsewhere = RecentPast { gpu: 700, ..past(50.0, vec![Some(50); 9], vec![]) };
    history.backfill(50.0, at(10.0), &[elsewhere, past(50.0, vec![], vec![])]);
    assert_eq!(points(&history, UTILIZATION, 10.0, 60, 6), [None; 6]);
}

#[test]
fn a_late_line_has_the_time_of_its_sample() {
    let mut clock = ProbeClock::default();
    assert!((clock.sample_time(5.0, at(100.2)) - 100.2).abs() < 0.01);
    assert!((clock.sample_time(7.0, at(102.0)) - 102.0).abs() < 0.01, "a faster line corrects the first");
    assert!((clock.sample_time(9.0, at(106.5)) - 104.0).abs() < 0.01, "2.5 s late");
}

#[test]
fn the_clock_follows_a_restarted_probe() {
    let mut clock = ProbeClock::default();
    clock.sample_time(5000.0, at(100.0));
    assert!((clock.sample_time(0.5, at(102.0)) - 102.0).abs() < 0.01, "without a new connection");
    clock.reset();
    assert!((clock.sample_time(90.0, at(104.0)) - 104.0).abs() < 0.01, "with one");
}

#[test]
fn the_clock_follows_a_suspend_on_either_side() {
    let mut clock = ProbeClock::default();
    clock.sample_time(10.0, at(10.0));
    assert!((clock.sample_time(3610.0, at(12.0)) - 12.0).abs() < 0.01, "the controller was suspended");
    assert!((clock.sample_time(3612.0, at(3614.0)) - 3614.0).abs() < 0.01, "the host was suspended");
}

#[test]
fn clock_drift_does_not_accumulate() {
    let mut clock = ProbeClock::default();
    // The probe's clock is 100 ppm slow: after a day it is 8.6 s behind.
    for step in 0..43_200_u32 {
        let real = f64::from(step) * 2.0;
        let mapped = clock.sample_time(real * 0.9999, at(real));
        assert!((mapped - real).abs() < 0.1, "at {real} s");
    }
}

#[test]
fn an_invalid_clock_falls_back_to_the_time_of_arrival() {
    let mut clock = ProbeClock::default();
    for (monotonic, received) in [(f64::NAN, 10.0), (-4.0, 11.0), (f64::INFINITY, 12.0)] {
        assert!((clock.sample_time(monotonic, at(received)) - received).abs() < 1e-9);
    }
    assert!((clock.sample_time(3.0, at(11.0)) - 12.0).abs() < 1e-9);
}

#[test]
fn stored_minutes_fill_the_time_before_the_first_reading_only() {
    let mut history = one_gpu();
    for second in 0..70 {
        record(&mut history, 1000.0 + f64::from(second), 1.0, 80);
    }
    // From two hours ago until now; three minutes from 30 minutes ago on are missing.
    let values: Vec<Option<f32>> = (0..120).map(|minute| (!(90..93).contains(&minute)).then_some(20.0)).collect();
    let means = EarlierMeans { age_seconds: 7200.0, step_seconds: 60.0, values: &values };
    history.fill(0, GpuMetric::Utilization, means, at(1070.0));
    let hour = points(&history, UTILIZATION, 1070.0, 3600, 60);
    assert_eq!(hour[59], Some(80), "readings of this program stay");
    assert_eq!((hour[0], hour[28], hour[34], hour[57]), (Some(20), Some(20), Some(20), Some(20)), "{hour:?}");
    assert_eq!(hour[31], None, "a gap of the store stays a gap: {hour:?}");
    assert_eq!(points(&history, UTILIZATION, 1070.0, 7200, 12)[1..10], [Some(20); 9]);
    assert_eq!(points(&history, SeriesKey::Gpu(0, GpuMetric::Power), 1070.0, 3600, 60)[30], None);

    // Without a reading the end of the gap is not known yet.
    let mut empty = one_gpu();
    empty.fill(0, GpuMetric::Utilization, means, at(10.0));
    assert_eq!(points(&empty, UTILIZATION, 10.0, 7200, 12), [None; 12]);
    empty.fill(7, GpuMetric::Utilization, EarlierMeans { age_seconds: f64::NAN, ..means }, at(10.0));
}
