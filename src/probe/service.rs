//! The probe as a whole: what the command line asks for, the threads, and the end.

use super::blocking::spawn_thread;
use super::control::{Control, Orders};
use super::hello::hello;
use super::listener::{DEAD_MAN, End, PolicyWatch, listen};
use super::nvml::raw::exit_now;
use super::nvml::{Driver, Settler};
use super::options::{Files, HELP, Options};
use super::output::Output;
use super::pace::{Pace, Step};
use super::policy::{FORBIDDEN, LOOK_EVERY, Policies};
use super::pretty::pretty;
use super::procfs::PROBE_NAME;
use super::sampler::{Sample, Sampler};
use crate::wire::Message;
use rustix::fd::BorrowedFd;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The listener's stack.
const STACK_BYTES: usize = 256 * 1024;
/// How long a call in flight may take when the probe ends.
const SETTLE: Duration = Duration::from_secs(1);
/// How long NVML may take to shut down when the administrator wants the probe to go: it waits for the thread that
/// waits for Xids.
const SHUT_DOWN: Duration = Duration::from_millis(5500);
const _: () = assert!(LOOK_EVERY.as_millis() + SHUT_DOWN.as_millis() < 10_000, "the probe leaves within 10 s");
/// How often the other probes are told whether a call still hangs.
const KEEP_WATCH: Duration = Duration::from_secs(1);
/// How long `--once` waits for the names of users.
const NAMES: Duration = Duration::from_secs(1);
/// How long it waits for the commands of processes.
const COMMANDS: Duration = Duration::from_secs(1);
/// How long it waits for other programs (`scontrol`, `stat`).
const OUTSIDE: Duration = Duration::from_secs(2);
/// Between the two samples of `--once`, whose difference gives shares.
const ONCE_GAP: Duration = Duration::from_millis(250);

type Stdout = Output<BorrowedFd<'static>>;

/// Does what the arguments (without the program's name) ask for.
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    match Options::parse(arguments) {
        Ok(Options::Help) => print(HELP),
        Ok(Options::Version) => print(concat!("gpufleet-probe ", env!("CARGO_PKG_VERSION"), "\n")),
        Ok(Options::Once { pretty, files }) => once(pretty, files),
        Ok(Options::Serve { interval, files }) => serve(interval, files),
        Err(error) => {
            complain(&format!("{error}\nhint: gpufleet-probe --help"));
            ExitCode::from(2)
        }
    }
}

