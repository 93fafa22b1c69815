//! The views claim nothing that is not known, and show one severity for one thing.

use super::testing::{cells_at, lines, text};
use super::theme::Theme;
use crate::app::testing::{
    LATER, NOW, app, app_with_hung_jobs, at, connecting, hello, host_states, inventory, press, report, snapshot, update,
};
use crate::app::{App, Event, View};
use crate::diagnosis::Severity;
use crate::fleet::{GpuState, HostId, HostUpdate, LinkError, LinkErrorKind, ProcessTrouble, Row};
use crate::sim::builder::{self, ProcessSample};
use crate::wire::{GpuColumns, GpuReading};
use ratatui::style::Style;

const SIZE: (u16, u16) = (120, 40);

fn lose(app: &mut App, host: usize, seconds: u64) {
    let error = LinkError::new(LinkErrorKind::Network, "no route to host (tcp 22)");
    update(app, host, HostUpdate::Down { error, retry_at: None, attempt: 1 }, seconds);
}

#[test]
fn an_empty_list_does_not_claim_that_nobody_uses_an_unknown_gpu() {
    let on_host = |app: &mut App, index: usize| {
        press(app, "1g");
        press(app, &"→".repeat(index));
        press(app, "\n");
        assert!(matches!(app.screen().view(), View::Host(_)));
        text(app, SIZE)
    };
    let mut app = host_states(SIZE);
    // hgx-07 connects, hgx-12 has no driver.
    for (index, words) in [(1, "not known yet: connecting"), (6, "not known: this host gives no GPU data")] {
        let screen = on_host(&mut app, index);
        assert!(!screen.contains("no process uses a GPU"), "{screen}");
        assert!(screen.contains(words), "{screen}");
    }
    let mut app = connecting(&["a".into(), "b".into()], SIZE);
    lose(&mut app, 1, 10);
    assert!(text(&app, SIZE).contains("no data yet"));
    report(&mut app, 0, 0, NOW);
    let screen = text(&app, SIZE);
    assert!(screen.contains("no process uses a GPU on the only host with data"), "{screen}");
    let screen = on_host(&mut app, 1);
    assert!(screen.contains("not known: this host gives no GPU data"), "{screen}");
    let screen = on_host(&mut app, 0);
    assert!(screen.contains("no process uses a GPU"), "{screen}");
}

#[test]
fn the_gpu_view_shows_what_each_process_holds_on_that_gpu() {
    let size = (200, 60);
    let mut app = app(6, 8, size);
    // The job of eight GPUs on hgx-02 holds 61.5 GiB on each of them.
    press(&mut app, "→\n\n");
    assert!(matches!(app.screen().view(), View::Gpu(HostId(1), 0)));
    let screen = text(&app, size);
    let held = screen.lines().find(|line| line.contains("erika 6")).unwrap_or_else(|| panic!("{screen}"));
    assert!(held.contains("erika 61.5G") || held.contains("erika 62G") || held.contains("erika 61G"), "{held}");
    assert!(!screen.contains("492G"), "{screen}");
    lose(&mut app, 0, NOW);
    press(&mut app, "1g\n");
    assert!(!text(&app, size).contains("nobody"), "{}", text(&app, size));
}

/// The styles of the cells in which these words begin.
fn styles_of(app: &App, size: (u16, u16), words: &str) -> Vec<Style> {
    let cells = cells_at(app, size, LATER);
    let mut styles = Vec::new();
    for (y, line) in lines(&cells).iter().enumerate() {
        for (at, _) in line.match_indices(words) {
            let x = super::format::columns(&line[..at]) as u16;
            styles.push(cells[(x, y as u16)].style());
        }
    }
    styles
}

#[test]
fn a_hang_has_the_same_severity_in_every_view() {
    let size = (200, 60);
    let mut app = app_with_hung_jobs(6, size);
    let theme = Theme::new(app.settings);
    let severity =
        app.findings().list().iter().find(|one| one.rule.word() == "stuck-spin-suspect").expect("a hang").severity;
    assert_eq!(severity, Severity::Warn, "of half an hour");
    let summary = app.host_summary(&app.fleet().hosts()[3]).expect("a summary").clone();
    assert_eq!(summary.severity_in_state(GpuState::Hung), Some(severity));
    let colour = theme.severity_style(severity).fg;
    for keys in ["1", "2", "3", "4"] {
        press(&mut app, keys);
        let mut styles = styles_of(&app, size, "? hung?");
        styles.extend(styles_of(&app, size, "hung? "));
        styles.extend(styles_of(&app, size, "2 hung?"));
        assert!(styles.len() >= 2, "{keys}: {}", lines(&cells_at(&app, size, LATER)).join("\n"));
        // Headings of columns are dim.
        let styles: Vec<_> = styles.iter().filter(|style| style.fg != theme.dim.fg).collect();
        assert!(styles.iter().all(|style| style.fg == colour), "{keys}: {styles:?}, {colour:?}");
    }
}

