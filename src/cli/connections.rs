//! Where the updates of hosts come from: the hosts themselves, or the collectors of `--collector`.

use super::CommandError;
use super::collector_answer::{ReadMode, no_answer, read_pictures};
use super::command_context::{ChosenCollector, CommandContext};
use crate::collect::{
    Command, ConfigureHost, FirstPicture, FollowedCollector, HostTasks, RelayRoute, RelayedHosts, RelayedParts, Source,
};
use crate::config::HostConfig;
use crate::fleet::{HostId, LinkError};
use crate::share::HostInfo;
use crate::wire::SafeText;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Where the updates come from.
pub(super) enum Connections {
    /// From the hosts.
    Direct(HostTasks),
    /// From collectors.
    Relayed(RelayedHosts),
}

impl Connections {
    /// Notes that a person uses the screen.
    pub(super) fn record_input(&self) {
        // A collector has its own policy for lost hosts.
        if let Self::Direct(host_tasks) = self {
            host_tasks.record_input();
        }
    }

    /// Sends a command without waiting. Returns `false` if it is not taken.
    pub(super) fn command(&self, id: HostId, command: Command) -> bool {
        match self {
            Self::Direct(host_tasks) => host_tasks.command(id, command),
            Self::Relayed(relayed) => relayed.command(id, command),
        }
    }
}

/// With `--collector`, reads the pictures of the collectors, sets the hosts to show and follows them from then on. Prompts
/// appear on the terminal, because the screen needs hosts. It begins with the collectors that have answered as soon as these
/// watch the hosts of the command line and `host`; the others follow.
pub(super) async fn follow_collector(
    setup: &mut CommandContext,
    host: Option<&str>,
) -> Result<Option<RelayedParts>, CommandError> {
    let chosen = std::mem::take(&mut setup.collectors);
    let Source::Ssh(ssh) = &setup.source else { return Ok(None) };
    if chosen.is_empty() {
        return Ok(None);
    }
    let (ssh, clock) = (Arc::clone(ssh), setup.clock);
    let user = std::env::var("USER").ok().filter(|user| !user.is_empty()).map(SafeText::from);
    let wanted = chosen.first().map(|collector| &collector.wanted[..]).unwrap_or_default();
    let needed: Vec<SafeText> = wanted.iter().cloned().chain(host.map(SafeText::new)).collect();
    let pictures = read_pictures(setup, &chosen, ReadMode::Follow(&needed)).await?;
    let listed: Vec<Listed<'_>> = pictures.iter().map(Listed::of).collect();
    let (hosts, of_collectors) = merge(&chosen, &listed)?;
    let followed = chosen.into_iter().zip(pictures).zip(of_collectors).map(|((collector, picture), shown)| {
        let machine = Arc::clone(&collector.machine);
        let route = RelayRoute { machine, ssh: Arc::clone(&ssh), clock, user: user.clone() };
        let configure: Option<ConfigureHost> = if collector.wanted.is_empty() {
            Some(Arc::new(move |host, info| collector.config(host, info.simulated)))
        } else {
            None
        };
        let hosts = picture.names().map(|names| shown.in_order_of(names)).unwrap_or(shown.hosts);
        FollowedCollector { route, picture, hosts, placeholder: shown.placeholder, configure }
    });
    let parts = RelayedHosts::start(followed.collect(), &hosts);
    setup.hosts = hosts;
    Ok(Some(parts))
}

/// The hosts of a collector when the screen begins.
#[derive(Clone, Copy)]
enum Listed<'a> {
    /// It has listed them, and they are simulated or not.
    Hosts(&'a [HostInfo], bool),
    /// It does not answer.
    Down(&'a LinkError),
    /// It has not answered yet.
    Pending,
}

impl<'a> Listed<'a> {
    fn of(picture: &'a FirstPicture) -> Self {
        match (picture.hosts(), picture) {
            (Some(hosts), _) => Self::Hosts(hosts, picture.info().is_some_and(|info| info.simulated)),
            (None, FirstPicture::Failed(error)) => Self::Down(error),
            (None, _) => Self::Pending,
        }
    }

    fn hosts(self) -> Option<&'a [HostInfo]> {
        if let Self::Hosts(hosts, _) = self { Some(hosts) } else { None }
    }

    fn is_simulated(self) -> bool {
        matches!(self, Self::Hosts(_, true))
    }

    fn error(self) -> Option<&'a LinkError> {
        if let Self::Down(error) = self { Some(error) } else { None }
    }
}

