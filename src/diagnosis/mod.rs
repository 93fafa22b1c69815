//! Judges what the fleet shows: GPU states and, later, findings.
