//! Runs the probe: one snapshot, or a service on standard input and output until the controller is gone.

use super::blocking::spawn_thread;
use super::listener::{Control, ListenerExit, Output, PolicyMonitor, REQUEST_TIMEOUT, SamplerRequests, listen};
use super::nvml::ffi::exit_now;
use super::nvml::{Driver, ShutdownHandle};
use super::options::{FileOptions, HELP, Options};
use super::owner::ScopeEvidence;
use super::policy::{EXIT_FORBIDDEN, POLICY_CHECK_PERIOD, PolicyFiles, own_sha256};
use super::pretty::pretty;
use super::procfs::{FileReader, PROBE_NAME, boot_id, cpu_count, memory_total_bytes};
use super::sampler::{NextStep, Sample, SampleSchedule, Sampler};
use super::user_names::local_login;
use crate::wire::{Hello, Message, PROTOCOL, SafeText};
use rustix::fd::BorrowedFd;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Stack of the listener thread.
const STACK_BYTES: usize = 256 * 1024;
/// How long the end of the process waits for an NVML call in flight.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// How long NVML may take to shut down when the policy forbids the probe. It waits for the Xid thread.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(5500);
const _: () =
    assert!(POLICY_CHECK_PERIOD.as_millis() + SHUTDOWN_TIMEOUT.as_millis() < 10_000, "the probe leaves within 10 s");
/// The interval at which the peer hang lock is updated while a call is in flight.
const HANG_LOCK_PERIOD: Duration = Duration::from_secs(1);
/// How long `--once` waits for user names.
const USER_NAMES_TIMEOUT: Duration = Duration::from_secs(1);
/// How long `--once` waits for command lines.
const COMMANDS_TIMEOUT: Duration = Duration::from_secs(1);
/// How long `--once` waits for other programs (`scontrol`, `stat`).
const EXTERNAL_TIMEOUT: Duration = Duration::from_secs(2);
/// The time between the two samples of `--once`, from which rates are computed.
const ONCE_INTERVAL: Duration = Duration::from_millis(250);

type Stdout = Output<BorrowedFd<'static>>;

/// Runs the command line (without the program name) and returns the exit code.
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    match Options::parse(arguments) {
        Ok(Options::Help) => print(HELP),
        Ok(Options::Version) => print(concat!("gpufleet-probe ", env!("CARGO_PKG_VERSION"), "\n")),
        Ok(Options::Once { pretty, files }) => once(pretty, files),
        Ok(Options::Serve { interval, files }) => serve(interval, files),
        Err(error) => {
            print_error(&format!("{error}\nhint: gpufleet-probe --help"));
            ExitCode::from(2)
        }
    }
}