fn print(text: &str) -> ExitCode {
    // A reader that closed the pipe has seen enough.
    let _closed = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn complain(text: &str) {
    let _closed = writeln!(std::io::stderr(), "gpufleet-probe: {text}");
}

fn start_driver(files: Files) -> Result<Driver, ExitCode> {
    Driver::start(files.library, files.marks.as_deref()).map_err(|error| {
        complain(&format!("no thread can be started: {error}"));
        ExitCode::FAILURE
    })
}

/// Two samples, the second printed.
fn once(for_a_person: bool, mut files: Files) -> ExitCode {
    if let Some(reason) = Policies::new(files.policy.take()).read().refusal {
        complain(&reason);
        return ExitCode::from(FORBIDDEN);
    }
    let hello = hello();
    let driver = match start_driver(files) {
        Ok(driver) => driver,
        Err(status) => return status,
    };
    let settler = driver.settler();
    let mut sampler = Sampler::new(driver);
    let first = sampler.sample(None, Vec::new());
    let began = Instant::now();
    sampler.settle_users(NAMES);
    sampler.settle_processes(COMMANDS);
    sampler.settle_outside(OUTSIDE);
    let spent = Duration::from_secs_f32(first.snapshot.cost.map_or(0.0, |cost| cost.sample_ms / 1e3));
    let gap = ONCE_GAP.saturating_sub(spent + began.elapsed());
    std::thread::sleep(gap);
    sampler.resend();
    let Sample { inventory, mut snapshot } = sampler.sample(None, Vec::new());
    // What is told once was told in the first.
    snapshot.recent_past = first.snapshot.recent_past;
    snapshot.xid_events.splice(0..0, first.snapshot.xid_events);
    snapshot.notes.splice(0..0, first.snapshot.notes);
    if for_a_person {
        print(&pretty(&hello, &inventory.unwrap_or_default(), &snapshot));
    } else {
        let output = stdout();
        let inventory = Message::Inventory(inventory.unwrap_or_default());
        for message in [Message::Hello(hello), inventory, Message::Snapshot(Box::new(snapshot))] {
            if output.send(&message).is_err() {
                break;
            }
        }
    }
    finish(&settler)
}

/// Serves a controller until it goes.
fn serve(interval: Duration, mut files: Files) -> ExitCode {
    // However the file is named that was put on the host: `pkill gpufleet-probe` finds it.
    let _unnamed = rustix::thread::set_name(PROBE_NAME);
    let hello = hello();
    let boot_id = hello.boot_id.clone();
    let output = Arc::new(stdout());
    if output.send(&Message::Hello(hello)).is_err() {
        return ExitCode::SUCCESS;
    }
    let mut policies = Policies::new(files.policy.take());
    let policy = policies.read();
    if let Some(reason) = policy.refusal {
        output.send_last(&Message::Farewell { reason });
        return ExitCode::from(FORBIDDEN);
    }
    let driver = match start_driver(files) {
        Ok(driver) => driver,
        Err(status) => return status,
    };
    let settler = driver.settler();
    let control = Arc::new(Control::new(interval));
    policy.tell(&control);
    let mut policy = PolicyWatch::new(policies, policy);
    let listener = {
        let (output, control, settler) = (Arc::clone(&output), Arc::clone(&control), settler.clone());
        let work = move || {
            let stdin = rustix::stdio::stdin();
            let end = listen(stdin, &output, &control, boot_id.as_deref(), &mut policy, DEAD_MAN);
            // The sampling thread may be waiting for the driver or for a full pipe, so this one ends the process.
            if let Some(reason) = end.farewell() {
                output.send_last(&Message::Farewell { reason });
            }
            if matches!(end, End::Forbidden(_)) {
                settler.shut_down(SHUT_DOWN);
                exit_now(i32::from(FORBIDDEN));
            }
            finish(&settler)
        };
        spawn_thread("requests", STACK_BYTES, Box::new(work))
    };
    if let Err(error) = listener {
        complain(&format!("no thread can be started: {error}"));
        return ExitCode::FAILURE;
    }
    sample_until_broken(Sampler::new(driver), interval, &output, &control);
    finish(&settler)
}

/// Samples at the given pace until nobody reads any more.
fn sample_until_broken(mut sampler: Sampler, interval: Duration, output: &Stdout, control: &Control) {
    let mut pace = Pace::new(interval, Instant::now());
    loop {
        let orders = control.take();
        let now = Instant::now();
        if orders.interval != pace.interval() {
            pace.set_interval(orders.interval, now);
        }
        if orders.resend {
            sampler.resend();
            pace.hurry(now);
        }
        match pace.step(now, orders.acknowledged) {
            Step::WaitUntil(due) => wait(control, &orders, Some(due), &mut sampler),
            Step::WaitForAcknowledgement => wait(control, &orders, None, &mut sampler),
            Step::Sample => {
                pace.taken(now);
                let notes = control.take_notes();
                let Sample { inventory, snapshot } = sampler.sample(Some(pace.interval().as_secs_f32()), notes);
                let messages =
                    inventory.map(Message::Inventory).into_iter().chain([Message::Snapshot(Box::new(snapshot))]);
                if messages.into_iter().any(|message| output.send(&message).is_err()) {
                    return;
                }
            }
        }
    }
}

/// Waits for the next step, and while a call of the driver's hangs, tells the other probes.
fn wait(control: &Control, orders: &Orders, until: Option<Instant>, sampler: &mut Sampler) {
    if !sampler.is_waiting() {
        return control.wait(orders, until);
    }
    let soon = Instant::now() + KEEP_WATCH;
    control.wait(orders, Some(until.map_or(soon, |until| until.min(soon))));
    sampler.keep_watch();
}

/// Ends the process once no NVML call is in flight, or without waiting longer. NVML is not shut down: that can hang
/// like any other call, and the kernel cleans up either way.
fn finish(settler: &Settler) -> ! {
    settler.settle(SETTLE);
    exit_now(0)
}

fn stdout() -> Stdout {
    Output::new(rustix::stdio::stdout())
}
