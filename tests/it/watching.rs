//! Host tasks without a screen: what they tell, and when.

// clippy exempts functions marked as tests, not what they call.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::lab::Lab;
use gpufleet::collect::{Collector, OpenChannel, Source};
use gpufleet::config::{Backend, HostConfig};
use gpufleet::fleet::{Clock, HostId, HostUpdate};
use gpufleet::ssh::{Context, Interaction, Options};
use std::fs;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// How long anything may take that should happen soon.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

/// Hosts that are watched, without a screen.
pub(crate) struct Watch {
    pub(crate) collector: Collector,
    updates: mpsc::Receiver<(HostId, HostUpdate)>,
    pub(crate) clock: Clock,
    _context: Arc<Context>,
}

impl Watch {
    pub(crate) fn start(hosts: Vec<HostConfig>) -> Self {
        let options = Options {
            home: None,
            agent_socket: None,
            ssh_config: Some("/dev/null".into()),
            helper_program: Some(env!("CARGO_BIN_EXE_gpufleet").into()),
            ..Options::from_environment(Interaction::Refuse)
        };
        let (context, _) = Context::with_options(options);
        let clock = Clock::start(1.0);
        let hosts: Vec<_> = hosts.into_iter().map(Arc::new).collect();
        let source = Source::Ssh(Arc::clone(&context) as Arc<dyn OpenChannel>);
        let (collector, updates) = Collector::start(&hosts, source, clock);
        Self { collector, updates, clock, _context: context }
    }

    /// The next update of any host.
    pub(crate) async fn next(&mut self, what: &str) -> (HostId, HostUpdate) {
        let next = timeout_at(Instant::now() + PATIENCE, self.updates.recv()).await;
        next.unwrap_or_else(|_| panic!("waited for {what}")).expect("the tasks have ended")
    }

    /// Waits for an update and tells how long it took. `never` must not come before.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        wanted: impl Fn(&HostUpdate) -> bool,
        never: impl Fn(&HostUpdate) -> bool,
    ) -> (Duration, HostUpdate) {
        let began = Instant::now();
        loop {
            let next = timeout_at(began + PATIENCE, self.updates.recv()).await;
            let (_, update) = next.unwrap_or_else(|_| panic!("waited for {what}")).expect("the tasks have ended");
            if wanted(&update) {
                return (began.elapsed(), update);
            }
            assert!(!never(&update), "before {what}: {update:?}");
        }
    }

    pub(crate) async fn live(&mut self) -> Duration {
        self.until("a snapshot", is_snapshot, |_| false).await.0
    }

    /// Takes everything that comes for so long.
    pub(crate) async fn during(&mut self, span: Duration) -> Vec<HostUpdate> {
        let end = Instant::now() + span;
        let mut seen = Vec::new();
        while let Ok(Some((_, update))) = timeout_at(end, self.updates.recv()).await {
            seen.push(update);
        }
        seen
    }
}

pub(crate) fn is_snapshot(update: &HostUpdate) -> bool {
    matches!(update, HostUpdate::Snapshot(_))
}

pub(crate) fn is_down(update: &HostUpdate) -> bool {
    matches!(update, HostUpdate::Down { .. })
}

pub(crate) fn nothing(_: &HostUpdate) -> bool {
    false
}

/// The only host of a lab, at another port of loopback where one is given.
pub(crate) fn host(lab: &Lab, port: Option<u16>) -> HostConfig {
    let sshd = &lab.hosts[0].sshd;
    let port = port.unwrap_or(sshd.port());
    let known_hosts = lab.path(&format!("known_hosts-{port}"));
    fs::write(&known_hosts, format!("[127.0.0.1]:{port} {}\n", sshd.host_key("ed25519"))).unwrap();
    HostConfig {
        address: Some("127.0.0.1".into()),
        port: Some(port),
        user: Some(sshd.user()),
        identity_file: Some(sshd.client_key()),
        known_hosts: Some(known_hosts),
        backend: Backend::Native,
        nvml_library: Some(lab.hosts[0].driver.library().display().to_string()),
        interval: Duration::from_secs(1),
        ..HostConfig::named("hgx-01")
    }
}