fn print(text: &str) -> ExitCode {
    // A reader that closed the pipe has read enough.
    let _closed = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn print_error(text: &str) {
    let _closed = writeln!(std::io::stderr(), "gpufleet-probe: {text}");
}

fn start_driver(files: FileOptions) -> Result<Driver, ExitCode> {
    Driver::start(files.library, files.hang_lock_dir.as_deref()).map_err(|error| {
        print_error(&format!("cannot start a thread: {error}"));
        ExitCode::FAILURE
    })
}

/// Takes two samples and prints the second.
fn once(human_readable: bool, mut files: FileOptions) -> ExitCode {
    let hello = hello();
    if let Some(reason) = PolicyFiles::new(files.policy.take(), hello.probe_sha256.clone()).read().refusal {
        print_error(&reason);
        return ExitCode::from(EXIT_FORBIDDEN);
    }
    let driver = match start_driver(files) {
        Ok(driver) => driver,
        Err(status) => return status,
    };
    let shutdown_handle = driver.shutdown_handle();
    let mut sampler = Sampler::new(driver);
    let first = sampler.sample(None, Vec::new());
    let started = Instant::now();
    sampler.wait_for_users(USER_NAMES_TIMEOUT);
    sampler.wait_for_commands(COMMANDS_TIMEOUT);
    sampler.wait_for_external(EXTERNAL_TIMEOUT);
    let first_sample_time = Duration::from_secs_f32(first.snapshot.cost.map_or(0.0, |cost| cost.sample_ms / 1e3));
    let gap = ONCE_INTERVAL.saturating_sub(first_sample_time + started.elapsed());
    std::thread::sleep(gap);
    sampler.resend();
    let Sample { inventory, mut snapshot } = sampler.sample(None, Vec::new());
    // These are reported only once, in the first sample.
    snapshot.recent_past = first.snapshot.recent_past;
    snapshot.xid_events.splice(0..0, first.snapshot.xid_events);
    snapshot.notes.splice(0..0, first.snapshot.notes);
    if human_readable {
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
    finish(&shutdown_handle)
}

/// Serves a controller until it is gone.
fn serve(interval: Duration, mut files: FileOptions) -> ExitCode {
    // The uploaded file may have any name, but `pkill gpufleet-probe` must find the process.
    let _ignored = rustix::thread::set_name(PROBE_NAME);
    // The probe is started in its own directory, whose file system could not be unmounted otherwise.
    let _ignored = rustix::process::chdir("/");
    let hello = hello();
    let boot_id = hello.boot_id.clone();
    let mut policy_files = PolicyFiles::new(files.policy.take(), hello.probe_sha256.clone());
    let output = Arc::new(stdout());
    if output.send(&Message::Hello(hello)).is_err() {
        return ExitCode::SUCCESS;
    }
    let policy = policy_files.read();
    if let Some(reason) = policy.refusal {
        output.send_last(&Message::Farewell { reason });
        return ExitCode::from(EXIT_FORBIDDEN);
    }
    let driver = match start_driver(files) {
        Ok(driver) => driver,
        Err(status) => return status,
    };
    let shutdown_handle = driver.shutdown_handle();
    let control = Arc::new(Control::new(interval));
    policy.apply_to(&control);
    let mut policy = PolicyMonitor::new(policy_files, policy);
    let listener = {
        let (output, control, shutdown_handle) = (Arc::clone(&output), Arc::clone(&control), shutdown_handle.clone());
        let work = move || {
            let stdin = rustix::stdio::stdin();
            let end = listen(stdin, &output, &control, boot_id.as_deref(), &mut policy, REQUEST_TIMEOUT);
            // The sampling thread may be waiting for the driver or for a full pipe, so this thread ends the process.
            if let Some(reason) = end.farewell() {
                output.send_last(&Message::Farewell { reason });
            }
            if matches!(end, ListenerExit::ForbiddenByPolicy(_)) {
                shutdown_handle.shut_down(SHUTDOWN_TIMEOUT);
                exit_now(i32::from(EXIT_FORBIDDEN));
            }
            finish(&shutdown_handle)
        };
        spawn_thread("requests", STACK_BYTES, Box::new(work))
    };
    if let Err(error) = listener {
        print_error(&format!("cannot start a thread: {error}"));
        return ExitCode::FAILURE;
    }
    sample_until_closed(Sampler::new(driver), interval, &output, &control);
    finish(&shutdown_handle)
}

/// Samples at the requested interval until the output is closed.
fn sample_until_closed(mut sampler: Sampler, interval: Duration, output: &Stdout, control: &Control) {
    let mut schedule = SampleSchedule::new(interval, Instant::now());
    loop {
        let requests = control.take_requests();
        let now = Instant::now();
        if requests.interval != schedule.interval() {
            schedule.set_interval(requests.interval, now);
        }
        schedule.shift(requests.shift_seconds, now);
        if requests.resend {
            sampler.resend();
            schedule.sample_now();
        }
        match schedule.next_step(now, requests.acknowledged) {
            NextStep::WaitUntil(due) => wait(control, &requests, Some(due), &mut sampler),
            NextStep::WaitForAcknowledgement => wait(control, &requests, None, &mut sampler),
            NextStep::Sample => {
                schedule.record_sample(now);
                let notes = control.take_notes();
                sampler.note_earlier_slurm_jobs(&control.take_earlier_slurm_jobs());
                let Sample { inventory, snapshot } = sampler.sample(Some(schedule.interval().as_secs_f32()), notes);
                let messages =
                    inventory.map(Message::Inventory).into_iter().chain([Message::Snapshot(Box::new(snapshot))]);
                if messages.into_iter().any(|message| output.send(&message).is_err()) {
                    return;
                }
                sampler.finish_start();
            }
        }
    }
}

/// Waits for the next step. Updates the peer hang lock while a call is in flight.
fn wait(control: &Control, requests: &SamplerRequests, until: Option<Instant>, sampler: &mut Sampler) {
    if !sampler.has_pending_call() {
        return control.wait(requests, until);
    }
    let next_check = Instant::now() + HANG_LOCK_PERIOD;
    control.wait(requests, Some(until.map_or(next_check, |until| until.min(next_check))));
    sampler.update_hang_lock();
}

/// Ends the process when no NVML call is in flight, or after [`STOP_TIMEOUT`]. Does not shut NVML down: that may hang
/// as well, and the kernel cleans up either way.
fn finish(shutdown_handle: &ShutdownHandle) -> ! {
    shutdown_handle.stop(STOP_TIMEOUT);
    exit_now(0)
}

fn stdout() -> Stdout {
    Output::new(rustix::stdio::stdout())
}

/// The host and the login. Calls neither the driver nor a name service, so it cannot block.
pub(crate) fn hello() -> Hello {
    let mut reader = FileReader::default();
    let uname = rustix::system::uname();
    let text = |text: &std::ffi::CStr| Some(SafeText::from_bytes(text.to_bytes()));
    let uid = rustix::process::getuid().as_raw();
    let local = reader.read("/etc/passwd").ok().and_then(|passwd| local_login(passwd, uid));
    Hello {
        protocol: PROTOCOL,
        probe_version: env!("CARGO_PKG_VERSION").into(),
        boot_id: boot_id(&mut reader),
        host_name: text(uname.nodename()),
        // sshd sets LOGNAME for users that are not in /etc/passwd.
        login_user: local.or_else(|| std::env::var("LOGNAME").ok().map(Into::into)),
        login_uid: Some(uid),
        kernel: text(uname.release()),
        arch: text(uname.machine()),
        cpu_count: cpu_count(&mut reader),
        memory_total_bytes: memory_total_bytes(&mut reader),
        scope: Some(ScopeEvidence::read().scope()),
        source: Some(crate::wire::ReadingSource::Probe),
        probe_pid: Some(std::process::id()),
        probe_sha256: own_sha256().map(Into::into),
    }
}
