//! The probe binary on the fake driver.
