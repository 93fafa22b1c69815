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

use super::view::View;
use super::watches::Watches;

/// Asks every rule about one host's sample.
pub(super) fn evaluate(view: &View, watches: &mut Watches) {
    driver::evaluate(view, watches);
    gpu::evaluate(view, watches);
    host::evaluate(view, watches);
    process::evaluate(view, watches);
    stuck::evaluate(view, watches);
    idle::evaluate(view, watches);
    input::evaluate(view, watches);
    balance::evaluate(view, watches);
    memory::evaluate(view, watches);
    ended::evaluate(view, watches);
}