/// A job of two GPUs on each of two hosts, without Slurm: it works, and then hangs.
fn app_with_distributed_hang(size: (u16, u16)) -> App {
    let mut app = connecting(&["hgx-01".into(), "hgx-02".into()], size);
    for host in 0..2 {
        update(&mut app, host, HostUpdate::Hello(Box::new(hello())), 0);
        update(&mut app, host, HostUpdate::Inventory(Box::new(inventory(2))), 0);
    }
    let rank = |host: u32, gpu: u16| {
        let pid = 5001 + host * 100 + u32::from(gpu);
        let mut rank = ProcessSample::new(pid, ("dmitri", 1003), "python -u big.py --zero 3", &[(gpu, 62)])
            .under(5000 + host * 100, "torchrun --nnodes 2 --nproc_per_node 2 big.py --zero 3")
            .under(400, "-bash");
        rank.facts.start_unix_seconds = Some(1_762_990_000);
        rank.gpus[0].sm_percent = Some(100);
        rank
    };
    for seconds in (0..=LATER).step_by(5) {
        let hangs = seconds > 800;
        let reading = GpuReading {
            utilization_percent: Some(if hangs { 100 } else { 97 - (seconds / 5 % 3) as u8 }),
            memory_utilization_percent: Some(if hangs { 0 } else { 40 }),
            memory_used_bytes: Some(62 << 30),
            power_watts: Some(if hangs { 108.0 } else { 600.0 + (seconds % 20) as f32 }),
            ..GpuReading::default()
        };
        for host in 0..2 {
            let snapshot = crate::wire::Snapshot {
                sequence: seconds / 5 + 1,
                monotonic_seconds: seconds as f64,
                interval_seconds: Some(5.0),
                ..builder::snapshot(&vec![reading.clone(); 2], &[rank(host as u32, 0), rank(host as u32, 1)])
            };
            update(&mut app, host, HostUpdate::Snapshot(Box::new(snapshot)), seconds);
        }
        app.update(Event::Ticked, at(seconds));
    }
    app.refresh_derived_state();
    app
}

#[test]
fn a_job_that_hangs_on_two_hosts_is_marked_on_both() {
    for size in [(80, 24), (120, 40)] {
        let app = app_with_distributed_hang(size);
        let hangs: Vec<_> = app.findings().list().iter().filter(|one| one.rule.is_hang_at_low_power()).collect();
        let [hang] = hangs[..] else { panic!("{hangs:?}") };
        assert_eq!((hang.severity, hang.hosts.len()), (Severity::Crit, 2));
        let colour = Theme::new(app.settings).crit.fg;
        let rows = lines(&cells_at(&app, size, LATER));
        let shown = |words: &str| styles_of(&app, size, words).into_iter().filter(|one| one.fg == colour).count();
        assert_eq!(shown("hung? 11m"), 6, "four GPUs and two rows: {}", rows.join("\n"));
        for host in &app.fleet().hosts()[..2] {
            let summary = app.host_summary(host).expect("a summary");
            assert!(summary.gpus.iter().all(|gpu| gpu.state == GpuState::Hung && gpu.severity == Some(Severity::Crit)));
            let has_row = |line: &String| line.contains(host.name().as_str()) && line.contains("hung? 11m");
            assert!(rows.iter().any(has_row), "{}", rows.join("\n"));
        }
    }
}

#[test]
fn the_utilization_of_a_stuck_job_is_not_drawn_as_work() {
    let app = app_with_hung_jobs(6, SIZE);
    let theme = Theme::new(app.settings);
    let cells = cells_at(&app, SIZE, LATER);
    let rows = lines(&cells);
    for (command, style) in [("sft.py", theme.dim), ("pretrain.py", theme.busy)] {
        let y = rows.iter().position(|line| line.contains(command)).unwrap_or_else(|| panic!("{}", rows.join("\n")));
        let charts = (0..SIZE.0).map(|x| &cells[(x, y as u16)]).filter(|cell| cell.symbol() == "▅");
        assert_eq!(charts.map(|cell| cell.fg).collect::<Vec<_>>(), [style.fg.expect("a colour"); 8], "{command}");
    }
}

