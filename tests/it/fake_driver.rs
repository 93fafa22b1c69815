//! Builds the fake NVML library and writes its scripts.