/// The panes of a collector.
#[derive(Default)]
struct ShownHosts {
    /// Its hosts in the order of its lines, each with its id in the fleet.
    hosts: Vec<(SafeText, Option<HostId>)>,
    /// The pane that stands for its hosts while they are not known.
    placeholder: Option<HostId>,
}

impl ShownHosts {
    /// The hosts in the order of the ids in the lines. A name that is not listed any more has no place.
    fn in_order_of(&self, names: &[SafeText]) -> Vec<(SafeText, Option<HostId>)> {
        let ids: HashMap<&SafeText, Option<HostId>> = self.hosts.iter().map(|(name, id)| (name, *id)).collect();
        names.iter().map(|name| (name.clone(), ids.get(name).copied().flatten())).collect()
    }
}

/// Merges the `listed` hosts of the collectors in the order of the command line. Returns them, and the hosts of each
/// collector. A host belongs to the first collector that watches it. A collector that does not answer, or not yet, is one
/// pane, unless the command line names the hosts.
///
/// # Errors
/// No collector answers, or none watches a host of the command line.
fn merge(
    chosen: &[ChosenCollector],
    listed: &[Listed<'_>],
) -> Result<(Vec<Arc<HostConfig>>, Vec<ShownHosts>), CommandError> {
    let errors: Vec<LinkError> = listed.iter().filter_map(|list| list.error().cloned()).collect();
    if errors.len() == chosen.len() {
        return Err(no_answer(chosen, &errors));
    }
    if let ([only], [Listed::Hosts(list, _)]) = (chosen, listed) {
        // Its error names the hosts that exist.
        only.hosts(list)?;
    }
    let wanted = chosen.first().map(|collector| &collector.wanted[..]).unwrap_or_default();
    let mut hosts: Vec<Arc<HostConfig>> = Vec::new();
    let mut shown: HashSet<&SafeText> = HashSet::new();
    let mut of_collectors: Vec<ShownHosts> = chosen.iter().map(|_| ShownHosts::default()).collect();
    for ((collector, list), own) in chosen.iter().zip(listed).zip(&mut of_collectors).filter(|_| wanted.is_empty()) {
        let Some(hosts_of_collector) = list.hosts() else {
            own.placeholder = Some(HostId(hosts.len() as u32));
            hosts.push(collector.unknown_hosts());
            continue;
        };
        // A repeated name has no second id.
        let mut names = HashSet::new();
        for host in hosts_of_collector.iter().filter(|host| names.insert(&host.name)) {
            let is_new = shown.insert(&host.name);
            own.hosts.push((host.name.clone(), is_new.then_some(HostId(hosts.len() as u32))));
            if is_new {
                hosts.push(collector.config(host, list.is_simulated()));
            }
        }
    }
    for name in wanted {
        let id = HostId(hosts.len() as u32);
        for ((collector, list), own) in chosen.iter().zip(listed).zip(&mut of_collectors) {
            let is_shown = hosts.len() > id.0 as usize;
            let host = list.hosts().and_then(|list| list.iter().find(|host| host.name == *name));
            let host = host.filter(|_| !is_shown);
            own.hosts.push((name.clone(), host.map(|_| id)));
            hosts.extend(host.map(|host| collector.config(host, list.is_simulated())));
        }
        if hosts.len() == id.0 as usize {
            return Err(not_watched(name, chosen, listed));
        }
    }
    Ok((hosts, of_collectors))
}

/// The error for a host of the command line that none of several collectors watches.
fn not_watched(name: &SafeText, chosen: &[ChosenCollector], listed: &[Listed<'_>]) -> CommandError {
    let silent: Vec<String> = chosen
        .iter()
        .zip(listed)
        .filter_map(|(collector, list)| {
            let error = list.error()?;
            Some(format!("\n  the collector on {} does not answer: {}", collector.machine.name, error.message))
        })
        .collect();
    CommandError::failed(format!(
        "no collector watches {name}{}\n  hint: without names, all hosts of the collectors are shown",
        silent.concat()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::LinkErrorKind;

    fn chosen(wanted: &[&str]) -> [ChosenCollector; 2] {
        ["room-a", "room-b"].map(|name| ChosenCollector {
            machine: Arc::new(HostConfig::named(name)),
            known: Vec::new(),
            wanted: wanted.iter().map(|&name| name.into()).collect(),
        })
    }

    fn list(names: &[&str]) -> Vec<HostInfo> {
        names.iter().map(|&name| HostInfo { name: name.into(), ..HostInfo::default() }).collect()
    }

    fn shown(hosts: &[Arc<HostConfig>]) -> Vec<String> {
        hosts.iter().map(|host| format!("{} via {}", host.name, host.relayed_by.as_deref().unwrap_or("-"))).collect()
    }

    fn down() -> LinkError {
        LinkError::new(LinkErrorKind::Refused, "nothing listens on port 22").with_hint("is sshd running?")
    }

    /// The ids of the hosts of each collector.
    fn ids(of_collectors: &[ShownHosts]) -> Vec<Vec<Option<u32>>> {
        of_collectors.iter().map(|own| own.hosts.iter().map(|(_, id)| id.map(|id| id.0)).collect()).collect()
    }

    #[test]
    fn the_first_collector_that_watches_a_host_shows_it() {
        let (a, b) = (list(&["hgx-01", "hgx-02"]), list(&["hgx-02", "a6k-01"]));
        let (hosts, own) = merge(&chosen(&[]), &[Listed::Hosts(&a, false), Listed::Hosts(&b, false)]).expect("hosts");
        assert_eq!(shown(&hosts), ["hgx-01 via room-a", "hgx-02 via room-a", "a6k-01 via room-b"]);
        assert_eq!(ids(&own), [[Some(0), Some(1)], [None, Some(2)]]);
        let (hosts, own) = merge(&chosen(&["a6k-01", "hgx-02"]), &[Listed::Hosts(&a, false), Listed::Hosts(&b, false)])
            .expect("hosts");
        assert_eq!(shown(&hosts), ["a6k-01 via room-b", "hgx-02 via room-a"], "in the order of the command line");
        assert_eq!(ids(&own), [[None, Some(1)], [Some(0), None]]);
        let (hosts, _) = merge(&chosen(&[]), &[Listed::Hosts(&a, false), Listed::Hosts(&b, true)]).expect("hosts");
        assert_eq!(hosts.iter().map(|host| host.is_simulated).collect::<Vec<_>>(), [false, false, true]);
    }

    #[test]
    fn the_hosts_of_a_list_in_another_order_keep_the_ids_of_their_lines() {
        let own =
            ShownHosts { hosts: vec![("c".into(), Some(HostId(0))), ("a".into(), Some(HostId(1)))], placeholder: None };
        let names: Vec<SafeText> = ["a", "b", "c"].map(SafeText::from).into();
        let expected = [("a".into(), Some(HostId(1))), ("b".into(), None), ("c".into(), Some(HostId(0)))];
        assert_eq!(own.in_order_of(&names), expected);
    }

    #[test]
    fn a_collector_that_does_not_answer_is_one_pane() {
        let (a, error) = (list(&["room-b", "hgx-01"]), down());
        let (hosts, own) = merge(&chosen(&[]), &[Listed::Hosts(&a, false), Listed::Down(&error)]).expect("hosts");
        assert_eq!(shown(&hosts), ["room-b via room-a", "hgx-01 via room-a", "room-b (collector) via room-b"]);
        assert_eq!(ids(&own), [vec![Some(0), Some(1)], vec![]]);
        assert_eq!((own[0].placeholder, own[1].placeholder), (None, Some(HostId(2))));
        let (hosts, own) = merge(&chosen(&[]), &[Listed::Pending, Listed::Hosts(&a, false)]).expect("hosts");
        assert_eq!(shown(&hosts), ["room-a (collector) via room-a", "room-b via room-b", "hgx-01 via room-b"]);
        assert_eq!((own[0].placeholder, own[1].placeholder), (Some(HostId(0)), None));
        let (hosts, _) = merge(&chosen(&["hgx-01"]), &[Listed::Hosts(&a, false), Listed::Down(&error)]).expect("hosts");
        assert_eq!(shown(&hosts), ["hgx-01 via room-a"]);
    }

    #[test]
    fn hosts_that_nobody_watches_and_collectors_that_do_not_answer_are_named() {
        let (a, error) = (list(&["hgx-01"]), down());
        let text = |wanted: &[&str], listed: [Listed<'_>; 2]| {
            merge(&chosen(wanted), &listed).map(|_| ()).expect_err("fails").to_string()
        };
        assert_eq!(
            text(&["hgx-09"], [Listed::Hosts(&a, false), Listed::Down(&error)]),
            "gpufleet: no collector watches hgx-09\n  the collector on room-b does not answer: nothing listens on port \
             22\n  hint: without names, all hosts of the collectors are shown\n"
        );
        assert_eq!(
            text(&[], [Listed::Down(&error), Listed::Down(&error)]),
            "gpufleet: no answer from the collector on room-a: nothing listens on port 22\n  hint: is sshd running?\n\
             no answer from the collector on room-b: nothing listens on port 22\n  hint: is sshd running?\n"
        );
    }
}
