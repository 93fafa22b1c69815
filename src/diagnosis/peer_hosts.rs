//! Jobs that run on several hosts, and what their other parts do.

use super::engine::HostDiagnosis;
use super::track::JobTrack;
use crate::fleet::{DistributedJob, Fleet, HostId};
use crate::wire::SafeText;

/// The other hosts, as a rule sees them.
#[derive(Clone, Copy)]
pub(super) struct PeerHosts<'a> {
    pub(super) fleet: &'a Fleet,
    pub(super) groups: &'a [DistributedJob],
    pub(super) hosts: &'a [HostDiagnosis],
}

/// A part of a job on another host.
pub(super) struct JobPart<'a> {
    pub(super) host: HostId,
    pub(super) name: &'a SafeText,
    pub(super) memory: &'a HostDiagnosis,
    pub(super) job: &'a JobTrack,
}

impl<'a> PeerHosts<'a> {
    /// The parts of `job` on other hosts than `here`.
    pub(super) fn parts(self, job: &JobTrack, here: HostId) -> impl Iterator<Item = JobPart<'a>> {
        let group = job.group.and_then(|group| self.groups.get(group));
        let members = group.map_or(&[][..], |group| group.parts.as_slice());
        members.iter().filter(move |(host, _)| *host != here).filter_map(move |(host, key)| {
            let memory = self.hosts.get(host.0 as usize)?;
            let job = memory.jobs.iter().find(|job| job.key == *key)?;
            Some(JobPart { host: *host, name: self.fleet.host(*host)?.name(), memory, job })
        })
    }

    /// Whether the other parts were grouped by likeness only.
    pub(super) fn is_likely(self, job: &JobTrack) -> bool {
        job.group.and_then(|group| self.groups.get(group)).is_some_and(|group| group.is_likely)
    }
}
