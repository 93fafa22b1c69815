//! Draws the [`crate::app`]: read-only, no IO.
