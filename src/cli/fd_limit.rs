//! The limit of open files, raised as far as the system allows.

use super::CommandError;
use crate::config::{Backend, HostConfig};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The terminal, the agent, jump hosts, files that are read and written meanwhile.
const BESIDES: u64 = 40;
/// Nobody needs more, and some systems mean "no limit" by a number that programs cannot take.
const ENOUGH: u64 = 65_536;

/// Raises the limit so far that all hosts can be connected to at once.
///
/// # Errors
/// Where the system does not allow as many files as the hosts need.
pub(super) fn allow(hosts: &[HostConfig]) -> Result<(), CommandError> {
    let needed = needed(hosts);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let possible = maximum.unwrap_or(u64::MAX).min(ENOUGH.max(needed));
    let mut allowed = current.unwrap_or(u64::MAX);
    if allowed < possible && setrlimit(Resource::Nofile, Rlimit { current: Some(possible), maximum }).is_ok() {
        allowed = possible;
    }
    check(hosts.len(), needed, allowed)
}

/// A socket a host and what looks for its name, or the pipes of its `ssh` program.
fn needed(hosts: &[HostConfig]) -> u64 {
    let each = hosts.iter().map(|host| match host.backend {
        Backend::System | Backend::Local => 4,
        Backend::Auto | Backend::Native => 2,
    });
    BESIDES + each.sum::<u64>()
}

fn check(hosts: usize, needed: u64, allowed: u64) -> Result<(), CommandError> {
    if allowed >= needed {
        return Ok(());
    }
    let fit = allowed.saturating_sub(BESIDES) * hosts as u64 / (needed - BESIDES).max(1);
    Err(CommandError::failed(format!(
        "only {allowed} files may be open at once here, which is enough for {fit} of these {hosts} hosts\n  hint: \
         ulimit -n {needed}, or fewer hosts"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_files_are_told_with_how_many_hosts_would_do() {
        let hosts = vec![HostConfig::named("gpu"); 200];
        assert_eq!(needed(&hosts), 440);
        assert!(check(200, 440, 440).is_ok());
        assert_eq!(
            check(200, 440, 256).unwrap_err().to_string(),
            "gpufleet: only 256 files may be open at once here, which is enough for 108 of these 200 hosts\n  hint: \
             ulimit -n 440, or fewer hosts\n"
        );
    }
}