#[test]
fn a_state_that_does_not_fit_loses_its_time_and_not_its_word() {
    let app = app(1, 8, SIZE);
    let row = app.rows().first().expect("a row");
    let row = Row {
        trouble: Some(ProcessTrouble::DiskWait),
        trouble_since: Some(at(NOW - 300)),
        state: None,
        ..Row::clone(row)
    };
    let theme = Theme::new(app.settings);
    let mut buffer = ratatui::buffer::Buffer::empty(ratatui::layout::Rect::new(0, 0, 1, 1));
    let canvas = super::canvas::Canvas::new(&mut buffer, &theme);
    let state = |width| super::list::state_text(&canvas, &row, &app, at(NOW), width).0;
    assert_eq!((state(12).as_str(), state(9).as_str()), ("disk wait 5m", "disk wait"));
}

#[test]
fn the_power_that_was_judged_is_shown() {
    let readings = |mean: Option<f32>, sensor: f32| {
        let reading = GpuReading {
            utilization_percent: Some(100),
            memory_utilization_percent: Some(40),
            power_mean_watts: mean,
            power_watts: Some(sensor),
            ..GpuReading::default()
        };
        GpuColumns::from_rows(&vec![reading; 8])
    };
    let with_power = |mean, sensor| {
        let mut app = app(1, 8, SIZE);
        for seconds in NOW + 1..NOW + 10 {
            let snapshot = crate::wire::Snapshot { gpus: readings(mean, sensor), ..snapshot(0, 8, seconds) };
            update(&mut app, 0, HostUpdate::Snapshot(Box::new(snapshot)), seconds);
        }
        app
    };
    // The energy counter does not move.
    let mut still = with_power(Some(0.0), 668.0);
    assert!(!text(&still, SIZE).contains("low"), "{}", text(&still, SIZE));
    press(&mut still, "\n\n");
    let screen = text(&still, SIZE);
    assert!(screen.contains("energy counter ignored: contradicts the sensor"), "{screen}");
    let low = with_power(Some(104.0), 140.0);
    let screen = text(&low, SIZE);
    assert!(screen.contains("104") && !screen.contains("140"), "{screen}");
}

#[test]
fn a_signal_dialog_shows_the_findings_about_the_job() {
    let size = (120, 40);
    let mut app = app_with_hung_jobs(5, size);
    press(&mut app, "3/user:dmitri\n");
    app.update(Event::Ticked, at(LATER));
    press(&mut app, "gT");
    let screen = lines(&cells_at(&app, size, LATER)).join("\n");
    assert!(screen.contains("findings   GPUs 4,5 read 100 % busy"), "{screen}");
    // Nothing is sent to a process of another user, and so nothing is verified.
    assert!(screen.contains("not your process") && !screen.contains("verifies"), "{screen}");
    assert_eq!(screen.lines().last().map(str::trim), Some("Esc close"));
    press(&mut app, "\u{1b}/\u{1b}");
    press(&mut app, "/user:erika\nT");
    let screen = lines(&cells_at(&app, size, LATER)).join("\n");
    assert!(screen.contains("findings   none about it") && screen.contains("verifies"), "{screen}");
    assert!(screen.lines().last().is_some_and(|line| line.contains("cancel")), "{screen}");
}

#[test]
fn a_host_that_is_down_counts_from_its_last_data_and_numbers_its_retries() {
    let mut app = app(2, 8, SIZE);
    for (attempt, seconds) in [(1, NOW + 10), (6, NOW + 84)] {
        update(&mut app, 1, HostUpdate::Connecting { attempt, phase: crate::fleet::ConnectPhase::Tcp }, seconds - 1);
        let error = LinkError::new(LinkErrorKind::Refused, "nothing listens on port 22");
        update(&mut app, 1, HostUpdate::Down { error, retry_at: Some(at(NOW + 96)), attempt }, seconds);
    }
    let screen = lines(&cells_at(&app, SIZE, NOW + 84)).join("\n");
    assert!(screen.contains("DOWN 1m24s") && screen.contains("retry 7 in 12s"), "{screen}");
}
