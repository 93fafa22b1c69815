//! Embeds the probe into the controller.
fn main() {}
