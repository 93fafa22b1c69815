//! The conditions of the rules, one file per family. `super::rule` documents each rule.

mod clients;
mod cpu_fallback;
mod driver;
mod efficiency;
mod fleet_wide;
mod gpu;
mod host;
mod job;
mod job_ended;
mod memory;
mod process;
mod sharing;
mod spinning;
mod stuck;

pub(super) use fleet_wide::FleetWide;
pub(super) use host::is_reported_by_peer_host;

use super::conditions::Conditions;
use super::rule_context::RuleContext;

/// Evaluates every rule for one sample of one host.
pub(super) fn evaluate(context: &RuleContext, conditions: &mut Conditions) {
    driver::evaluate(context, conditions);
    gpu::evaluate(context, conditions);
    host::evaluate(context, conditions);
    process::evaluate(context, conditions);
    stuck::evaluate(context, conditions);
    job::evaluate(context, conditions);
    job_ended::evaluate(context, conditions);
    cpu_fallback::evaluate(context, conditions);
    efficiency::evaluate(context, conditions);
    memory::evaluate(context, conditions);
    sharing::evaluate(context, conditions);
}
