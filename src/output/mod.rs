//! The fleet as text and JSON: pure functions over a [`Report`].

pub mod findings;
pub mod free;
pub mod json;
pub mod notification;
pub mod paint;
pub mod status;

#[cfg(test)]
mod fixture;
mod report;

pub use report::Report;
