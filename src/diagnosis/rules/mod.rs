//! The rules by subject. Each is a section: what is said of it, its condition, its sentence.

pub(super) mod balance;
pub(super) mod driver;
pub(super) mod ended;
pub(super) mod fleet_wide;
pub(super) mod gpu;
pub(super) mod host;
pub(super) mod idle;
pub(super) mod input;
pub(super) mod memory;
pub(super) mod process;
pub(super) mod stuck;

use super::conditions::Conditions;
use super::rule_context::RuleContext;

/// Asks every rule about one host's sample.
pub(super) fn evaluate(context: &RuleContext, conditions: &mut Conditions) {
    driver::evaluate(context, conditions);
    gpu::evaluate(context, conditions);
    host::evaluate(context, conditions);
    process::evaluate(context, conditions);
    stuck::evaluate(context, conditions);
    idle::evaluate(context, conditions);
    input::evaluate(context, conditions);
    balance::evaluate(context, conditions);
    memory::evaluate(context, conditions);
    ended::evaluate(context, conditions);
}
