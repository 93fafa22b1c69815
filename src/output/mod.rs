//! The output of the commands: text, JSON, CSV, metrics and notifications, as pure functions over a [`Report`] or a list of findings.

pub mod csv;
pub mod findings;
pub mod free;
pub mod json;
pub mod notification;
pub mod open_metrics;
pub mod paint;
pub mod status;
pub mod usage_html;
pub mod usage_report;
pub mod why;

#[cfg(test)]
mod fixture;
mod report;

pub use report::Report;
