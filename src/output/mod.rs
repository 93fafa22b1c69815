//! The fleet as text and JSON.
