//! The hosts of the demo, from the templates in `demo.toml`.

use super::gpu_model::{MODELS, model};
use super::host::HostScript;
use super::process::PEOPLE;
use super::rng::Rng;
use super::script::{Job, Positions, Seconds, Step};
use crate::config::HostConfig;
use serde::Deserialize;
use std::sync::Arc;

/// The account that the demo logs in with. One of the hung jobs belongs to it, so that it can be signalled.
pub(super) const LOGIN: &str = "dmitri";
/// GPUs of a template.
const TEMPLATE_GPUS: usize = 8;

/// The parsed `demo.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Demo {
    hosts: Vec<String>,
    template: Vec<Template>,
}

/// Jobs and events of a host.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Template {
    name: String,
    weight: u64,
    like: String,
    gpu: Option<String>,
    jobs: Vec<Job>,
    events: Vec<Step>,
}

impl Demo {
    /// Reads the templates. A test asserts that they are valid.
    pub(super) fn new() -> Self {
        Self::parse().unwrap_or_default()
    }

    fn parse() -> Result<Self, toml::de::Error> {
        toml::from_str(include_str!("demo.toml"))
    }

    fn template(&self, name: &str) -> Option<&Template> {
        self.template.iter().find(|template| template.name == name)
    }

    /// Returns a random template, by weight.
    fn any(&self, rng: &mut Rng) -> Option<&Template> {
        let mut number = rng.bits() % self.template.iter().map(|template| template.weight).sum::<u64>().max(1);
        self.template.iter().find(|template| {
            let is_chosen = number < template.weight;
            number = number.saturating_sub(template.weight);
            is_chosen
        })
    }

    /// Returns the script of host `index` of a fleet of `hosts`.
    pub(super) fn host(&self, seed: u64, index: u32, hosts: u32, gpu_count: usize) -> HostScript {
        let mut rng = Rng::new(&[seed, u64::from(index)]);
        let mut of_pair = Rng::new(&[seed, u64::from(index / 2), 1]);
        let host_seed = rng.bits();
        let slurm_base = 3300 + index / 2 * 17;
        let is_known = (index as usize) < self.hosts.len();
        // Two neighbours may run one job together.
        let together = self.any(&mut of_pair).filter(|template| template.name == "whole");
        let template = match self.hosts.get(index as usize) {
            Some(name) => self.template(name),
            None => together.or_else(|| self.any(&mut rng)),
        };
        let nothing = Template::default();
        let template = template.unwrap_or(&nothing);
        let jobs = self.template(&template.like).map_or(&template.jobs, |other| &other.jobs);
        let anybody = of_pair.bits() as usize;
        let mut placed = Vec::new();
        for round in 0..gpu_count.div_ceil(TEMPLATE_GPUS) {
            for job in jobs {
                let is_whole = job.gpus.0.is_empty();
                let first = round * TEMPLATE_GPUS;
                let gpus = job.gpus.0.iter().map(|(from, to)| (from + first, to + first)).collect();
                let gpus = Positions(gpus);
                if gpus.below(gpu_count).is_empty() || is_whole && round > 0 {
                    continue;
                }
                let person = PEOPLE.iter().position(|(login, ..)| *login == job.user).unwrap_or(anybody);
                let under = match job.under.as_str() {
                    // Half of the hosts have no Slurm: people log in there.
                    "slurm" if index % 4 >= 2 => format!("session {}", 12 + rng.bits() % 4000),
                    "slurm" if is_whole => format!("slurm {slurm_base}"),
                    "slurm" => format!("slurm {}", slurm_base * 10 + index % 2 * 1000 + 31 * placed.len() as u32),
                    other => other.to_owned(),
                };
                let job = Job {
                    gpus,
                    user: PEOPLE[(person + round) % PEOPLE.len()].0.to_owned(),
                    under,
                    age: if job.every.is_some() { job.age } else { Seconds(job.age.0 + rng.between(70.0, 600.0)) },
                    ..job.clone()
                };
                placed.push((placed.len(), Arc::new(job)));
            }
        }
        let mut events = template.events.clone();
        if !is_known {
            events.extend(generated_fault(gpu_count, &mut rng));
        }
        events.retain(|event| event.gpus.as_ref().is_none_or(|gpus| !gpus.below(gpu_count).is_empty()));
        let digits = hosts.to_string().len().max(2);
        HostScript {
            name: format!("hgx-{:0digits$}", index + 1),
            seed: host_seed,
            index: u64::from(index),
            login: LOGIN.to_owned(),
            model: template.gpu.as_deref().and_then(model).unwrap_or(&MODELS[0]),
            gpu_count,
            interval: HostConfig::DEFAULT_INTERVAL.as_secs_f64(),
            jobs: placed,
            events,
        }
    }
}

/// Returns the fault of a host beyond the known ones; few have one.
fn generated_fault(gpu_count: usize, rng: &mut Rng) -> Option<Step> {
    let text = match rng.bits() % 100 {
        0..2 => "75s down for=40s every=6m".to_owned(),
        2 => "0 mismatch".to_owned(),
        3 => format!("0 lost gpu={}", rng.bits() as usize % gpu_count.max(1)),
        _ => return None,
    };
    Step::parse(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_templates_are_valid() {
        let demo = Demo::parse().expect("demo.toml parses");
        let names: BTreeSet<&str> = demo.template.iter().map(|template| template.name.as_str()).collect();
        assert_eq!(names.len(), demo.template.len());
        assert!(demo.hosts.iter().all(|name| names.contains(name.as_str())));
        for template in &demo.template {
            assert!(template.like.is_empty() || names.contains(template.like.as_str()), "{}", template.name);
            assert!(template.gpu.as_deref().is_none_or(|gpu| model(gpu).is_some()), "{}", template.name);
        }
        let weights: u64 = demo.template.iter().map(|template| template.weight).sum();
        let mut rng = Rng::new(&[1]);
        let chosen: BTreeSet<&str> =
            (0..50 * weights).filter_map(|_| demo.any(&mut rng)).map(|template| template.name.as_str()).collect();
        assert_eq!(chosen.len(), demo.template.iter().filter(|template| template.weight > 0).count());
    }

    #[test]
    fn jobs_and_events_fit_hosts_of_every_size() {
        let demo = Demo::new();
        for gpus in [1, 2, 7, 8, 16, 30] {
            for index in 0..100 {
                let script = demo.host(1, index, 100, gpus);
                let all = (0..gpus).collect::<Vec<_>>();
                let taken: BTreeSet<usize> = script.jobs.iter().flat_map(|(_, job)| job.gpus.below(gpus)).collect();
                assert!(taken.iter().all(|gpu| all.contains(gpu)));
                assert!(script.jobs.iter().all(|(_, job)| !job.gpus.below(gpus).is_empty()), "host {index}");
                assert!(
                    script.events.iter().filter_map(|event| event.gpus.as_ref()).all(|on| !on.below(gpus).is_empty())
                );
                assert!(script.jobs.iter().all(|(_, job)| job.age.0 < 20.0 * 86_400.0));
            }
        }
    }

    #[test]
    fn a_fleet_of_any_size_has_sorted_names() {
        let name = |index, hosts| Demo::new().host(1, index, hosts, 8).name;
        assert_eq!((name(0, 6), name(5, 6)), ("hgx-01".to_owned(), "hgx-06".to_owned()));
        assert_eq!((name(0, 1000), name(999, 1000)), ("hgx-0001".to_owned(), "hgx-1000".to_owned()));
    }
}
