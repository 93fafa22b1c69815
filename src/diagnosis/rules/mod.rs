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
use super::watch::Watches;

/// Asks every rule about one host's sample. Causes come before what they explain.
pub(super) fn evaluate(view: &View, watches: &mut Watches) {
    stuck::evaluate(view, watches);
}
