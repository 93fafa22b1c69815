//! All hosts.

use super::{Host, HostChange, HostId, HostUpdate, Moment};
use crate::config::HostConfig;
use std::sync::Arc;

/// All hosts, in the order of the configuration.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    hosts: Vec<Host>,
    /// The data comes from the simulator, not from machines.
    pub simulated: bool,
}

impl Fleet {
    /// A fleet in which no host has been reached yet.
    pub fn new(configs: &[Arc<HostConfig>], simulated: bool, now: Moment) -> Self {
        let hosts = (0..).zip(configs).map(|(id, config)| Host::new(HostId(id), Arc::clone(config), now)).collect();
        Self { hosts, simulated }
    }

    /// Adds a host that is met only now, as in a recording.
    pub fn join(&mut self, config: Arc<HostConfig>, now: Moment) -> HostId {
        let id = HostId(self.hosts.len() as u32);
        self.hosts.push(Host::new(id, config, now));
        id
    }

    /// The hosts, in the order of the configuration.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The hosts, to be changed by tests of what rests on them.
    #[cfg(test)]
    pub(crate) fn hosts_mut(&mut self) -> &mut [Host] {
        &mut self.hosts
    }

    /// One host.
    pub fn host(&self, id: HostId) -> Option<&Host> {
        self.hosts.get(id.0 as usize)
    }

    /// Takes one host's update; an id that is not in the fleet changes nothing.
    pub fn apply(&mut self, id: HostId, update: HostUpdate, now: Moment) -> HostChange {
        match self.hosts.get_mut(id.0 as usize) {
            Some(host) => host.apply(update, now),
            None => HostChange::Nothing,
        }
    }
}
